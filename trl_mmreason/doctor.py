"""Checks of `mmreason doctor`: versions, devices, the contract with TRL, a configuration, a model."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_type_hints

import torch
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from PIL import Image
from transformers import AutoConfig, GenerationConfig
from trl import GRPOConfig, ModelConfig

from .construction import check_template
from .files import check_model_path, is_missing_path
from .memory import activation_memory, build_without_weights, count_parameters, training_memory
from .miniature.models import FAMILIES, SIZES, build_model
from .recipes import ROOT, config_file, script
from .sampling.generation import declared_end_ids, encode
from .sampling.loading import ENCODING_ERRORS, load_processor, sees_pictures
from .script_parser import ScriptParser, missing_trackers
from .scripts import MINIATURE, adapter_config
from .trl_contract import changed_methods
from .turns import next_turn_ids

PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "vllm", "deepspeed")
_GIB = 2**30
_WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "auto": 2.0}
_PROMPT_TOKENS = 1024  # assumed where a configuration does not bound prompts
_ONLY_STAGE = "training"  # of a configuration without sections
_MANY = 8  # GPUs of the papers, for a machine that has none or one


class Finding(NamedTuple):
    """One line of the output: "ok", "note" (possibly intended) or "FAIL" (something will not work)."""

    level: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level:4}  {self.text}" + (f" Fix: {self.fix}" if self.fix else "")


# ------------------------------------------------------------------------------------------------- packages and devices


@cache
def pinned_versions() -> dict[str, dict[str, str]]:
    """Constraints file → package → version in the last test run."""
    lines = {path.name: path.read_text().splitlines() for path in sorted(ROOT.glob("constraints*.txt"))}
    pins = {name: [line.split("==") for line in each if "==" in line] for name, each in lines.items()}
    return {name: {package.removesuffix("-cpu"): version for package, version in each} for name, each in pins.items()}


def installed_version(package: str) -> str | None:
    """Version of an installed package, or `None`."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_packages(installed: Mapping[str, str | None]) -> Iterator[Finding]:
    """Compare installed versions with the requirements and with the tested versions.

    Args:
        installed: package → version, or `None`.
    """
    for requirement in _requirements():
        version = installed.get(requirement.name)
        if version is not None and not requirement.specifier.contains(version, prereleases=True):
            fix = f'pip install "{requirement.name}{requirement.specifier}"'
            yield Finding("FAIL", f"{requirement.name} {version}: {requirement.specifier} is required.", fix)
    has_engine = bool(installed.get("vllm") or installed.get("deepspeed"))
    name = "constraints-engines.txt" if has_engine else "constraints.txt"
    tested = pinned_versions().get(name, {})
    for package, version in installed.items():
        if version is None:
            yield Finding("ok", f"{package} is not installed.")
        elif package not in tested or Version(Version(version).base_version) == Version(tested[package]):
            yield Finding("ok", f"{package} {version}" + (", as tested." if package in tested else "."))
        else:
            yield Finding("note", f"{package} {version}: the tests ran with {tested[package]} ({name}).")
    if installed.get("vllm") and installed.get("transformers"):
        pair = {package: str(installed[package]) for package in ("vllm", "transformers")}
        is_tested = all(Version(Version(version).base_version) == Version(tested[p]) for p, version in pair.items())
        text = " with ".join(f"{package} {version}" for package, version in pair.items())
        wanted = ", ".join(f"{package}=={tested[package]}" for package in pair)
        yield (
            Finding("ok", f"engine vLLM: {text}, a tested pair.")
            if is_tested
            else Finding("note", f"engine vLLM: {text} is no tested pair; tested: {wanted}.")
        )


def _requirements() -> list[Requirement]:
    """This package's requirements without extras; none where it runs uninstalled."""
    try:
        lines = importlib.metadata.requires("trl-mmreason") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [requirement for requirement in map(Requirement, lines) if requirement.marker is None]


def check_devices() -> Iterator[Finding]:
    """Name the accelerators and their memory."""
    for index in range(torch.cuda.device_count()):
        free, whole = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        yield Finding("ok", f"GPU {index}: {name}, {free / _GIB:.0f} of {whole / _GIB:.0f} GiB free.")
    if not torch.cuda.is_available():
        yield Finding("note", f"no GPU that torch {torch.__version__} can use: training runs on the CPU.")


