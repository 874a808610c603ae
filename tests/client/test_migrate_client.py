"""docs/migrate-client.md has every public name of httpx, requests and aiohttp, and only names that exist here."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import towline

ROOT = Path(__file__).parents[2]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("client_names", ROOT / "scripts" / "client_names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


NAMES = script()


def public(value: Any) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


def exported(table: str) -> set[str]:
    """The public names of the package or class itself."""
    package = pytest.importorskip(table.partition(".")[0])
    if table == "requests":
        known = {n for n in public(package) if not isinstance(getattr(package, n), types.ModuleType)}
        return known | {*package.__all__}
    if table == "requests.exceptions":
        names = {
            name for name in public(package.exceptions) if isinstance(getattr(package.exceptions, name), type)
        }
        return {n for n in names if getattr(package.exceptions, n).__module__ == "requests.exceptions"}
    if table == "requests.Session":
        return public(package.Session())
    if table == "requests.Response":
        return {n for n in {*public(package.Response), *package.Response.__attrs__} if not n.startswith("_")}
    if "." in table:
        return public(getattr(package, table.partition(".")[2]))
    return {name for name in package.__all__ if not name.startswith("_")}


@pytest.mark.parametrize("table", NAMES.TABLES)
def test_every_name_has_a_row_or_is_the_same_here(table: str) -> None:
    theirs, rows = exported(table), NAMES.rows(table)
    ours = public(NAMES.OURS[table]) | {"max_redirects"}
    assert theirs - rows.keys() - ours == set()
    if table != "aiohttp":  # its names differ more between versions
        assert rows.keys() - theirs == set()


def test_the_names_here_exist() -> None:
    roots = {"client": towline.AsyncClient, "response": towline.Response, "towline": towline}
    known = {*public(towline), *public(towline.Client), *public(towline.Response)}
    for table in NAMES.TABLES:
        for name, here in NAMES.rows(table).items():
            for code in re.findall(r"`([^`]+)`", here):
                dotted = re.match(r"(client|response|towline)\.(\w+)", code)
                if dotted:
                    owner = towline.Client if dotted[2] == "close" else roots[dotted[1]]
                    assert hasattr(owner, dotted[2]) or dotted[2] == "max_redirects", (name, code)
                elif re.fullmatch(r"[A-Z]\w+", code) and code not in ("None", "ValueError"):
                    assert code in known, (name, code)


def test_the_page_is_up_to_date() -> None:
    assert NAMES.PAGE.read_text() == NAMES.page()


def test_hints_and_page_agree() -> None:
    """Both name the same thing: the page is not made from the hints, because it has more to say."""
    from towline.client import hints

    of_class = {
        "Client": hints.CLIENT_NAMES,
        "Session": hints.CLIENT_NAMES,
        "ClientSession": hints.CLIENT_NAMES,
    }
    of_class |= {"Response": hints.RESPONSE, "ClientResponse": hints.RESPONSE}
    for table in NAMES.TABLES:
        hinted = of_class.get(table.partition(".")[2], hints.MODULE)
        for name, here in NAMES.rows(table).items():
            if name in hinted and not here.startswith("-"):
                words = set(re.findall(r"[A-Za-z_]{3,}", hinted[name])) - {
                    "write",
                    "client",
                    "response",
                    "towline",
                }
                assert words & set(re.findall(r"[A-Za-z_]{3,}", here)), (table, name)


def test_every_hint_of_the_module_names_something() -> None:
    from towline.client.hints import MODULE

    for name, here in MODULE.items():
        assert not hasattr(towline, name)
        first = re.match(r"\w+", here)
        assert first is not None
        assert hasattr(towline, first[0]) or first[0] in ("data", "left", "the"), (name, here)
