"""Cookies (RFC 6265bis).

The store is the standard library's `http.cookiejar.CookieJar`, so that its file formats work (`MozillaCookieJar`). The
rules are implemented here: those of the library are of an older specification, without prefixes, SameSite and limits.
Input from a peer never raises: a cookie that breaks a rule is not stored.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Iterator, Mapping, MutableMapping
from http.cookiejar import Cookie, CookieJar, http2time  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, TypeAlias

from .._redact import HIDDEN
from ..errors import CookieConflict, UsageError
from .hints import checked_pairs
from .url import URL

if TYPE_CHECKING:
    from .request import Request
    from .response import Response

CookieTypes: TypeAlias = "Cookies | CookieJar | Mapping[str, str] | list[tuple[str, str]] | None"

MAX_COOKIE_BYTES = 4096  # name and value (5.6, step 5)
MAX_ATTRIBUTE_BYTES = 1024  # a longer attribute is ignored (5.6, step 6 of the attributes)
MAX_PER_DOMAIN = 180  # 6.1 requires at least 50; browsers keep 150 to 180
MAX_COOKIES = 3000  # 6.1
_EVICTED_AT_ONCE = 100  # from a full jar, so that not every new cookie searches for the oldest
MAX_LIFETIME_S = 400 * 86400  # 5.5: no cookie lives longer

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_MAX_AGE = re.compile(r"-?[0-9]{1,19}")


class Cookies(MutableMapping[str, str]):
    """Compatible with httpx's Cookies. A cookie set without a domain is sent with every request of the program."""

    def __init__(self, cookies: CookieTypes = None) -> None:
        self._stored = 0  # an upper bound of the number of cookies set by peers
        if isinstance(cookies, CookieJar):
            self.jar = cookies
            return
        self.jar = CookieJar()
        self.update(cookies)

    def __getstate__(self) -> list[Cookie]:
        return self._all()

    def __setstate__(self, cookies: list[Cookie]) -> None:
        self._stored, self.jar = len(cookies), CookieJar()
        for cookie in cookies:
            self.jar.set_cookie(cookie)

    def set(self, name: str, value: str, domain: str = "", path: str = "/") -> None:
        """Sets a cookie, for the lifetime of the client. Raises UsageError."""
        for part, given in (("a name", name), ("a value", value)):
            if not isinstance(given, str):
                raise UsageError(
                    f"cookie {name!r}: {part} is str, not {type(given).__name__}; write str(...)"
                )
        try:
            (name + value).encode("utf-8")
            wrong = _CONTROL.search(name + value) or ";" in name + value or "=" in name
        except UnicodeEncodeError:
            wrong = True
        if wrong:
            raise UsageError(
                f"cookie {name!r}: control characters and ';' are not allowed, nor '=' in the name"
            )
        self.jar.set_cookie(_cookie(name, value, domain.lower(), bool(domain), path or "/", False, None, {}))

    def get(  # type: ignore[override]
        self, name: str, default: str | None = None, domain: str | None = None, path: str | None = None
    ) -> str | None:
        """Returns the value of a cookie. Raises UsageError if several match `name`, `domain` and `path`."""
        found = [cookie for cookie in self._all() if _matches(cookie, name, domain, path)]
        if len(found) > 1:
            raise CookieConflict(
                f"{len(found)} cookies are named {name!r}; choose one with domain= and path="
            )
        return (found[0].value or "") if found else default

    def delete(self, name: str, domain: str | None = None, path: str | None = None) -> None:
        """Removes the cookies of this name, those of all domains and paths unless given. Raises KeyError if there is none."""
        if domain is not None and path is not None:
            try:
                self.jar.clear(domain, path, name)
            except KeyError:
                pass
            return
        for cookie in self._all():
            if _matches(cookie, name, domain, path):
                self.jar.clear(cookie.domain, cookie.path, cookie.name)

    def clear(self, domain: str | None = None, path: str | None = None) -> None:
        """Removes all cookies, those of a domain, or those of a path of a domain."""
        for cookie in self._all():
            if (domain is None or cookie.domain == domain) and (path is None or cookie.path == path):
                self.jar.clear(cookie.domain, cookie.path, cookie.name)

    def update(self, cookies: CookieTypes = None) -> None:  # type: ignore[override]
        if isinstance(cookies, (Cookies, CookieJar)):
            for cookie in list(cookies.jar if isinstance(cookies, Cookies) else cookies):
                self.jar.set_cookie(cookie)
        elif hasattr(cookies, "jar"):  # httpx's
            self.update(cookies.jar)  # type: ignore[union-attr]
        elif cookies:
            pairs = cookies.items() if isinstance(cookies, Mapping) else checked_pairs("cookies", cookies)
            for name, value in pairs:
                self.set(name, value)

    def extract_cookies(self, response: Response) -> None:
        """Stores the cookies of a response that the rules allow."""
        fields = [value for name, value in response.headers.raw if name.lower() == b"set-cookie"]
        if fields:
            self.store(response.url, fields)

    def store(self, url: URL, fields: list[bytes], now: float | None = None) -> None:
        """Stores the cookies of the Set-Cookie values of a response from `url` (5.7)."""
        now = time.time() if now is None else now
        for field in fields:
            cookie = parse_set_cookie(field.decode("utf-8", "surrogateescape"), url, now)
            if cookie is not None:
                self._put(cookie, url, now)

    def set_cookie_header(self, request: Request) -> None:
        """Sets the Cookie header of a request, unless it has one."""
        if "cookie" not in request.headers and (value := self.header_for(request.url)):
            request.headers._append(b"Cookie", value)

    def header_for(self, url: URL, *, own: bool = True, now: float | None = None) -> bytes:
        """Returns the Cookie value for `url` (5.8.3), empty if there is none. `own`: include cookies without a domain."""
        if not self:
            return b""
        now = time.time() if now is None else now
        host, path = _host_of(url), url.raw_path.partition(b"?")[0].decode("ascii")
        fitting = [
            cookie
            for cookie in self._of_host(host, own)
            if path_matches(path, cookie.path)
            and (url.scheme == "https" or not cookie.secure)
            and (cookie.expires is None or cookie.expires > now)
        ]
        # longer paths first; equal ones stay in the order of the jar, oldest first
        fitting.sort(key=lambda cookie: -len(cookie.path))
        pairs = [f"{cookie.name}={cookie.value}" if cookie.name else cookie.value or "" for cookie in fitting]
        return "; ".join(pairs).encode("utf-8", "surrogateescape")

    def _of_host(self, host: str, own: bool) -> Iterator[Cookie]:
        """Yields the cookies of a host and of its parent domains, without visiting the others."""
        with self.jar._cookies_lock:  # type: ignore[attr-defined]
            stored: dict[str, dict[str, dict[str, Cookie]]] = self.jar._cookies  # type: ignore[attr-defined]
            domains = [host] if _is_address(host) else _with_parents(host)
            keys = [key for domain in domains for key in (domain, f".{domain}", f"{domain}.local")]
            if own:
                keys.append("")
            return iter(
                [
                    cookie
                    for key in keys
                    for names in list(stored.get(key, {}).values())
                    for cookie in names.values()
                    if key in ("", host, f"{host}.local") or cookie.domain_specified
                ]
            )

    def _put(self, cookie: Cookie, url: URL, now: float) -> None:
        if cookie.expires is not None and cookie.expires <= now:
            self.delete(cookie.name, cookie.domain, cookie.path)
            return
        if url.scheme != "https" and any(
            _protects(old, cookie) for old in self._of_host(_host_of(url), False)
        ):
            return
        self.jar.set_cookie(cookie)
        self._evict(cookie.domain, now)

    def _evict(self, domain: str, now: float) -> None:
        """Evicts expired cookies first, then the oldest of the domain, then the oldest of all (5.7, last step)."""
        paths = self.jar._cookies.get(domain, {})  # type: ignore[attr-defined]
        self._evict_oldest(
            [cookie for names in paths.values() for cookie in names.values()], MAX_PER_DOMAIN, 1, now
        )
        self._stored += 1
        if self._stored > MAX_COOKIES:  # counting visits every cookie: only if there may be too many
            self._evict_oldest(self._all(), MAX_COOKIES, _EVICTED_AT_ONCE, now)
            self._stored = len(self.jar)

    def _evict_oldest(self, cookies: list[Cookie], most: int, at_once: int, now: float) -> None:
        if len(cookies) <= most:
            return
        cookies.sort(key=lambda cookie: (cookie.expires is None or cookie.expires > now, _created(cookie)))
        for cookie in cookies[: len(cookies) - most + at_once - 1]:
            self.delete(cookie.name, cookie.domain, cookie.path)

    def _all(self) -> list[Cookie]:
        return list(self.jar)

    def __setitem__(self, name: str, value: str) -> None:
        self.set(name, value)

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def __iter__(self) -> Iterator[str]:
        return iter([cookie.name for cookie in self._all()])

    def __len__(self) -> int:
        return len(self.jar)

    def __bool__(self) -> bool:
        return bool(self.jar._cookies) and next(iter(self.jar), None) is not None  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        shown = ", ".join(f"<Cookie {cookie.name}={HIDDEN} for {cookie.domain} />" for cookie in self._all())
        return f"<Cookies[{shown}]>"


