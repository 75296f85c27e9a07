"""Training between two evaluations: the policy's answers before and after, side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ..compat.vllm import VerifiedGeneration
from ..data.folders import write_whole
from ..evaluation.curves import plot_curves
from ..evaluation.evaluation_report import REPORT, evaluate_into, write_evaluation_report
from ..evaluation.logged_completions import tables_of
from ..evaluation.metrics import format_table, verdict
from ..evaluation.results import Results, compare_results
from ..evaluation.training_run import TRAINING_REPORT, write_training_report
from ..generation.engine import SamplingParams
from ..generation.model_loading import whole_policy
from ..generation.protocols import ComparedProtocol
from ..generation.transformers_engine import TransformersEngine
from ..generation.vllm_engine import LoadedVLLM
from ..training.model_card import COMPARED, EVALUATIONS
from .script_parser import command_line
from .single_stage import DataArguments, print_end, publish, train_and_save

_AT_ONCE = 256  # questions for vLLM, which forms its own batches
_SHOWN = 100  # completions in the page of training


def train_and_compare(
    trainer: GRPOTrainer,
    data_args: DataArguments,
    rows: Dataset | None,
    protocol: ComparedProtocol,
    *,
    system_prompt: str | None = None,
) -> None:
    """Train and save; with evaluation rows also evaluate before and after, print the table and write the report.

    With `log_completions` a page of what the policy wrote in training comes last, after a push to the Hub, as it holds
    images of the data set.

    Args:
        rows: questions to compare on; `None` leaves the comparison out.
        protocol: how the policy is asked, greedily; of two answers.
    """
    if protocol.turns != 2:
        raise ValueError(f"train_and_compare: the protocol has {protocol.turns} turns, expected 2: acc@t2 is compared.")
    sets = data_args.eval_dataset_name
    title = f"{trainer._name} on {', '.join(sets) if isinstance(sets, dict) else sets} ({data_args.eval_split})"
    asking: dict[str, Any] = {"system_prompt": system_prompt, "about": {"title": title}, "training": asdict(data_args)}
    asking["grader"] = data_args.rules
    before = None if rows is None else _evaluate(trainer, rows, protocol, "before", **asking)
    train_and_save(trainer)
    after = None if rows is None else _evaluate(trainer, rows, protocol, "after", trainer.args.output_dir, **asking)
    if before is not None and after is not None and trainer.accelerator.is_main_process:
        _report(trainer, before, after, protocol.metrics)
    try:
        publish(trainer, data_args.dataset_name)
    finally:  # a refused push loses nothing
        folder = Path(trainer.args.output_dir)
        if trainer.accelerator.is_main_process and tables_of(folder):
            write_training_report({folder.resolve().name: folder}, folder / TRAINING_REPORT, shown=_SHOWN)
    if trainer.accelerator.is_main_process:
        print_end(folder, data_args.dataset_name)
    if hasattr(trainer, "end"):  # from transformers 5.18 on: closes trackers and the process group
        trainer.end()


def _evaluate(
    trainer: GRPOTrainer, rows: Dataset, protocol: ComparedProtocol, stage: str, saved: str | None = None, **asking: Any
) -> Results:
    """Evaluate the policy into its folder of `_evaluation`, with the vLLM of its rollouts if it is in its processes.

    `saved` is as for `whole_policy`, and `asking` for `evaluate_into`; the trainer's settings are added to `training`.
    """
    args = trainer.args
    assert args.max_completion_length is not None  # the trainers always set it
    asking |= {"sampling_params": SamplingParams(args.max_completion_length, temperature=0.0)}
    asking |= {"command": command_line(), "description": f"evaluating {stage}"}
    policy = {"policy": trainer.model.config._name_or_path}
    asking["training"] = {**policy, **asking.get("training", {}), **_settings(args)}
    folder, size = Path(args.output_dir) / EVALUATIONS / stage, args.per_device_eval_batch_size
    with _rollout_engine(trainer) as vllm:
        if vllm is not None:
            return evaluate_into(folder, rows, vllm, protocol, batch_size=_AT_ONCE, **asking)
    with whole_policy(trainer, saved) as policy:
        template = trainer.chat_template_kwargs
        engine = TransformersEngine(policy, trainer.processing_class, batch_size=size, chat_template_kwargs=template)
        return evaluate_into(folder, rows, engine, protocol, batch_size=size, **asking)


class _RolloutEngine(LoadedVLLM):
    """The colocated vLLM of a trainer's rollouts as an engine.

    Attributes:
        processes: how many share it, all of which have to ask it the same.
    """

    settings: dict[str, Any] = {"kind": "vllm of a trainer"}

    def __init__(self, trainer: Any, llm: Any) -> None:
        template = trainer.chat_template_kwargs
        super().__init__(llm, trainer.processing_class, sorted(trainer.eos_token_ids), template)
        self.processes = trainer.vllm_generation.tensor_parallel_size


@contextmanager
def _rollout_engine(trainer: Any) -> Iterator[_RolloutEngine | None]:
    """Yield the engine that a trainer's rollouts come from, with the policy's weights.

    `None` where it has none in its processes; and under FSDP, whose parameters TRL reads only once training has begun.
    """
    generation = getattr(trainer, "vllm_generation", None)
    if not isinstance(generation, VerifiedGeneration) or generation.mode != "colocate" or trainer.is_fsdp_enabled:
        yield None
        return
    with generation.loaded() as llm:
        yield _RolloutEngine(trainer, llm)


def _settings(args: GRPOConfig) -> dict[str, Any]:
    """The method's own settings, and those of TRL's that differ from their defaults; no secrets."""
    usual = {entry.name: entry.default for entry in fields(GRPOConfig)}
    hidden = ("hub_token", "accelerator_config", "disable_tqdm")
    return {
        name: value
        for name, value in args.to_dict().items()
        if name not in hidden and value not in (None, [], {}, usual.get(name))
    }


def _report(trainer: GRPOTrainer, before: Results, after: Results, metrics: Sequence[str]) -> None:
    folder, history = Path(trainer.args.output_dir), trainer.state.log_history
    changes = compare_results(before, after)
    table = format_table({name: changes[name] for name in metrics if name in changes})
    write_whole(folder / COMPARED, f"{table}\n")  # for the model's card
    plot_curves(history, folder / "curves.png")
    evaluations = {stage: folder / EVALUATIONS / stage for stage in ("before", "after")}
    write_evaluation_report(evaluations, folder / REPORT, log_history=history)
    sys.stdout.write(f"\n{table}\n\nacc@t2 {verdict(changes['acc_t2'].change.interval)}.\n")
