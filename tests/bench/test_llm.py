"""Chats: the metrics, the mock endpoint, and the whole command with it."""

import hashlib
import http.client
import json
import os
import signal
import statistics
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from towline.bench import record
from towline.bench.clients.subjects import Interpreters
from towline.bench.llm import run as running
from towline.bench.llm.endpoint import BadEndpoint, Endpoint
from towline.bench.llm.llm_experiments import EXPERIMENTS, experiments_for
from towline.bench.llm.metrics import Call, CallBatch, Objectives, slice_of
from towline.bench.llm.mock_endpoint import is_refused, response_to
from towline.bench.llm.run import CHATS, LlmRun, MockEndpointProcess, Plan
from towline.cli.bench import main

# --- figures ------------------------------------------------------------------------------------


def test_metrics_of_calls():
    calls = [
        Call(200, 1.1, (0.2, 0.3, 0.6, 1.0), tokens=9, server_s=1.0),
        Call(200, 2.0, (1.5, 1.6), tokens=2, server_s=1.7),
        Call(429, 0.1, error="429 come back later"),
        Call(500, 0.1, error="500 broken"),
        Call(200, 0.5, (0.1,), tokens=1, wrong=True),
        Call(0, 3.0, error="ReadTimeout: no bytes"),
    ]
    found = slice_of(
        "towline", CallBatch(calls, 4.0, cpu_s=0.4), Objectives(first_token_ms=1000, per_token_ms=120)
    )
    assert (found.answered, found.failed, found.refused) == (2, 3, 1)
    assert found.errors == {"status": 1, "content": 1, "timeout": 1}
    assert found.first_failure == "500 broken"
    assert (found.response.count, found.response.min_us, found.response.max_us) == (2, 1_100_000, 2_000_000)
    assert found.response.mean_us == pytest.approx(1_550_000)
    assert found.first_byte.p50_us == pytest.approx(200_000)
    extra = found.extra
    assert (extra["total_p50_ms"], extra["total_p95_ms"]) == (pytest.approx(1100), pytest.approx(2000))
    assert (extra["total_min_ms"], extra["total_max_ms"]) == (pytest.approx(1100), pytest.approx(2000))
    assert extra["total_mean_ms"] == pytest.approx(1550)
    assert (extra["ttft_p50_ms"], extra["ttft_p95_ms"]) == (pytest.approx(200), pytest.approx(1500))
    assert extra["itl_chunk_p50_ms"] == pytest.approx(100)  # of 100, 300, 400, 100
    assert extra["itl_chunk_p99_ms"] == pytest.approx(400)
    assert extra["itl_token_p50_ms"] == pytest.approx(100)  # of 44.4, 133.3, 177.8, 100
    # (1.0 - 0.2) / 8 and 0.1 / 1
    assert extra["tpot_p50_ms"] == pytest.approx(100)
    assert extra["call_tokens_per_s"] == pytest.approx(11 / 3.1)
    # the second is too late with its first token; shares are of all calls
    assert extra["goodput_share"] == pytest.approx(1 / 6)
    assert extra["goodput_per_s"] == pytest.approx(0.25)
    assert (extra["added_p50_ms"], extra["added_p95_ms"]) == (pytest.approx(100), pytest.approx(300))
    assert "pieces_taken_for_tokens" not in extra


def test_an_endpoint_that_counts_no_tokens():
    found = slice_of("x", CallBatch([Call(200, 1.0, (0.5, 0.7, 0.9))], 1.0), Objectives())
    assert found.extra["tpot_p50_ms"] == pytest.approx(200)
    assert found.extra["pieces_taken_for_tokens"] == 1
    assert "added_p50_ms" not in found.extra


def test_no_successful_calls():
    found = slice_of("x", CallBatch([Call(200, 1.0), Call(429, 0.1)], 1.0), Objectives())
    assert (found.answered, found.failed, found.refused, found.extra) == (0, 1, 1, {})
    assert found.first_failure == "a response without text"


