"""One run of the bench: its experiments in sequence, in a record that is always up to date."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..._version import __version__
from ..record import ExperimentRecord, Record, save
from ..subjects.machine import describe as describe_machine
from ..subjects.machine import runtime_versions
from ..subjects.orphans import kill_orphans
from .design import Design
from .loop import ExperimentPlan, ExperimentRun
from .network import Network
from .progress import Progress


class Session:
    """Measures experiments and records them."""

    def __init__(
        self,
        design: Design,
        progress: Progress | None = None,
        *,
        command: list[str] | None = None,
        path: Path | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.design, self.progress, self.path = design, progress or Progress(), path
        self.experiments: list[ExperimentRecord] = []
        self.skipped: dict[str, str] = {}
        self.net: dict[str, Any] | None = None
        self.network: Network | None = None
        """Emulated network between drivers and subjects; None: plain loopback."""
        self.versions = {"towline": __version__, **runtime_versions()}
        self._command, self._settings = command or [], settings or {}
        self._began = time.time()
        if strays := kill_orphans():
            self.progress.message(f"an earlier run was killed and left {', '.join(strays)} running: ended")
        # The state of the machine before the load.
        self._machine = describe_machine()

    def measure(self, plan: ExperimentPlan) -> ExperimentRecord:
        """Runs the experiment. It is recorded also when this ends by an exception."""
        run = ExperimentRun(plan, self.design, self.progress)
        try:
            run.run()
        finally:
            self.skipped |= run.skipped
            record = run.record()
            self.add(record)
        return record

    def add(self, experiment: ExperimentRecord) -> None:
        """Adds an experiment that was measured elsewhere, unless it has no subject."""
        if experiment.subjects:
            self.experiments.append(experiment)
            if self.path is not None:
                save(self.record(interrupted=True), self.path)

    def over(self, text: str) -> Network:
        """Measures the network of `--net` once for the record. Raises `ConfigError`."""
        self.network = network = Network.of(text, self.design.seed, self.design.cores.driver)
        self.net = network.plain()
        self.progress.message(network.description())
        return network

    def skip(self, subject: str, reason: str) -> None:
        """Reports a skipped subject once, as a line and in the record."""
        if subject not in self.skipped:
            self.skipped[subject] = reason
            self.progress.message(f"{subject} is skipped: {reason}")

    def record(self, *, interrupted: bool = False) -> Record:
        rule = self.design.rule
        settings = {
            "rule": rule.kind,
            "restarts_least": rule.least,
            "restarts_most": rule.most,
            "alpha": rule.alpha,
            "margin": rule.margin,
            "seconds": self.design.seconds,
            "exclusive": self.design.exclusive,
            "baseline": self.design.baseline,
            "cores_subject": list(self.design.cores.subject or ()),
            "cores_driver": list(self.design.cores.driver or ()),
            **self._settings,
        }
        return Record(
            tool=f"towline bench {__version__}",
            began_unix_s=self._began,
            ended_unix_s=time.time(),
            machine=self._machine,
            versions=self.versions,
            command=self._command,
            seed=self.design.seed,
            settings=settings,
            experiments=list(self.experiments),
            skipped=dict(self.skipped),
            net=self.net,
            interrupted=interrupted,
        )

    def finish(self, *, interrupted: bool = False) -> Record:
        """The record, written if there is a path."""
        record = self.record(interrupted=interrupted)
        if self.path is not None:
            save(record, self.path)
        return record
