"""Arguments of multi-stage example scripts: a section of settings for each stage, parsed and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import yaml
from huggingface_hub.utils.sha import sha_fileobj
from transformers import TrainingArguments
from trl import ModelConfig

from .documented import documented
from .packages import refuse_missing_packages
from .script_parser import ScriptParser, WrongArgument, without_gpu
from .scripts import DataArguments
from .suggestions import suggestion
from .system_prompts import parse_optional_text
from .values import refuse_impossible, wrong_type


@documented
@dataclass
class StagedArguments(DataArguments):
    """Questions, the stages to run, and their common settings.

    A subclass has a field, a dict, for each of its sections.

    Attributes:
        output_dir: output folder.
        stages: which to do, with commas between them; all by default.
        sampling_batch_size: answers sampled, or scored, at a time, in each process.
        vllm: arguments of `vllm.LLM`, such as `gpu_memory_utilization`, with which each process samples the policies of
            this run outside training; null, the default, leaves it to transformers. With vLLM `sampling_batch_size`
            should be in the hundreds, as a batch ends with its longest answer.
        common: settings of every trainer.
    """

    STAGES: ClassVar[Mapping[str, str]] = {}
    """Stage → the file or folder in `output_dir` that it writes last, in the order of the stages."""
    READS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Stage → arguments that its result depends on, besides `common`, its own section and the stages before it."""
    SECTIONS: ClassVar[Mapping[str, type | tuple[str, ...]]] = {}
    """Field that holds the settings of a stage, or of several → the dataclass that takes them, or their names."""
    WHOLE: ClassVar[tuple[type, ...]] = ()
    """Configurations whose trainers train all weights, with `use_peft`, too; `mmreason doctor` reads them as well."""

    output_dir: str = "runs"
    stages: str | None = None
    sampling_batch_size: int = 32
    vllm: dict | str | None = field(default_factory=dict)
    common: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.vllm = values_of(optional_section("vllm", self.vllm, "arguments of `vllm.LLM`"))
        for section in ("common", *self.SECTIONS):
            setattr(self, section, values_of(getattr(self, section) or {}))  # YAML reads an empty section as None
        self.stages = self.stages or ",".join(self.STAGES)
        unknown = set(self.stages.split(",")) - set(self.STAGES)
        if unknown:
            raise ValueError(
                f"stages={self.stages!r}: unknown stage {sorted(unknown)[0]!r}; expected {','.join(self.STAGES)}."
            )

    @property
    def folder(self) -> Path:
        """Output folder of all stages."""
        return Path(self.output_dir)

    @property
    def wanted(self) -> list[str]:
        """The stages to run, in order."""
        return [stage for stage in self.STAGES if stage in str(self.stages).split(",")]

    def read_by(self, names: Iterable[str]) -> dict[str, Any]:
        """Arguments that a stage depends on; a file comes with its digest, so that changes are noticed."""
        return {name: _with_contents(getattr(self, name, None)) for name in names}

    @classmethod
    def configs(cls) -> dict[str, type[TrainingArguments]]:
        """Section → configuration class, of those sections that configure a trainer."""
        kinds = cls.SECTIONS.items()
        return {name: kind for name, kind in kinds if isinstance(kind, type) and issubclass(kind, TrainingArguments)}

    def unknown_settings(self) -> Iterator[tuple[str, str, str]]:
        """Yield section, name and fault of every setting that its section does not have.

        Those of `common` are compared with the sections that the wanted stages read.
        """
        for section, kind in self.SECTIONS.items():
            yield from unknown_names(section, getattr(self, section), kind)
        if "model" in self.vllm:  # type: ignore[operator]  # a dict since __post_init__
            yield "vllm", "model", "`model` is the policy of the stage that samples. Fix: leave it out."
        if self.vllm and find_spec("vllm"):
            from vllm import EngineArgs

            yield from unknown_names("vllm", self.vllm, EngineArgs)  # type: ignore[arg-type]
        read = {section for stage in self.wanted for section in (stage, *self.READS.get(stage, ()))}
        kinds = [kind for section, kind in self.configs().items() if section in read]
        faults = [fault for kind in kinds for fault in unknown_names("common", self.common, kind)]
        yield from {name: (section, name, fault) for section, name, fault in reversed(faults)}.values()

    def config(self, section: str, config_class: type, folder: Path, **own: Any) -> Any:
        """Make a configuration from the section's settings, then the common ones; it writes into `folder`.

        Raises:
            WrongArgument: a setting is unknown, or refused.
        """
        section_settings = getattr(self, section)
        for where, settings in (("common", self.common), (section, section_settings)):
            for _, _, fault in unknown_names(where, settings, config_class):
                raise WrongArgument(f"{where}: {fault}")
        try:
            return config_class(str(folder), **{**self.common, **own, **section_settings})
        except (TypeError, ValueError) as error:
            raise WrongArgument(without_gpu(error, "--common.") or f"{section}: {error}") from error


