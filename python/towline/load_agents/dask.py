"""Agents on the workers of a Dask cluster (`--cluster dask://HOST:PORT`): one task on one worker of each node."""

from __future__ import annotations

from importlib import import_module
from types import TracebackType
from typing import Any

from .reception import PlacementFailed, Reception
from .tasks import agent_task


class DaskPlacement:
    """`each_worker`: an agent on each worker, not on each node."""

    def __init__(self, scheduler: str, each_worker: bool) -> None:
        try:
            distributed: Any = import_module("distributed")
        except ImportError as error:
            raise PlacementFailed(
                f"--cluster dask://... needs distributed: pip install 'towline[dask]' ({error})"
            ) from error
        try:
            self._client: Any = distributed.Client(scheduler, set_as_default=False)
        except OSError as error:
            raise PlacementFailed(f"no Dask scheduler at {scheduler}: {error}") from error
        self._each_worker = each_worker
        self._futures: dict[str, Any] = {}

    def __enter__(self) -> DaskPlacement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The agents have ended with their connections; a task that has not begun does not begin.
        self._client.cancel(list(self._futures.values()), force=True)
        self._client.close()

    def start(self, reception: Reception) -> list[str]:
        """Starts the agents and returns their names."""
        for name, worker in self._workers().items():
            self._futures[name] = self._client.submit(
                agent_task(),
                str(reception.address),
                reception.environment(name),
                workers=[worker],
                allow_other_workers=False,
                pure=False,
                retries=0,
                key=f"towline-load-{reception.address.port}-{name}",
            )
        return list(self._futures)

    def _workers(self) -> dict[str, str]:
        """Names of agents, and addresses of workers: the first one of each node, or all."""
        workers: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        found: dict[str, str] = {}
        for address in sorted(workers):
            found.setdefault(address if self._each_worker else str(workers[address]["host"]), address)
        if not found:
            raise PlacementFailed("the Dask cluster has no worker")
        return found

    def failures(self) -> dict[str, str]:
        """Names of agents whose tasks have failed or were lost, with the reason."""
        return {
            name: str(future.exception(timeout=5))
            for name, future in self._futures.items()
            if future.status == "error"
        } | {name: "its task was lost" for name, future in self._futures.items() if future.status == "lost"}
