"""Output of a response: head, body (JSON indented in a terminal), progress, timings."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, TextIO

from .. import _native, errors
from .._redact import without_secrets
from .call_options import CallOptions

# Larger JSON is not indented, because that needs all of it in memory.
INDENTED_BYTES = 10 << 20
PROGRESS_S = 0.1
PHASES = (
    ("queue", "waiting for a connection"),
    ("dns", "DNS"),
    ("connect", "connect"),
    ("tls", "TLS"),
    ("quic", "QUIC"),
    ("first_byte", "first byte"),
    ("total", "total"),
)


class Output:
    def __init__(self, options: CallOptions) -> None:
        self.options = options
        self.stdout: BinaryIO = sys.stdout.buffer
        self.terminal = sys.stdout.isatty()

    def show(self, response: Any) -> None:
        if self.options.include or response.request.method == "HEAD":
            self.stdout.write(
                head_text(response, response.headers.multi_items()).encode("utf-8", "replace") + b"\r\n"
            )
            self.stdout.flush()
        if self.options.output not in (None, "-"):
            self._save(response, str(self.options.output))
        elif self.terminal and not self.options.stream and not self.options.raw and _is_json(response):
            self._indent(response)
        else:
            self._copy(response)

    def _copy(self, response: Any) -> None:
        guarded = self.terminal and self.options.output is None
        last = b"\n"
        for piece in response.iter_bytes():
            if guarded and b"\0" in piece:
                raise errors.UsageError(
                    "the body is binary and the output is a terminal: use -o FILE, or -o - to print it anyway"
                )
            self.stdout.write(piece)
            self.stdout.flush()
            last = piece
        if guarded and not last.endswith(b"\n"):
            self.stdout.write(b"\n")

    def _indent(self, response: Any) -> None:
        pieces, length = [], 0
        rest = response.iter_bytes()
        for piece in rest:
            pieces.append(piece)
            length += len(piece)
            if length > INDENTED_BYTES:
                break
        body = b"".join(pieces)
        shown = _indented(body) if length <= INDENTED_BYTES else body
        self.stdout.write(shown)
        for piece in rest:
            self.stdout.write(piece)
        self.stdout.write(b"" if shown.endswith(b"\n") else b"\n")

    def _save(self, response: Any, path: str) -> None:
        """Write to a temporary name until the body is complete, so that a truncated download never looks complete."""
        is_regular = not os.path.exists(path) or os.path.isfile(path)
        written = f"{path}.part" if is_regular else path
        try:
            with (
                open(_native.open_output(written), "wb") as file,
                _progress(response, self.options) as progress,
            ):
                for piece in response.iter_bytes():
                    file.write(piece)
                    progress.add(len(piece))
            if is_regular:
                os.replace(written, path)
        except BaseException:
            if is_regular:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(written)
            raise


def _is_json(response: Any) -> bool:
    kind: str = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _indented(body: bytes) -> bytes:
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return body


def head_text(response: Any, fields: Iterable[tuple[str, str]]) -> str:
    lines = [f"{response.http_version} {response.status_code} {response.reason_phrase}".rstrip()]
    lines += [f"{name}: {value}" for name, value in fields]
    return "".join(f"{line}\r\n" for line in lines)


def show_wire(response: Any) -> None:
    """Print both heads in curl's format, without secrets, because such output is pasted into reports."""
    for each in (*response.history, response):
        request = each.request
        target = request.url.raw_path.decode("ascii", "replace")
        lines = [f"> {request.method} {target} {each.http_version}"]
        lines += [f"> {name}: {value}" for name, value in without_secrets(request.headers.multi_items())]
        head = head_text(each, without_secrets(each.headers.multi_items()))
        lines += [">", *(f"< {line}" for line in head.splitlines()), "<"]
        sys.stderr.write("\n".join(lines) + "\n")


def show_timings(response: Any, out: TextIO | None = None) -> None:
    timings = response.timings
    rows = [(label, timings[key]) for key, label in PHASES if timings.get(key) is not None]
    reused = " (connection reused)" if response.reused else ""
    width = max((len(label) for label, _ in rows), default=0)
    lines = [f"{label:<{width}}  {seconds * 1000:10,.2f} ms" for label, seconds in rows]
    (out or sys.stderr).write(
        "".join(f"{line}\n" for line in lines) + (f"{reused.strip()}\n" if reused else "")
    )


# --- progress -----------------------------------------------------------------------------------


class Progress:
    """A progress line on standard error, updated at most ten times a second."""

    def __init__(self, total: int | None, out: TextIO, began: float | None = None) -> None:
        self.total, self.out = total, out
        self.began = time.monotonic() if began is None else began
        self.done, self.due = 0, 0.0

    def add(self, size: int) -> None:
        self.done += size
        now = time.monotonic()
        if now >= self.due:
            self.due = now + PROGRESS_S
            self._draw(now)

    def finish(self) -> None:
        self._draw(time.monotonic())
        self.out.write("\n")

    def _draw(self, now: float) -> None:
        width = shutil.get_terminal_size().columns - 1
        self.out.write("\r" + self.line(now - self.began, width).ljust(width)[:width])
        self.out.flush()

    def line(self, seconds: float, width: int) -> str:
        """The progress line after `seconds`."""
        rate = self.done / seconds if seconds > 0 else 0.0
        figures = f"{size_text(self.done)}  {size_text(rate)}/s"
        if not self.total:
            return figures
        share = min(self.done / self.total, 1.0)
        left = (self.total - self.done) / rate if rate else None
        figures = f"{share:4.0%}  {size_text(self.done)} of {size_text(self.total)}  {size_text(rate)}/s"
        figures += f"  {duration_text(left)} left" if left is not None and share < 1 else ""
        room = width - len(figures) - 4
        if room < 10:
            return figures
        filled = round(share * room)
        return f"[{'#' * filled}{'.' * (room - filled)}] {figures}"


class _NoProgress(Progress):
    def add(self, size: int) -> None:
        """Print nothing."""

    def finish(self) -> None:
        """Print nothing."""


@contextlib.contextmanager
def _progress(response: Any, options: CallOptions) -> Iterator[Progress]:
    length = response.headers.get("content-length", "")
    # The length of an encoded body is not that of the decoded one.
    known = length.isdigit() and "content-encoding" not in response.headers
    shown = sys.stderr.isatty() and not options.silent
    progress = (Progress if shown else _NoProgress)(int(length) if known else None, sys.stderr)
    try:
        yield progress
    finally:
        progress.finish()


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def duration_text(seconds: float) -> str:
    total = round(seconds)
    return (
        f"{total // 3600}:{total // 60 % 60:02}:{total % 60:02}"
        if total >= 3600
        else f"{total // 60}:{total % 60:02}"
    )
