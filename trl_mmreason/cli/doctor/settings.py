"""Check a configuration: its method, what it needs, the files that it names, and values that training refuses."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import torch
import yaml
from huggingface_hub import get_token
from transformers import TrainingArguments
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from trl import GRPOConfig, ModelConfig

from ...compat.packages import missing_packages
from ...data.folders import is_missing_path
from ...data.mixed_sources import MIXTURES
from ...data.row_sources import SUFFIXES, read_source
from ...data.rows import DataError
from ...scripts.recipes import config_file, load_script, read_config
from ...scripts.script_parser import ScriptParser
from ...scripts.sections import DataArguments
from ...scripts.single_stage import load_split
from ...training.model_card import MINIATURE
from . import Finding, one_line
from .memory import WEIGHT_BYTES

_ROWS_READ = 20
_ONLY_STAGE = "training"  # the only stage of a configuration without sections
_SIZES = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"),
    *("num_generations", "max_prompt_length", "max_completion_length", "max_tokens_per_micro_batch", "max_pixels"),
)


def read_settings(
    name: str, kinds: Mapping[str, type] | None = None
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read a configuration: the settings outside sections, and those of each stage that trains.

    Args:
        name: a file, or the name of a shipped recipe.
        kinds: stage → the class whose defaults its settings have; by default there is one stage, of `GRPOConfig`.
    """
    config = read_config(name)
    kinds, outside = kinds or {}, {**config, **(config.get("common") or {})}
    sections = {key: each or {} for key, each in config.items() if key in kinds and isinstance(each, dict | None)}
    stages = {key: {**outside, **each} for key, each in sections.items()} or {_ONLY_STAGE: outside}
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


class _Parser(ScriptParser):
    """The parser of a method's script, which raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def refuse_wrong_sections(self, *_: Any) -> None:
        """Leave the sections to `MethodParser.faults`, which names all that is wrong with them."""


class MethodParser:
    """Parse a configuration as `mmreason train METHOD` does.

    Attributes:
        method: name of the method.
        known: keys outside sections.
        reads: stage → the settings that it reads; empty for a method without stages.
        configs: stage → its configuration class.
        whole: sections whose stages train all weights, with `use_peft`, too.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        module = load_script(method, f"{__package__}.{method}")
        hints = get_type_hints(module.main) if hasattr(module, "main") else {}
        staged = [kind for kind in vars(module).values() if is_dataclass(kind) and hasattr(kind, "STAGES")]
        self._types: list[Any] = [kind for name, kind in hints.items() if name != "return"] or [*staged, ModelConfig]
        self.known = {each.name for kind in self._types for each in fields(kind)}
        first = self._types[0]
        self.reads: Mapping[str, Iterable[str]] = getattr(first, "READS", {})
        self.whole: Sequence[str] = getattr(first, "WHOLE", ())
        trained = [kind for kind in self._types if issubclass(kind, TrainingArguments)]
        self.configs: Mapping[str, type] = {_ONLY_STAGE: trained[0]} if trained else first.configs()

    def faults(self, path: Path, given: Mapping[str, Any]) -> dict[str, list[str]]:
        """What `train` refuses → sections, apart from what this machine lacks: `check_settings` names that."""
        lacking = _lacking(given).items()
        options = [part for key, value in lacking if key in self.known for part in (f"--{key}", value)]
        try:
            parsed = _Parser(self._types).parse_args_and_config(["--config", str(path), *options])
        except (ValueError, TypeError) as error:
            return {f"{self.method}: {one_line(error)}": []}
        faults: dict[str, list[str]] = {}
        for section, text in self._section_faults(parsed[0]) if _ONLY_STAGE not in self.configs else ():
            faults.setdefault(text, []).append(section)
        return faults

    def _section_faults(self, args: Any) -> Iterator[tuple[str, str]]:
        yield from ((section, fault) for section, _, fault in args.unknown_settings())
        for section, kind in self.configs.items():
            if not getattr(args, section):
                continue
            known = {each.name for each in fields(kind)}
            merged_settings = {**args.common, **getattr(args, section)}
            settings = {name: value for name, value in merged_settings.items() if name in known}
            lacking = {key: yaml.safe_load(value) for key, value in _lacking(settings).items()}
            try:
                kind(args.output_dir, **{**settings, **lacking})
            except (ValueError, TypeError) as error:
                yield section, one_line(error)


def _lacking(settings: Mapping[str, Any]) -> dict[str, str]:
    """Option → its value on a machine that lacks what the settings ask for."""
    on_cpu = {} if torch.cuda.is_available() else {"use_cpu": "true"}
    return on_cpu | {missing.setting: missing.instead for missing in missing_packages(settings)}


def check_method(config: str, methods: Sequence[str]) -> tuple[MethodParser | None, list[Finding]]:
    """Find the method of a configuration, and what its parser refuses.

    It is the one of `methods` that knows most of the keys; among several, that of the configuration's folder, or one
    that refuses nothing.
    """
    path, contents = config_file(config), read_config(config)
    unknown = {parser: sorted(contents.keys() - parser.known - {"env"}) for parser in map(MethodParser, methods)}
    fewest = min(map(len, unknown.values()))
    fitting = [parser for parser, keys in unknown.items() if len(keys) == fewest]
    if 2 * fewest > len(contents):
        text = f"{config} is no configuration of a method: no method has {', '.join(unknown[fitting[0]][:3])}."
        return None, [Finding("FAIL", text, "--config takes what `mmreason train METHOD --config` takes.")]
    own = [parser for parser in fitting if parser.method == path.parent.name]
    faults = {parser: parser.faults(path, contents) for parser in own or fitting}
    taking = [parser for parser, refused in faults.items() if not refused]
    if taking:
        names = ", ".join(parser.method for parser in taking[1:])
        others = f"; {names} would, too: --method names one" if names else ""
        return taking[0], [Finding("ok", f"{config} is a configuration that {taking[0].method} takes{others}.")]
    parser, refused = next(iter(faults.items()))
    texts = [f"{', '.join(sections)}: {text}" if sections else text for text, sections in refused.items()]
    return parser, [Finding("FAIL", text) for text in texts]


