"""Shared code of multi-stage example scripts: resumable stages, and the table that compares their policies."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from shutil import copy2
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import is_peft_model, parse_flag_from_env
from datasets import Dataset
from transformers.utils.peft_utils import find_adapter_config_file
from trl import GRPOTrainer, ModelConfig

from ..data.folders import atomic_path, lock_folder, write_whole
from ..evaluation.curves import plot_curves
from ..evaluation.evaluation_report import COMPARISON, evaluate_into, write_evaluation_report
from ..evaluation.files import format_results
from ..evaluation.results import Results
from ..generation.engine import Engine
from ..generation.model_loading import load_model, load_processor
from ..generation.patience import patient_state
from ..generation.protocols import AnsweringProtocol
from ..generation.transformers_engine import TransformersEngine
from ..generation.vllm_engine import VLLMProcess
from ..grading import Grader, JudgeGrader
from ..jobs.store import Store
from ..miniature.lessons import Lessons
from ..miniature.tasks import Problem, make_problems
from ..training.model_card import CARD, MINIATURE, add_results
from .refusals import exit_on_refusal
from .script_parser import ScriptParser
from .sections import READING
from .single_stage import compared_rows, load_data, policy_path, print_end, train_once, trainer_settings

_logger = logging.getLogger(__name__)


class Pipeline:
    """The stages of an example, each of which writes files that later stages read.

    A subclass has a method for each of its arguments' `STAGES`, and `measure`.

    Attributes:
        train_rows, eval_rows: the questions; `eval_rows` is `None` without `eval_dataset_name`.
        eval_sets: `eval_rows`, by the names of their sets if there are several.
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
        self.train_rows, self.eval_sets = load_data(args, self.seed)
        self.eval_rows = compared_rows(self.eval_sets)
        self._vllm: VLLMProcess | None = None

    @classmethod
    def main(cls, arguments: type) -> None:
        """Parse the command line and run."""
        with exit_on_refusal():
            cls(*ScriptParser((arguments, ModelConfig)).parse_args_and_config()).run()

    def run(self) -> None:
        """Run the requested stages, and evaluate every existing policy."""
        if PartialState().is_main_process:
            lock_folder(self.folder)
        for stage in self.args.wanted:
            self.do(stage)
        if self.eval_rows is not None:
            self.measure()
        if PartialState().is_main_process:
            print_end(self.folder, self.args.dataset_name)

    def do(self, stage: str) -> None:
        """Run a stage unless it is finished; refuse one that was started with other settings."""
        settings = self.args.read_by(["common", stage, *self.args.READS[stage]])
        settings["policy"] = self.model_args.model_name_or_path
        usual: dict[str, Any] = {"tolerance": "strict", "judge_model": None, "model_revision": "main"}
        usual |= {"dtype": ModelConfig.dtype, "load_in_8bit": False, "load_in_4bit": False, "use_dora": False}
        usual |= {"bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": False}
        usual |= READING if stage in self.args.ASKING else {}
        given = {**vars(self.model_args), **vars(self.args)}
        # these only where they are set, so that earlier runs go on
        settings |= {name: given[name] for name, default in usual.items() if given[name] != default}
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
        **asking: Any,
    ) -> dict[str, Results]:
        """Evaluate each policy, write its evaluation, and add the results to its model card.

        Args:
            policies: name → path or Hub id. A `Path` that is not there belongs to a stage that was not done: left out.
            folder: folder in `output_dir`, in which each evaluation has a folder of its name.
            rows: `eval_rows` by default.
            **asking: arguments of `evaluate_into`.
        """
        rows, results = self.eval_rows if rows is None else rows, {}
        usual = {"seed": self.seed, "batch_size": self.args.sampling_batch_size, "grader": self.args.rules}
        asking = usual | asking
        for name, path in policies.items():
            if isinstance(path, str) or path.exists():
                place, asking["description"] = self.folder / folder / name, f"evaluating {name}"
                results[name] = evaluate_into(place, rows, self.sampler(path), protocol, **asking)
        if PartialState().is_main_process:
            for name, result in results.items():
                add_results(Path(policies[name]), folder.replace("-", " ").capitalize(), format_results(result))
        return results

    def compare(self, text: str, found: Mapping[str, Results], folder: str = "evaluation") -> None:
        """Write the page that compares evaluations; print `text` and save it as `table.txt`."""
        if len(found) > 1 and PartialState().is_main_process:
            folders = {name: self.folder / folder / name for name in found}
            write_evaluation_report(folders, self.folder / folder / COMPARISON)
        self.say(text, f"{folder}/table.txt")

    def config(self, section: str, name: str | None = None, **own: Any) -> Any:
        """Make the section's configuration; training writes into the folder `name`, by default the section's."""
        return self.args.config(section, self.folder / (name or section), **own)

    def trainer(self, trainer_class: Any, policy: str, config: Any, rows: Dataset, **settings: Any) -> Any:
        """Make a trainer of this policy; `settings` override those of `ModelConfig`.

        It has no adapter if its configuration is one of the arguments' `WHOLE`.
        Reinforcement that evaluates during training does so on `eval_sets`; supervised training needs `eval_dataset`.
        """
        self._end_vllm()
        questions, configs = self.eval_sets if issubclass(trainer_class, GRPOTrainer) else None, self.args.configs()
        whole = {"peft_config": None} if any(type(config) is configs[each] for each in self.args.WHOLE) else {}
        usual = trainer_settings(self.model_args, config, settings.get("eval_dataset") or questions)
        settings = {**usual, **whole, **settings}
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

    def problems(self, n: int, stream: int, split: str = "train") -> list[Problem]:
        """Draw problems for the miniature: `train_rows` from stream 0, `eval_rows` from stream 1."""
        category = self.args.dataset_name.removeprefix(MINIATURE)
        return make_problems([category], n, split=split, seed=self.seed + stream)

    @cached_property
    def grader(self) -> Grader | JudgeGrader:
        """What grades in training."""
        return self.args.grader(self.engine)

    def sampler(self, path: str | Path) -> Engine:
        """The engine that samples a policy: vLLM if there are settings for it, unless `path` holds an adapter.

        It ends when another policy is sampled or a trainer is made, so that the GPU is free.
        """
        if not self.args.vllm or find_adapter_config_file(str(path), **self._revision_of(path)) is not None:
            return self.engine(path)
        if self._vllm is None or self._vllm.model != str(path):
            self._end_vllm()
            self._vllm = VLLMProcess(str(path), **{**self._revision_of(path), **self.args.vllm})
        return self._vllm

    def _end_vllm(self) -> None:
        if self._vllm is not None:
            self._vllm.close()
        self._vllm = None

    def engine(self, path: str | Path) -> TransformersEngine:
        return TransformersEngine(str(path), batch_size=self.args.sampling_batch_size, **self._revision_of(path))

    def _revision_of(self, path: str | Path) -> dict[str, Any]:
        """The revision of the policy as it came; stages write folders, and without one stored answers stay valid."""
        name, revision = self.model_args.model_name_or_path, self.model_args.model_revision
        return {"revision": revision} if str(path) == name and revision != "main" else {}

    def say(self, text: str, file: str | None = None) -> None:
        """Print on the main process, and write to a file."""
        if PartialState().is_main_process:
            sys.stdout.write(f"\n{text}\n")
            if file is not None:
                write_whole(self.folder / file, f"{text}\n")