def test_arrivals_are_gamma():
    experiment = EXPERIMENTS["chat_arrivals"]
    offsets = [at for seed in range(200) for at in experiment.offsets(seed, 1.0)]
    assert experiment.offsets(7, 1.0) == experiment.offsets(7, 1.0) != experiment.offsets(8, 1.0)
    assert experiment.offsets(7, 0.1) == pytest.approx([at / 10 for at in experiment.offsets(7, 1.0)])
    gaps = [b - a for a, b in pairwise(offsets) if b > a]
    mean, deviation = statistics.fmean(gaps), statistics.stdev(gaps)
    assert mean == pytest.approx(1 / 8, rel=0.05)
    assert (deviation / mean) ** 2 == pytest.approx(experiment.burstiness, rel=0.15)


# --- the endpoint -------------------------------------------------------------------------------


def test_the_endpoint_comes_from_the_environment():
    assert not Endpoint.from_environment({}).is_remote
    environment = {"OPENROUTER_API_KEY": "k", "OPENROUTER_MODEL": "m", "OPENROUTER_MAX_TOKENS": "9"}
    found = Endpoint.from_environment(environment, base_url="https://example.org/v1/")
    assert (found.base_url, found.key, found.is_remote) == ("https://example.org/v1", "k", True)
    assert found.body("hi")["model"] == "m"
    assert found.body("hi")["max_tokens"] == 9
    with pytest.raises(BadEndpoint, match="OPENROUTER_MAX_TOKENS is 'many'"):
        Endpoint.from_environment({"OPENROUTER_MAX_TOKENS": "many"})
    with pytest.raises(BadEndpoint, match="must begin with http"):
        Endpoint.from_environment({"OPENROUTER_BASE_URL": "example.org"})


def test_a_real_endpoint_gets_the_requests_of_the_source_only():
    assert [experiment.name for experiment in experiments_for(True)] == ["llm_sequential", "llm_parallel"]
    assert [
        (experiment.batches, experiment.concurrency, experiment.gap_s) for experiment in experiments_for(True)
    ] == [
        (10, 1, 4.0),
        (3, 5, 15.0),
    ]
    assert len(experiments_for(False)) == len(EXPERIMENTS)


def test_profiles():
    quick = [response_to(1, "quick", f"q{number}", 64, 1.0) for number in range(400)]
    durations = sorted(sum(pause for pause, _ in response.pieces) for response in quick)
    assert statistics.median(durations) == pytest.approx(0.4, rel=0.15)
    assert 1.5 < durations[-1] <= 2.5 + 1e-9
    for number in range(20):
        long = response_to(1, "long", f"q{number}", 64, 1.0)
        assert 100 <= len(long.pieces) <= 160
        assert 0.9 <= sum(pause for pause, _ in long.pieces) <= 1.1
        assert long.tokens == sum(len(text.split()) for _, text in long.pieces)
    assert response_to(1, "long", "q", 64, 1.0) == response_to(1, "long", "q", 64, 1.0)
    assert response_to(1, "long", "q", 64, 1.0) != response_to(2, "long", "q", 64, 1.0)
    assert sum(is_refused(1, f"q{number}", 0.2) for number in range(1000)) == pytest.approx(200, abs=50)


