"""The nearest of the names that exist, for messages on one that does not."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, names: Iterable[str], folder: str = "") -> str:
    """The end of a message on an unknown name: the nearest of `names`, if one is near.

    Args:
        name: the unknown name.
        names: names that exist.
        folder: written before the nearest, such as "runs/".
    """
    near = get_close_matches(name, sorted(names), n=1)
    return f"; did you mean `{folder}{near[0]}`?" if near else ""
