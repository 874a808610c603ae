"""Runs the chats: every subject in a process of its own, batch by batch in random order."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..clients.process import Worker, end
from ..clients.subjects import Client, Interpreters, Missing
from ..record import ExperimentRecord, Slice, Start, SubjectRecord
from ..responder import pinned_to
from ..runner.design import Cores
from ..runner.protocol import Failed
from .endpoint import Endpoint
from .llm_experiments import LlmExperiment
from .metrics import Call, CallBatch, Objectives, slice_of

CALL_TIMEOUT_S = 150.0
START_TIMEOUT_S = 30.0


def _chat(name: str, adapter: str, *packages: str) -> Client:
    return Client(name, name, "async", adapter, packages)


CHATS = {
    client.name: client
    for client in (
        _chat("towline", "Towline", "towline"),
        _chat("httpx", "Httpx", "httpx"),
        _chat("httpx2", "Httpx2", "httpx2"),
        _chat("aiohttp", "Aiohttp", "aiohttp"),
        _chat("openai+towline", "OpenAIOnTowline", "openai", "towline", "httpx2"),
        _chat("openai+httpx2", "OpenAI", "openai", "httpx2"),
        _chat("openai+httpx", "OpenAIOnHttpx", "openai", "httpx"),
    )
}
"""Adapters of worker/llm; the SDK on each of its HTTP clients."""


class MockEndpointProcess:
    """The mock endpoint in a process of its own."""

    def __init__(
        self, seed: int, scale: float, refuse_share: float = 0.0, cores: Sequence[int] | None = None
    ) -> None:
        options = ["--seed", str(seed), "--scale", str(scale), "--refuse-share", str(refuse_share)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "towline.bench.llm.mock_endpoint", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=pinned_to(cores),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.base_url = self._process.stdout.readline().strip()
        if not self.base_url:
            self.stop()
            raise Failed("the mock endpoint did not start; its output says why")

    def stop(self) -> None:
        end(self._process)

    def __enter__(self) -> MockEndpointProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass(frozen=True)
class Plan:
    """Parameters of a measurement."""

    endpoint: Endpoint
    subjects: tuple[str, ...] = tuple(CHATS)
    restarts: int = 1
    seed: int = 1
    scale: float = 1.0
    """Factor of all gaps; the mock endpoint scales its own pauses."""
    loop: str = "asyncio"
    goal: Objectives = field(default_factory=Objectives)
    interpreters: Interpreters = field(default_factory=Interpreters.usual)
    cores: Cores = field(default_factory=lambda: Cores(None, None))


class ChatProcess:
    """A running chat client."""

    def __init__(self, client: Client, plan: Plan) -> None:
        """Raises Missing, Failed."""
        began = time.monotonic()
        self.client, endpoint = client, plan.endpoint
        python = plan.interpreters.of(client)
        try:
            self.worker, self.versions = Worker.opened(
                python,
                plan.cores.subject,
                op="chat_open",
                adapter=client.adapter,
                packages=client.packages,
                base=endpoint.base_url,
                key=endpoint.key or "none",
                loop=plan.loop,
            )
        except Missing as missing:
            raise Missing(f"{client.name}: {missing}") from None
        self.ready_after_s = time.monotonic() - began

    def call(self, requests: list[dict[str, Any]], pause_s: float) -> dict[str, Any]:
        """Makes the calls, each at its time. Raises Failed."""
        last_s = max(one["at_s"] for one in requests)
        timeout_s = CALL_TIMEOUT_S + last_s
        found: dict[str, Any] = self.worker.call(timeout_s, op="chat", requests=requests, pause_s=pause_s)[
            "found"
        ]
        return found


class LlmRun:
    """One experiment on all subjects."""

    def __init__(
        self, experiment: LlmExperiment, plan: Plan, report: Callable[[str], None] = lambda _: None
    ) -> None:
        self.experiment, self.plan, self.report = experiment, plan, report
        self.skipped: dict[str, str] = {}
        self._records: dict[str, SubjectRecord] = {}
        self._slices: list[Slice] = []

    def run(self) -> ExperimentRecord:
        for restart in range(self.plan.restarts):
            self._restart(restart)
        return self.record()

    def record(self) -> ExperimentRecord:
        """The record of what was measured until now."""
        experiment, plan = self.experiment, self.plan
        load: dict[str, Any] = {
            **experiment.load(),
            "model": self._model(),
            "scale": plan.scale,
            "remote": plan.endpoint.is_remote,
        }
        notes = [
            f"{plan.endpoint.base_url if plan.endpoint.is_remote else 'a local mock endpoint'} answered",
            f"goodput: first token within {plan.goal.first_token_ms:g} ms and {plan.goal.per_token_ms:g} ms a token",
            "subjects take their turns within a gap, in random order; a gap is longer where they need more of it",
        ]
        if experiment.calls < 100:
            notes.append(f"a p95 of {experiment.calls} calls is one of the slowest of them, no more")
        return ExperimentRecord(
            name=experiment.name,
            scenario=experiment.scenario,
            title=experiment.title,
            section=experiment.section,
            question="latency",
            load=load,
            subjects=list(self._records.values()),
            slices=list(self._slices),
            notes=notes,
        )

    def _model(self) -> str:
        return self.plan.endpoint.model if self.plan.endpoint.is_remote else self.experiment.profile

    def _restart(self, restart: int) -> None:
        chance = random.Random(f"{self.plan.seed}/{self.experiment.name}/{restart}")
        running: dict[str, ChatProcess] = {}
        began = {name: time.time() for name in self.plan.subjects}
        try:
            for name in chance.sample(self.plan.subjects, len(self.plan.subjects)):
                self._start(name, restart, running)
            taken = self._batches(restart, chance, running)
        finally:
            for process in running.values():
                process.worker.stop()
        for position, (name, found) in enumerate(taken.items()):
            if found and self._records[name].failure is None:
                merged_batch = CallBatch(
                    [Call.of(one) for part in found for one in part["calls"]],
                    sum(part["took_s"] for part in found),
                    sum(part["cpu_s"] for part in found),
                    max(part["rss_growth_bytes"] for part in found),
                    began[name],
                )
                self._slices.append(slice_of(name, merged_batch, self.plan.goal, restart, position))

    def _start(self, name: str, restart: int, running: dict[str, ChatProcess]) -> None:
        client, known = CHATS[name], self._records.get(name)
        if name in self.skipped or (known is not None and known.failure is not None):
            return
        try:
            process = ChatProcess(client, self.plan)
        except Missing as missing:
            self.skipped[name] = str(missing)
            self.report(f"{name} is skipped: {missing}")
            return
        except Failed as failed:
            self._fail(name, failed)
            return
        running[name] = process
        starts = [
            *(known.starts if known is not None else []),
            Start(restart, round(process.ready_after_s, 4)),
        ]
        self._records[name] = SubjectRecord(
            name, "client", process.worker.command, process.versions, {"loop": self.plan.loop}, starts
        )
        if not self.plan.endpoint.is_remote:  # a remote endpoint gets no more calls than the scenario has
            self._verify(name, running)

    def _verify(self, name: str, running: dict[str, ChatProcess]) -> None:
        body = self.plan.endpoint.body("verify") | {"model": "long"}
        with contextlib.suppress(KeyError):
            try:
                call = Call.of(running[name].call([{"body": body, "at_s": 0.0}], 0.0)["calls"][0])
                if not call.good and call.status != 429:
                    raise Failed(call.error or "the text differs from what the endpoint sent")
            except Failed as failed:
                self._fail(name, failed, running)

    def _batches(
        self, restart: int, chance: random.Random, running: dict[str, ChatProcess]
    ) -> dict[str, list[dict[str, Any]]]:
        experiment, plan = self.experiment, self.plan
        taken: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
        offsets = experiment.offsets(plan.seed + restart, plan.scale)
        for batch in range(experiment.batches):
            due = time.monotonic() + experiment.gap_s * plan.scale
            for name in chance.sample(sorted(running), len(running)):
                try:
                    taken[name].append(
                        running[name].call(
                            self._calls(restart, batch, offsets), experiment.pause_s * plan.scale
                        )
                    )
                except Failed as failed:
                    self._fail(name, failed, running)
            if batch + 1 < experiment.batches:
                time.sleep(max(0.0, due - time.monotonic()))
        return taken

    def _calls(self, restart: int, batch: int, offsets: list[float]) -> list[dict[str, Any]]:
        """Questions that every subject asks, so that the mock endpoint's responses are the same."""
        experiment, endpoint = self.experiment, self.plan.endpoint
        most = experiment.max_tokens and max(50, int(experiment.max_tokens * min(1.0, self.plan.scale)))
        requests = []
        for number, at_s in enumerate(offsets):
            question = f"Say hello. ({experiment.name}, {restart}/{batch}/{number})"
            requests.append({"body": endpoint.body(question, most) | {"model": self._model()}, "at_s": at_s})
        return requests

    def _fail(self, name: str, failed: Failed, running: dict[str, ChatProcess] | None = None) -> None:
        process = running.pop(name, None) if running is not None else None
        if process is not None:
            process.worker.stop()
        known = self._records.get(name) or SubjectRecord(name, "client")
        self._records[name] = replace(known, failure=str(failed), log=failed.log)
        self.report(f"{name} has no figures: {failed}")
