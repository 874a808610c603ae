"""Records with known true values: simulated slices of subjects with given rates, latencies and costs.

The noise is that of real machines: per restart, per slice, and a step.
"""

from __future__ import annotations

import base64
import math
import random
import struct
import zlib
from collections import Counter
from dataclasses import dataclass, replace

from towline.bench.record import ExperimentRecord, Latency, Record, Slice, Start, SubjectRecord

HEADER = struct.pack(">iiiiqqd", 0x1C849313, 64, 0, 3, 1, 1 << 42, 1.0)
"""Digits of a histogram whose counts take 64 bytes."""
STARTED_AT = 1_790_000_000.0
MACHINE = {
    "cpu": "Example CPU @ 3.00GHz",
    "cores": 2,
    "memory_bytes": 16 << 30,
    "kernel": "Linux 6.1.0",
    "governor": "performance",
    "fingerprint": "example-2",
}


@dataclass(frozen=True)
class Truth:
    """The true values of one subject."""

    name: str
    per_s: float
    cpu_us: float = 8.0
    p50_us: float = 200.0
    tail: float = 0.35
    """Sigma of the log-normal latency."""
    rss_bytes: int = 40 << 20


HELLO = (
    Truth("towline", 60_000, 12.0, 620, 0.25, 31 << 20),
    Truth("granian", 41_000, 17.5, 900, 0.32, 52 << 20),
    Truth("uvicorn-httptools", 26_000, 34.0, 1500, 0.4, 27 << 20),
    Truth("uvicorn-h11", 9_500, 101.0, 4100, 0.45, 29 << 20),
    Truth("hypercorn", 5_200, 190.0, 7600, 0.5, 44 << 20),
)


def encode(values_ns: list[int], digits: int = 3) -> str:
    """HdrHistogram V2, deflated, base64: a minimal encoder with the output of the Rust crate."""
    half = math.ceil(math.log2(2 * 10**digits)) - 1
    counts = Counter(_slot(value, half) for value in values_ns)
    payload, following = bytearray(), 0
    for slot, count in sorted(counts.items()):
        empty = slot - following
        if empty:
            payload += _zigzag(-empty if empty > 1 else 0)
        payload += _zigzag(count)
        following = slot + 1
    plain = struct.pack(">iiiiqqd", 0x1C849313, len(payload), 0, digits, 1, 1 << 42, 1.0) + payload
    packed = zlib.compress(plain)
    return base64.b64encode(struct.pack(">ii", 0x1C849314, len(packed)) + packed).decode()


def _slot(value: int, half: int) -> int:
    bucket = max(0, value.bit_length() - half - 1)
    return ((bucket + 1) << half) + (value >> bucket) - (1 << half)


def _zigzag(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while len(out) < 8 and value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def latency(values_us: list[float]) -> Latency:
    ordered = sorted(values_us)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    return Latency(
        len(ordered),
        sum(ordered) / len(ordered),
        ordered[0],
        at(0.5),
        at(0.9),
        at(0.95),
        at(0.99),
        at(0.999),
        ordered[-1],
    )


def experiment(
    name: str = "hello",
    truths: tuple[Truth, ...] = HELLO,
    *,
    question: str = "capacity",
    rate_per_s: float | None = None,
    restarts: int = 8,
    rounds: int = 12,
    slice_s: float = 0.08,
    seed: int = 1,
    samples: int = 400,
    title: str | None = None,
    section: str = "Roadrunner",
    connections: int = 50,
    **more: object,
) -> ExperimentRecord:
    """An experiment with the true values `truths`; `samples` latencies per slice represent all."""
    draw = random.Random(seed)
    slices: list[Slice] = []
    starts: dict[str, list[Start]] = {truth.name: [] for truth in truths}
    clock = STARTED_AT
    for restart in range(restarts):
        offset = {truth.name: draw.gauss(0, 0.01) for truth in truths}
        for truth in truths:
            steady = truth.rss_bytes + draw.randrange(1 << 20)
            starts[truth.name].append(
                Start(restart, 0.3, 0.8, True, truth.rss_bytes, steady + (2 << 20), steady, 0.02, 0.0)
            )
        clock += 4.0
        for round_ in range(rounds):
            drift = 0.05 * math.sin(clock / 7) + draw.gauss(0, 0.03)
            for position, truth in enumerate(draw.sample(truths, len(truths))):
                factor = math.exp(drift + offset[truth.name] + draw.gauss(0, 0.01))
                measured = slice_s * 0.9
                responses = round((rate_per_s or truth.per_s * factor) * measured)
                times = [
                    truth.p50_us * math.exp(draw.gauss(0, truth.tail)) / factor
                    + (truth.p50_us * 6 if draw.random() < 0.004 else 0)
                    for _ in range(samples)
                ]
                slices.append(
                    Slice(
                        truth.name,
                        restart,
                        round_,
                        position,
                        clock,
                        measured,
                        responses,
                        target_per_s=rate_per_s,
                        response=replace(latency(times), count=responses),
                        service=latency(times),
                        first_byte=latency([time * 0.9 for time in times]),
                        lag_p99_us=8.0 if question == "latency" else None,
                        subject_cpu_s=responses * truth.cpu_us / 1e6 / math.sqrt(factor),
                        subject_busiest_share=0.99 if question == "capacity" else 0.4,
                        driver_cpu_s=responses * 4e-6,
                        driver_busiest_share=0.4,
                        context_switches=responses // 40,
                        body_bytes=responses * 7,
                        histogram=encode([round(time * 1000) for time in times]),
                    )
                )
                clock += slice_s + 0.01
    subjects = [
        SubjectRecord(
            truth.name,
            "server",
            ["python", "-m", truth.name, "--port", "PORT", "app:app"],
            {truth.name: "1.0", "python": "3.11.7"},
            {},
            starts[truth.name],
        )
        for truth in truths
    ]
    load: dict[str, object] = {"connections": connections, "slice_s": slice_s}
    if rate_per_s:
        load["rate_per_s"] = rate_per_s
    return ExperimentRecord(
        name, name, title or name.replace("_", " "), section, question, load, subjects, slices, **more
    )  # type: ignore[arg-type]


def record(*experiments: ExperimentRecord, **more: object) -> Record:
    last = max(
        (one.began_unix_s for experiment in experiments for one in experiment.slices), default=STARTED_AT + 1
    )
    values: dict[str, object] = {
        "tool": "towline 0.1.0",
        "began_unix_s": STARTED_AT,
        "ended_unix_s": last + 1,
        "machine": MACHINE,
        "versions": {"towline": "0.1.0", "python": "3.11.7"},
        "command": ["towline", "bench", "quick"],
        "seed": 7,
        "settings": {"restarts": 8, "rounds": 12},
        "experiments": list(experiments),
    }
    return Record(**{**values, **more})  # type: ignore[arg-type]


def control(seed: int = 5, **more: object) -> ExperimentRecord:
    """A control: one subject twice."""
    twice = (replace(HELLO[0], name="towline"), replace(HELLO[0], name="towline-again"))
    return experiment("control", twice, seed=seed, control=True, title="A/A control", **more)  # type: ignore[arg-type]
