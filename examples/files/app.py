"""A file service: uploads are streamed to disk, downloads are Towline's static files.

    python examples/files/app.py /tmp/shared

    curl -T report.pdf http://127.0.0.1:8000/uploads/report.pdf     # {"name": "report.pdf", "bytes": ..., "sha256": ...}
    curl -O -C - http://127.0.0.1:8000/files/report.pdf             # ranges: continues where it was interrupted
    curl -X DELETE http://127.0.0.1:8000/uploads/report.pdf

A file appears, or is replaced, at once and whole: it is received under a hidden name in the same directory, flushed to the
disk and renamed. `If-None-Match: *` never replaces one (412). A client that leaves in between leaves nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import towline

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

PREFIX = "/uploads/"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""One segment of a path that is not hidden: static files begin with no dot."""
PRECOMPRESSED = (".br", ".gz", ".zst")
"""Static serving sends such a file in place of the one without the ending, to clients that accept the coding."""
PART = ".part-"
ABANDONED = 24 * 3600.0
"""Seconds after which a part is one of a worker that was killed."""
WRITTEN_AT_ONCE = 256 << 10
"""Bytes that are collected for a write: each is a trip to a thread, so that a slow disk delays no other request."""


class FileService:
    """The ASGI application: PUT and DELETE. The server itself responds to GET and HEAD below /files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] != "http":
            raise NotImplementedError(f"http only, not {scope['type']}")
        else:
            status, value, headers = await self._respond(scope, receive)
            await respond(send, status, value, headers)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.to_thread(remove_abandoned_parts, self._directory)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        path, method = scope["path"], scope["method"]
        name = path.removeprefix(PREFIX)
        if not path.startswith(PREFIX):
            return 404, {"error": "no such resource"}, []
        if not NAME.fullmatch(name) or name.endswith(PRECOMPRESSED):
            return 400, {"error": f"a name is {NAME.pattern}, not ending with {' '.join(PRECOMPRESSED)}"}, []
        if method == "PUT":
            return await self._upload(name, scope, receive)
        if method == "DELETE":
            return await asyncio.to_thread(self._delete, name)
        return 405, {"error": "PUT or DELETE; GET is below /files/"}, [(b"allow", b"PUT, DELETE")]

    async def _upload(
        self, name: str, scope: Scope, receive: Receive
    ) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        only_new = dict(scope["headers"]).get(b"if-none-match", b"").strip() == b"*"
        if only_new and (self._directory / name).exists():
            return 412, {"error": f"{name} exists"}, []  # before the upload, where that can be known
        try:
            part = await asyncio.to_thread(Part, self._directory)
            try:
                await part.receive(receive)
                await asyncio.to_thread(part.publish, name, only_new=only_new)
            finally:
                await asyncio.to_thread(part.discard)
        except FileExistsError:
            return 412, {"error": f"{name} exists"}, []
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            return 507, {"error": "no space is left"}, []
        location = f"/files/{name}".encode()
        return 201, {"name": name, "bytes": part.size, "sha256": part.sha256}, [(b"location", location)]

    def _delete(self, name: str) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        try:
            (self._directory / name).unlink()
        except FileNotFoundError:
            return 404, {"error": f"there is no {name}"}, []
        return 200, {"name": name}, []


class Part:
    """A file that is being received. Everything but `receive` blocks, and is called in a thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # In the same directory, since a rename is atomic within one file system only.
        self._file = tempfile.NamedTemporaryFile(dir=directory, prefix=PART, delete=False)  # noqa: SIM115
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    async def receive(self, receive: Receive) -> None:
        """Writes the body. The client sends no faster: the server reads on when `receive` is called again."""
        collected = bytearray()
        more = True
        while more:
            message = await receive()
            if (
                message["type"] == "http.disconnect"
            ):  # also after a body above the limit, when the server says 413
                raise towline.ClientDisconnected("the upload is not complete")
            collected += message.get("body", b"")
            more = message.get("more_body", False)
            if len(collected) >= WRITTEN_AT_ONCE or not more:
                await asyncio.to_thread(self._write, bytes(collected))
                collected.clear()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    def publish(self, name: str, *, only_new: bool) -> None:
        """Gives the file its name, once its content is on the disk. Raises FileExistsError with `only_new`."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if only_new:
            os.link(self._file.name, self._directory / name)
        else:
            os.replace(self._file.name, self._directory / name)
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Removes the hidden name, if it is still there."""
        with contextlib.suppress(OSError):  # a full disk fails the flush of `close` once more
            self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


def remove_abandoned_parts(directory: Path) -> None:
    for path in directory.glob(f"{PART}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()


async def respond(send: Send, status: int, value: Any, headers: Iterable[tuple[bytes, bytes]]) -> None:
    body = json.dumps(value).encode() + b"\n"
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Serves a directory: PUT and DELETE /uploads/NAME, GET /files/NAME."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max-bytes", type=int, default=1 << 30, help="of a file; a larger upload gets 413")
    arguments = parser.parse_args()
    try:
        arguments.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(str(error))
    towline.serve(
        FileService(arguments.directory),
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        limit_request_body=arguments.max_bytes,
        limit_concurrency=1000,
        static=(("/files", str(arguments.directory)),),
        static_expires=0,  # files are replaced: a cache has to ask, and gets 304
        # Uploads come from anyone: a browser must neither guess their type nor run their scripts as ours.
        headers=((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"sandbox")),
    )


if __name__ == "__main__":
    main()
