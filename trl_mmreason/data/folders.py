"""Atomic writes, folders that one run writes to at a time, and errors for missing paths."""

from __future__ import annotations

import errno
import importlib
import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TextIO

logger = logging.getLogger(__name__)

LOCK = "_run.lock"
MINIATURE_RECORD = "trl_mmreason_miniature"
"""Entry of a model's configuration for those that `trl_mmreason.miniature` built: family/size."""
_held: dict[Path, TextIO] = {}  # locks of this process

_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


class NoSuchFolder(FileNotFoundError):
    """The path of a model or data set does not exist."""


class FolderInUse(RuntimeError):
    """Another run is writing into the folder."""


def is_missing_path(name: str) -> bool:
    """Whether a name looks like a path that does not exist.

    A Hub id is `name` or `owner/name`. Where a folder `owner` is here, something in it was meant.
    """
    if Path(name).expanduser().exists():
        return False
    return not _HUB_ID.fullmatch(name) or ("/" in name and Path(name).parent.is_dir())


def check_model_path(name: str, cache_dir: str | Path | None = None) -> None:
    """Refuse a path or Hub id without a model by `NoSuchFolder`, before requests whose retries take minutes.

    `cache_dir` is the Hub's cache, if it is not the usual one.
    """
    if is_missing_path(name):
        looks_like_id = _HUB_ID.fullmatch(name)
        why = f" (the Hub was not asked, as there is a folder {Path(name).parent})" if looks_like_id else ""
        raise NoSuchFolder(f"there is no folder {name}; give one with a model, or a Hub id{why}")
    if not Path(name).expanduser().exists():
        _check_hub(name, cache_dir)


@cache  # caches names that passed
def _check_hub(name: str, cache_dir: str | Path | None) -> None:
    """Refuse a Hub id of which nothing is cached, if the Hub is out of reach; its answers are left to loading."""
    # here: it takes time to import, and most names are paths
    from huggingface_hub import constants, get_hf_file_metadata, get_session, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    from huggingface_hub.file_download import repo_folder_name

    cached = Path(cache_dir or constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    if (cached / "snapshots").is_dir():
        return
    http = importlib.import_module(type(get_session()).__module__.partition(".")[0])  # httpx, or httpx2 in newer ones
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))  # retries no connection
    except (http.ConnectError, http.ConnectTimeout, http.ProxyError, OfflineModeIsEnabled) as error:
        raise NoSuchFolder(
            f"there is no folder {name}, the Hub's cache has no such model, and the Hub cannot be asked: {error}"
        ) from error
    except (HfHubHTTPError, http.TransportError):
        return


def check_model_folder(name: str) -> None:
    """Refuse what `check_model_path` refuses, and a folder that holds neither a model nor an adapter."""
    check_model_path(name)
    folder = Path(name).expanduser()
    if folder.exists() and not any((folder / file).is_file() for file in ("config.json", "adapter_config.json")):
        newest = max(folder.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime, default=None)
        there = f"; {newest} may" if newest else ""
        raise NoSuchFolder(f"the folder {name} holds no model: it has no config.json{there}")
    try:
        for file in folder.glob("*config.json"):
            json.loads(file.read_bytes())
    except ValueError as error:
        raise NoSuchFolder(f"the folder {name} holds no model: its {file.name} is not JSON: {error}") from error


def adapter_base(name: str) -> str | None:
    """Name of the base model of the adapter in a folder; `None` if the folder holds no adapter."""
    file = Path(name).expanduser() / "adapter_config.json"
    return str(json.loads(file.read_bytes()).get("base_model_name_or_path")) if file.is_file() else None


@contextmanager
def atomic_path(path: str | Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to, and move it to `path` at the end.

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


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file as UTF-8 by `atomic_path`.

    Half a surrogate pair, which a model can write and UTF-8 cannot hold, becomes a question mark.
    """
    with atomic_path(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", errors="replace")


def sync_to_disk(folder: Path, *, inner: bool = True) -> None:
    """Wait until a folder is on the disk, with all that is in it or the names alone.

    Without this a rename may outlive a power cut that the contents do not.
    """
    if os.name != "posix":  # Windows opens no folders
        return
    for path in [*(folder.rglob("*") if inner else ()), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync no folders
                raise
        finally:
            os.close(descriptor)


def lock_folder(folder: str | Path) -> bool:
    """Keep other runs out of a folder until `unlock_folder` or the end of this process; whether it was free before.

    Done by a lock of POSIX, which ends with the process, also on NFS; Windows has none.

    Raises:
        FolderInUse: another process holds it; names the process.
        OSError: nothing can be written there.
    """
    path = Path(folder).resolve() / LOCK
    if path in _held or os.name != "posix":
        return False
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise OSError(f"{folder}: nothing can be written there ({error}). Fix: name another output_dir.") from error
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        file.seek(0)
        holder = file.read() or "unknown"
        file.close()
        raise FolderInUse(
            f"{folder}: another run is writing into this folder ({holder}). Wait for its end, or give another "
            "output_dir."
        ) from error
    except OSError as error:
        logger.warning(f"{folder}: its file system has no locks ({error}): two runs in it would not be noticed.")
    else:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
    _held[path] = file
    return True


def unlock_folder(folder: str | Path) -> None:
    """Let other runs write into the folder again."""
    _held.pop(Path(folder).resolve() / LOCK).close()