def check_policy(name: str | None) -> Iterator[Finding]:
    """Check that a configuration names a policy, and that it exists if it is a local one."""
    if name is None or is_missing_path(name):
        what = "no policy is named" if name is None else f"there is no {name}"
        yield Finding("FAIL", f"model_name_or_path: {what}.", "give a Hub id, or a folder with a model.")


def check_settings(settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """List what a stage needs, and this machine or the configuration lacks."""
    own, shared = ("--", "--") if where == _ONLY_STAGE else (f"--{where}.", "--common.")  # how options are written
    for missing in missing_packages(settings):
        option = {"report_to": shared, "attn_implementation": "--", "vllm": "--"}.get(missing.setting, own)
        yield Finding("FAIL", f"{where}: {missing}.", f"{missing.fix(option)}.")
    bf16 = not settings["fp16"] if settings["bf16"] is None else settings["bf16"]  # as TRL's configurations read it
    if bf16 and not torch.cuda.is_available() and not settings["use_cpu"]:
        setting = "bf16: true" if settings["bf16"] else "bf16, on by default,"
        fix = f"{shared}bf16 false {shared}use_cpu true, or a machine with one."
        yield Finding("FAIL", f"{where}: {setting} asks for a GPU, and there is none.", fix)
    during = settings["eval_strategy"] not in ("no", False) or settings["eval_on_start"]  # YAML reads no as False
    if where == _ONLY_STAGE and during and settings.get("eval_dataset_name") is None:
        fix = "eval_dataset_name: …, or eval_strategy: 'no' and eval_on_start: false."
        yield Finding("FAIL", f"{where}: evaluation during training has no rows.", fix)
    kernel, known = settings["attn_implementation"], ["eager", *ALL_ATTENTION_FUNCTIONS]
    if kernel is not None and "/" not in kernel and kernel not in known:
        yield Finding("FAIL", f"{where}: attn_implementation: {kernel}, expected one of {', '.join(known)}.")
    if settings["push_to_hub"] and not (settings["hub_token"] or get_token()):
        fix = "log in with `hf auth login` or set HF_TOKEN, or --push_to_hub false."
        yield Finding("FAIL", f"{where}: push_to_hub: true needs a token of the Hub, and there is none.", fix)


def can_be_estimated(settings: Mapping[str, Any]) -> bool:
    """Whether an estimate of memory can be made of the settings, which a parser may have refused."""
    sizes = [size for name in _SIZES if (size := settings.get(name)) is not None]
    are_sizes = all(isinstance(size, int) and size > 0 for size in sizes)
    return (settings["dtype"] or "float32") in WEIGHT_BYTES and are_sizes


def check_files(settings: Mapping[str, Any], read: Mapping[str, Iterable[str]]) -> Iterator[Finding]:
    """Check that a configuration's local data files and folders exist.

    Args:
        settings: settings outside sections.
        read: stage, wanted or not → the settings that it reads; empty for a method without stages.
    """
    stages = str(settings.get("stages") or ",".join(read)).split(",")
    needed = {key for stage, keys in read.items() if stage in stages for key in keys}
    skipped = {key for keys in read.values() for key in keys} - needed
    for key, value in settings.items():
        if not re.search(r"(dataset|dataset_name|datasets)$", key) or key in skipped:
            continue
        for path in value.values() if isinstance(value, dict) else [value]:
            if isinstance(path, str) and path != "miniature" and not path.startswith(MINIATURE) and _is_lost(path):
                yield Finding("FAIL", f"{key}: there is no {path}.", "write it, or name another file or a Hub id.")


def _is_lost(path: str) -> bool:
    is_file = path.endswith((*SUFFIXES, *MIXTURES))  # else data/train.jsonl could be the name of a Hub id
    return is_missing_path(path) or (is_file and not Path(path).expanduser().exists())


def check_questions(settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Check that the local data set of a stage has the questions of one rollout; fewer would make no update."""
    name, wanted = str(settings.get("dataset_name")), settings.get("train_rows")
    if not Path(name).expanduser().exists() or name.endswith(MIXTURES):
        return  # drawn problems, a Hub id, several sources, or what `check_files` names
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
        fix = "more rows, or a smaller per_device_train_batch_size or gradient_accumulation_steps."
        yield Finding("FAIL", text, fix)


def check_rows(settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Read the first rows of the local data sets of a stage as training does: its columns, images and answers."""
    own = {each.name: settings[each.name] for each in fields(DataArguments) if each.name in settings}
    try:
        data = DataArguments(**own)
    except (TypeError, ValueError):
        return  # `check_method` names what it refuses
    sets, splits = data.eval_dataset_name, (data.dataset_split, str(data.eval_split))
    sources: list[tuple[str, Any, str]] = [("dataset_name", data.dataset_name, splits[0])]
    sources += [
        ("eval_dataset_name", name, splits[1]) for name in (sets.values() if isinstance(sets, dict) else [sets])
    ]
    for key, name, split in sources:
        if not name or not Path(name).expanduser().exists() or name.endswith(MIXTURES):
            continue  # as in `check_questions`
        try:
            load_split(data, name, split, _ROWS_READ, seed=0)
        except (DataError, OSError, ValueError) as error:
            first, *others = str(error).splitlines()
            rest = f" {others[0]}" if others else ""
            yield Finding("FAIL", f"{where}: {key}: {first}{rest}")


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
