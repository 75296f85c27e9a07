"""Text that users write: JSON in which no name comes twice, and the nearest existing name to an unknown one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def parse_unique(text: str) -> Any:
    """Parse JSON, of which Python's parser would take the last of two equal names.

    Raises:
        ValueError: it is not JSON, or an object has a name twice.
    """
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if repeated:
        raise ValueError(f"`{repeated[0]}` comes twice")
    return dict(pairs)


def suggestion(name: str, names: Iterable[str], folder: str = "") -> str:
    """End of a message on an unknown name: the nearest of `names` if one is near, with `folder` before it."""
    near = get_close_matches(name, sorted(names), n=1)
    return f"; did you mean `{folder}{near[0]}`?" if near else ""