def save_merged(adapter: str | Path, folder: str | Path) -> None:
    """Save a model with its adapter merged, its processor, card and `trainer_state.json`, unless the folder exists."""
    adapter, folder = Path(adapter), Path(folder)
    if PartialState().is_main_process and not folder.exists():
        model, _ = load_model(str(adapter), device="cpu")
        with atomic_path(folder) as unfinished:
            model.save_pretrained(unfinished)
            load_processor(str(adapter)).save_pretrained(unfinished)
            if (adapter / "trainer_state.json").exists():
                copy2(adapter / "trainer_state.json", unfinished)
            card = (adapter / CARD).read_text(encoding="utf-8")
            write_whole(unfinished / CARD, card.replace(f"model={str(adapter)!r}", f"model={str(folder)!r}"))
    PartialState().wait_for_everyone()


def do_once(folder: Path, stage: str, settings: Mapping[str, Any], finished: Path, work: Callable[[], None]) -> None:
    """Run a stage unless it is finished.

    Args:
        settings: what its result depends on, as JSON; if it was begun with others, it is refused.
        finished: file or folder that it writes last.
    """
    with Store(folder / "stages.sqlite", elsewhere="another --output_dir") as store:
        store.fix_settings(stage, settings)
    is_finished = finished.exists()
    PartialState().wait_for_everyone()  # or a slow process would find what a fast one has already written
    if is_finished:
        return
    work()
    PartialState().wait_for_everyone()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
