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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILING = re.compile(r"^\s*Compiling ([\w-]+) v")
# Seconds that one core takes for a crate, where they are many; every other one counts as OTHER_S.
WEIGHTS_S = {
    "towline-io": 48,
    "towline-load": 24,
    "towline-py": 20,
    "zstd-sys": 15,
    "pyo3": 11,
    "rustls": 9,
    "towline-proto": 7,
    "toml": 7,
    "jiter": 6,
    "pyo3-macros-backend": 6,
    "ring": 6,
    "rcgen": 5,
    "brotli-decompressor": 5,
    "ratatui-core": 5,
    "serde_json": 4,
    "bitvec": 3,
    "syn": 4,
    "crossterm": 3,
    "zlib-rs": 3,
    "der": 3,
    "pkcs5": 3,
    "serde_derive": 3,
}  # fmt: skip  (a table, four lines instead of forty)
OTHER_S = 0.5
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
    return [
        line.split()[0]
        for line in sorted({line.removesuffix(" (*)") for line in listed.splitlines() if line})
    ]


def weight(crate: str) -> float:
    return WEIGHTS_S.get(crate, OTHER_S)


class Progress:
    """Crates that have started to compile, and the estimate for the rest."""

    def __init__(self, profile: str, total: list[str]) -> None:
        self.profile, self.crates = profile, len(total)
        self.total_s = sum(map(weight, total))
        self.started_at = time.monotonic()
        self.started_crates: list[str] = []
        self.jobs = os.cpu_count() or 1
        self.is_terminal = sys.stdout.isatty()

    def left_s(self) -> float | None:
        """Seconds to come. Those that run at the moment, one a core, count half."""
        running = sum(map(weight, self.started_crates[-self.jobs :])) / 2
        done = sum(map(weight, self.started_crates)) - running
        elapsed = time.monotonic() - self.started_at
        if not self.total_s or done < 0.05 * self.total_s:
            return None
        return max(0.0, self.total_s - done) * elapsed / done

    def line(self) -> str:
        elapsed = time.monotonic() - self.started_at
        text = f"{self.profile} build, {duration(elapsed)}"
        if self.started_crates and self.total_s:
            text += f": crate {len(self.started_crates)} of {self.crates} ({self.started_crates[-1]})"
        elif self.started_crates:
            text += f": {self.started_crates[-1]}"
        remaining = self.left_s()
        return text + (f", about {duration(remaining)} left" if remaining is not None else "")

    def show(self) -> None:
        if self.is_terminal:
            print(f"\r\033[K{self.line()}", end="", flush=True)
        else:
            print(self.line(), flush=True)

    def watch(self, finished: threading.Event) -> None:
        while not finished.wait(TERMINAL_EVERY_S if self.is_terminal else LOG_EVERY_S):
            self.show()


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def is_first(profile: str) -> bool:
    """Whether nothing has been compiled with this profile: only then is the number of crates known."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return not (folder / profile / "deps").exists()


def main() -> int:
    profile = sys.argv[1]
    progress = Progress(profile, crates() if is_first(profile) else [])
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
                    progress.started_crates.append(found[1])
        finally:
            finished.set()
            watcher.join()
    if progress.is_terminal:
        print("\r\033[K", end="")
    if build.returncode == 0:
        print(f"{profile} build: done in {duration(time.monotonic() - progress.started_at)}", flush=True)
    else:
        sys.stderr.write("".join(last))
    return build.returncode


if __name__ == "__main__":
    sys.exit(main())
