"""YAML as data of JSON: the core schema of YAML 1.2, as OpenAPI requires, not PyYAML's YAML 1.1.

So `no` and `2024-01-01` are texts, and `12:30` is no number.
"""

from __future__ import annotations

import re
from typing import Any

from .table import ScenarioError

# YAML 1.2.2, 10.3.2, with the characters that a plain scalar of the kind begins with.
CORE = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)

MERGE = "tag:yaml.org,2002:merge"


def read_yaml(text: str, name: str) -> Any:
    """Raises `ScenarioError` for what is no YAML, and where PyYAML is not installed."""
    try:
        import yaml
    except ImportError:
        raise ScenarioError(
            f"{name}: YAML needs PyYAML: pip install 'towline[bench]'; JSON does not"
        ) from None

    # A class of its own: the tables of resolvers belong to the class.
    def flatten_mapping(self: Any, node: Any) -> None:
        """Merges, and keeps the last of equal keys: without that, merges of merges grow without a bound."""
        yaml.SafeLoader.flatten_mapping(self, node)
        keys = {
            (pair[0].tag, pair[0].value) if isinstance(pair[0].value, str) else id(pair): pair
            for pair in node.value
        }
        node.value = list(keys.values())

    members = {"yaml_implicit_resolvers": {}, "flatten_mapping": flatten_mapping}
    loader: Any = type("CoreLoader", (yaml.SafeLoader,), members)
    for kind, pattern, first in CORE:
        whole = re.compile(rf"(?:{pattern})\Z")
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", whole, first)
    loader.add_constructor("tag:yaml.org,2002:int", _integer)
    # Merge keys are no part of YAML 1.2, and used in many descriptions. As a value, `<<` is a text.
    loader.add_implicit_resolver(MERGE, re.compile(r"<<\Z"), ["<"])
    loader.add_constructor(MERGE, yaml.SafeLoader.construct_yaml_str)
    try:
        return yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ScenarioError(f"{name}: is not YAML: {' '.join(str(error).split())}") from None


def _integer(loader: Any, node: Any) -> int:
    """A leading 0 is no sign of octal here; `0o17` and `0x1f` are."""
    text = loader.construct_scalar(node)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text, base)
