"""`towline load`: the load generator. The program is native and the same as `towline-load`.

Exit statuses: 0 all requests were answered as expected, 1 some failed or none was answered, 2 there was no
run (the command line makes no sense, a file cannot be read).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import _native


def main(arguments: Sequence[str]) -> int:
    # Ours comes out before what native code writes to the same stream.
    sys.stdout.flush()
    return _native.load_main(list(arguments))
