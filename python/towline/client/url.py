"""`URL`: immutable, normalised once, with hidden userinfo in its repr.

URLs are split with the expression of RFC 3986 (appendix B). Characters that are not allowed in a part are
percent-encoded with the sets of the WHATWG URL standard, so that a server sees the bytes that a browser would send;
non-ASCII hosts are converted with UTS 46 (the `idna` package). A URL whose authority browsers and RFC 3986 parse
differently (a backslash, a control character) is rejected: ambiguous URLs are how requests reach the wrong host.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import quote_from_bytes, unquote

from .._redact import HIDDEN, without_secret_parameters
from ..errors import InvalidURL
from .query import QueryParams, QueryParamTypes

MAX_URL_CHARS = 65536  # no server accepts more, and it bounds every regular expression below
DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}

_PARTS = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9+.\-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL
)
_AUTHORITY = re.compile(r"(?:(.*)@)?(\[[^\[\]@]*\]|[^:@\[\]]*)(?::([0-9]*))?", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_REGULAR_NAME = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=%]*")
# WHATWG URL 3.5, "ends in a number": the last label, a dot at the end aside, is decimal or hexadecimal.
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")

_SUB = "!$&'()*+,;="
_PATH_SAFE = _SUB + ":@/[]|"
_QUERY_SAFE = _SUB + ":@/?[]|{}^`\\"
_FRAGMENT_SAFE = _SUB + ":@/?[]|{}^\\#"
_USER_SAFE = _SUB


class URL:
    """Compatible with httpx's URL: `URL("https://example.org/a?b=1")`, `URL(scheme=..., host=..., path=...)`.

    Keyword arguments replace parts of the first argument: scheme, userinfo, username, password, host, port, netloc,
    path, raw_path, query, params, fragment. Raises InvalidURL.
    """

    __slots__ = ("_fragment", "_host", "_path", "_port", "_query", "_scheme", "_text", "_userinfo")

    _scheme: str
    _userinfo: str
    _host: str  # as on the wire: lower case, A-labels, no brackets
    _port: int | None  # None: the default of the scheme
    _path: str
    _query: str | None
    _fragment: str | None
    _text: str | None

    def __init__(self, url: Any = "", **parts: Any) -> None:
        set_part = object.__setattr__
        if isinstance(url, URL):
            for name in URL.__slots__:
                set_part(self, name, getattr(url, name))
        else:
            text = str(url) if hasattr(url, "copy_with") else url  # a URL of httpx
            if not isinstance(text, str):
                raise InvalidURL(f"expected str or URL, not {type(url).__name__}")
            for name, value in _parse(text).items():
                set_part(self, name, value)
        if parts:
            for name, value in _replace_parts(self, parts).items():
                set_part(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a URL is immutable; use copy_with()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a URL is immutable; use copy_with()")

    @property
    def scheme(self) -> str:
        """The scheme in lower case: `http`, `https`, `ws`, `wss`; empty if the URL is relative."""
        return self._scheme

    @property
    def raw_scheme(self) -> bytes:
        """The scheme as bytes."""
        return self._scheme.encode("ascii")

    @property
    def userinfo(self) -> bytes:
        """User name and password, percent-encoded."""
        return self._userinfo.encode("ascii")

    @property
    def username(self) -> str:
        """The user name of the authority, percent-decoded."""
        return unquote(self._userinfo.partition(":")[0])

    @property
    def password(self) -> str:
        """The password of the authority, percent-decoded."""
        return unquote(self._userinfo.partition(":")[2])

    @property
    def host(self) -> str:
        """The host for display: lower case, IDNA decoded, IPv6 without brackets."""
        if "xn--" not in self._host:
            return self._host
        import idna

        try:
            return idna.decode(self._host)
        except (idna.IDNAError, UnicodeError):
            return self._host

    @property
    def raw_host(self) -> bytes:
        """The host for the wire, with A-labels."""
        return self._host.encode("ascii")

    @property
    def port(self) -> int | None:
        """The port; None if it is the default of the scheme."""
        return self._port

    @property
    def netloc(self) -> bytes:
        """`host` or `host:port`, as in the Host header: without the zone of an address (RFC 6874 4)."""
        text = self._netloc()
        return (re.sub(r"%25[^\]]*\]", "]", text) if "%" in text else text).encode("ascii")

    @property
    def path(self) -> str:
        """The decoded path, without the query."""
        return unquote(self._path or ("/" if self._host else ""))

    @property
    def query(self) -> bytes:
        """The query as on the wire, without the question mark."""
        return (self._query or "").encode("ascii")

    @property
    def params(self) -> QueryParams:
        """The query as `QueryParams`."""
        return QueryParams(self._query)

    @property
    def raw_path(self) -> bytes:
        """The request target: path and query as on the wire."""
        path = self._path or ("/" if self._host else "")
        return (path if self._query is None else f"{path}?{self._query}").encode("ascii")

    @property
    def fragment(self) -> str:
        """The part after `#`, percent-decoded; it is not sent."""
        return unquote(self._fragment or "")

    @property
    def is_absolute_url(self) -> bool:
        """Whether there are a scheme and a host."""
        return bool(self._scheme and self._host)

    @property
    def is_relative_url(self) -> bool:
        """The opposite of `is_absolute_url`."""
        return not self.is_absolute_url

    def copy_with(self, **parts: Any) -> URL:
        """A copy with other parts: scheme, userinfo, username, password, host, port, path, query, fragment, params, raw_path."""
        return URL(self, **parts)

    def copy_set_param(self, key: str, value: Any = None) -> URL:
        """A copy whose query has this parameter once."""
        return self.copy_with(params=self.params.set(key, value))

    def copy_add_param(self, key: str, value: Any = None) -> URL:
        """A copy with one more parameter."""
        return self.copy_with(params=self.params.add(key, value))

    def copy_remove_param(self, key: str) -> URL:
        """A copy without the parameters of this name."""
        return self.copy_with(params=self.params.remove(key))

    def copy_merge_params(self, params: QueryParamTypes) -> URL:
        """Returns a copy in which `params` replace the values of their names; other parts of the query keep their bytes."""
        new = QueryParams(params)
        if not new:
            return self
        old = self.params
        if self._query and any(name in old for name in new):
            return self.copy_with(params=old.merge(new))
        joined = f"{self._query}&{new}" if self._query else str(new)
        return _from_state({**_state(self), "_query": joined, "_text": None})

    def join(self, url: URL | str) -> URL:
        """Resolves a reference relative to this URL (RFC 3986 5.2)."""
        there = url if isinstance(url, URL) else URL(url)
        if there._scheme:
            return there
        state = {**_state(there), "_scheme": self._scheme, "_text": None}
        if not there._host:
            state.update(_userinfo=self._userinfo, _host=self._host, _port=self._port)
            if not there._path:
                state["_path"] = self._path
                state["_query"] = self._query if there._query is None else there._query
            elif not there._path.startswith("/"):
                start = "/" if self._host and not self._path else self._path[: self._path.rfind("/") + 1]
                state["_path"] = _remove_dot_segments(start + there._path)
            else:
                state["_path"] = _remove_dot_segments(there._path)
        elif state["_port"] == DEFAULT_PORTS.get(self._scheme):
            state["_port"] = None
        return _from_state(state)

    def _netloc(self) -> str:
        host = f"[{self._host.replace('%', '%25')}]" if ":" in self._host else self._host
        return host if self._port is None else f"{host}:{self._port}"

    def _to_text(self, userinfo: str) -> str:
        authority = f"{userinfo}@{self._netloc()}" if userinfo else self._netloc()
        return "".join(
            [
                f"{self._scheme}:" if self._scheme else "",
                f"//{authority}" if authority else "",
                self._path,
                "" if self._query is None else f"?{self._query}",
                "" if self._fragment is None else f"#{self._fragment}",
            ]
        )

    def __str__(self) -> str:
        if self._text is None:
            object.__setattr__(self, "_text", self._to_text(self._userinfo))
        return self._text or ""

    def _redacted(self, userinfo: str = HIDDEN, parameter: str = HIDDEN) -> str:
        """The text for logs and traces: no fragment, and these in place of credentials."""
        text = self._to_text(userinfo if self._userinfo else "").partition("#")[0]
        return without_secret_parameters(text, parameter)

    def __repr__(self) -> str:
        return f"URL({self._to_text(HIDDEN if self._userinfo else '')!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            try:
                other = URL(other)
            except InvalidURL:
                return False
        return isinstance(other, URL) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return URL, (str(self),)


def origin(url: URL) -> tuple[str, str, int | None]:
    """Returns the origin, which must be equal for credentials to be sent (RFC 6454 4)."""
    return url.scheme, url._host, url._port or DEFAULT_PORTS.get(url.scheme)


def _state(url: URL) -> dict[str, Any]:
    return {name: getattr(url, name) for name in URL.__slots__}


def _from_state(state: dict[str, Any]) -> URL:
    url = object.__new__(URL)
    for name, value in state.items():
        object.__setattr__(url, name, value)
    return url


def _parse(text: str) -> dict[str, Any]:
    if len(text) > MAX_URL_CHARS:
        raise InvalidURL(f"the URL has {len(text)} characters; at most {MAX_URL_CHARS} are supported")
    if control := _CONTROL.search(text):
        raise InvalidURL(
            f"the URL has the control character {control[0]!r} at {control.start()}; percent-encode it, "
            "or strip() the URL if it came from a file"
        )
    scheme, authority, path, query, fragment = _split(text.strip(" "))
    scheme = (scheme or "").lower()
    userinfo, host, port = _authority(authority or "", scheme)
    if not scheme and authority is None and ":" in path.partition("/")[0]:
        raise InvalidURL(
            f"{path.partition(':')[0]!r} before the colon is not a scheme; write https://... or ./..."
        )
    return {
        "_scheme": scheme,
        "_userinfo": userinfo,
        "_host": host,
        "_port": port,
        "_path": _normal_path(path, bool(scheme and authority)),
        "_query": None if query is None else _percent_encode(query, _QUERY_SAFE),
        "_fragment": None if fragment is None else _percent_encode(fragment, _FRAGMENT_SAFE),
        "_text": None,
    }


def _split(text: str) -> tuple[str | None, str | None, str, str | None, str | None]:
    found = _PARTS.fullmatch(text)
    if found is None:  # the expression matches any text
        raise InvalidURL("not a URL")
    return found.groups()  # type: ignore[return-value]


def _authority(text: str, scheme: str) -> tuple[str, str, int | None]:
    found = _AUTHORITY.fullmatch(text)
    if found is None or "\\" in text:
        raise InvalidURL("the part between // and the path is not [user:password@]host[:port] (RFC 3986 3.2)")
    user, host, port = found.groups()
    name, _, password = (user or "").partition(":")
    userinfo = _percent_encode(name, _USER_SAFE) + (
        f":{_percent_encode(password, _USER_SAFE)}" if password else ""
    )
    return userinfo, _host(host), _port(port, scheme)


def _host(host: str) -> str:
    if host.startswith("["):
        # RFC 6874: the zone follows "%25"; the plain "%" of ping and curl is accepted as well
        try:
            return str(ipaddress.IPv6Address(host[1:-1].replace("%25", "%", 1)))
        except ValueError:
            raise InvalidURL(f"{host} is not an IPv6 address") from None
    if not host.isascii():
        host = _a_labels(host)
    if not _REGULAR_NAME.fullmatch(host):
        raise InvalidURL(f"host {host!r} has characters that are not allowed in a host name")
    if _ENDS_IN_NUMBER.fullmatch(host):
        try:
            return str(ipaddress.IPv4Address(host.removesuffix(".")))
        except ValueError:
            # some resolvers accept "127.1", "0x7f.1" and "2130706433" as addresses, which circumvents host lists
            raise InvalidURL(f"host {host!r} is not an IPv4 address of four numbers from 0 to 255") from None
    return host.lower()


def _a_labels(host: str) -> str:
    import idna

    try:
        return idna.encode(host.lower(), uts46=True, transitional=False).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise InvalidURL(f"host {host!r} is not a valid internationalised name: {error}") from None


def _port(port: Any, scheme: str) -> int | None:
    if port is None or port == "":
        return None
    number = (
        int(port) if isinstance(port, int) or (port.isascii() and port.isdigit() and len(port) < 9) else -1
    )
    if not 0 <= number <= 65535:
        raise InvalidURL(f"port {str(port)[:20]} is not between 0 and 65535")
    return None if number == DEFAULT_PORTS.get(scheme) else number


def _normal_path(path: str, absolute: bool) -> str:
    path = _percent_encode(path, _PATH_SAFE)
    return _remove_dot_segments(path) if absolute and "/." in path else path


def _remove_dot_segments(path: str) -> str:
    """Removes dot segments (RFC 3986 5.2.4)."""
    if "." not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment == "..":
            if len(kept) > 1 or (kept and kept[0] != ""):
                kept.pop()
            if last:
                kept.append("")
        elif segment != ".":
            kept.append(segment)
        elif last:
            kept.append("")
    return "/".join(kept)


_ESCAPE = re.compile(r"(%[0-9A-Fa-f]{2})")
_PLAIN = re.compile(r"[A-Za-z0-9\-._~/=&]*")


def _percent_encode(text: str, safe: str) -> str:
    """Percent-encodes characters that are not allowed. Existing escapes are kept."""
    if _PLAIN.fullmatch(text):
        return text
    try:
        parts = _ESCAPE.split(text)
        parts[::2] = [quote_from_bytes(part.encode("utf-8"), safe) for part in parts[::2]]
    except UnicodeEncodeError:
        raise InvalidURL("the URL contains a lone surrogate, which cannot be encoded as UTF-8") from None
    return "".join(parts)


def _replace_parts(url: URL, parts: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of `url` with `parts` replaced."""
    state = _state(url)
    text = {
        name: value.decode("ascii") if isinstance(value, bytes) else value for name, value in parts.items()
    }
    for name in text:
        if name not in _REPLACERS:
            raise TypeError(f"URL has no part {name!r}; the parts are {', '.join(sorted(_REPLACERS))}")
        if isinstance(text[name], str) and name != "params" and _CONTROL.search(text[name]):
            raise InvalidURL(f"{name} has a control character")
    for name in sorted(text, key=list(_REPLACERS).index):
        _REPLACERS[name](state, text[name])
    state["_text"] = None
    if state["_host"] and state["_path"] and not state["_path"].startswith("/"):
        raise InvalidURL("the path of a URL with a host must start with /")
    if not state["_host"] and state["_path"].startswith("//"):
        raise InvalidURL(
            "the path of a URL without a host must not start with //, which would be parsed as a host"
        )
    if state["_scheme"] and state["_host"]:
        state["_path"] = _remove_dot_segments(state["_path"])
    return state


