"""Files and folders that are there as a whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: str | Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a path to write to, and put what was written there in the place of `path` at the end.

    A run that is killed on the way, and an error within the block, leave `path` as it was.

    Args:
        path: a file, or a folder that is not there yet.
        replace: off on processes that only help with writing, such as those of a sharded model.
    """
    target = Path(path)
    unfinished = target.with_name(f"{target.name}.unfinished")
    yield unfinished
    if replace:
        os.replace(unfinished, target)
