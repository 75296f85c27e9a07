"""Arguments of the example scripts: the source of the questions, and the sections of scripts of several stages.

Without TRL and transformers, as the methods' recipes are imported for reports, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from huggingface_hub.utils.sha import sha_fileobj

import trl_mmreason

from ..data.folders import NoSuchFolder
from ..data.image_size import PixelBounds
from ..data.user_text import parse_unique, suggestion
from ..generation.engine import Chat, Engine
from ..generation.server_engine import ServerEngine
from ..grading import Grader, JudgeGrader
from ..training.documented import documented
from ..training.model_card import MINIATURE
from .refusals import WrongArgument
from .system_prompts import parse_optional_text, read_system_prompt


@documented
@dataclass
class DataArguments:
    """The source of the questions.

    Attributes:
        dataset_name: Hub id, local file or folder (`data.row_loading.load_rows`), a .yaml file with several of them
            and their weights, or `miniature/<category>` for drawn problems.
        dataset_split: the split to train on.
        eval_dataset_name: questions to compare on before and after training, named likewise; `None` leaves that out.
            Several sets are a mapping of names to them, on the command line as JSON: training's evaluations log
            `eval_NAME_…` for each, and the comparison has a line for each.
        eval_split: the split to compare on, by default `test`. For the miniature: `new_pictures`, the default there, or
            `heldout` for problems whose content does not occur in training either.
        columns: our column names → the source's, on the command line as JSON.
        image_root: folder that relative image paths start from.
        video_frames: frames to read of each video in the columns `video` and `videos`; `None` refuses rows with videos.
        min_pixels, max_pixels: enlarge smaller images and shrink larger ones to this many pixels, width × height, when
            rows are read; `None` leaves them to the model's processor.
        system_prompt: put before every question: `sophia` for SOPHIA's slow-thinking prompt, a file that holds the
            prompt, or the prompt itself.
        eval_system_prompt: likewise, put before every question to compare on; by default `system_prompt`.
        on_error: "drop" leaves bad rows out and names them; "raise" stops.
        train_rows, eval_rows: train and compare on no more rows than these, sampled with the run's seed.
        reward_funcs: reward functions of your own that are added to the method's, such as `my_rewards.py:short`; a list
            for several. `reward_weights` then weighs the method's first.
        tolerance: relative tolerance of numbers in answers: `strict`, 1e-6; `lenient`, 1e-2 where the right answer is a
            decimal; or a share, such as 0.05 for charts.
        judge_model: a model that is asked about answers that the rules call wrong, in training: a path or Hub id, or
            with judge_server the name there; null for the rules alone.
        judge_server: address of a server with OpenAI's API.
        cold_start_accuracy: for a miniature policy, the accuracy at which its supervised start ends.
        overwrite_output_dir: train anew in a folder that holds another run, whose checkpoints and logged completions
            are deleted first, or a model; never one that holds the policy to train. Not for methods of several stages.
    """

    dataset_name: str
    dataset_split: str = "train"
    eval_dataset_name: dict | str | None = None
    eval_split: str | None = None
    columns: dict | str | None = None
    image_root: str | None = None
    video_frames: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    system_prompt: str | None = None
    eval_system_prompt: str | None = None
    on_error: str = "drop"
    train_rows: int | None = None
    eval_rows: int | None = None
    reward_funcs: list[str] | None = None
    tolerance: str = "strict"
    judge_model: str | None = None
    judge_server: str | None = None
    cold_start_accuracy: float = 0.5
    overwrite_output_dir: bool = False

    @cached_property
    def rules(self) -> Grader:
        """The rules of grading."""
        named = self.tolerance in ("strict", "lenient")
        return Grader(tolerance=self.tolerance if named else float(self.tolerance))  # type: ignore[arg-type]

    def grader(self, load: Callable[[str], Engine]) -> Grader | JudgeGrader:
        """What grades in training: the rules, followed by the judge if there is one.

        Args:
            load: makes an engine of a path or Hub id.
        """
        model, server = self.judge_model, self.judge_server
        if model is None:
            return self.rules
        judge = ServerEngine(model, server, openai_only=True) if server else load(model)
        return JudgeGrader(Chat(judge), self.rules)

    def __post_init__(self) -> None:
        for name in ("judge_model", "judge_server"):
            setattr(self, name, parse_optional_text(name, getattr(self, name)))
        if self.judge_server and not self.judge_model:
            raise ValueError(f"judge_server={self.judge_server!r} came without judge_model: name the model there.")
        self.tolerance = str(self.tolerance)  # a number in YAML
        try:
            assert self.rules
        except ValueError as error:
            expected = "expected strict, lenient or a share between 0 and 1, such as 0.05"
            raise ValueError(f"tolerance={self.tolerance!r}, {expected}.") from error
        if self.on_error not in ("drop", "raise"):
            raise ValueError(f"on_error={self.on_error!r}, expected drop or raise.")
        if self.video_frames is not None and self.video_frames < 1:
            raise ValueError(f"video_frames={self.video_frames}, expected at least 1.")
        if problem := PixelBounds(self.min_pixels, self.max_pixels).problem:
            raise ValueError(f"{problem}.")
        if any(rows is not None and rows < 1 for rows in (self.train_rows, self.eval_rows)):
            raise ValueError(f"train_rows={self.train_rows}, eval_rows={self.eval_rows}, expected at least 1.")
        self.eval_dataset_name = parse_eval_sets(self.eval_dataset_name)
        self.system_prompt = read_system_prompt("system_prompt", self.system_prompt)
        self.eval_system_prompt = read_system_prompt("eval_system_prompt", self.eval_system_prompt)
        if self.eval_split is None:
            sets = self.eval_dataset_name
            sources = sets.values() if isinstance(sets, Mapping) else [str(sets)]
            self.eval_split = "new_pictures" if all(each.startswith(MINIATURE) for each in sources) else "test"
        if isinstance(self.reward_funcs, str):
            self.reward_funcs = [self.reward_funcs]
        self.columns = parsed_columns(self.columns)


_READ_BY = {"dataset_split", "columns", "image_root", "video_frames", "min_pixels", "max_pixels"}
READING = {
    each.name: each.default
    for each in fields(DataArguments)
    if each.name in _READ_BY | {"system_prompt", "eval_system_prompt"}
}
"""How questions are read: arguments and their defaults."""


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
    SECTIONS: ClassVar[Mapping[str, str | type | tuple[str, ...]]] = {}
    """Field with the settings of one or more stages → the public name of a trainer's configuration that takes them, or
    a dataclass, or their names."""
    ASKING: ClassVar[tuple[str, ...]] = ()
    """Stages whose result depends on how the questions are read, besides their `READS`."""
    WHOLE: ClassVar[tuple[str, ...]] = ()
    """Sections whose trainers train all weights, with `use_peft`, too; `mmreason doctor` reads them as well."""

    output_dir: str = "runs"
    stages: str | None = None
    sampling_batch_size: int = 32
    vllm: dict | str | None = field(default_factory=dict)
    common: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward_funcs:
            raise ValueError(
                f"reward_funcs={self.reward_funcs} is for methods of one stage. Fix: the trainer's argument, in Python."
            )
        if self.overwrite_output_dir:
            raise ValueError(
                "overwrite_output_dir is for methods of one stage; of several, what is finished is kept. Fix: another "
                "output_dir, or delete what is to be done anew."
            )
        self.vllm = optional_section("vllm", self.vllm, "arguments of `vllm.LLM`")
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
        """Arguments that a stage depends on; a file comes with its digest, so that changes are noticed.

        No rows are in a folder of images, below which a run may write its own, nor in one that is called as a split.
        """
        given = {name: getattr(self, name, None) for name in names}
        return {name: value if name in READING else _with_contents(value) for name, value in given.items()}

    @classmethod
    def configs(cls) -> dict[str, Any]:
        """Section → configuration class, of those sections that configure a trainer."""
        return {name: getattr(trl_mmreason, kind) for name, kind in cls.SECTIONS.items() if isinstance(kind, str)}

    def unknown_settings(self) -> Iterator[tuple[str, str, str]]:
        """Yield section, name and fault of every setting that its section does not have, or that stages refuse.

        Those of `common` are compared with the sections that the wanted stages read. Refused are those of `common` that
        would silently outrank an argument of the script; pushing to the Hub, as each stage would push its own model, to
        a repository with the name of its folder, or all of them to one; and a checkpoint to resume from, as each stage
        resumes from its newest one.
        """
        configs = self.configs()
        for section, kind in {**self.SECTIONS, **configs}.items():
            yield from ((section, *fault) for fault in setting_faults(getattr(self, section), kind))
        if "model" in self.vllm:  # type: ignore[operator]  # a dict since __post_init__
            yield "vllm", "model", "`model` is the policy of the stage that samples. Fix: leave it out."
        if self.vllm and find_spec("vllm"):
            from vllm import EngineArgs

            yield from (("vllm", *fault) for fault in setting_faults(self.vllm, EngineArgs))  # type: ignore[arg-type]
        read = {section for stage in self.wanted for section in (stage, *self.READS.get(stage, ()))}
        kinds = [kind for section, kind in configs.items() if section in read]
        faults = [fault for kind in kinds for fault in setting_faults(self.common, kind)]
        yield from (("common", *fault) for fault in dict(reversed(faults)).items())  # each name once
        for name in sorted(self.common.keys() & {each.name for each in fields(self)}):
            yield "common", name, f"`{name}` would outrank the one outside the sections. Fix: write it there alone"
        pushes = "is for methods of one stage, as every stage would push its own model. Fix: leave it out, and when all"
        for section in ("common", *configs):
            for name in ("push_to_hub", "hub_model_id"):
                if getattr(self, section).get(name):
                    yield section, name, f"`{name}` {pushes} is done: hf upload NAME/MODEL OUTPUT_DIR/STAGE/model"
            name, resumes = "resume_from_checkpoint", "is for methods of one stage, as every stage resumes by itself"
            if getattr(self, section).get(name) not in (None, "auto"):
                yield section, name, f"`{name}` {resumes}. Fix: leave it out"

    def config(self, section: str, folder: Path, **own: Any) -> Any:
        """Make a trainer's configuration of its section's settings, else the common ones, else `own`; it writes into
        `folder`."""
        try:
            return self.configs()[section](str(folder), **{**own, **self.common, **getattr(self, section)})
        except (TypeError, ValueError) as error:
            raise WrongArgument(without_gpu(error, "--common.") or f"{section}: {error}") from error


def parsed_columns(columns: Any, name: str = "columns", expected: str = '{"prompt": "problem"}') -> Any:
    """Parse `columns` as the command line gives them, in JSON; those of a file are returned."""
    if not isinstance(columns, str):
        return columns
    try:
        return parse_unique(columns)
    except ValueError as error:
        raise ValueError(f"{name}={columns!r} is not JSON ({error}); write it as '{expected}'.") from error


def parse_eval_sets(given: Any) -> dict[str, str] | str | None:
    """Parse `eval_dataset_name`: one source, a mapping of names to sources, or none."""
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        return parse_optional_text("eval_dataset_name", given)
    sets = parsed_columns(given, "eval_dataset_name", '{"easy": "easy.jsonl"}')
    if sets is not None and not (
        sets and all(re.fullmatch(r"\w+", str(name)) and isinstance(source, str) for name, source in sets.items())
    ):
        raise ValueError(
            f"eval_dataset_name={given!r}, expected a source, or names of letters, digits and _ with a source each."
        )
    return sets


def setting_faults(
    settings: Mapping[str, Any], kind: type | Mapping[str, Any] | tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield name and fault of every setting that is unknown or has another type.

    Args:
        kind: what is known: the fields of a dataclass, a mapping of names to types, or names alone.
    """
    from ..training.config_values import wrong_type  # imported late: it imports transformers

    has = "there is"
    if isinstance(kind, type):
        has, hints = f"{kind.__name__} has", get_type_hints(kind)
        kind = {each.name: hints[each.name] for each in fields(kind)}
    known = kind if isinstance(kind, Mapping) else dict.fromkeys(kind, Any)
    for name, value in settings.items():
        if name not in known:
            yield name, f"{has} no `{name}`{suggestion(str(name), known)}"
        elif fault := wrong_type(name, value, known[name]):
            yield name, fault


