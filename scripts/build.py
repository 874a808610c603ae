"""Builds the extension into this environment with progress and an estimate: `python scripts/build.py PROFILE`.

maturin does the work. At a terminal one line is rewritten, elsewhere a line is written now and then.
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILING = re.compile(r"^\s*Compiling ([\w-]+) v")
WEIGHTS_S = {
    **{"towline-load": 37, "towline-io": 31, "towline-py-server": 17},
    **{"towline-py-client": 10, "towline-py": 8, "towline-proto": 7},
    **dict.fromkeys(["rustls", "zstd-sys"], 10),
    **dict.fromkeys(["quinn-proto", "ring"], 7),
    **dict.fromkeys(["pyo3", "jiter", "lmdb-master-sys"], 4),
    **dict.fromkeys(["brotli", "brotli-decompressor", "ratatui-widgets", "zerocopy"], 3),
    **dict.fromkeys(["bitvec", "nom", "pyo3-macros-backend", "ratatui-core"], 2.3),
    **dict.fromkeys(["serde_derive", "serde_json", "syn", "towline-state", "zlib-rs"], 2.3),
}
"""Processor time of crates, C compiler included, with the profile `fast-build`. Every other crate has OTHER_S."""
OTHER_S = 0.3
LTO_S = 91
"""Processor time that `towline-py` takes in addition with the profile `release`: it optimises all crates together."""
ROUNDS = 4
"""Iterations of the fixed point between the pace of a core and what it has done."""
TERMINAL_EVERY_S, LOG_EVERY_S = 0.5, 20.0


def crates() -> list[str]:
    """Names of all crates that a clean build compiles."""
    tree = [
        "cargo",
        "tree",
        "--locked",
        "--package",
        "towline-py",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
    ]
    listed = subprocess.run(tree, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return [line.split()[0] for line in {line.removesuffix(" (*)") for line in listed.splitlines() if line}]


class Progress:
    """Crates that have started to compile, and the estimate for the rest."""

    def __init__(self, profile: str, total: Sequence[str], *, jobs: int, began: float) -> None:
        self.profile, self.crates, self.jobs, self.began = profile, len(total), jobs, began
        self.total_s = sum(map(self.weight, total))
        self.started: list[tuple[str, float]] = []

    def weight(self, crate: str) -> float:
        is_lto = crate == "towline-py" and self.profile == "release"
        return WEIGHTS_S.get(crate, OTHER_S) + (LTO_S if is_lto else 0)

    def left_s(self, now: float) -> float | None:
        """Seconds to come. Each core is as fast as it was so far; a crate ends when it has had its time on one core."""
        elapsed = (now - self.began) * self.jobs
        started = [(self.weight(crate), now - at) for crate, at in self.started]
        done = sum(weight for weight, _ in started)
        if not self.total_s or done < 0.05 * self.total_s:
            return None
        for _ in range(ROUNDS):
            pace = done / elapsed
            done = sum(min(weight, since * pace) for weight, since in started)
        longest = max(weight - since * pace for weight, since in started)
        return max((self.total_s - done) / self.jobs, longest, 0.0) / pace

    def line(self, now: float) -> str:
        text = f"{self.profile} build, {duration(now - self.began)}"
        if self.started and self.total_s:
            text += f": crate {len(self.started)} of {self.crates} ({self.started[-1][0]})"
        elif self.started:
            text += f": {self.started[-1][0]}"
        left = self.left_s(now)
        return text + (f", about {duration(left)} left" if left is not None else "")

    def watch(self, finished: threading.Event) -> None:
        is_terminal = sys.stdout.isatty()
        while not finished.wait(TERMINAL_EVERY_S if is_terminal else LOG_EVERY_S):
            line = self.line(time.monotonic())
            print(f"\r\033[K{line}" if is_terminal else line, end="" if is_terminal else "\n", flush=True)
        if is_terminal:
            print("\r\033[K", end="")


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def is_first(profile: str) -> bool:
    """Whether nothing has been compiled with this profile: only then is the number of crates known."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return not (folder / profile / "deps").exists()


def main() -> int:
    profile = sys.argv[1]
    total = crates() if is_first(profile) else []
    progress = Progress(profile, total, jobs=os.cpu_count() or 1, began=time.monotonic())
    maturin = Path(sys.prefix, "bin", "maturin")
    last = collections.deque[str](maxlen=200)
    finished = threading.Event()
    watcher = threading.Thread(target=progress.watch, args=(finished,))
    command = [maturin, "develop", "--locked", "--profile", profile]
    # maturin needs the environment.
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix, "CARGO_TERM_COLOR": "never"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as build:
        assert build.stdout is not None
        watcher.start()
        try:
            for line in build.stdout:
                last.append(line)
                if found := COMPILING.match(line):
                    progress.started.append((found[1], time.monotonic()))
        finally:
            finished.set()
            watcher.join()
    if build.returncode == 0:
        print(f"{profile} build: done in {duration(time.monotonic() - progress.began)}", flush=True)
    else:
        sys.stderr.write("".join(last))
    return build.returncode


if __name__ == "__main__":
    sys.exit(main())
