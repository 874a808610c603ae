"""Names of httpx and requests that `import towline as httpx` and `import towline as requests` find besides ours.

A name that both packages have means what it means in httpx; `towline.exceptions` has those of requests. Nothing is imported
before it is used, and `dir` lists none of them. docs/migrate-client.md has all names.
"""

from __future__ import annotations

import urllib.parse
from importlib import import_module
from types import ModuleType
from typing import Any

from .. import __all__ as ours
from .._suggest import closest
from .hints import MODULE

# Module of requests, "" for all of them and the packages -> names that are called otherwise here.
_RENAMED = {
    "": "ByteStream=BytesBody CloseError=WriteError FileModeWarning=Warning HTTPStatusError=StatusError PreparedRequest=Request "
    "RequestException=Error RequestsDependencyWarning=Warning StreamClosed=StreamConsumed TimeoutException=TimeoutError "
    "URLRequired=InvalidURL USE_CLIENT_DEFAULT=UNSET session=Session",
    "auth": "AuthBase=object HTTPBasicAuth=BasicAuth HTTPDigestAuth=DigestAuth",
    "cookies": "CookieConflictError=CookieConflict RequestsCookieJar=Cookies cookiejar_from_dict=Cookies",
    "exceptions": "ContentDecodingError=DecodingError HTTPError=StatusError InvalidJSONError=JSONDecodeError "
    "InvalidProxyURL=ConfigError InvalidSchema=UnsupportedProtocol MissingSchema=UnsupportedProtocol RequestsWarning=Warning "
    "RetryError=StatusError SSLError=TLSError StreamConsumedError=StreamConsumed Timeout=TimeoutError "
    "UnrewindableBodyError=StreamConsumed",
    "structures": "CaseInsensitiveDict=Headers",
    "utils": "cookiejar_from_dict=Cookies dict_from_cookiejar=dict",
}
_MODULES = "adapters api auth certs compat cookies exceptions hooks models packages sessions status_codes structures utils"
# Names that are not public here -> their modules.
_ELSEWHERE = {"BytesBody": "client.encode", "Session": "client.client", "UNSET": "client.options"}
_ELSEWHERE |= dict.fromkeys(("ChunkedEncodingError", "ConnectionError"), "errors")


class _Module(ModuleType):
    """A module of requests: `towline.auth` for example."""

    def __getattr__(self, name: str) -> Any:
        return find(name, self.__name__)


def find(name: str, module: str = "") -> Any:
    """Returns what a name of a peer means here. Raises AttributeError, which says what to write instead."""
    pairs = (pair.split("=") for pair in f"{_RENAMED['']} {_RENAMED.get(module, '')}".split())
    renamed = dict(pairs).get(name, name)
    if renamed in _ELSEWHERE:
        return getattr(import_module(f"towline.{_ELSEWHERE[renamed]}"), renamed)
    if renamed in (*ours, "Warning", "dict", "object") and (module or renamed != name):
        return getattr(import_module("towline" if renamed in ours else "builtins"), renamed)
    if module in ("compat", "utils") and hasattr(urllib.parse, name):
        return getattr(urllib.parse, name)
    if not module and name in _MODULES.split():
        return _Module(name)
    hint, close = "; keep the package requests for it" if module else "", closest(name, ours)
    if name in MODULE or close:
        hint = f"; here it is {MODULE[name]}" if name in MODULE else f"; did you mean {close}?"
    raise AttributeError(f"module {f'towline.{module}'.rstrip('.')!r} has no attribute {name!r}{hint}")