def parse_set_cookie(field: str, url: URL, now: float) -> Cookie | None:
    """Parses a Set-Cookie value from `url`. Returns None if a rule forbids the cookie (5.6 and 5.7)."""
    if _CONTROL.search(field):
        return None
    pair, *rest = field.split(";")
    name, equals, value = pair.partition("=")
    name, value = (name.strip(" \t"), value.strip(" \t")) if equals else ("", pair.strip(" \t"))
    if not name and not value:
        return None
    if len((name + value).encode("utf-8", "surrogateescape")) > MAX_COOKIE_BYTES:
        return None
    attributes = _attributes(rest)
    host = _host_of(url)
    domain = _domain(attributes.get("domain", ""), host)
    path = attributes.get("path", "")
    if domain is None or not _is_allowed(name, value, attributes, url):
        return None
    return _cookie(
        name,
        value,
        domain or host,
        bool(domain),
        path if path.startswith("/") else default_path(url),
        "secure" in attributes,
        _expires(attributes, now),
        {"HttpOnly": None} if "httponly" in attributes else {},
        now,
    )


def path_matches(request_path: str, cookie_path: str) -> bool:
    """Path matching (5.1.4)."""
    if not request_path.startswith(cookie_path):
        return False
    return (
        len(request_path) == len(cookie_path)
        or cookie_path.endswith("/")
        or request_path[len(cookie_path)] == "/"
    )


