"""examples/ci: the steps of the workflow run as a runner runs them, with short measurements and prepared results."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from towline.bench import record as records

from tests.bench.synthetic import HELLO, experiment, record

FOLDER = Path(__file__).parents[2] / "examples" / "ci"
WORKFLOW = yaml.safe_load((FOLDER / "towline-bench.yml").read_text())
TINY = ("--runs", "2", "--duration", "0.2", "--warm-up", "0.3", "--no-history")

# In place of `python -m venv FOLDER`: an environment whose pip does nothing and whose towline is this one.
PYTHON = """#!/usr/bin/env bash
set -e
[ "$1 $2" = "-m venv" ]
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$@" >> pip.log\\n' > "$3/bin/pip"
printf '#!/bin/sh\\nexec {python} -m towline "$@"\\n' > "$3/bin/towline"
chmod +x "$3"/bin/*
"""


def environment(folder: Path) -> dict[str, str]:
    programs = folder / "programs"
    programs.mkdir()
    towline = f'#!/bin/sh\nexec {sys.executable} -m towline "$@"\n'
    for name, text in (("python", PYTHON.replace("{python}", sys.executable)), ("towline", towline)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    without_summary = {name: value for name, value in os.environ.items() if name != "GITHUB_STEP_SUMMARY"}
    return {**without_summary, "PATH": f"{programs}:{os.environ['PATH']}"}


def result(path: Path, new_is_slower_by: float, seed: int) -> None:
    (towline, *_) = HELLO
    truths = (
        replace(towline, name="new", per_s=towline.per_s / new_is_slower_by),
        replace(towline, name="old"),
    )
    one = experiment("hello", truths, seed=seed, samples=10, rounds=6, restarts=12)
    records.save(record(one, seed=seed), path)


def judge(job: str, folder: Path) -> tuple[int, str]:
    """Runs the step as a runner does; returns its status and its output for later steps."""
    (step,) = (step for step in WORKFLOW["jobs"][job]["steps"] if step.get("name") == "Judge")
    output = folder / "output"
    output.touch()
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={**environment(folder), **WORKFLOW["env"], "GITHUB_OUTPUT": str(output)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, output.read_text()


@pytest.mark.parametrize(("by", "status", "output"), [(1.0, 0, "status=0\n"), (1.2, 0, "status=4\n")])
def test_a_suspicion_does_not_fail_the_first_job(tmp_path: Path, by: float, status: int, output: str) -> None:
    result(tmp_path / "measured/result.json.gz", by, seed=2)
    assert judge("measure", tmp_path) == (status, output)
    assert WORKFLOW["jobs"]["confirm"]["if"] == "needs.measure.outputs.status == '4'"


def test_a_missing_result_fails_the_first_job(tmp_path: Path) -> None:
    status, output = judge("measure", tmp_path)
    assert status == 2
    assert output == "status=2\n"


@pytest.mark.parametrize(("by", "status"), [(1.2, 1), (0.8, 0)])
def test_the_second_job_decides(tmp_path: Path, by: float, status: int) -> None:
    result(tmp_path / "first/result.json.gz", 1.2, seed=3)
    result(tmp_path / "measured/result.json.gz", by, seed=4)
    assert judge("confirm", tmp_path)[0] == status


def test_the_script_measures_both_builds(tmp_path: Path) -> None:
    for build in ("old", "new"):
        (tmp_path / build).mkdir()
    done = subprocess.run(
        ["bash", str(FOLDER / "measure.sh"), *TINY],
        cwd=tmp_path,
        env={**environment(tmp_path), "SCENARIOS": "hello"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "pip.log").read_text().splitlines() == [
        "install --quiet ./old",
        "install --quiet ./new",
    ]
    experiments = records.load(tmp_path / "measured").experiments
    assert {subject.name for one in experiments for subject in one.subjects} >= {"old", "new"}
    assert all(not subject.failure for one in experiments for subject in one.subjects)


def test_both_jobs_have_the_same_steps_before_they_judge() -> None:
    def before(job: str) -> list[Any]:
        steps = [step for step in WORKFLOW["jobs"][job]["steps"] if "artifact" not in step.get("uses", "")]
        return [step for step in steps if step.get("name") != "Judge"]

    assert before("measure") == before("confirm")
