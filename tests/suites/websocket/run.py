"""Autobahn|Testsuite's 517 cases (`source.py`) against a WebSocket server or client.

    python tests/suites/websocket/run.py server ws://127.0.0.1:8000/   an echo of every message
    python tests/suites/websocket/run.py client -- COMMAND...          a driver, with a ws:// URL as last argument

A driver requests URL/getCaseCount, then opens URL/runCase?case=1 and so on, and echoes messages (`client.py`).
Exit status 1: a case failed or is not implemented, or too many were non-strict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import peer
from autobahn.twisted.websocket import connectWS
from twisted.internet import reactor, ssl

GOOD = {"OK", "INFORMATIONAL"}
MAX_NON_STRICT = 2


def server(options: argparse.Namespace, cases: list[type], verdicts: list[peer.Verdict]) -> None:
    factory = peer.ServerFuzzer(options.url, cases, verdicts.append)
    secure = urlsplit(options.url).scheme == "wss"
    # The certificate is not verified here.
    connectWS(factory, contextFactory=ssl.ClientContextFactory() if secure else None, timeout=5)
    reactor.run()


def client(options: argparse.Namespace, cases: list[type], verdicts: list[peer.Verdict]) -> None:
    port = reactor.listenTCP(0, peer.ClientFuzzer(cases, verdicts.append), interface="127.0.0.1")
    url = f"ws://127.0.0.1:{port.getHost().port}"

    def drive() -> None:
        subprocess.run([*options.command, url], check=False)
        reactor.callFromThread(reactor.stop)

    reactor.callWhenRunning(threading.Thread(target=drive, daemon=True).start)
    reactor.run()


def judge(cases: int, verdicts: list[peer.Verdict]) -> int:
    failed = [one for one in verdicts if one.behavior not in GOOD | {"NON-STRICT"} or one.closing not in GOOD]
    loose = [one for one in verdicts if one.behavior == "NON-STRICT" and one not in failed]
    for one in [*loose, *failed]:
        print(f"   {one.case}: {one.behavior}, closing {one.closing}: {one.reason}")
    behaviors = ", ".join(f"{count} {name}" for name, count in Counter(v.behavior for v in verdicts).items())
    print(
        f"== Autobahn (converted): {len(verdicts)} of {cases} cases: {behaviors or 'none'}; {len(failed)} failed"
    )
    return int(bool(failed) or len(loose) > MAX_NON_STRICT or len(verdicts) < cases)


def arguments() -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--only", nargs="+", default=[], metavar="CASE", help="such as 1.1.2, or 12. for all of them"
    )
    common.add_argument("--without", nargs="+", default=[], metavar="CASE")
    common.add_argument("--json", type=Path, metavar="FILE", help="every verdict")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sides = parser.add_subparsers(required=True)
    against_server = sides.add_parser("server", parents=[common])
    against_server.add_argument("url")
    against_server.set_defaults(run=server)
    against_client = sides.add_parser("client", parents=[common])
    against_client.add_argument("command", nargs="+")
    against_client.set_defaults(run=client)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    cases = peer.chosen(options.only, options.without)
    verdicts: list[peer.Verdict] = []
    options.run(options, cases, verdicts)
    if options.json:
        options.json.write_text(json.dumps([vars(one) for one in verdicts], indent=1))
    return judge(len(cases), verdicts)


if __name__ == "__main__":
    sys.exit(main())
