"""Every exception Towline raises, defined once. The native module imports these classes by name.

```
Error
├ UsageError
│  ├ ConfigError(ValueError) ─ ImportFromStringError
│  └ ResponseStateError(RuntimeError)
├ StartupError
└ ClientDisconnected(OSError)
```
"""

from __future__ import annotations


class Error(Exception):
    """The root: `except towline.Error` catches whatever is ours."""


class UsageError(Error):
    """The calling program asked for something that cannot be done."""


class ConfigError(UsageError, ValueError):
    """An option has a value that makes no sense; the message starts with the option's name."""


class ImportFromStringError(ConfigError):
    """`module:attribute` names nothing that can be imported; the message suggests what may be meant."""


class ResponseStateError(UsageError, RuntimeError):
    """The application sent a message that its response cannot take now (body before start, two starts)."""


class StartupError(Error):
    """The server could not begin to serve: a port in use, an unreadable certificate, a failed lifespan.

    On the command line it becomes one message and exit status 3.
    """


class ClientDisconnected(Error, OSError):
    """`send()` after the client has gone (ASGI specification 2.4 asks for an OSError)."""
