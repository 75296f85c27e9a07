"""Replace names in TRL's modules temporarily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(module: Any, **values: Any) -> Iterator[None]:
    """Set names of a module within the block; names that it lacks stay unset."""
    kept = {name: getattr(module, name) for name in values if hasattr(module, name)}
    for name in kept:
        setattr(module, name, values[name])
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)
