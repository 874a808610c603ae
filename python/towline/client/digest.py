"""HTTP Digest authentication (RFC 7616), compatible with servers of RFC 2069 and RFC 2617."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from urllib.request import parse_http_list

from .._redact import HIDDEN
from ..errors import UsageError
from .auth import Auth, utf8
from .request import Request
from .response import Response

# By preference. SHA-512-256 depends on OpenSSL; RFC 7616 3.2 lets the client choose.
_ALGORITHMS = {
    "SHA-256": "sha256",
    "SHA-512-256": "sha512_256",
    "SHA-512": "sha512",
    "MD5": "md5",
    "SHA": "sha1",
}
_MAX_ORIGINS = 1000
_SCHEME = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)(?:[ \t]+(.*))?", re.DOTALL)


class DigestAuth(Auth):
    """`auth=DigestAuth(user, password)`: SHA-256, SHA-512-256, MD5, their -sess forms, qop auth and auth-int.

    After a challenge, later requests to the same origin are sent with an Authorization header at once.
    """

    def __init__(self, username: str | bytes, password: str | bytes) -> None:
        self._username, self._password = utf8(username), utf8(password)
        self._challenges: dict[tuple[str, bytes], Challenge] = {}
        self._lock = threading.Lock()

    def auth_flow(self, request: Request) -> Generator[Request, Response, None]:
        origin = (request.url.scheme, request.url.netloc)
        if challenge := self._challenges.get(origin):
            request.headers["Authorization"] = self._authorization(request, challenge)
        response = yield request
        # a second challenge means a wrong password, unless it is marked stale: the nonce was too old (RFC 7616 3.3)
        for attempt in range(2):
            challenge = strongest(response) if response.status_code == 401 else None
            if challenge is None or (attempt and not challenge.stale):
                return
            with self._lock:
                if len(self._challenges) >= _MAX_ORIGINS:
                    self._challenges.clear()
                self._challenges[origin] = challenge
            request.headers["Authorization"] = self._authorization(request, challenge)
            response.cookies.set_cookie_header(request)
            response = yield request

    def _authorization(self, request: Request, challenge: Challenge) -> str:
        with self._lock:
            challenge.count += 1
            count = challenge.count
        return challenge.authorization(self._username, self._password, request, count, secrets.token_hex(16))

    def __repr__(self) -> str:
        return f"DigestAuth({HIDDEN})"


@dataclass
class Challenge:
    """A Digest challenge, and the number of uses of its nonce."""

    realm: str
    nonce: str
    algorithm: str = "MD5"
    qop: tuple[str, ...] = ()
    opaque: str | None = None
    stale: bool = False
    userhash: bool = False
    count: int = field(default=0, compare=False)

    @property
    def rank(self) -> int:
        return list(_ALGORITHMS).index(self._plain_algorithm)

    @property
    def _plain_algorithm(self) -> str:
        return self.algorithm.upper().removesuffix("-SESS")

    def authorization(
        self, username: bytes, password: bytes, request: Request, count: int, cnonce: str
    ) -> str:
        """Returns the Authorization value (3.4). `count` is the nonce count, `cnonce` a random string."""
        target = request.extensions.get("target") or request.url.raw_path
        uri = target.decode("ascii") if isinstance(target, bytes) else target
        realm, nonce = _bytes(self.realm), _bytes(self.nonce)
        secret = self._hash(username + b":" + realm + b":" + password)
        if self.algorithm.upper().endswith("-SESS"):
            secret = self._hash(_bytes(f"{secret}:{self.nonce}:{cnonce}"))
        qop = self._quality(request)
        a2 = f"{request.method}:{uri}"
        if qop == "auth-int":
            a2 += ":" + self._hash(request.content)
        parts = [secret, nonce.decode("utf-8", "surrogateescape")]
        parts += [f"{count:08x}", cnonce, qop] if qop else []
        proof = self._hash(_bytes(":".join([*parts, self._hash(_bytes(a2))])))
        return "Digest " + ", ".join(self._fields(username, uri, proof, qop, count, cnonce))

    def _fields(self, username: bytes, uri: str, proof: str, qop: str, count: int, cnonce: str) -> list[str]:
        fields = [
            self._user(username),
            f"realm={_quote(self.realm)}",
            f"nonce={_quote(self.nonce)}",
            f"uri={_quote(uri)}",
            f'response="{proof}"',
            f"algorithm={self.algorithm}",
        ]
        if self.opaque is not None:
            fields.append(f"opaque={_quote(self.opaque)}")
        if qop:
            fields += [f"qop={qop}", f"nc={count:08x}", f'cnonce="{cnonce}"']
        if self.userhash:
            fields.append("userhash=true")
        return fields

    def _user(self, username: bytes) -> str:
        if self.userhash:
            return f'username="{self._hash(username + b":" + _bytes(self.realm))}"'
        if username.isascii():
            return f"username={_quote(username.decode('ascii'))}"
        return f"username*=UTF-8''{quote(username, safe='')}"  # RFC 5987

    def _quality(self, request: Request) -> str:
        if "auth" in self.qop or not self.qop:
            return "auth" if self.qop else ""
        if request._content is None:
            raise UsageError(
                "digest: the server requires qop=auth-int, which hashes the body; pass the body as bytes"
            )
        return "auth-int"

    def _hash(self, data: bytes) -> str:
        return hashlib.new(_ALGORITHMS[self._plain_algorithm], data, usedforsecurity=False).hexdigest()


def strongest(response: Response) -> Challenge | None:
    """Returns the strongest supported Digest challenge of a response, or None."""
    found = [_challenge(parameters) for parameters in _digests(response.headers.get_list("www-authenticate"))]
    usable = [challenge for challenge in found if challenge is not None]
    return min(usable, key=lambda challenge: challenge.rank, default=None)


def _digests(values: list[str]) -> list[dict[str, str]]:
    """Returns the parameters of each Digest challenge. A header may contain several challenges (RFC 9110 11.6.1)."""
    found: list[dict[str, str]] = []
    current: dict[str, str] | None = None
    for item in (item for value in values for item in parse_http_list(value)):
        started = _SCHEME.fullmatch(item.strip())
        if started is not None:
            current = None
            item = started[2] or ""
            if started[1].lower() == "digest":
                current = {}
                found.append(current)
        name, equals, text = item.partition("=")
        if current is not None and equals:
            current[name.strip().lower()] = _unquote(text.strip())
    return found


def _challenge(parameters: dict[str, str]) -> Challenge | None:
    algorithm = parameters.get("algorithm", "MD5")
    digest = _ALGORITHMS.get(algorithm.upper().removesuffix("-SESS"))
    qop = tuple(part.strip().lower() for part in parameters.get("qop", "").split(",") if part.strip())
    if "nonce" not in parameters or "realm" not in parameters or digest not in hashlib.algorithms_available:
        return None
    if qop and not {"auth", "auth-int"} & set(qop):
        return None
    return Challenge(
        realm=parameters["realm"],
        nonce=parameters["nonce"],
        algorithm=algorithm,
        qop=qop,
        opaque=parameters.get("opaque"),
        stale=parameters.get("stale", "").lower() == "true",
        userhash=parameters.get("userhash", "").lower() == "true",
    )


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")
