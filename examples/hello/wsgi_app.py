"""The application for WSGI: `towline serve wsgi_app:app --app-dir examples/hello`."""

import json

GREETING = b"Hello from Towline\n"


def app(environ, start_response):
    status, content_type = "200 OK", "text/plain; charset=utf-8"
    match environ["REQUEST_METHOD"], environ["PATH_INFO"]:
        case _, "/":
            body = [GREETING]
        case "POST", "/echo":
            body, content_type = [environ["wsgi.input"].read()], "application/octet-stream"
        case _, "/stream":
            start_response(status, [("Content-Type", content_type)])
            return (part for part in (b"one\n", b"two\n", b"three\n"))
        case _, "/scope":
            names = {"method": "REQUEST_METHOD", "path": "PATH_INFO", "query": "QUERY_STRING"}
            names |= {"http_version": "SERVER_PROTOCOL", "client": "REMOTE_ADDR"}
            seen = {ours: environ[accepted] for ours, accepted in names.items()}
            body, content_type = [json.dumps(seen, indent=2).encode() + b"\n"], "application/json"
        case _:
            status, body = "404 Not Found", [b"no such page\n"]
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(sum(map(len, body))))])
    return body
