"""`towline bench llm`: chats with a real endpoint, or with the local mock of one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from ...errors import ConfigError
from ..clients.subjects import Interpreters
from ..record import ExperimentRecord, Slice
from ..runner.plan import Options, select
from ..runner.session import Session
from .endpoint import BadEndpoint, Endpoint
from .llm_experiments import EXPERIMENTS, experiments_for
from .metrics import Objectives
from .run import CHATS, LlmRun, MockEndpointProcess, Plan

COLUMNS = (
    ("ttft_p50_ms", "first token p50 ms"),
    ("ttft_p95_ms", "p95"),
    ("itl_chunk_p50_ms", "between chunks p50 ms"),
    ("itl_chunk_p99_ms", "p99"),
    ("tpot_p50_ms", "a token ms"),
    ("call_tokens_per_s", "tokens/s"),
    ("added_p50_ms", "added by the client ms"),
    ("goodput_share", "good"),
    ("rss_growth_bytes", "held bytes"),
)


def run_llm(session: Session, options: Options, *, use_mock: bool = False) -> None:
    """Measures the chosen scenarios on the chosen clients, with the mock endpoint if there is no key.

    `use_mock`: ignores a key, so that no request costs money.

    Raises `ConfigError` for an invalid environment or name, `Failed` when the mock endpoint does not start.
    """
    try:
        endpoint = Endpoint.from_environment(base_url=options.base_url)
    except BadEndpoint as error:
        raise ConfigError(str(error)) from None
    if use_mock:
        endpoint = replace(endpoint, key=None)
    elif options.base_url and not endpoint.is_remote:
        endpoint = replace(endpoint, key="none")  # a local endpoint that needs no key
    design = session.design
    experiments = experiments_for(
        endpoint.is_remote, select(options.scenario, EXPERIMENTS, "scenario") if options.scenario else None
    )
    plan = Plan(
        endpoint,
        tuple(select(options.subject, CHATS, "client")),
        options.runs or 1,
        design.seed,
        options.scale,
        "uvloop" if options.loop == "uvloop" else "asyncio",
        Objectives(),
        Interpreters.usual(dict(options.client_python)),
        design.cores,
    )
    with ExitStack() as stack:
        if not endpoint.is_remote:
            mock = stack.enter_context(
                MockEndpointProcess(plan.seed, plan.scale, options.refuse_share, design.cores.driver)
            )
            plan = replace(plan, endpoint=replace(endpoint, base_url=mock.base_url))
        for experiment in experiments:
            measure(session, LlmRun(experiment, plan, session.progress.message))


def measure(session: Session, run: LlmRun) -> None:
    """Measures one experiment; what was measured until an interrupt is kept."""
    try:
        run.run()
    finally:
        for name, reason in run.skipped.items():
            session.skip(name, reason)
        record = run.record()
        session.add(record)
        for line in table(record).splitlines():
            session.progress.message(line)


def table(experiment: ExperimentRecord) -> str:
    """Plain text: one line for each subject and restart."""
    head = [
        "subject",
        "n",
        "errors",
        "429",
        "p50 ms",
        "p95",
        "mean",
        "min",
        "max",
        *(title for _, title in COLUMNS),
    ]
    rows = [head, *(_row(one) for one in experiment.slices)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    failed = [
        f"{one.name}: no figures, {one.failure}" for one in experiment.subjects if one.failure is not None
    ]
    return "\n".join([f"\n{experiment.name}: {experiment.title}", *lines, *failed, *experiment.notes])


def _row(one: Slice) -> list[str]:
    times = one.response
    milliseconds = (times.p50_us, times.p95_us, times.mean_us, times.min_us, times.max_us)
    return [
        one.subject,
        str(one.answered),
        str(one.failed),
        str(one.refused),
        *(f"{value / 1e3:,.1f}" for value in milliseconds),
        *(f"{one.extra[name]:,.4g}" if name in one.extra else "" for name, _ in COLUMNS),
    ]
