"""Agents in the pods of a Job (`--kubernetes N --image IMAGE`), by the user's kubectl with its context and credentials.

A pod's only process is the agent, whose input is the attached client's: it ends with it, and the Job with its pods. So
nothing is left of a controller that was killed, and the pods need no way to the controller.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from .reception import PlacementFailed

CONTAINER = "agent"
DEADLINE_S = 6 * 3600
"""Limit of a Job, for pods that nobody attaches to."""
COMMAND_TIMEOUT_S = 60.0
WAITING_FOR_GOOD = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
        "StartError",
    }
)
"""Reasons for which a container does not start, and would not soon."""


@dataclass(frozen=True)
class JobOptions:
    """`kubectl`: the command with its global options."""

    pods: int
    image: str
    cpus: int = 1
    kubectl: tuple[str, ...] = ("kubectl",)
    starts_within_s: float = 300.0


def manifest(options: JobOptions) -> dict[str, Any]:
    """The Job: as many pods as agents, on different nodes if there are enough."""
    labels = {"app.kubernetes.io/name": "towline-load"}
    container = {
        "name": CONTAINER,
        "image": options.image,
        "command": ["towline", "load", "--agent"],
        "stdin": True,
        "stdinOnce": True,
        "resources": {"requests": {"cpu": str(options.cpus), "memory": "256Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "topologySpreadConstraints": [spread],
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "towline-load-", "labels": labels},
        "spec": {
            "completions": options.pods,
            "parallelism": options.pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE_S,
            "ttlSecondsAfterFinished": 600,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


class JobPlacement:
    """A Job and the attached clients of its pods; the end of the block deletes it."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._job: str | None = None
        self._attached: list[tuple[str, subprocess.Popen[bytes], IO[bytes]]] = []

    def __enter__(self) -> JobPlacement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, client, log in self._attached:
            try:
                client.wait(5.0)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
            log.close()
        if self._job is not None:
            self._kubectl("delete", "job", self._job, "--wait=false", "--ignore-not-found", check=False)

    def start(self) -> Iterator[tuple[str, socket.socket]]:
        """Creates the Job, waits for its pods, and attaches to each; gives names and sockets."""
        text = json.dumps(manifest(self._options))
        made = json.loads(self._kubectl("create", "--validate=false", "-o", "json", "-f", "-", text=text))
        self._job = made["metadata"]["name"]
        for pod, node in self._running_pods():
            yield f"{node}/{pod}", self._attach(pod)

    def failures(self) -> dict[str, str]:
        """Last words of attached clients that have ended with a failure, by pod."""
        found = {}
        for pod, client, log in self._attached:
            if client.poll():
                log.seek(0)
                lines = log.read().decode(errors="replace").strip().splitlines()
                found[pod] = lines[-1] if lines else f"kubectl attach: status {client.returncode}"
        return found

    def _running_pods(self) -> list[tuple[str, str]]:
        """Names of the pods with their nodes, as soon as all run."""
        deadline = time.monotonic() + self._options.starts_within_s
        while True:
            listed = json.loads(self._kubectl("get", "pods", "-l", f"job-name={self._job}", "-o", "json"))[
                "items"
            ]
            states = {pod["metadata"]["name"]: pod_state(pod) for pod in listed}
            if failed := {name: why for name, (state, why) in states.items() if state == "failed"}:
                raise PlacementFailed("; ".join(f"pod {name}: {why}" for name, why in failed.items()))
            if len(states) >= self._options.pods and all(state == "running" for state, _ in states.values()):
                nodes = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "?") for pod in listed}
                return sorted(nodes.items())
            if time.monotonic() > deadline:
                waiting = [
                    f"pod {name}: {why}" for name, (state, why) in states.items() if state != "running"
                ]
                raise PlacementFailed(
                    f"{len(states)} of {self._options.pods} pods after {self._options.starts_within_s:.0f} s"
                    + "".join(f"; {line}" for line in waiting)
                )
            time.sleep(0.5)

    def _attach(self, pod: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        command = [*self._options.kubectl, "attach", "-i", "-q", pod, "-c", CONTAINER]
        with theirs:
            # In a session of its own: Ctrl-C is for the controller.
            client = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=log, start_new_session=True
            )
        self._attached.append((pod, client, log))
        return ours

    def _kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        command: Sequence[str] = [*self._options.kubectl, *arguments]
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            if not check:
                return ""
            raise PlacementFailed(f"{command[0]}: {error}") from error
        if check and done.returncode != 0:
            raise PlacementFailed(f"kubectl {arguments[0]}: {done.stderr.strip()}")
        return done.stdout


def pod_state(pod: dict[str, Any]) -> tuple[str, str]:
    """`running`, `failed` or `waiting`, and why."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    for container in status.get("containerStatuses", []):
        state = container.get("state", {})
        if waiting := state.get("waiting"):
            reason = waiting.get("reason", "")
            why = f"{reason}: {waiting.get('message', '')}".rstrip(": ")
            return ("failed" if reason in WAITING_FOR_GOOD else "waiting"), why
        if ended := state.get("terminated"):
            return (
                "failed",
                f"its agent ended with status {ended.get('exitCode')} ({ended.get('reason', '')})",
            )
        if "running" in state:
            return "running", ""
    if phase in ("Failed", "Succeeded"):
        return "failed", status.get("message") or status.get("reason") or phase
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return "waiting", f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return "waiting", phase