def test_the_mock_endpoint_uses_the_format():
    with MockEndpointProcess(5, 0.01) as mock:
        address = urlsplit(mock.base_url)
        conn = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
        body = json.dumps(Endpoint("", None, "quick").body("hello"))
        conn.request("POST", "/v1/chat/completions", body)
        response = conn.getresponse()
        text = response.read().decode()
        assert (response.status, response.getheader("content-type")) == (200, "text/event-stream")
        conn.request("POST", "/v1/other", body)  # over the same connection
        assert conn.getresponse().status == 404
        conn.close()
    events = [line[6:] for line in text.splitlines() if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
    expected = response_to(5, "quick", "hello", 64, 0.01)
    assert content == "".join(piece for _, piece in expected.pieces)
    assert chunks[-1]["usage"]["completion_tokens"] == expected.tokens
    assert chunks[-1]["mock"]["sha256"] == hashlib.sha256(content.encode()).hexdigest()
    assert chunks[-1]["mock"]["took_s"] >= sum(pause for pause, _ in expected.pieces)


# --- the command --------------------------------------------------------------------------------


def measured_on_the_mock(tmp_path, monkeypatch, *options):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    monkeypatch.delenv("OPENROUTER_BASE_URL", raising=False)
    more = ["--scale", "0.01", "--seed", "3", "--output", str(tmp_path), "--no-history"]
    assert main(["llm", *options, *more]) == 0
    return record.load(tmp_path / "result.json.gz")


SDKS = [name for name in CHATS if "openai" in name]


@pytest.mark.parametrize("chosen", [SDKS, [name for name in CHATS if name not in SDKS]], ids=["sdk", "plain"])
def test_every_client_chats_with_the_mock_endpoint(tmp_path, capsys, monkeypatch, chosen):
    subjects = [word for name in chosen for word in ("--subject", name)]
    found = measured_on_the_mock(tmp_path, monkeypatch, "--scenario", "llm_parallel", *subjects)
    assert found.skipped == {}  # CI installs all of them
    (experiment,) = found.experiments
    assert {one.subject for one in experiment.slices} == set(chosen)
    captured = capsys.readouterr()
    output = captured.out + captured.err
    for one in experiment.slices:
        assert (one.answered, one.failed, one.refused, one.first_failure) == (15, 0, 0, None)
        assert 0 < one.extra["ttft_p50_ms"] <= one.extra["ttft_p95_ms"]
        assert one.extra["added_p50_ms"] > 0
        assert one.response.min_us >= 1500  # of the mock endpoint's least, scaled
        assert one.subject in output
    assert "a local mock endpoint answered" in experiment.notes


def test_every_scenario_once(tmp_path, monkeypatch):
    found = measured_on_the_mock(tmp_path, monkeypatch, "--subject", "towline", "--loop", "uvloop")
    assert [experiment.name for experiment in found.experiments] == list(EXPERIMENTS)
    for experiment in found.experiments:
        (one,) = experiment.slices
        assert (one.answered, one.failed) == (EXPERIMENTS[experiment.name].calls, 0)


def test_refusals_are_counted_apart(monkeypatch, tmp_path):
    options = ["--scenario", "llm_parallel", "--subject", "towline", "--subject", "openai+httpx2"]
    found = measured_on_the_mock(tmp_path, monkeypatch, *options, "--refuse-share", "0.4")
    questions = [
        f"Say hello. (llm_parallel, 0/{batch}/{number})" for batch in range(3) for number in range(5)
    ]
    refused = sum(is_refused(3, question, 0.4) for question in questions)
    assert 0 < refused < 15
    for one in found.experiments[0].slices:
        assert (one.answered, one.failed, one.refused) == (15 - refused, 0, refused)


def test_a_subject_that_dies_does_not_affect_the_others(monkeypatch):
    original = running.ChatProcess.call

    def call(self, calls, pause_s):
        if self.client.name == "httpx" and "llm_" in calls[0]["body"]["messages"][0]["content"]:
            os.kill(self.worker.pid, signal.SIGKILL)
        return original(self, calls, pause_s)

    monkeypatch.setattr(running.ChatProcess, "call", call)
    with MockEndpointProcess(3, 0.01) as mock:
        endpoint = Endpoint(mock.base_url, None)
        plan = Plan(endpoint, ("towline", "httpx"), scale=0.01)
        found = LlmRun(EXPERIMENTS["llm_sequential"], plan).run()
    by_name = {one.name: one for one in found.subjects}
    assert by_name["httpx"].failure == "it ended with status -9"
    assert by_name["towline"].failure is None
    assert [(one.subject, one.answered) for one in found.slices] == [("towline", 10)]


def test_a_missing_interpreter_is_reported(tmp_path):
    with MockEndpointProcess(3, 0.01) as mock:
        interpreters = Interpreters.usual({"httpx": tmp_path / "none"})
        plan = Plan(
            Endpoint(mock.base_url, None), ("towline", "httpx"), scale=0.01, interpreters=interpreters
        )
        run = LlmRun(EXPERIMENTS["llm_parallel"], plan)
        found = run.run()
    assert "there is no interpreter" in run.skipped["httpx"]
    assert [one.name for one in found.subjects] == ["towline"]


def test_an_invalid_command_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OPENROUTER_MAX_TOKENS", "-3")
    assert main(["llm", "--output", str(tmp_path)]) == 2
    assert "OPENROUTER_MAX_TOKENS is '-3'" in capsys.readouterr().err
    monkeypatch.delenv("OPENROUTER_MAX_TOKENS")
    assert main(["llm", "--subject", "curl", "--output", str(tmp_path)]) == 2
    assert "no client 'curl'; there is towline, httpx" in capsys.readouterr().err
