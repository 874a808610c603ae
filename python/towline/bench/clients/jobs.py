"""Derives experiments from scenarios: the job of each backend of a client scenario, and its subjects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import get_args

from .. import scenarios
from ..scenarios import Load, Scenario
from .measure import ClientExperiment
from .subjects import DROP_INS, ENGINES, HTTP1_ALONE
from .worker.job import MICRO, SLOW, Backend, Job, JobKind, LoopName

OWN = Path(__file__).parent / "scenarios.toml"
SLICE_REQUESTS = 500
"""Loads of thousands of requests are cut into slices of this size, as in the source (10 x 500)."""
SEND_BUFFER_BYTES = 32 * 1024

JOB_KINDS: Mapping[str, JobKind] = {name: name for name in get_args(JobKind)}

DROP_IN_EXPERIMENTS = {
    "dropin_httpx": ("towline.httpx", "httpx"),
    "dropin_httpx2": ("towline.httpx2", "httpx2"),
    "dropin_requests": ("towline.requests", "requests"),
}
"""The drop-in, which is the baseline, and the library that it replaces."""
LIBRARIES = DROP_IN_EXPERIMENTS | {"engines": ("towline", *(client.library for client in ENGINES))}
"""The libraries of experiments that are about particular ones; the first is the baseline."""

POOLS: Mapping[Backend, tuple[str, ...]] = {
    "async": ("towline", "httpcore", "httpcorexyz", "aiohttp"),
    "sync": ("towline", "httpcore", "httpcorexyz", "urllib3"),
}
"""Libraries whose pool can be driven directly, and which support unix sockets."""

HTTP2_NOTES = (
    "Prior knowledge, without TLS; the responder supports nothing else. Each client decides how many connections it opens.",
    f"Without HTTP/2, or not without TLS: {', '.join(sorted(HTTP1_ALONE - DROP_INS))}.",
)

MICRO_NOTES = {
    "pool_assignment": (
        "What is timed is the pool's own step that gives each request a connection, all connections open and idle.",
        "httpcore, httpcorexyz: _assign_requests_to_connections, once for all requests; it looks at every socket.",
        "aiohttp: the connector's _get for each request; urllib3: the pool manager's lookup and _get_conn, which looks "
        "at the socket.",
        "towline: the acquire of its pool, in Rust, without Python around it; its connections are watched by epoll, so "
        "that no socket is looked at.",
    ),
    "partial_write": (
        "A whole POST over one kept connection of a unix socket, through each client's own API, where its source writes "
        "to a bare socketpair. The connection's send buffer is set to 32 KB from outside, and the responder drains it.",
    ),
    "uncontended_acquire": (
        "One idle connection acquired from a pool and released, without a request; as in pool_assignment.",
    ),
}


@cache
def client_scenarios() -> dict[str, Scenario]:
    """The client scenarios of the catalogue and of this folder, by name."""
    found = {name: one for name, one in scenarios.catalogue().items() if one.kind == "client"}
    return found | scenarios.load(OWN)


def experiments_of(
    scenario: Scenario, loop: LoopName = "asyncio", connections: Sequence[int] = ()
) -> list[ClientExperiment]:
    """One experiment for each load and backend; `connections` replaces the loads, see `takes_connections`.

    Raises ValueError for a scenario with an unknown call.
    """
    kind = _kind(scenario)
    loads = scenario.loads or (Load(),)
    if connections and takes_connections(scenario):
        loads = tuple(
            Load(name=str(number), concurrency=number, pool=max(Load.pool, number)) for number in connections
        )
    return [
        _experiment(scenario, load, kind, backend, loop) for load in loads for backend in scenario.backends
    ]


def takes_connections(scenario: Scenario) -> bool:
    """Whether its load is a number of concurrent requests, which `--connections` replaces."""
    return _kind(scenario) in ("get", "stream")


def _kind(scenario: Scenario) -> JobKind:
    kind = JOB_KINDS.get(scenario.call or "")
    if kind is None:
        raise ValueError(
            f"{scenario.name}: no client knows the call {scenario.call!r}; there is {', '.join(JOB_KINDS)}"
        )
    return kind


def _experiment(
    scenario: Scenario, load: Load, kind: JobKind, backend: Backend, loop: LoopName
) -> ClientExperiment:
    own_backend = (backend,) if len(scenario.backends) > 1 else ()
    name = "_".join((scenario.name, *own_backend, *filter(None, (load.name,))))
    title = (
        scenario.title + (f", {load.name}" if load.name else "") + (f" ({backend})" if own_backend else "")
    )
    count, slices, floor_s = load.count, None, load.floor_s
    if kind == "get" and count is not None and count > SLICE_REQUESTS:
        slices, count = max(1, count // SLICE_REQUESTS), SLICE_REQUESTS
        floor_s = floor_s / slices if floor_s is not None else None
    if kind == "pool_assignment":
        count = None
    libraries = LIBRARIES.get(scenario.name)
    baseline = libraries[0] if libraries else "towline"
    if kind in MICRO or kind == "partial_write":
        libraries = POOLS[backend]
    return ClientExperiment(
        name=name,
        scenario=scenario.name,
        title=title,
        section=scenario.section,
        job=_job(scenario, load, kind, backend, loop, count),
        slices=slices,
        floor_s=floor_s,
        libraries=libraries,
        baseline=baseline,
        alone=kind in SLOW,
        notes=(
            *scenario.notes,
            *MICRO_NOTES.get(kind, ()),
            *(HTTP2_NOTES if "h2" in scenario.protocols else ()),
        ),
    )


def _job(
    scenario: Scenario, load: Load, kind: JobKind, backend: Backend, loop: LoopName, count: int | None
) -> Job:
    request = scenario.requests[0] if scenario.requests else None
    parameters: dict[str, int] = {}
    text, repeat = "", 1
    if kind == "partial_write":
        parameters["send_buffer_bytes"] = SEND_BUFFER_BYTES
    elif kind in MICRO:
        connections = load.pool if kind == "pool_assignment" else 1
        parameters = {"connections": connections, "requests": load.count or 1, "origins": load.origins}
    if kind in ("upload", "partial_write"):
        text = str(load.body_bytes)
    elif kind != "post_json" and request is not None and request.expect.body is not None:
        text, repeat = request.expect.body.unit.decode(), request.expect.body.count
    return Job(
        kind=kind,
        backend=backend,
        path=request.target if request is not None else "/upload",
        answer_text=text,
        answer_repeat=repeat,
        body_bytes=load.body_bytes,
        concurrency=max(1, load.concurrency // load.batch),
        batch=load.batch,
        count=count,
        pool=load.pool,
        loop=loop,
        protocol=scenario.protocols[0],
        parameters=parameters,
    )
