"""Where the examples send their requests: the address on the command line, or the mock endpoint, served for the run."""

import contextlib
import sys

from mock_endpoint import app
from towline.testing import serve


@contextlib.contextmanager
def base_url():
    if len(sys.argv) > 1:
        yield sys.argv[1].rstrip("/")
    else:
        with serve(app) as server:
            yield server.url
