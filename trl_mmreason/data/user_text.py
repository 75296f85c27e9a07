"""Text that users write: JSON and YAML in which no name comes twice, and the nearest known name to an unknown one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import yaml


def parse_unique(text: str) -> Any:
    """Parse JSON, of which Python's parser would take the last of two equal names.

    Raises:
        ValueError: it is not JSON, or an object has a name twice.
    """
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"`{repeated}` comes twice")
    return values


def parse_unique_yaml(text: str) -> Any:
    """Parse YAML, of which the usual parser would take the last of two equal names.

    Raises:
        yaml.YAMLError: it is not YAML, or a mapping has a name twice.
    """
    return yaml.load(text, _UniqueKeys)  # noqa: S506 - a safe one


class _UniqueKeys(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if str(key.value) in lines:
                raise yaml.YAMLError(f"`{key.value}` comes twice, in lines {lines[str(key.value)]} and {line}")
            lines[str(key.value)] = line
        return node


def suggestion(name: str, names: Iterable[str], folder: str = "") -> str:
    """End of a message on an unknown name: the nearest of `names` if one is near, with `folder` before it."""
    near = get_close_matches(name, sorted(names), n=1)
    return f"; did you mean `{folder}{near[0]}`?" if near else ""