def _set_scheme(state: dict[str, Any], value: str | None) -> None:
    value = (value or "").lower()
    if value and not re.fullmatch(r"[a-z][a-z0-9+.\-]*", value):
        raise InvalidURL(f"{value!r} is not a scheme (RFC 3986 3.1)")
    state["_scheme"] = value
    if state["_port"] == DEFAULT_PORTS.get(value):
        state["_port"] = None


def _set_netloc(state: dict[str, Any], value: str | None) -> None:
    userinfo, state["_host"], state["_port"] = _authority(value or "", state["_scheme"])
    state["_userinfo"] = userinfo or state["_userinfo"]


def _set_userinfo(state: dict[str, Any], value: str | None) -> None:
    name, _, password = (value or "").partition(":")
    state["_userinfo"] = _percent_encode(name, _USER_SAFE) + (
        f":{_percent_encode(password, _USER_SAFE)}" if password else ""
    )


def _set_username(state: dict[str, Any], value: str | None) -> None:
    _, colon, password = state["_userinfo"].partition(":")
    state["_userinfo"] = _component(value) + colon + password


def _set_password(state: dict[str, Any], value: str | None) -> None:
    name = state["_userinfo"].partition(":")[0]
    state["_userinfo"] = f"{name}:{_component(value)}" if value else name