def check_contract() -> Iterator[Finding]:
    """Check that TRL's private methods still match this package's overrides."""
    changes = changed_methods()
    if not changes:
        yield Finding("ok", "TRL's private methods are those that this package overrides.")
    pin = pinned_versions().get("constraints.txt", {}).get("trl")
    for change in changes:
        yield Finding("FAIL", f"TRL: {change}.", f'pip install "trl=={pin}"')


# ------------------------------------------------------------------------------------------------------- configuration


def read_settings(name: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read a configuration: the settings outside sections, and those of each stage that trains.

    Args:
        name: a file, or the name of a shipped recipe.
    """
    try:
        given = yaml.safe_load(config_file(name).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not YAML: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f"{name} is not a configuration: expected lines of the form `name: value`")
    defaults = {each.name: each.default for kind in (GRPOConfig, ModelConfig) for each in fields(kind)}
    defaults |= {"beta": None, "num_generations": None}  # methods have their own
    common = {**defaults, **given, **(given.get("common") or {})}
    sections = {key: each for key, each in given.items() if isinstance(each, dict) and "learning_rate" in each}
    return common, {key: {**common, **each} for key, each in sections.items()} or {_ONLY_STAGE: common}


def check_settings(settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """List what a stage needs and this machine lacks."""
    own, shared = ("--", "--") if where == _ONLY_STAGE else (f"--{where}.", "--common.")  # how options are written
    needed = {
        "vllm": (settings["use_vllm"], "use_vllm: true", f'pip install "trl-mmreason[vllm]", or {own}use_vllm false'),
        "flash_attn": (
            *("flash" in str(settings["attn_implementation"]), "attn_implementation: flash_attention_2"),
            "pip install flash-attn, or --attn_implementation sdpa",
        ),
    }
    for package, (wanted, setting, fix) in needed.items():
        if wanted and importlib.util.find_spec(package) is None:
            yield Finding("FAIL", f"{where}: {setting}, but {package} is not installed.", f"{fix}.")
    for tracker, install in missing_trackers(settings["report_to"]).items():
        fix = f"{install}, or {shared}report_to none."
        yield Finding("FAIL", f"{where}: report_to: {tracker}, but {tracker} is not installed.", fix)
    bf16 = not settings["fp16"] if settings["bf16"] is None else settings["bf16"]  # as TRL's configurations read it
    if bf16 and not torch.cuda.is_available() and not settings["use_cpu"]:
        given = "bf16: true" if settings["bf16"] else "bf16, on by default,"
        fix = f"{shared}bf16 false {shared}use_cpu true, or a machine with one."
        yield Finding("FAIL", f"{where}: {given} asks for a GPU, and there is none.", fix)


def check_values(settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """List the values that make an estimate of memory impossible."""
    if (settings["dtype"] or "float32") not in _WEIGHT_BYTES:
        yield Finding("FAIL", f"{where}: dtype: {settings['dtype']}, expected one of {', '.join(_WEIGHT_BYTES)}.")
    for name in ("per_device_train_batch_size", "max_prompt_length", "max_completion_length"):
        value = settings.get(name)
        if value is not None and not isinstance(value, int):
            yield Finding("FAIL", f"{where}: {name}: {value}, expected a whole number.")


def check_files(settings: Mapping[str, Any], read: Mapping[str, Iterable[str]] | None = None) -> Iterator[Finding]:
    """Check that a configuration's local data files and folders exist.

    Args:
        settings: those outside sections.
        read: wanted stage, or not → the settings that it reads, where a method has stages.
    """
    wanted = settings.get("stages") or ",".join(read or ())
    needed = {key for stage, keys in (read or {}).items() if stage in str(wanted).split(",") for key in keys}
    skipped = {key for keys in (read or {}).values() for key in keys} - needed
    for key, value in settings.items():
        if not re.search(r"(dataset|dataset_name|datasets)$", key) or key in skipped:
            continue
        for path in value.values() if isinstance(value, dict) else [value]:
            if isinstance(path, str) and not path.startswith("miniature") and _is_lost(path):
                yield Finding("FAIL", f"{key}: there is no {path}.", "write it, or name another file or a Hub id.")


def _is_lost(path: str) -> bool:
    is_file = re.search(r"\.(jsonl?|parquet|csv)$", path)  # else data/train.jsonl could be the name of a Hub id
    return is_missing_path(path) or (is_file is not None and not Path(path).expanduser().exists())


# -------------------------------------------------------------------------------------------------------------- method


class _Parser(ScriptParser):
    """The parser of a method's script, which raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class MethodParser:
    """Parse a configuration as `mmreason train METHOD` does.

    Attributes:
        method: name of the method.
        reads: stage → the settings that it reads; empty for a method without stages.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        spec = importlib.util.spec_from_file_location(f"{__package__}.doctor.{method}", script(method))
        assert spec is not None
        assert spec.loader is not None  # it is a Python file
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        hints = get_type_hints(module.main) if hasattr(module, "main") else {}
        self._types = [kind for name, kind in hints.items() if name != "return"]
        if not self._types:  # a pipeline of stages
            kinds = [kind for kind in vars(module).values() if is_dataclass(kind) and hasattr(kind, "STAGES")]
            self._types = [*kinds, ModelConfig]
        self._staged = hasattr(self._types[0], "STAGES")
        self.reads: Mapping[str, Iterable[str]] = getattr(self._types[0], "READS", {})

    def unknown_keys(self, given: Mapping[str, Any]) -> list[str]:
        """The keys, outside sections, that the method does not have."""
        return sorted(given.keys() - {each.name for kind in self._types for each in fields(kind)} - {"env"})

    def faults(self, path: Path, given: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Section, or "" → what `train` refuses, apart from what this machine lacks: `check_settings` names that."""
        known = {each.name for kind in self._types for each in fields(kind)}
        lacking = _lacking(given).items()
        options = [part for key, value in lacking if key in known for part in (f"--{key}", value)]
        try:
            parsed = _Parser(self._types).parse_args_and_config(["--config", str(path), *options])
        except (ValueError, TypeError) as error:
            return [("", _in_a_line(error))]
        return list(self._section_faults(parsed[0])) if self._staged else []

    def _section_faults(self, args: Any) -> Iterator[tuple[str, str]]:
        yield from ((section, fault) for section, _, fault in args.unknown_settings())
        for section, kind in args.configs().items():
            if not getattr(args, section):
                continue
            known = {each.name for each in fields(kind)}
            given = {**args.common, **getattr(args, section)}
            settings = {name: value for name, value in given.items() if name in known}
            lacking = {key: yaml.safe_load(value) for key, value in _lacking(settings).items()}
            try:
                kind(args.output_dir, **{**settings, **lacking})
            except (ValueError, TypeError) as error:
                yield section, _in_a_line(error)


def _lacking(settings: Mapping[str, Any]) -> dict[str, str]:
    """Option → its value on a machine that lacks what the settings ask for."""
    lacking = {} if torch.cuda.is_available() else {"use_cpu": "true"}
    if missing_trackers(settings.get("report_to")):
        lacking["report_to"] = "none"
    if settings.get("use_vllm") and importlib.util.find_spec("vllm") is None:
        lacking["use_vllm"] = "false"
    if "flash" in str(settings.get("attn_implementation")) and importlib.util.find_spec("flash_attn") is None:
        lacking["attn_implementation"] = "sdpa"
    return lacking


def check_method(config: str, methods: Sequence[str]) -> tuple[MethodParser | None, list[Finding]]:
    """Find the method of a configuration, and what its parser refuses.

    It is the method that knows most of the keys; among several, that of the configuration's folder, or one that refuses
    nothing.

    Args:
        config: as for `read_settings`, which has read it.
        methods: names of methods.
    """
    path = config_file(config)
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    parsers = [MethodParser(method) for method in methods]
    fewest = min(len(parser.unknown_keys(given)) for parser in parsers)
    fitting = [parser for parser in parsers if len(parser.unknown_keys(given)) == fewest]
    if 2 * fewest > len(given):
        unknown = ", ".join(fitting[0].unknown_keys(given)[:3])
        text = f"{config} is no configuration of a method: no method has {unknown}."
        return None, [Finding("FAIL", text, "--config takes what `mmreason train METHOD --config` takes.")]
    own = [parser for parser in fitting if parser.method == path.parent.name]
    faults = {parser: parser.faults(path, given) for parser in own or fitting}
    parser = next((each for each, found in faults.items() if not found), next(iter(faults)))
    if not faults[parser]:
        return parser, [Finding("ok", f"{config} is a configuration that {parser.method} takes.")]
    return parser, [
        Finding("FAIL", f"{where}: {text}" if where else f"{parser.method}: {text}")
        for text, where in merge_sections((text, where) for where, text in faults[parser])
    ]


def merge_sections(faults: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each text once, with all its sections."""
    sections: dict[str, list[str]] = {}
    for text, where in faults:
        sections.setdefault(text, []).append(where)
    return ((text, ", ".join(where)) for text, where in sections.items())


def check_memory(model: Any, settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Estimate the memory of training on one GPU, and under ZeRO-2 and ZeRO-3; see `memory.py`.

    Two answers of the longest length are counted after each prompt, as in two turns.

    Args:
        model: on the meta device, or a small one; it gets an adapter if the settings ask for one.
        settings: settings of one stage.
        where: name of the stage.
    """
    parameters = count_parameters(model)
    known = {each.name for each in fields(ModelConfig)}
    adapter = adapter_config(ModelConfig(**{key: value for key, value in settings.items() if key in known}))
    keeps_reference = settings["num_generations"] if settings["beta"] is None else settings["beta"]  # for a KL term
    trained, copies = parameters, 2 if keeps_reference else 1
    if adapter is not None:
        from peft import get_peft_model

        trained, copies = count_parameters(get_peft_model(model, adapter), trained=True), 1
    text = model.config.get_text_config()
    answer = settings["max_completion_length"] or 0
    tokens = settings["per_device_train_batch_size"] * (
        (settings.get("max_prompt_length") or _PROMPT_TOKENS) + 2 * answer
    )
    activations = activation_memory(
        tokens, text.hidden_size, text.num_hidden_layers, checkpointing=bool(settings["gradient_checkpointing"])
    )
    weight_bytes = _WEIGHT_BYTES[settings["dtype"] or "float32"]
    trained_bytes = 4.0 if adapter is not None else weight_bytes  # PEFT keeps adapters in float32
    if settings["load_in_4bit"] or settings["load_in_8bit"]:
        weight_bytes = 0.5 if settings["load_in_4bit"] else 1.0
    states = 2.0 if "8bit" in str(settings["optim"]) else 2 * trained_bytes
    gpus = torch.cuda.device_count()
    processes = gpus if gpus > 1 else _MANY
    plans: dict[str, dict[str, Any]] = {
        "one GPU": {"optimizer_bytes": states},
        f"ZeRO-2 on {processes} GPUs": {"optimizer_bytes": 12.0, "zero_stage": 2, "processes": processes},
        f"ZeRO-3 or FSDP2 on {processes} GPUs": {"optimizer_bytes": 12.0, "zero_stage": 3, "processes": processes},
    }
    needs = {
        name: training_memory(
            parameters * copies, trained, activations, weight_bytes=weight_bytes, trained_bytes=trained_bytes, **plan
        )
        for name, plan in plans.items()
    }
    parts = ", ".join(f"{part} {size / _GIB:.1f}" for part, size in needs["one GPU"]._asdict().items())
    totals = ", ".join(f"{name} {need.total / _GIB:.1f}" for name, need in needs.items())
    estimate = (
        f"{where}: {parameters / 1e9:.2f} B parameters, {trained / 1e6:.1f} M trained; GiB a GPU, roughly: {totals}"
    )
    estimate += f" (one GPU: {parts}; {tokens} tokens at a time)."
    if not gpus:
        yield Finding("ok", estimate)
        return
    held = torch.cuda.get_device_properties(0).total_memory
    held *= 1 - (settings["vllm_gpu_memory_utilization"] if settings["use_vllm"] else 0)
    fitting = [name for name, need in needs.items() if need.total < held and (gpus > 1 or name == "one GPU")]
    fix = "train an adapter (--use_peft), lower --per_device_train_batch_size, or use more GPUs."
    if fitting:
        yield Finding("ok", f"{estimate} It fits: {fitting[0]}.")
    else:
        yield Finding("FAIL", f"{estimate} The GPU leaves {held / _GIB:.1f}.", fix)


# --------------------------------------------------------------------------------------------------------------- model


def load_for_checks(name: str) -> tuple[Any, Any, list[int]]:
    """Build a model without its weights, and load its processor and the tokens that end its answers.

    Args:
        name: path, Hub id or miniature/<family>/<size>.
    """
    if name.startswith(MINIATURE):
        family, _, size = name.removeprefix(MINIATURE).partition("/")
        if family not in FAMILIES or size not in SIZES:
            raise ValueError("there is no such miniature; expected one like miniature/qwen2_5_vl/demo")
        model, processor = build_model(family, size)
        return model, processor, declared_end_ids(model.generation_config, processor)
    check_model_path(name)
    adapter = Path(name).expanduser() / "adapter_config.json"
    if adapter.is_file() and not adapter.with_name("config.json").is_file():
        base = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path")
        raise ValueError(
            f"it holds an adapter, expected a whole model. Name its base, {base}, or merge them and save that"
        )
    config = AutoConfig.from_pretrained(name)
    if not sees_pictures(config):
        raise ValueError(f"a {type(config).__name__} sees no pictures; name a vision-language model")
    try:
        generation = GenerationConfig.from_pretrained(name)
    except OSError:  # a checkpoint may have none
        generation = GenerationConfig.from_model_config(config)
    processor = load_processor(name)
    return build_without_weights(config), processor, declared_end_ids(generation, processor)


def check_conversation(processor: Any, end_ids: list[int]) -> Iterator[Finding]:
    """Try a chat template and a processor: a question with a picture, a second turn, and thoughts in tags."""
    picture = Image.new("RGB", (448, 336), "white")
    question: list[dict[str, Any]] = [{"role": "user", "content": "How many circles are there?"}]
    try:
        tokens = len(encode(processor, question, [picture]).ids)
    except ENCODING_ERRORS as error:
        fix = "use a checkpoint that comes with a processor and a chat template."
        yield Finding("FAIL", f"a question with a picture cannot be written: {_in_a_line(error)}", fix)
        return
    yield Finding("ok", f"a question with a picture of 448 × 336 takes {tokens} tokens.")
    try:
        turn = next_turn_ids(processor, "Please check your answer.", eos_token_ids=end_ids)
        yield Finding("ok", f"a second turn follows the first answer as it was sampled ({len(turn)} tokens).")
    except ValueError as error:
        yield Finding("FAIL", f"two turns (AdaPO, SCoRe, two-turn evaluation): {_in_a_line(error)}")
    try:
        check_template("thoughts", processor, "<think>1 + 1</think> <answer>2</answer>")
        yield Finding("ok", "the template keeps <think>…</think> in what the assistant says.")
    except ValueError as error:
        yield Finding("note", f"supervised training on {_in_a_line(error)}")


def _of_all_stages(
    check: Callable[[Mapping[str, Any], str], Iterator[Finding]], stages: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """Check every stage; what is wrong with all of several is a fault of `common`, and said once."""
    found = {where: list(check(settings, where)) for where, settings in stages.items()}
    said = {where: {_in_common(each, where) for each in findings} for where, findings in found.items()}
    shared = set.intersection(*said.values()) if len(said) > 1 else set()
    yield from sorted(shared)
    for where, findings in found.items():
        yield from (each for each in findings if _in_common(each, where) not in shared)


def _in_common(finding: Finding, where: str) -> Finding:
    text = "common" + finding.text.removeprefix(where)
    return finding._replace(text=text, fix=finding.fix.replace(f"--{where}.", "--common."))


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


# ------------------------------------------------------------------------------------------------------------- together


def examine(config: str | None, model: str | None, methods: Sequence[str]) -> Iterator[Finding]:
    """Run all checks.

    Args:
        config: a configuration file, or the name of a shipped recipe.
        model: path or Hub id of a policy; that of the configuration by default.
        methods: names of the methods that a configuration can belong to.
    """
    yield from check_packages({package: installed_version(package) for package in PACKAGES})
    yield from check_devices()
    yield from check_contract()
    stages: dict[str, dict[str, Any]] = {}
    if config is not None:
        try:
            common, stages = read_settings(config)
        except (OSError, ValueError) as error:
            yield Finding("FAIL", _in_a_line(error))
            return
        parser, found = check_method(config, methods)
        yield from found
        if parser is None:
            return
        model = model or common["model_name_or_path"]
        yield from check_files(common, parser.reads)
        yield from _of_all_stages(check_settings, stages)
        wrong = {where: list(check_values(settings, where)) for where, settings in stages.items()}
        if all(each.level == "ok" for each in found):  # otherwise they are named above
            yield from _of_all_stages(check_values, stages)
        stages = {where: settings for where, settings in stages.items() if not wrong[where]}  # that can be estimated
    if model is None:
        return
    try:
        _, processor, end_ids = load_for_checks(model)
    except (OSError, ValueError, ImportError) as error:
        yield Finding("FAIL", f"{model}: {_in_a_line(error)}")
        return
    yield from check_conversation(processor, end_ids)
    for where, settings in stages.items():
        yield from check_memory(load_for_checks(model)[0], settings, where)  # each with an adapter of its own
