"""The signal handlers of a server, which end in a child that is forked.

A child inherits handlers and the wake-up descriptor (`signal.set_wakeup_fd`), a pipe or socket that it shares with its
parent: `Process.terminate()` would end the parent's service instead of the child. So the child gets what was there
before the server. Signals are blocked during the fork, because one that arrives in between would still be written to
the descriptor. A child that starts another program keeps ignored signals, so the server ignores none: it handles them
and does nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_installed: dict[int, tuple[Any, Any]] = {}
"""By signal: our handler, and the one before."""
_forking = threading.local()


def install(
    number: int,
    action: Callable[..., object],
    *arguments: object,
    loop: asyncio.AbstractEventLoop | None = None,
    shown: Callable[[int, object], None] | None = None,
) -> None:
    """Call `action` for a signal, from `loop` if one is given; only in the main thread.

    `shown`: the handler that `signal.getsignal` finds. A loop gets its signals through a descriptor beside it; without a
    loop this handler is the only one.
    """
    before = signal.getsignal(number)
    if loop is not None:
        loop.add_signal_handler(number, action, *arguments)
        if shown is not None:
            signal.signal(number, shown)
            signal.siginterrupt(number, False)  # as the loop does
    else:
        signal.signal(number, shown or (lambda *_: action(*arguments)))
        # System calls of the application go on, as if the signal were ignored.
        signal.siginterrupt(number, False)
    _, original = _installed.get(number, (None, before))
    _installed[number] = signal.getsignal(number), original


def ignore(number: int) -> None:
    """Let nothing happen at a signal. Programs that this process starts do not inherit it."""
    install(number, lambda: None)


def original(number: int) -> Any:
    """The handler from before the server."""
    return _installed[number][1] if number in _installed else signal.getsignal(number)


def restore() -> None:
    """Restore the handlers from before the server, unless the application has installed others."""
    for number, (handler, original) in _installed.items():
        if signal.getsignal(number) in (handler, signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, signal.SIG_DFL if original is None else original)
    _installed.clear()


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _installed.keys())


def _after_fork_in_child() -> None:
    if _installed:
        signal.set_wakeup_fd(-1)
    restore()
    _after_fork()


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
