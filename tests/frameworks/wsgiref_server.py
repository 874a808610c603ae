"""The standard library's reference server, with threads: `wsgiref_server.py module:app PORT`."""

from __future__ import annotations

import importlib
import os
import socketserver
import sys
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server


class Threading(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


def main() -> None:
    sys.path.insert(0, os.getcwd())
    module, attribute = sys.argv[1].split(":")
    app = getattr(importlib.import_module(module), attribute)
    with make_server("127.0.0.1", int(sys.argv[2]), app, Threading, WSGIRequestHandler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
