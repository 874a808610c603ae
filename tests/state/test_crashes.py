"""Writers that are killed at any instruction leave what was acknowledged, and nothing half done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

KILLS = int(os.environ.get("TOWLINE_STATE_KILLS", "300"))


def test_killed_writers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.state.crash_driver", str(tmp_path / "store"), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280 + KILLS / 10, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(r"(\d+) kills, (\d+) acknowledged writes, (\d+) bytes of file\n", done.stdout)
    assert found is not None
    assert int(found[1]) == KILLS
    assert int(found[2]) > KILLS, "the writers hardly wrote"
    assert int(found[3]) < 64 << 20, "pages of killed readers or writers are not used again"
