"""Autobahn's end of a connection while a case runs: a client of servers, or a server of clients.

A case (`autobahntestsuite.case`) receives events and calls methods to send; when the connection is closed
it has its verdict. It uses Python 2's strings: latin-1 here, octets on the wire. Only the deflate
cases (12 and 13) use octets themselves.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import source

sys.path.insert(0, str(source.converted()))

from autobahn.twisted.websocket import (
    WebSocketClientFactory,
    WebSocketClientProtocol,
    WebSocketServerFactory,
    WebSocketServerProtocol,
)
from autobahntestsuite.case import (
    CaseBasename,
    CaseCategories,
    Cases,
    CaseSetname,
    CaseSubCategories,
)
from autobahntestsuite.caseset import CaseSet
from autobahntestsuite.shim import octets
from twisted.internet import reactor

CASES = CaseSet(CaseSetname, CaseBasename, Cases, CaseCategories, CaseSubCategories)
DEFLATE = ("12.", "13.")
HANDSHAKE_TIMEOUT_S, CLOSE_TIMEOUT_S = 5, 2


@dataclass(frozen=True)
class Verdict:
    """Result of a case, for its peer's behaviour and for the close of the connection."""

    case: str
    behavior: str
    closing: str
    reason: str
    seconds: float


def chosen(only: list[str], without: list[str]) -> list[type]:
    """The cases that one of `only` names (none: all) and none of `without`: `12.1.3`, or `12.` for all of its kind."""

    def named(case: type, names: list[str]) -> bool:
        number = CASES.caseClasstoId(case)
        return any(number.startswith(name) if name.endswith(".") else number == name for name in names)

    return [case for case in Cases if (not only or named(case, only)) and not named(case, without)]


class Fuzzing:
    """A case's view of its connection, over either of Autobahn's protocols."""

    case = None  # under way on this connection
    number = ""
    started = 0.0
    connectionWasOpen = False
    createWirelog = False

    def __init__(self) -> None:
        super().__init__()
        self.txFrameStats: Counter[int] = Counter()
        self.rxFrameStats: Counter[int] = Counter()

    def begin(self, case: type) -> None:
        self.number = CASES.caseClasstoId(case)
        self.case = case(self)

    def guarded(self, call: Callable, *args: object) -> None:
        """A mistake of the converted case is a failure with a traceback, not a silent reactor's."""
        try:
            call(*args)
        except Exception:
            self.case.behavior, self.case.result = "BROKEN", traceback.format_exc()
            self.dropConnection(abort=True)

    def text(self, data: bytes) -> bytes | str:
        return data if self.number.startswith(DEFLATE) else data.decode("latin-1")

    # --- Autobahn's callbacks

    def onOpen(self) -> None:
        if self.case is None:
            self.respond_to_driver()
            return
        self.connectionWasOpen, self.started = True, time.monotonic()
        self.guarded(self.case.onOpen)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        if self.case is not None:
            self.guarded(self.case.onMessage, self.text(payload), isBinary)

    def onPing(self, payload: bytes) -> None:
        if self.case is not None:
            self.guarded(self.case.onPing, payload.decode("latin-1"))
        self.sendPong(payload)

    def onPong(self, payload: bytes) -> None:
        if self.case is not None:
            self.guarded(self.case.onPong, payload.decode("latin-1"))

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        if self.case is not None:
            self.guarded(self.case.onClose, wasClean, code, reason)

    def connectionLost(self, reason: object) -> None:
        super().connectionLost(reason)
        if self.case is None:
            return
        broken = self.case.behavior == "BROKEN"
        if not broken:
            self.guarded(self.case.onConnectionLost, self.failedByMe)
        case, seconds = self.case, time.monotonic() - self.started
        self.factory.verdict(
            Verdict(self.number, case.behavior, case.behaviorClose, reason_of(case), seconds)
        )

    # --- called by the cases

    def sendFrame(self, opcode: int, payload: str | bytes = b"", **options: object) -> None:
        self.txFrameStats[opcode] += 1
        super().sendFrame(opcode, octets(payload), **options)

    def sendMessage(self, payload: str | bytes, isBinary: bool = False, **options: object) -> None:
        super().sendMessage(octets(payload), isBinary, **options)

    def sendMessageFrameData(self, payload: str | bytes, sync: bool = False) -> int:
        return super().sendMessageFrameData(octets(payload), sync)

    def sendCloseFrame(
        self, code: int | None = None, reasonUtf8: str | bytes | None = None, isReply: bool = False
    ) -> None:
        super().sendCloseFrame(code, octets(reasonUtf8), isReply)

    def enableWirelog(self, enable: bool) -> None:
        self.createWirelog = enable

    def continueLater(self, delay: float, call: Callable, tag: object = None) -> None:
        self.later(delay, call)

    def killAfter(self, delay: float) -> None:
        self.later(delay, self._fail_connection)

    def closeAfter(self, delay: float) -> None:
        self.later(delay, self.sendClose)

    def later(self, delay: float, call: Callable) -> None:
        reactor.callLater(delay, lambda: self.state != self.STATE_CLOSED and self.guarded(call))


def reason_of(case: object) -> str:
    return f"{case.result} {case.resultClose}" if case.behaviorClose != "OK" else str(case.result)


class ClientProtocol(Fuzzing, WebSocketClientProtocol):
    pass


class ServerProtocol(Fuzzing, WebSocketServerProtocol):
    """Addresses that client drivers request: /getCaseCount, /runCase?case=NUMBER, /updateReports."""

    def onConnect(self, request: object) -> str | None:
        self.path = request.path
        if request.path == "/runCase":
            self.begin(self.factory.cases[int(request.params["case"][0]) - 1])
        return super().onConnect(request)

    def respond_to_driver(self) -> None:
        if self.path == "/getCaseCount":
            self.sendMessage(json.dumps(len(self.factory.cases)))
        self.sendClose()


class ServerFuzzer(WebSocketClientFactory):
    """Runs the cases one after another against the server of `url`."""

    def __init__(self, url: str, cases: list[type], verdict: Callable[[Verdict], None]) -> None:
        super().__init__(url, useragent="Autobahn|Testsuite (converted)")
        limit(self)
        self.verdict, self.cases, self.done = verdict, cases, 0

    def buildProtocol(self, address: object) -> ClientProtocol:
        protocol = ClientProtocol()
        protocol.factory = self
        protocol.begin(self.cases[self.done])
        return protocol

    def clientConnectionLost(self, connector: object, reason: object) -> None:
        self.done += 1
        if self.done < len(self.cases):
            connector.connect()
        else:
            reactor.stop()

    def clientConnectionFailed(self, connector: object, reason: object) -> None:
        number = CASES.caseClasstoId(self.cases[self.done])
        self.verdict(Verdict(number, "NO CONNECTION", "", reason.getErrorMessage(), 0))
        reactor.stop()


class ClientFuzzer(WebSocketServerFactory):
    """Runs the case that a client requests."""

    protocol = ServerProtocol

    def __init__(self, cases: list[type], verdict: Callable[[Verdict], None]) -> None:
        super().__init__()
        limit(self)
        self.verdict, self.cases = verdict, cases


def limit(factory: WebSocketClientFactory | WebSocketServerFactory) -> None:
    factory.setProtocolOptions(
        failByDrop=False,
        openHandshakeTimeout=HANDSHAKE_TIMEOUT_S,
        closeHandshakeTimeout=CLOSE_TIMEOUT_S,
        utf8validateIncoming=True,
    )
    factory.logFrames = factory.logOctets = False
