"""Parse JSON in which no name comes twice; Python's parser would take the last one."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


def parse_unique(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, or an object has a name twice.
    """
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if repeated:
        raise ValueError(f"`{repeated[0]}` comes twice")
    return dict(pairs)
