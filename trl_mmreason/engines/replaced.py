"""Names of TRL's modules that mean something of ours while its constructors run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(module: Any, **values: Any) -> Iterator[None]:
    """Set names of a module for a while; names that it does not have stay unset."""
    kept = {name: getattr(module, name) for name in values if hasattr(module, name)}
    for name in kept:
        setattr(module, name, values[name])
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)
