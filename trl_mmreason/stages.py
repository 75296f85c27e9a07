"""Shared code of multi-stage example scripts: a section of settings for each stage, resumable stages, the table."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from shutil import copy2
from typing import Any, ClassVar

import torch
import yaml
from accelerate import PartialState
from accelerate.utils import is_peft_model, parse_flag_from_env
from datasets import Dataset
from huggingface_hub.utils.sha import sha_fileobj
from transformers import TrainingArguments
from transformers.utils.peft_utils import find_adapter_config_file
from trl import GRPOTrainer, ModelConfig

from .documented import documented
from .evaluation.curves import plot_curves
from .evaluation.evaluation_report import COMPARISON, evaluate_into, write_evaluation_report
from .evaluation.files import format_results
from .evaluation.results import Results
from .files import NoSuchFolder, atomic_path, write_whole
from .miniature.cold_start import Lessons
from .miniature.tasks import Problem, make_problems
from .model_card import CARD, MINIATURE, add_results
from .sampling.engine import Engine
from .sampling.loading import load_model, load_processor
from .sampling.protocols import AnsweringProtocol
from .sampling.run import patient_state
from .sampling.store import Store
from .sampling.transformers_engine import TransformersEngine
from .sampling.vllm_process import VLLMProcess
from .script_parser import ScriptParser, WrongArgument, refuse_missing_packages, suggestion, without_gpu
from .scripts import DataArguments, exit_on_missing, load_data, policy_path, train_once, trainer_settings
from .system_prompts import parse_optional_text

_logger = logging.getLogger(__name__)


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
        if self.vllm and find_spec("vllm"):
            from vllm import EngineArgs

            yield from unknown_names("vllm", self.vllm, EngineArgs)  # type: ignore[arg-type]  # a dict since __post_init__
        read = {section for stage in self.wanted for section in (stage, *self.READS.get(stage, ()))}
        kinds = [kind for section, kind in self.configs().items() if section in read]
        faults = [fault for kind in kinds for fault in unknown_names("common", self.common, kind)]
        yield from {name: (section, name, fault) for section, name, fault in reversed(faults)}.values()

    def config(self, section: str, config_class: type, folder: Path, **own: Any) -> Any:
        """Make a configuration from the section's settings, then the common ones; it writes into `folder`.

        Raises:
            WrongArgument: a setting is unknown, or refused.
        """
        given = getattr(self, section)
        for where, settings in (("common", self.common), (section, given)):
            for _, _, fault in unknown_names(where, settings, config_class):
                raise WrongArgument(f"{where}: {fault}")
        try:
            return config_class(str(folder), **{**self.common, **own, **given})
        except (TypeError, ValueError) as error:
            raise WrongArgument(without_gpu(error, "--common.") or f"{section}: {error}") from error


class Pipeline:
    """The stages of an example, each of which writes files that later stages read.

    A subclass has a method for each of its arguments' `STAGES`, and `measure`.

    Attributes:
        train_rows, eval_rows: the questions; `eval_rows` is `None` without `eval_dataset_name`.
    """

    def __init__(self, args: Any, model_args: ModelConfig) -> None:
        patient_state(cpu=args.common.get("use_cpu", False))
        if args.vllm and parse_flag_from_env("ACCELERATE_USE_CPU") and not args.common.get("use_cpu"):
            _logger.warning(
                "The section vllm is left out, as accelerate was told to use the CPU. To keep it there, add "
                "--common.use_cpu true."
            )
            args.vllm = {}
        self.args, self.model_args, self.folder = args, model_args, args.folder
        self.seed = args.common.get("seed", 42)
        self.train_rows, self.eval_rows = load_data(args, self.seed)
        self._vllm: VLLMProcess | None = None

    @classmethod
    def main(cls, arguments: type) -> None:
        """Parse the command line and run; a missing data set or model ends the script with one line."""
        with exit_on_missing():
            cls(*parse_arguments(arguments)).run()

    def run(self) -> None:
        """Run the requested stages, and evaluate every existing policy."""
        for stage in self.args.wanted:
            self.do(stage)
        if self.eval_rows is not None:
            self.measure()

    def do(self, stage: str) -> None:
        """Run a stage unless it is finished; refuse one that was started with other settings."""
        settings = self.args.read_by(["common", stage, *self.args.READS[stage]])
        settings["policy"] = self.model_args.model_name_or_path
        if self.model_args.use_peft:
            settings["adapter"] = {name: value for name, value in vars(self.model_args).items() if "lora" in name}
        do_once(self.folder, stage, settings, self.folder / self.args.STAGES[stage], getattr(self, stage))

    def measure(self) -> None:
        """Evaluate the policies on the evaluation questions."""
        raise NotImplementedError

    def evaluate(
        self,
        policies: Mapping[str, str | Path],
        protocol: AnsweringProtocol,
        *,
        folder: str = "evaluation",
        rows: Dataset | None = None,
        **asked: Any,
    ) -> dict[str, Results]:
        """Evaluate each policy, write its evaluation, and add the results to its model card.

        Args:
            policies: name → path or Hub id. A `Path` that is not there belongs to a stage that was not done: left out.
            protocol: how they are asked.
            folder: in `output_dir`; the evaluation of each is the folder of its name there.
            rows: `eval_rows` by default.
            **asked: arguments of `evaluate_into`.
        """
        asked = {"seed": self.seed, "batch_size": self.args.sampling_batch_size, **asked}
        found = {
            name: evaluate_into(
                self.folder / folder / name,
                self.eval_rows if rows is None else rows,
                self.sampler(path),
                protocol,
                description=f"evaluating {name}",
                **asked,
            )
            for name, path in policies.items()
            if isinstance(path, str) or path.exists()
        }
        if PartialState().is_main_process:
            for name, results in found.items():
                add_results(Path(policies[name]), folder.replace("-", " ").capitalize(), format_results(results))
        return found

    def compare(self, text: str, found: Mapping[str, Results], folder: str = "evaluation") -> None:
        """Write the page that compares evaluations; print `text` and save it as `table.txt`."""
        if len(found) > 1 and PartialState().is_main_process:
            folders = {name: self.folder / folder / name for name in found}
            write_evaluation_report(folders, self.folder / folder / COMPARISON)
        self.say(text, f"{folder}/table.txt")

    # --------------------------------------------------------------------------------------------------------- helpers

    def config(self, section: str, config_class: type, name: str | None = None, **own: Any) -> Any:
        """Make the section's configuration; training writes into the folder `name`, by default the section's."""
        return self.args.config(section, config_class, self.folder / (name or section), **own)

    def trainer(self, trainer_class: Any, policy: str, config: Any, rows: Dataset, **settings: Any) -> Any:
        """Make a trainer of this policy; `settings` override those of `ModelConfig`.

        It has no adapter if its configuration is one of the arguments' `WHOLE`.
        Reinforcement that evaluates during training does so on `eval_rows`; supervised training needs `eval_dataset`.
        """
        self._end_vllm()
        questions = self.eval_rows if issubclass(trainer_class, GRPOTrainer) else None
        eval_rows = settings.get("eval_dataset") or questions
        whole = {"peft_config": None} if isinstance(config, self.args.WHOLE) else {}
        settings = {**trainer_settings(self.model_args, config, eval_rows), **whole, **settings}
        return trainer_class(policy, args=config, train_dataset=rows, **settings)

    def learn(self, trainer: Any) -> None:
        """Train, save the model into `model` in the trainer's folder, and draw its curves there.

        An adapter is saved into `adapter`; `model` is then its base with it merged in, for a next stage to begin with.
        """
        folder = Path(trainer.args.output_dir)
        adapted = is_peft_model(trainer.model)
        train_once(trainer, folder / ("adapter" if adapted else "model"), self.args.dataset_name)
        if adapted:
            save_merged(folder / "adapter", folder / "model")
        if trainer.is_world_process_zero():
            plot_curves(trainer.state.log_history, folder / "curves.png")

    def first_policy(self, config: Any, lessons: Lessons) -> str:
        """The initial policy; a miniature one is taught `lessons`."""
        return policy_path(self.args, self.model_args, config, lessons)

    def other_policy(self, config: Any, lessons: Lessons, name: str, accuracy: float) -> str:
        """Another policy than the initial one; a miniature one is taught up to this accuracy."""
        args = replace(self.args, cold_start_accuracy=accuracy)
        return policy_path(args, replace(self.model_args, model_name_or_path=name), config, lessons)

    def problems(self, n: int, stream: int, split: str = "train") -> list[Problem]:
        """Draw problems for the miniature: `train_rows` from stream 0, `eval_rows` from stream 1."""
        category = self.args.dataset_name.removeprefix(MINIATURE)
        return make_problems([category], n, split=split, seed=self.seed + stream)

    def sampler(self, path: str | Path) -> Engine:
        """The engine that samples a policy: vLLM if there are settings for it, unless `path` holds an adapter.

        It ends when another policy is sampled or a trainer is made, so that the GPU is free.
        """
        if not self.args.vllm or find_adapter_config_file(str(path)) is not None:
            return self.engine(path)
        if self._vllm is None or self._vllm.model != str(path):
            self._end_vllm()
            self._vllm = VLLMProcess(str(path), **self.args.vllm)
        return self._vllm

    def _end_vllm(self) -> None:
        if self._vllm is not None:
            self._vllm.close()
        self._vllm = None

    def engine(self, path: str | Path) -> TransformersEngine:
        """Make an engine on transformers for the model at `path`."""
        return TransformersEngine(str(path), batch_size=self.args.sampling_batch_size)

    def say(self, text: str, file: str | None = None) -> None:
        """Print on the main process, and write to a file."""
        if PartialState().is_main_process:
            sys.stdout.write(f"\n{text}\n")
            if file is not None:
                write_whole(self.folder / file, f"{text}\n")


def save_merged(adapter: str | Path, folder: str | Path) -> None:
    """Save a model with its adapter merged, its processor, card and `trainer_state.json`, unless that exists."""
    adapter, folder = Path(adapter), Path(folder)
    if PartialState().is_main_process and not folder.exists():
        model, _ = load_model(str(adapter), device="cpu")
        with atomic_path(folder) as unfinished:
            model.save_pretrained(unfinished)
            load_processor(str(adapter)).save_pretrained(unfinished)
            copy2(adapter / "trainer_state.json", unfinished)
            card = (adapter / CARD).read_text(encoding="utf-8")
            write_whole(unfinished / CARD, card.replace(f"model={str(adapter)!r}", f"model={str(folder)!r}"))
    PartialState().wait_for_everyone()


def do_once(folder: Path, stage: str, settings: Mapping[str, Any], finished: Path, work: Callable[[], None]) -> None:
    """Run a stage unless it is finished.

    Args:
        folder: folder of the run.
        stage: its name.
        settings: what its result depends on, as JSON.
        finished: what it writes last.
        work: does it.

    Raises:
        SettingsChanged: it was begun with other settings.
    """
    with Store(folder / "stages.sqlite") as store:
        store.fix_settings(stage, settings)
    if finished.exists():
        return
    work()
    PartialState().wait_for_everyone()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def made_by(stage: str, path: Path) -> str:
    """Return the file or folder that the stage wrote.

    Raises:
        NoSuchFolder: it was not done.
    """
    if not path.exists():
        raise NoSuchFolder(f"{path} does not exist. Run the stage {stage} first.")
    return str(path)


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
    except ValueError as error:
        parser.error(str(error))
    return parsed


def unknown_names(
    section: str, settings: Mapping[str, Any], kind: type | tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    """Yield section, name and fault of every setting that is unknown or that stages refuse.

    Known are a dataclass's fields, or these names. Refused is pushing to the Hub: each stage would push its own model,
    to a repository with the name of its folder, or all of them to one, over each other.
    """
    names = kind if isinstance(kind, tuple) else tuple(each.name for each in fields(kind))
    has = "there is" if isinstance(kind, tuple) else f"{kind.__name__} has"
    for name, value in settings.items():
        if name not in names:
            yield section, name, f"{has} no `{name}`{suggestion(name, names)}"
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
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
