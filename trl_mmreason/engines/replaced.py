"""Replace names in TRL's modules temporarily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(module: Any, **values: Any) -> Iterator[None]:
    """Set names of a module within the block; names that it lacks stay unset."""
    originals = {name: getattr(module, name) for name in values if hasattr(module, name)}
    for name in originals:
        setattr(module, name, values[name])
    try:
        yield
    finally:
        for name, value in originals.items():
            setattr(module, name, value)
