"""Agents on the nodes of a Ray cluster (`--cluster ray://HOST:PORT`): one task on each node, with a CPU of its own."""

from __future__ import annotations

from importlib import import_module
from types import TracebackType
from typing import Any

from .reception import PlacementFailed, Reception
from .tasks import agent_task


class RayPlacement:
    """`address`: as `ray.init` takes it."""

    def __init__(self, address: str, cpus: int) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError as error:
            raise PlacementFailed(
                f"--cluster ray://... needs ray: pip install 'towline[ray]' ({error})"
            ) from error
        self._ray = ray
        self._cpus = cpus
        self._tasks: dict[str, Any] = {}
        try:
            ray.init(address, log_to_driver=False, logging_level="error")
        except (ConnectionError, OSError) as error:
            raise PlacementFailed(f"no Ray cluster at {address}: {error}") from error

    def __enter__(self) -> RayPlacement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            self._ray.cancel(task, force=True)
        self._ray.shutdown()

    def start(self, reception: Reception) -> list[str]:
        """Starts the agents and returns their names."""
        strategies: Any = import_module("ray.util.scheduling_strategies")
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        if not nodes:
            raise PlacementFailed("the Ray cluster has no node")
        for number, node in enumerate(nodes, 1):
            name = str(node.get("NodeManagerHostname") or node["NodeID"])
            if name in self._tasks:
                name = f"{name} ({number})"
            strategy = strategies.NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
            task = self._ray.remote(agent_task()).options(
                num_cpus=self._cpus, scheduling_strategy=strategy, max_retries=0
            )
            self._tasks[name] = task.remote(str(reception.address), reception.environment(name))
        return list(self._tasks)

    def failures(self) -> dict[str, str]:
        """Names of agents whose tasks have failed, with the reason."""
        found = {}
        for name, task in self._tasks.items():
            ended, _ = self._ray.wait([task], timeout=0)
            if ended:
                try:
                    self._ray.get(task)
                except Exception as error:
                    found[name] = str(error).strip().splitlines()[-1]
        return found
