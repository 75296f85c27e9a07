"""Checkpoints on disk: which are complete, which one is resumed from, and how a finished one gets its name.

    OUTPUT/checkpoint-20               complete: it got this name when all of it was on the disk
    OUTPUT/_unfinished/checkpoint-40   being written, or left by a run that ended while it wrote

`Trainer` writes into the folder of the final name, and resumes from the highest number, whatever is in there
(huggingface/transformers#35782).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints

from ..data.folders import sync_to_disk, write_whole

logger = logging.getLogger(__name__)

UNFINISHED = "_unfinished"  # with "_", as what begins so is not pushed to the Hub

FILES = "_files.json"
"""File of a checkpoint that says what was written into it: path → size in bytes, and checksum if it is small."""

_SMALL = 2**20  # bytes; larger files are compared by their size alone
_WEIGHTS = ("model*.safetensors", "adapter_model*", "pytorch_model*", "*_model_states.pt", "*.distcp")
_SAME_PLACE = 0.1  # relative; an epoch's last step may have fewer rows than the others
_JIT_MARK = "checkpoint-is-incomplete.txt"  # of transformers' `enable_jit_checkpoint`


class NoCheckpoint(ValueError):
    """There is no checkpoint to resume from, or the one that was named is incomplete or does not fit the run."""


def checkpoint_fault(folder: Path) -> str | None:
    """Return why a checkpoint cannot be resumed from; `None` if it is complete. Large files are not read.

    What this package writes is complete, and has a list of its files, by which copies that broke off and damaged disks
    are seen. Checkpoints of earlier versions and of plain TRL have none: the ends of their files are looked at.
    """
    if (folder / FILES).is_file():
        return _first_difference(folder)
    fault = model_fault(folder)
    parts = (model_fault(part, inner=True) for part in sorted(folder.iterdir()) if part.is_dir()) if not fault else ()
    return fault or next(filter(None, parts), None)


def model_fault(folder: Path, *, inner: bool = False) -> str | None:
    """Return what is missing from a saved model and its `trainer_state.json`, or cut off, in the folder itself.

    Args:
        folder: of a checkpoint, or of a finished model.
        inner: it is a folder in a checkpoint, such as an engine's, and need not hold weights or a state.
    """
    files = {path.name: path for path in folder.iterdir() if path.is_file()} if folder.is_dir() else {}
    if _JIT_MARK in files:
        return f"{_JIT_MARK} is there: the run ended while it wrote"
    if TRAINER_STATE_NAME not in files and not inner:
        return f"{TRAINER_STATE_NAME}, which is written last, is missing"
    needed: set[str] = {".metadata"} if any(name.endswith(".distcp") for name in files) else set()
    for name in files:
        if name == TRAINER_STATE_NAME or name.endswith(".index.json"):
            content = _read_json(files[name])
            if content is None:
                return f"{name} is cut off"
            needed |= set(content.get("weight_map", {}).values())
    if missing := sorted(needed - files.keys()):
        return f"{missing[0]} is missing"
    if cut := sorted(name for name, path in files.items() if not _is_whole(path)):
        return f"{cut[0]} is cut off"
    has_weights = any(fnmatch(path.name, pattern) for path in folder.rglob("*") for pattern in _WEIGHTS)
    return None if inner or has_weights else "it holds no weights"


def list_files(folder: Path) -> None:
    """Write down which files a checkpoint has, when all of them are there."""
    listed = {path.relative_to(folder).as_posix(): _mark(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    write_whole(folder / FILES, json.dumps(listed, indent=0))


def _first_difference(folder: Path) -> str | None:
    listed = _read_json(folder / FILES)
    if listed is None:
        return f"{FILES} is cut off"
    for name, mark in listed.items():
        if not (path := folder / name).is_file():
            return f"{name} is missing"
        if _mark(path) != mark:
            return f"{name} is cut off, or was changed after it was written (if that was meant, delete {FILES})"
    return None


def _mark(path: Path) -> list[int]:
    size = path.stat().st_size
    return [size, zlib.crc32(path.read_bytes())] if size <= _SMALL else [size]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def _is_whole(path: Path) -> bool:
    """Whether a file of tensors has its end."""
    if path.suffix in (".pt", ".pth", ".bin"):
        return is_zipfile(path)  # as torch saves; the directory of such a file is at its end
    if path.suffix != ".safetensors":
        return True
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length < path.stat().st_size else b""
    try:
        tensors = json.loads(header)
    except ValueError:
        return False
    end = max((each["data_offsets"][1] for name, each in tensors.items() if name != "__metadata__"), default=0)
    return path.stat().st_size == 8 + length + end


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written, by its name; -1 for the name of no checkpoint."""
    match = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", checkpoint.name)
    return int(match[1]) if match else -1


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, complete or not, the newest first."""
    found = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if step_of(path) >= 0 and path.is_dir()]
    return sorted(found, key=step_of, reverse=True)


def newest_checkpoint(output_dir: str | Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint in a folder, and each newer one with what is wrong with it."""
    folder, passed_over = Path(output_dir), []
    newest = None
    for checkpoint in checkpoints(folder):
        fault = checkpoint_fault(checkpoint)
        if fault is None:
            newest = checkpoint
            break
        passed_over.append(f"{checkpoint}: {fault}")
    left = [path for path in checkpoints(folder / UNFINISHED) if newest is None or step_of(path) > step_of(newest)]
    return newest, [*(f"{path}: the run ended while it wrote" for path in left), *passed_over]


