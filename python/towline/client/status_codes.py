"""Status codes (IANA registry): `codes.NOT_FOUND`, `codes.not_found`, `codes.get_reason_phrase(404)`."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


def _between(first: int, last: int) -> classmethod[Any, [int], bool]:
    def check(cls: type, value: int) -> bool:
        return first <= value <= last

    check.__doc__ = f"Whether a status is from {first} to {last}."
    return classmethod(check)


class codes(IntEnum):  # lower case, as in httpx and requests
    """The registered codes; members compare and format as numbers."""

    CONTINUE = 100
    SWITCHING_PROTOCOLS = 101
    PROCESSING = 102
    EARLY_HINTS = 103
    OK = 200
    CREATED = 201
    ACCEPTED = 202
    NON_AUTHORITATIVE_INFORMATION = 203
    NO_CONTENT = 204
    RESET_CONTENT = 205
    PARTIAL_CONTENT = 206
    MULTI_STATUS = 207
    ALREADY_REPORTED = 208
    IM_USED = 226
    MULTIPLE_CHOICES = 300
    MOVED_PERMANENTLY = 301
    FOUND = 302
    SEE_OTHER = 303
    NOT_MODIFIED = 304
    USE_PROXY = 305
    TEMPORARY_REDIRECT = 307
    PERMANENT_REDIRECT = 308
    BAD_REQUEST = 400
    UNAUTHORIZED = 401
    PAYMENT_REQUIRED = 402
    FORBIDDEN = 403
    NOT_FOUND = 404
    METHOD_NOT_ALLOWED = 405
    NOT_ACCEPTABLE = 406
    PROXY_AUTHENTICATION_REQUIRED = 407
    REQUEST_TIMEOUT = 408
    CONFLICT = 409
    GONE = 410
    LENGTH_REQUIRED = 411
    PRECONDITION_FAILED = 412
    CONTENT_TOO_LARGE = 413
    URI_TOO_LONG = 414
    UNSUPPORTED_MEDIA_TYPE = 415
    RANGE_NOT_SATISFIABLE = 416
    EXPECTATION_FAILED = 417
    IM_A_TEAPOT = 418
    MISDIRECTED_REQUEST = 421
    UNPROCESSABLE_CONTENT = 422
    LOCKED = 423
    FAILED_DEPENDENCY = 424
    TOO_EARLY = 425
    UPGRADE_REQUIRED = 426
    PRECONDITION_REQUIRED = 428
    TOO_MANY_REQUESTS = 429
    REQUEST_HEADER_FIELDS_TOO_LARGE = 431
    UNAVAILABLE_FOR_LEGAL_REASONS = 451
    INTERNAL_SERVER_ERROR = 500
    NOT_IMPLEMENTED = 501
    BAD_GATEWAY = 502
    SERVICE_UNAVAILABLE = 503
    GATEWAY_TIMEOUT = 504
    HTTP_VERSION_NOT_SUPPORTED = 505
    VARIANT_ALSO_NEGOTIATES = 506
    INSUFFICIENT_STORAGE = 507
    LOOP_DETECTED = 508
    NOT_EXTENDED = 510
    NETWORK_AUTHENTICATION_REQUIRED = 511

    # their names in RFC 7231 and WebDAV
    REQUEST_ENTITY_TOO_LARGE = 413
    REQUEST_URI_TOO_LONG = 414
    REQUESTED_RANGE_NOT_SATISFIABLE = 416
    UNPROCESSABLE_ENTITY = 422

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def get_reason_phrase(cls, value: int) -> str:
        """Returns the registered phrase, or an empty string."""
        return _PHRASES.get(value, "")

    is_informational = _between(100, 199)
    is_success = _between(200, 299)
    is_redirect = _between(300, 399)
    is_client_error = _between(400, 499)
    is_server_error = _between(500, 599)
    is_error = _between(400, 599)


_SPECIAL_PHRASES = {
    "OK": "OK",
    "IM_USED": "IM Used",
    "IM_A_TEAPOT": "I'm a teapot",
    "URI_TOO_LONG": "URI Too Long",
    "HTTP_VERSION_NOT_SUPPORTED": "HTTP Version Not Supported",
    "MULTI_STATUS": "Multi-Status",
    "NON_AUTHORITATIVE_INFORMATION": "Non-Authoritative Information",
}
_PHRASES = {int(code): _SPECIAL_PHRASES.get(code.name, code.name.replace("_", " ").title()) for code in codes}

# Names of requests that are no registered phrases.
_MORE = (
    "all_good=200 all_ok=200 all_okay=200 okay=200 moved=301 other=303 temporary=307 temporary_moved=307 bad=400 payment=402 "
    "not_allowed=405 proxy_auth=407 timeout=408 requested_range=416 teapot=418 unprocessable=422 precondition=428 "
    "too_many=429 server_error=500 unavailable=503"
)

for _name, _code in codes.__members__.items():
    setattr(codes, _name.lower(), int(_code))
for _pair in _MORE.split():
    setattr(codes, _pair.partition("=")[0], int(_pair.partition("=")[2]))
