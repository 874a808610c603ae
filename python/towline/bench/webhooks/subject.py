"""One pair as the runner's subject: the application under load, then the check of what it accepted, stored and
forwarded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..record import FORWARDED_AFTER, Slice, SubjectRecord
from ..responder import Responder, ResponderFailed
from ..runner.agent import Agent, AgentFailed, slice_of
from ..runner.protocol import Failed, Memory, SliceSpec, StartConfig
from ..subjects import NotSupported, Process, Settings, SubjectFailed, installed, shown, versions
from .accounts import SQLITE, Account, Accounts
from .pairs import Pair

APPLICATION = Settings(interface="asgi", app="webhooks:app")
WIDTH = 100
"""Concurrent forwards, the same for all."""
TIMEOUT_S = 60.0
"""Time until all accepted webhooks must have been forwarded."""
POLL_S = 0.01

Config = Callable[[str], dict[str, Any]]
"""The generator's session for a base URL."""


class WebhookSubject:
    """A pair that can be started repeatedly."""

    def __init__(
        self,
        pair: Pair,
        agent: Agent,
        config: Config,
        *,
        peers_bin: Path | None = None,
        driver_cores: tuple[int, ...] | None = None,
        settings: Settings = APPLICATION,
        database: str = SQLITE,
    ) -> None:
        """`database`: `sqlite`, or the URL of a PostgreSQL server."""
        self._pair, self._agent, self._config = pair, agent, config
        self._database = database
        self._driver_cores = driver_cores
        self._settings = replace(settings, peers_bin=peers_bin)

    @property
    def name(self) -> str:
        return self._pair.name

    def describe(self) -> SubjectRecord:
        server = self._pair.server
        return SubjectRecord(
            self.name,
            "pair",
            shown(server, self._settings),
            versions(server, self._settings.peers_bin),
            {
                **server.options,
                "forwards with": f"{self._pair.client}, {WIDTH} at a time",
                "database": "SQLite" if self._database == SQLITE else "PostgreSQL",
            },
            failure=installed(server, self._settings.peers_bin),
        )

    def start(self, start_config: StartConfig) -> RunningWebhooks:
        try:
            responder = Responder("--port", "0", cores=self._driver_cores)
        except ResponderFailed as error:
            raise Failed(f"the responder of {self.name}: {error}") from None
        accounts = Accounts(self._database)
        environment = {
            **accounts.environment(),
            "WEBHOOKS_CLIENT": self._pair.client,
            "WEBHOOKS_DESTINATION": f"{responder.base_url}/echo",
            "WEBHOOKS_WIDTH": str(WIDTH),
        }
        settings = replace(
            self._settings,
            cores=start_config.cores,
            padding_bytes=start_config.padding_bytes,
            env={**environment, **self._settings.env},
        )
        try:
            process = Process(self._pair.server, settings)
        except (SubjectFailed, NotSupported) as error:
            responder.stop()
            raise Failed(str(error), getattr(error, "log", None)) from None
        except BaseException:
            responder.stop()
            raise
        running = RunningWebhooks(process, responder, self._agent, self._config(process.base_url), accounts)
        try:
            process.wait_ready()
        except SubjectFailed as error:
            running.stop()
            raise Failed(str(error), error.log) from None
        except BaseException:
            running.stop()
            raise
        return running


class RunningWebhooks:
    """A running application with its responder and its database."""

    def __init__(
        self, process: Process, responder: Responder, agent: Agent, config: dict[str, Any], accounts: Accounts
    ) -> None:
        self._process, self._upstream, self._agent, self._settings = process, responder, agent, config
        self._accounts = accounts
        self._session = f"{process.name}:{process.port}"
        self._known = 0
        """Webhooks in the database that have been checked."""

    def verify(self) -> None:
        """Sends one webhook: it must be accepted, stored and forwarded."""
        self._open()
        (response,) = self._probe()
        if response["failure"] or response["status"] != 202:
            raise Failed(
                f"a webhook was not accepted: {response['failure'] or response['status']}",
                self._process.log_tail(),
            )
        found = self._drained()
        if found.forwarded != 1:
            why = found.first_error or f"{found.stored} in the database, {found.forwarded} forwarded"
            raise Failed(f"a webhook was accepted, but: {why}", self._process.log_tail())
        self._known += found.stored

    def slice(self, work: SliceSpec) -> Slice:
        """Runs the load; then waits until all is forwarded, which counts in the rate and the cost, and checks the database."""
        self._open()
        before = self._process.usage()
        try:
            one = slice_of(self._agent.slice(self._session, work), self._process.name)
        except AgentFailed:
            self._alive()
            raise
        during = self._process.usage().since(before)
        self._alive()
        found = self._drained()
        drained_s = time.time() - one.began_unix_s
        spent = self._process.usage().since(before)  # forwarding is part of what a webhook costs
        self._known += found.stored
        lost, unsent = max(one.answered - found.stored, 0), found.stored - found.forwarded
        errors = dict(one.errors)
        if lost:
            errors["lost"] = lost
        if unsent:
            errors["forward"] = unsent
        return replace(
            one,
            subject_cpu_s=spent.cpu_s,
            context_switches=spent.switches,
            subject_busiest_share=during.cpu_s / during.at_s if during.at_s else 0.0,
            errors=errors,
            failed=one.failed + lost + unsent,
            first_failure=one.first_failure or _first(lost, unsent, found),
            extra={
                **one.extra,
                "stored": float(found.stored),
                "forwarded": float(found.forwarded),
                "lost": float(lost),
                FORWARDED_AFTER: drained_s,
            },
        )

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    def memory(self) -> Memory:
        now = self._process.usage().rss_bytes
        return Memory(now, max(now, self._process.peaks().rss_bytes))

    def stop(self) -> str | None:
        self._agent.close(self._session)
        notes = self._process.stop().notes(self._process.name)
        self._upstream.stop()
        self._accounts.drop()
        return "; ".join(notes) or None

    # --- helpers ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._agent.has(self._session):
            self._agent.open(self._session, self._settings)

    def _probe(self) -> list[dict[str, Any]]:
        try:
            return self._agent.probe(self._session)
        except AgentFailed:
            self._alive()
            raise

    def _alive(self) -> None:
        try:
            self._process.check()
        except SubjectFailed as error:
            raise Failed(str(error), error.log) from None

    def _drained(self) -> Account:
        """Waits until nothing is in flight, or the timeout."""
        due = time.monotonic() + TIMEOUT_S
        while True:
            try:
                found = self._accounts.after(self._known, self._process.folder)
            except Failed as error:
                self._alive()
                raise Failed(str(error), self._process.log_tail()) from None
            if found.stored == found.concluded or time.monotonic() > due:
                return found
            self._alive()
            time.sleep(POLL_S)


def _first(lost: int, unsent: int, found: Account) -> str | None:
    if lost:
        return f"{lost} accepted webhooks are not in the database"
    return (
        f"{unsent} webhooks were not forwarded: {found.first_error or 'no response in time'}"
        if unsent
        else None
    )
