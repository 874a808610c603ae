"""Content codings (RFC 9110 8.4.1) of the native server and client."""

from __future__ import annotations

CODINGS = ("br", "zstd", "gzip")  # that the server encodes, in order of preference
REQUEST_CODINGS = ("gzip", "deflate", "br", "zstd")  # that the server decodes
ACCEPT_ENCODING = b"gzip, deflate, br, zstd"  # of the client
