"""Raw WSGI, no framework."""

HELLO = b"Hello, world!\n"
HEADERS = [("Content-Type", "text/plain"), ("Content-Length", str(len(HELLO)))]


def app(environ, start_response):
    start_response("200 OK", HEADERS)
    return [HELLO]