def default_path(url: URL) -> str:
    """Returns the default path: the directory of the request path (5.1.4)."""
    path = url.raw_path.partition(b"?")[0].decode("ascii")
    return path[: path.rfind("/")] or "/"


def _attributes(parts: list[str]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if len(value) <= MAX_ATTRIBUTE_BYTES:
            attributes[name.strip(" \t").lower()] = value.strip(" \t")  # the last one wins
    return attributes


def _domain(attribute: str, host: str) -> str | None:
    """Returns the domain of a cookie; an empty string for host-only, None if it must not be stored."""
    domain = attribute.removeprefix(".").lower()
    if not domain:
        return ""
    if not domain.isascii():
        return None
    if domain == host:
        # a public suffix, or an address, may set only a host-only cookie
        return "" if _is_public(domain) or _is_address(host) else domain
    if _is_public(domain) or _is_address(host) or not host.endswith(f".{domain}"):
        return None
    return domain


def _is_allowed(name: str, value: str, attributes: dict[str, str], url: URL) -> bool:
    """Checks Secure, prefixes and SameSite (4.1.3, 5.7)."""
    secure = "secure" in attributes
    if secure and url.scheme != "https":
        return False
    if attributes.get("samesite", "").lower() == "none" and not secure:
        return False
    # a nameless cookie is sent as its value alone, which must not look like a prefixed name
    lower = (name or value).lower()
    if lower.startswith(("__secure-", "__host-")) and (not name or not secure):
        return False
    if lower.startswith("__host-"):
        return attributes.get("path") == "/" and not attributes.get("domain")
    return True


def _expires(attributes: dict[str, str], now: float) -> int | None:
    """Returns the expiry time: Max-Age takes precedence over Expires; both are at most 400 days from now (5.5)."""
    age = attributes.get("max-age", "")
    if _MAX_AGE.fullmatch(age):
        return int(now) + min(int(age), MAX_LIFETIME_S) if int(age) > 0 else 0
    if "expires" not in attributes:
        return None
    try:
        when = http2time(attributes["expires"])
    except (ValueError, OverflowError):
        return None
    return None if when is None else int(min(when, now + MAX_LIFETIME_S))


def _protects(old: Cookie, new: Cookie) -> bool:
    """Whether a secure cookie must not be overwritten by one set without TLS (5.7, "leave secure cookies alone")."""
    return old.secure and old.name == new.name and path_matches(new.path, old.path)


def _is_public(domain: str) -> bool:
    """Whether a domain is a public suffix: by the package `publicsuffixlist` if installed, else any single label."""
    if "." not in domain:
        return True
    suffixes = _public_suffixes()
    return suffixes is not None and suffixes.publicsuffix(domain) == domain


_suffixes: list[Any] = []


def _public_suffixes() -> Any:
    if not _suffixes:
        try:
            from publicsuffixlist import PublicSuffixList
        except ImportError:
            _suffixes.append(None)
        else:
            _suffixes.append(PublicSuffixList(accept_unknown=False))
    return _suffixes[0]


def _host_of(url: URL) -> str:
    return url.raw_host.decode("ascii").rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _with_parents(host: str) -> list[str]:
    labels = host.split(".")
    return [".".join(labels[start:]) for start in range(len(labels))]


def _matches(cookie: Cookie, name: str, domain: str | None, path: str | None) -> bool:
    return (
        cookie.name == name
        and (domain is None or cookie.domain == domain)
        and (path is None or cookie.path == path)
    )


def _created(cookie: Cookie) -> float:
    return float(getattr(cookie, "created", 0.0))


def _cookie(
    name: str,
    value: str,
    domain: str,
    domain_specified: bool,
    path: str,
    secure: bool,
    expires: int | None,
    rest: dict[str, Any],
    created: float = 0.0,
) -> Cookie:
    cookie = Cookie(
        version=0,
        name=name,
        value=value,
        port=None,
        port_specified=False,
        domain=domain,
        domain_specified=domain_specified,
        domain_initial_dot=domain.startswith("."),
        path=path,
        path_specified=True,
        secure=secure,
        expires=expires,
        discard=expires is None,
        comment=None,
        comment_url=None,
        rest=rest,
    )
    cookie.created = created  # type: ignore[attr-defined]
    return cookie
