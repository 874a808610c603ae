"""The line of the log about an import that turns the GIL on."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import towline
from towline.server import gil
from towline.server.application import load

GIL_ON = (
    "The global interpreter lock (GIL) has been enabled to load module 'spam._speedups', which has not declared that "
    "it can run safely without the GIL. To override this behavior and keep the GIL disabled (at your own risk), run "
    "with PYTHON_GIL=0 or -Xgil=0."
)


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Answers of the interpreter, one after the other: whether the GIL is off."""
    answers: list[bool] = []
    monkeypatch.setattr(gil, "is_off", lambda: answers.pop(0))
    yield answers
    assert not answers


def test_the_module_is_named(
    states: list[bool], caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gil_app.py").write_text(
        f"import warnings\nwarnings.warn({GIL_ON!r}, RuntimeWarning)\nasync def app(scope, receive, send): ...\n"
    )
    states += [True, False]
    monkeypatch.setattr(logging.getLogger("towline.server"), "propagate", True)
    with caplog.at_level("WARNING", "towline.server"), warnings.catch_warnings():
        warnings.simplefilter("always")
        load(towline.ServerConfig(app="gil_app:app", app_dir=str(tmp_path)))
    sys.modules.pop("gil_app", None)
    assert [record.getMessage() for record in caplog.records] == [
        "the module spam._speedups has turned the GIL on: threads of Python run one at a time. PYTHON_GIL=0 keeps it off"
    ]


def test_other_warnings_are_shown(states: list[bool], caplog: pytest.LogCaptureFixture) -> None:
    states += [True, True]
    with pytest.warns(RuntimeWarning, match="other"), gil.imports_watched():
        warnings.warn("other", RuntimeWarning, stacklevel=1)
    assert not caplog.records


def test_without_a_name(
    states: list[bool], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    states += [True, False]
    monkeypatch.setattr(logging.getLogger("towline.server"), "propagate", True)
    with caplog.at_level("WARNING", "towline.server"), gil.imports_watched():
        pass
    assert caplog.records[0].getMessage().startswith("an imported module has turned the GIL on")