def optional_section(name: str, given: Any, expected: str) -> dict[str, Any]:
    """A section that may be null, also on the command line, where it is a string; a file has what is `expected`."""
    if isinstance(given, str):
        given = parse_optional_text(name, given)
    if not isinstance(given, dict | None):
        raise ValueError(f"{name}={given!r}, expected null; in a file, {expected}.")
    return values_of(given or {})


def values_of(value: Any) -> Any:
    """A section, nested ones included, with numbers where YAML reads strings: it knows 1.0e-5, but not 1e-5."""
    if isinstance(value, Mapping):
        return {name: values_of(each) for name, each in value.items()}
    return float(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+\.?\d*e[+-]?\d+", value, re.I) else value


_ROWS = (".parquet", ".jsonl", ".csv", ".tsv", ".arrow")  # of a folder; its .json may be a model's


def _with_contents(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_contents(one) for name, one in value.items()}
    there = os.path.expanduser(value) if isinstance(value, str) else ""
    if not os.path.exists(there):  # Path.exists would raise at a long prompt
        return value
    parts = [value]
    files = [Path(there)] if os.path.isfile(there) else Path(there).rglob("*")
    for path in sorted(path for path in files if path == Path(there) or path.suffix in _ROWS and path.is_file()):
        with path.open("rb") as file:
            parts.append(f"SHA-256 {sha_fileobj(file).hex()}")
    if there.endswith((".yaml", ".yml")):
        from ..data.mixed_sources import read_mixture  # imported late: they import datasets
        from ..data.rows import DataError

        with suppress(DataError):  # it is no mixture
            parts += [_with_contents(part.source) for part in read_mixture(Path(there))]
    return ", ".join(parts)


def without_gpu(error: Exception, option: str = "--") -> str | None:
    """The fix of transformers' error on bf16 without a GPU, with `option` before names; `None` for other errors."""
    if "support bf16/gpu" not in str(error):
        return None
    return f"bf16 asks for a GPU, and there is none. Fix: {option}use_cpu true {option}bf16 false"


def made_by(stage: str, path: Path) -> str:
    """Return the file or folder that the stage wrote; refuse if it was not done."""
    if not path.exists():
        raise NoSuchFolder(f"{path} does not exist. Run the stage {stage} first.")
    return str(path)