def _component(value: str | None) -> str:
    # "%" is a character of the name here, not the start of an escape
    return quote_from_bytes((value or "").encode("utf-8"), _USER_SAFE)


def _set_host(state: dict[str, Any], value: str | None) -> None:
    value = value or ""
    if ":" in value and not value.startswith("["):
        value = f"[{value}]"
    if re.search(r"[/?#@\\]", value):
        raise InvalidURL(f"host {value!r} has characters that no host name has")
    state["_host"] = _host(value)


def _set_port(state: dict[str, Any], value: Any) -> None:
    state["_port"] = _port(value, state["_scheme"])


def _set_path(state: dict[str, Any], value: str | None) -> None:
    state["_path"] = _percent_encode(value or "", _PATH_SAFE).replace("?", "%3F").replace("#", "%23")


def _set_raw_path(state: dict[str, Any], value: str | None) -> None:
    path, question, query = (value or "").partition("?")
    _set_path(state, path)
    _set_query(state, query if question else None)


def _set_query(state: dict[str, Any], value: str | None) -> None:
    state["_query"] = None if value is None else _percent_encode(value, _QUERY_SAFE)


def _set_params(state: dict[str, Any], value: QueryParamTypes) -> None:
    state["_query"] = str(QueryParams(value)) or None


def _set_fragment(state: dict[str, Any], value: str | None) -> None:
    state["_fragment"] = _percent_encode(value, _FRAGMENT_SAFE) if value else None


# in the order in which they are applied: netloc before host, which overrides it
_REPLACERS = {
    "scheme": _set_scheme,
    "authority": _set_netloc,
    "netloc": _set_netloc,
    "userinfo": _set_userinfo,
    "username": _set_username,
    "password": _set_password,
    "host": _set_host,
    "port": _set_port,
    "path": _set_path,
    "raw_path": _set_raw_path,
    "query": _set_query,
    "params": _set_params,
    "fragment": _set_fragment,
}