def resolve_checkpoint(value: Any, output_dir: str | Path) -> tuple[Path | None, list[str]]:
    """Resolve `resume_from_checkpoint`; `None` to train from the beginning. With the incomplete ones passed over.

    Args:
        value: a path; `True` or "true" for the newest complete checkpoint in `output_dir`; "auto" for that one if there
            is one; `None`, `False` or "false".
        output_dir: the run's.

    Raises:
        NoCheckpoint: there is none, or the one that was named is incomplete.
    """
    word = str(value).lower()
    if value is None or word == "false":
        return None, []
    if word in ("true", "auto"):
        newest, passed_over = newest_checkpoint(output_dir)
        if newest is None and word == "true":
            there = "; ".join(passed_over) or "none"
            raise NoCheckpoint(
                f"resume_from_checkpoint={value}: there is no such checkpoint; {output_dir} has {there}. Fix: "
                "resume_from_checkpoint auto starts where there is none"
            )
        return newest, passed_over
    named = Path(value)
    if not named.is_dir():
        names = [path.name for path in checkpoints(Path(output_dir))]
        raise NoCheckpoint(
            f"resume_from_checkpoint={value}: there is no such checkpoint; {output_dir} has {names or 'none'}."
        )
    if fault := checkpoint_fault(named):
        newest = newest_checkpoint(named)[0] or newest_checkpoint(named.parent)[0]  # a run's folder may be named
        raise NoCheckpoint(
            f"resume_from_checkpoint={value} is incomplete: {fault}. The newest complete one there: {newest or 'none'}"
        )
    return named, []


def publish_checkpoint(unfinished: Path, checkpoint: Path) -> None:
    """Give a written checkpoint its name when it is on the disk, in the place of an earlier one of that name."""
    list_files(unfinished)
    sync_to_disk(unfinished)
    if checkpoint.exists():
        os.replace(checkpoint, unfinished.with_name(f"{checkpoint.name}.replaced"))
    os.replace(unfinished, checkpoint)
    sync_to_disk(checkpoint.parent, inner=False)
    shutil.rmtree(unfinished.parent)


def rotate_checkpoints(newest: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints beside `newest` beyond the limit, the incomplete ones first.

    Args:
        newest: was just written, and stays.
        limit: `save_total_limit`.
        best: stays, too.
    """
    if not limit or limit < 0:
        return
    kept = {newest.resolve()} | ({Path(best).resolve()} if best else set())
    found = [Path(path) for path in sort_checkpoints(str(newest.parent), use_mtime=True)]
    others = [path for path in found if path.resolve() not in kept]
    others.sort(key=lambda path: checkpoint_fault(path) is None)
    deleted = newest.parent / UNFINISHED
    for path in others[: max(0, len(found) - limit)]:
        deleted.mkdir(exist_ok=True)
        os.replace(path, deleted / path.name)  # which is atomic: no checkpoint stays that lacks some files
    shutil.rmtree(deleted, ignore_errors=True)


def best_of(checkpoint: Path, output_dir: str | Path) -> str | None:
    """The best checkpoint by the state in `checkpoint`, which may have been moved with the others since; else `None`.

    Args:
        checkpoint: that training is resumed from.
        output_dir: the run's; checkpoints in it are named as the run names them.
    """
    best = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).best_model_checkpoint
    if best is None:
        return None
    places = [Path(output_dir) / Path(best).name, checkpoint.parent / Path(best).name, Path(best)]
    return next((str(place) for place in places if place.is_dir()), None)


def check_same_place(state: TrainerState, steps_per_epoch: int, *, by_epochs: bool) -> None:
    """Refuse, or warn of, a resumed run whose steps have another number of rows than those of its checkpoint.

    Args:
        state: of the checkpoint.
        steps_per_epoch: of the resumed run.
        by_epochs: training ends after epochs, so that a part of the rows would never be trained on.

    Raises:
        NoCheckpoint: training ends after epochs, and the checkpoint is at another place of its epoch.
    """
    if not state.epoch or abs(state.global_step / steps_per_epoch / state.epoch - 1) < _SAME_PLACE:
        return
    here = state.global_step / steps_per_epoch
    message = (
        f"The checkpoint was written after {state.global_step} steps at epoch {state.epoch:.3g}; with the rows per "
        f"step of this run that is epoch {here:.3g}, so that it would go on with other rows. Fix: as many rows, "
        "processes, per_device_train_batch_size times gradient_accumulation_steps as before"
    )
    if by_epochs:
        raise NoCheckpoint(f"{message}; or max_steps in the place of num_train_epochs")
    logger.warning(message)


def left_by_a_run(output_dir: str | Path) -> Iterator[Path]:
    """What an earlier run left in a folder that another one would overwrite: its checkpoints and its final state."""
    folder = Path(output_dir)
    yield from checkpoints(folder)
    if (folder / TRAINER_STATE_NAME).exists():
        yield folder / TRAINER_STATE_NAME


def holds_model(folder: Path) -> bool:
    """Whether a model, or an adapter, is in the folder itself, and no run of ours finished it.

    Weights without `config.json` are no model: they were being written when a run ended.
    """
    has_config = any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
    has_weights = any(folder.glob(pattern) for pattern in _WEIGHTS)
    return has_config and has_weights and not (folder / TRAINER_STATE_NAME).exists()


def finished_state(args: TrainingArguments) -> TrainerState | None:
    """The final state of the finished run in the output folder, if it had as many steps or epochs as `args` ask for.

    It may have ended before the last step, as a callback can end training.
    """
    folder = Path(args.output_dir)
    if model_fault(folder) is not None:
        return None
    state = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
    newest, _ = newest_checkpoint(folder)
    is_last = newest is None or step_of(newest) <= state.global_step
    by_steps = args.max_steps > 0
    as_asked = state.max_steps == args.max_steps if by_steps else state.num_train_epochs == args.num_train_epochs
    return state if is_last and as_asked else None
