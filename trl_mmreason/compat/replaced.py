"""Replace attributes of modules, classes or objects temporarily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Set attributes within the block, and leave the owner as it was; names that it lacks stay unset.

    Args:
        owner: what it inherits is inherited again afterwards; what was set on itself is put back.
        **values: name → value.
    """
    values = {name: value for name, value in values.items() if hasattr(owner, name)}
    own = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in own:
                setattr(owner, name, own[name])
            else:
                delattr(owner, name)
