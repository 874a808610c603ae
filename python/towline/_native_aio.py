"""Python functions of the native asynchronous client: waiting in trio, and uploads in pieces."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

from ._aio import Task, sleep

if TYPE_CHECKING:
    from ._native import AsyncReply

_READ_BYTES = 65536  # of a file object that the native code cannot read

# How long a server that has responded takes nothing before its response is returned all the same: if the client holds
# so much of it that the server may be unable to send more, and otherwise.
_FULL_BYTES = 32768
_STUCK_S = 0.1
_SILENT_S = 5.0


async def watch(driver: Any, fd: int) -> None:
    """Runs the turns of a driver, as a trio system task that ends with the run."""
    from trio.lowlevel import wait_readable

    try:
        while not driver.closed:
            await wait_readable(fd)
            driver.turn()
    finally:
        driver.abort()


async def run_in_trio(operation: Any) -> Any:
    """Runs a native operation in a trio task, with the checkpoints at entry and exit that trio functions have."""
    from trio import lowlevel

    try:
        await lowlevel.checkpoint_if_cancelled()
        done, value = operation.poll()
        if done:
            await lowlevel.cancel_shielded_checkpoint()
        while done is False:
            wake = partial(_reschedule, lowlevel.reschedule, lowlevel.current_task())
            operation.wait(wake)
            await lowlevel.wait_task_rescheduled(partial(_abort, lowlevel.Abort.SUCCEEDED, operation))
            done, value = operation.poll()
    except BaseException:
        operation.cancel()
        raise
    return await value if done is None else value


def _reschedule(reschedule: Any, task: Any, _waiter: Any) -> None:
    reschedule(task)


def _abort(succeeded: Any, operation: Any, _raise_cancel: Any) -> Any:
    operation.cancel()  # at once: a turn that runs before the task must not wake it a second time
    return succeeded


async def upload(sender: Any, body: Any) -> AsyncReply:
    """Waits for the response while a background task sends the pieces of `body`, also while the response is read."""
    task = UploadTask(sender, body)
    try:
        reply: AsyncReply = await sender.reply(task)
        if isinstance(body, SentFirst):
            await task.wait_until_stuck(reply)
    except BaseException:
        sender.cancel()
        task.cancel()
        await task.wait()
        raise
    return reply


class SentFirst:
    """A body that is sent before the response is returned, as httpx does it, unless the server takes no more of it."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __aiter__(self) -> Any:
        return self._body.__aiter__()


class UploadTask(Task):
    def __init__(self, sender: Any, body: Any) -> None:
        self._stuck = False
        self._progress = 0
        super().__init__(partial(_send_all, sender, body, self))

    def note_stuck(self, stuck: bool) -> None:
        self._stuck = stuck
        self._progress += 1
        self._ended.fire()

    async def wait_until_stuck(self, reply: AsyncReply) -> None:
        """Waits for the end of the task, or until the server takes no more: it may wait for its response to be read."""
        while not self.done:
            before, waited = self._progress, 0.0
            if not self._stuck:
                await self._ended.wait()
            while self._progress == before and not self.done:
                if waited >= (_STUCK_S if reply.buffered >= _FULL_BYTES else _SILENT_S):
                    return
                await sleep(_STUCK_S)
                waited += _STUCK_S

    def end(self) -> Awaitable[None] | None:
        """Cancels the task unless it has ended. Returns an awaitable of its end."""
        if self.done:
            return None
        self.cancel()
        return self.wait()


async def _send_all(sender: Any, body: Any, task: UploadTask) -> None:
    """Sends the pieces as flow control allows, until their end or until the server does not want the rest."""
    try:
        if await _write_all(sender, body, task):
            sender.finish()
    except BaseException as error:
        sender.fail(error)  # to the reader of the response; after the end of the call to nobody


async def _write_all(sender: Any, body: Any, task: UploadTask) -> bool:
    if not await sender.room():  # wait for a connection before the first piece is produced
        return False
    if hasattr(body, "__aiter__"):
        try:
            async for piece in body:
                if not await _write(sender, piece, task):
                    return False
        finally:
            if hasattr(body, "aclose"):
                await body.aclose()
        return True
    pieces = iter(partial(body.read, _READ_BYTES), b"") if hasattr(body, "read") else body
    for piece in pieces:
        if not await _write(sender, piece, task):
            return False
    return True


async def _write(sender: Any, piece: Any, task: UploadTask) -> bool:
    while not sender.write(piece):
        task.note_stuck(True)
        if not await sender.room():
            return False
        task.note_stuck(False)
    return True
