"""Files and folders that are there as a whole, or not at all, and names of those that are not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoSuchFolder(FileNotFoundError):
    """A model or a data set that was named by a path, where nothing is."""


def is_missing_path(name: str) -> bool:
    """Whether a name was meant as a path, and nothing is there.

    A Hub id is `name` or `owner/name`. Where a folder `owner` is here, something in it was meant.
    """
    path = Path(name).expanduser()
    if path.exists():
        return False
    could_be_id = re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name)
    return not could_be_id or (path.parent != Path() and path.parent.is_dir())


def check_model_path(name: str) -> None:
    """Refuse the path of a model that is not there, before the Hub is asked for it, which may take minutes.

    Raises:
        NoSuchFolder: names the path.
    """
    if is_missing_path(name):
        raise NoSuchFolder(f"there is no folder {name}; give one with a model, or a Hub id")


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
