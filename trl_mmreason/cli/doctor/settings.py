"""Check the settings of a configuration: what they need, the files that they name, and values that can be no such."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_token
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from trl import GRPOConfig, ModelConfig

from ...compat.packages import missing_packages
from ...data.folders import is_missing_path
from ...data.row_sources import read_source
from ...data.rows import DataError
from ...scripts.recipes import read_config
from ...training.model_card import MINIATURE
from .estimate import WEIGHT_BYTES
from .finding import Finding, one_line

ONLY_STAGE = "training"  # the only stage of a configuration without sections


def read_settings(
    name: str, kinds: Mapping[str, type] | None = None
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read a configuration: the settings outside sections, and those of each stage that trains.

    Args:
        name: a file, or the name of a shipped recipe.
        kinds: stage → the class whose defaults its settings have; `GRPOConfig` by default.
    """
    config = read_config(name)
    kinds, outside = kinds or {}, {**config, **(config.get("common") or {})}
    sections = {key: each for key, each in config.items() if isinstance(each, dict) and "learning_rate" in each}
    stages = {key: {**outside, **each} for key, each in sections.items()} or {ONLY_STAGE: outside}
    complete = {key: {**_defaults(kinds.get(key, GRPOConfig)), **each} for key, each in stages.items()}
    return {**_defaults(GRPOConfig), **outside}, complete


def _defaults(kind: type) -> dict[str, Any]:
    """Defaults of a configuration and of `ModelConfig`; of what only other methods have, TRL's."""
    defaults = {}
    for each in (field for owner in (GRPOConfig, ModelConfig, kind) for field in fields(owner)):
        if each.default is not MISSING:
            defaults[each.name] = each.default
        elif each.default_factory is not MISSING:
            defaults[each.name] = each.default_factory()
    return defaults


def check_settings(settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """List what a stage needs and this machine lacks."""
    own, shared = ("--", "--") if where == ONLY_STAGE else (f"--{where}.", "--common.")  # how options are written
    for missing in missing_packages(settings):
        option = {"report_to": shared, "attn_implementation": "--", "vllm": "--"}.get(missing.setting, own)
        yield Finding("FAIL", f"{where}: {missing}.", f"{missing.fix(option)}.")
    bf16 = not settings["fp16"] if settings["bf16"] is None else settings["bf16"]  # as TRL's configurations read it
    if bf16 and not torch.cuda.is_available() and not settings["use_cpu"]:
        setting = "bf16: true" if settings["bf16"] else "bf16, on by default,"
        fix = f"{shared}bf16 false {shared}use_cpu true, or a machine with one."
        yield Finding("FAIL", f"{where}: {setting} asks for a GPU, and there is none.", fix)
    kernel = settings["attn_implementation"]
    if kernel is not None and "/" not in kernel and kernel not in {"eager", *ALL_ATTENTION_FUNCTIONS}:
        known = ", ".join(["eager", *ALL_ATTENTION_FUNCTIONS])
        yield Finding("FAIL", f"{where}: attn_implementation: {kernel}, expected one of {known}.")
    if settings["push_to_hub"] and not (settings["hub_token"] or get_token()):
        fix = "log in with `hf auth login` or set HF_TOKEN, or --push_to_hub false."
        yield Finding("FAIL", f"{where}: push_to_hub: true needs a token of the Hub, and there is none.", fix)


def check_values(settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """List the values that make an estimate of memory impossible."""
    if (settings["dtype"] or "float32") not in WEIGHT_BYTES:
        yield Finding("FAIL", f"{where}: dtype: {settings['dtype']}, expected one of {', '.join(WEIGHT_BYTES)}.")
    for name in ("per_device_train_batch_size", "max_prompt_length", "max_completion_length"):
        value = settings.get(name)
        if value is not None and not isinstance(value, int):
            yield Finding("FAIL", f"{where}: {name}: {value}, expected a whole number.")


def check_files(settings: Mapping[str, Any], read: Mapping[str, Iterable[str]] | None = None) -> Iterator[Finding]:
    """Check that a configuration's local data files and folders exist.

    Args:
        settings: settings outside sections.
        read: wanted stage, or not → the settings that it reads, where a method has stages.
    """
    stages = settings.get("stages") or ",".join(read or ())
    needed = {key for stage, keys in (read or {}).items() if stage in str(stages).split(",") for key in keys}
    skipped = {key for keys in (read or {}).values() for key in keys} - needed
    for key, value in settings.items():
        if not re.search(r"(dataset|dataset_name|datasets)$", key) or key in skipped:
            continue
        for path in value.values() if isinstance(value, dict) else [value]:
            if isinstance(path, str) and path != "miniature" and not path.startswith(MINIATURE) and _is_lost(path):
                yield Finding("FAIL", f"{key}: there is no {path}.", "write it, or name another file or a Hub id.")


def check_questions(settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Check that a local data set has the questions of one rollout; fewer would make no update.

    Args:
        settings: settings of a stage of reinforcement learning.
        where: name of the stage.
    """
    name, wanted = str(settings.get("dataset_name")), settings.get("train_rows")
    if not Path(name).expanduser().exists():
        return  # drawn problems, a Hub id, or what `check_files` names
    try:
        rows = min(len(read_source(name, settings.get("dataset_split") or "train").dataset), wanted or sys.maxsize)
    except DataError as error:
        yield Finding("FAIL", f"{where}: dataset_name: {one_line(error)}")
        return
    steps = settings.get("steps_per_generation") or settings["gradient_accumulation_steps"]
    answers = settings.get("generation_batch_size") or settings["per_device_train_batch_size"] * steps
    asked = answers // settings["num_generations"]
    if rows < asked:
        text = f"{where}: {name} has {rows} rows, but one rollout asks {asked} questions on one process."
        yield Finding(
            "FAIL", text, "more rows, or a smaller per_device_train_batch_size or gradient_accumulation_steps."
        )


def _is_lost(path: str) -> bool:
    is_file = re.search(r"\.(jsonl?|parquet|csv)$", path)  # else data/train.jsonl could be the name of a Hub id
    return is_missing_path(path) or (is_file is not None and not Path(path).expanduser().exists())


def of_all_stages(
    check: Callable[[Mapping[str, Any], str], Iterator[Finding]], stages: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """Check every stage; what is wrong with all of several is a fault of `common`, and said once."""
    by_stage = {where: list(check(settings, where)) for where, settings in stages.items()}
    texts = {where: {_in_common(each, where) for each in findings} for where, findings in by_stage.items()}
    shared = set.intersection(*texts.values()) if len(texts) > 1 else set()
    yield from sorted(shared)
    for where, findings in by_stage.items():
        yield from (each for each in findings if _in_common(each, where) not in shared)


def _in_common(finding: Finding, where: str) -> Finding:
    text = "common" + finding.text.removeprefix(where)
    return finding._replace(text=text, fix=finding.fix.replace(f"--{where}.", "--common."))
