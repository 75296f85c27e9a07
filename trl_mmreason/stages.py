"""What example scripts of several stages share: a section of settings for each, and each stage done once."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import yaml
from accelerate import PartialState
from huggingface_hub.utils.sha import sha_fileobj
from trl import ModelConfig, TrlParser

from .documented import documented
from .sampling.store import Store
from .scripts import DataArguments


@documented
@dataclass
class StagedArguments(DataArguments):
    """Where questions come from, which stages to do, and the settings that they have in common.

    A subclass names its stages, and has a field, a dict, for each of its sections.

    Attributes:
        output_dir: where all stages write.
        stages: which to do, with commas between them; all by default.
        common: settings of every trainer.
    """

    STAGES: ClassVar[tuple[str, ...]] = ()
    SECTIONS: ClassVar[tuple[str, ...]] = ()

    output_dir: str = "runs"
    stages: str | None = None
    common: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for section in ("common", *self.SECTIONS):
            setattr(self, section, values_of(getattr(self, section)))
        self.stages = self.stages or ",".join(self.STAGES)
        unknown = set(self.stages.split(",")) - set(self.STAGES)
        if unknown:
            raise ValueError(
                f"stages={self.stages!r}: there is no {sorted(unknown)[0]!r}; expected {','.join(self.STAGES)}."
            )

    @property
    def folder(self) -> Path:
        """Where all stages write."""
        return Path(self.output_dir)

    @property
    def wanted(self) -> list[str]:
        """The stages to do, in their order."""
        return [stage for stage in self.STAGES if stage in str(self.stages).split(",")]

    def read_by(self, names: Iterable[str]) -> dict[str, Any]:
        """Arguments that a stage depends on; those that name a file come with a digest, so that another is noticed."""
        return {name: _with_contents(getattr(self, name, None)) for name in names}

    def config(self, section: str, config_class: type, folder: Path, **own: Any) -> Any:
        """A configuration with the section's settings, those common to all behind them; it writes into `folder`."""
        return config_class(str(folder), **{**self.common, **own, **getattr(self, section)})


def do_once(folder: Path, stage: str, settings: Mapping[str, Any], finished: Path, work: Callable[[], None]) -> None:
    """Do a stage, unless it is finished.

    Args:
        folder: of the run.
        stage: its name.
        settings: what its result depends on, as JSON.
        finished: what it writes last.
        work: does it.

    Raises:
        SettingsChanged: it was begun with other settings.
    """
    with Store(folder / "stages.sqlite") as store:
        store.open_stage(stage, settings)
    if finished.exists():
        return
    work()
    PartialState().wait_for_everyone()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def made_by(stage: str, path: Path) -> str:
    """The path of what this stage writes.

    Raises:
        FileNotFoundError: it was not done.
    """
    if not path.exists():
        raise FileNotFoundError(f"There is no {path}, which the stage {stage} writes: do that one first.")
    return str(path)


def parse_arguments(arguments: type) -> list[Any]:
    """The arguments and TRL's `ModelConfig`, from a configuration file and the command line.

    `--NAME VALUE` sets a field, and `--SECTION.NAME VALUE` what a section says.
    """
    parser = TrlParser((arguments, ModelConfig))
    *parsed, overrides = parser.parse_args_and_config(return_remaining_strings=True)
    override_sections(parsed[0], overrides)
    return parsed


def override_sections(args: Any, given: list[str]) -> None:
    """Put what the command line says of sections, as `--dpo.rounds 1`, in its place."""
    for option, value in zip(given[::2], [*given[1::2], None], strict=False):
        section, dot, name = option.removeprefix("--").partition(".")
        if not option.startswith("--") or not dot or value is None or not isinstance(getattr(args, section, 0), dict):
            raise ValueError(f"The option {option!r} is unknown; expected a field, or --SECTION.NAME VALUE.")
        getattr(args, section)[name] = _value_of(yaml.safe_load(value))


def _with_contents(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_contents(one) for name, one in value.items()}
    if not isinstance(value, str) or not os.path.isfile(value):  # Path.is_file would raise at a long prompt
        return value
    with open(value, "rb") as file:
        return f"{value}, SHA-256 {sha_fileobj(file).hex()}"


def values_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section's settings, with numbers where YAML sees a text, in sections of it, too."""
    return {name: _value_of(value) for name, value in section.items()}


def _value_of(value: Any) -> Any:
    """A number where YAML sees a text: it knows 1.0e-5, and not 1e-5."""
    if isinstance(value, dict):
        return values_of(value)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