def parse_arguments(arguments: type) -> list[Any]:
    """Parse the arguments and TRL's `ModelConfig` from a configuration file and the command line.

    `--NAME VALUE` sets a field, and `--SECTION.NAME VALUE` what a section says.
    """
    parser = ScriptParser((arguments, ModelConfig))
    *parsed, overrides = parser.parse_args_and_config(return_remaining_strings=True)
    try:
        override_sections(parsed[0], overrides)
        for section, name, fault in parsed[0].unknown_settings():  # before a stage, not hours later when it is reached
            option = f"--{section}.{name}"
            raise ValueError(f"{option if option in overrides else f'{parser.config}: {section}'}: {fault}")
        refuse_missing_packages({"vllm": parsed[0].vllm})
        for section in ("common", *parsed[0].SECTIONS):
            refuse_missing_packages(getattr(parsed[0], section), f"--{section}.")
        for section, kind in parsed[0].configs().items():
            schedule = kind.lr_scheduler_type
            refuse_impossible(section, {**parsed[0].common, **getattr(parsed[0], section)}, schedule=schedule)
    except ValueError as error:
        parser.error(str(error))
    return parsed


def unknown_names(
    section: str, settings: Mapping[str, Any], kind: type | tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    """Yield section, name and fault of every setting that is unknown, has another type, or that stages refuse.

    Known are a dataclass's fields and their types, or these names. Refused is pushing to the Hub: each stage would push
    its own model, to a repository with the name of its folder, or all of them to one, over each other.
    """
    names = kind if isinstance(kind, tuple) else tuple(each.name for each in fields(kind))
    types = {} if isinstance(kind, tuple) else get_type_hints(kind)
    has = "there is" if isinstance(kind, tuple) else f"{kind.__name__} has"
    for name, value in settings.items():
        if name not in names:
            yield section, name, f"{has} no `{name}`{suggestion(name, names)}"
        elif fault := wrong_type(name, value, types.get(name, Any)):
            yield section, name, fault
        elif name in ("push_to_hub", "hub_model_id") and value:
            fix = "Fix: leave it out, and when all is done: hf upload NAME/MODEL OUTPUT_DIR/STAGE/model"
            yield section, name, f"`{name}` is for methods of one stage, as every stage would push its own model. {fix}"


def override_sections(args: Any, given: list[str]) -> None:
    """Apply options of sections, such as `--dpo.rounds 1`."""
    for option, value in zip(given[::2], [*given[1::2], None], strict=False):
        section, dot, name = option.removeprefix("--").partition(".")
        if not option.startswith("--") or not dot or value is None or not isinstance(getattr(args, section, 0), dict):
            near = suggestion(option, [f"--{known}" for known in vars(args)])
            raise ValueError(
                f"The option {option!r} is unknown{near or '; expected a field, or --SECTION.NAME VALUE.'}"
            )
        getattr(args, section)[name] = _value_of(yaml.safe_load(value))


def _with_contents(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_contents(one) for name, one in value.items()}
    if not isinstance(value, str) or not os.path.exists(value):  # Path.exists would raise at a long prompt
        return value
    files = [value] if os.path.isfile(value) else sorted(map(str, Path(value).glob("*.parquet")))
    return ", ".join([value, *map(_digest, files)])


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return f"SHA-256 {sha_fileobj(file).hex()}"


def optional_section(name: str, given: Any, expected: str) -> dict[str, Any]:
    """A section that may be null, also on the command line, where it is a string.

    Args:
        name: name of the section.
        given: what came.
        expected: what a file has there, for the error message.
    """
    if isinstance(given, str):
        given = parse_optional_text(name, given)
    if not isinstance(given, dict | None):
        raise ValueError(f"{name}={given!r}, expected null; in a file, {expected}.")
    return given or {}


def values_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section's settings, nested ones included, with numbers where YAML reads strings."""
    return {name: _value_of(value) for name, value in section.items()}


def _value_of(value: Any) -> Any:
    """Convert to a number where YAML reads a string: it knows 1.0e-5, but not 1e-5."""
    if isinstance(value, dict):
        return values_of(value)
    return float(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+\.?\d*e[+-]?\d+", value, re.I) else value
