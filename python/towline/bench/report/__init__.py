"""Output made from a record: a table, Markdown, CSV and an HTML page.

`render_all` writes the files; `show` prints. `main_report`, `main_compare`, `main_gate` and `main_history` are the
commands of `towline bench`: arguments in, exit status out (argparse exits with 2 by itself).
"""

from __future__ import annotations

from .compare_command import main_compare
from .files import FORMATS, render, render_all
from .gate_command import main_gate
from .history_command import main_history
from .main import main_report
from .terminal import show

__all__ = [
    "FORMATS",
    "main_compare",
    "main_gate",
    "main_history",
    "main_report",
    "render",
    "render_all",
    "show",
]
