"""Python functions of the native asynchronous client: waiting in trio, and uploads in pieces."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

from ._aio import Task

if TYPE_CHECKING:
    from ._native import AsyncReply

_READ_BYTES = 65536  # of a file object that the native code cannot read


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
    task = UploadTask(partial(_send_all, sender, body))
    try:
        reply: AsyncReply = await sender.reply(task)
    except BaseException:
        sender.cancel()
        task.cancel()
        await task.wait()
        raise
    return reply


class UploadTask(Task):
    def end(self) -> Awaitable[None] | None:
        """Cancels the task unless it has ended. Returns an awaitable of its end."""
        if self.done:
            return None
        self.cancel()
        return self.wait()


async def _send_all(sender: Any, body: Any) -> None:
    """Sends the pieces as flow control allows, until their end or until the server does not want the rest."""
    try:
        if await _write_all(sender, body):
            sender.finish()
    except BaseException as error:
        sender.fail(error)  # to the reader of the response; after the end of the call to nobody


async def _write_all(sender: Any, body: Any) -> bool:
    if not await sender.room():  # wait for a connection before the first piece is produced
        return False
    if hasattr(body, "__aiter__"):
        try:
            async for piece in body:
                while not sender.write(piece):
                    if not await sender.room():
                        return False
        finally:
            if hasattr(body, "aclose"):
                await body.aclose()
        return True
    pieces = iter(partial(body.read, _READ_BYTES), b"") if hasattr(body, "read") else body
    for piece in pieces:
        while not sender.write(piece):
            if not await sender.room():
                return False
    return True
