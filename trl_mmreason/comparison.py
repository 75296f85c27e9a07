"""Training between two evaluations: the policy's answers before and after, side by side."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from .engines.vllm import rollout_engine
from .evaluation.curves import plot_curves, training_plots
from .evaluation.evaluation_report import trajectories_of
from .evaluation.logged_completions import tables_of
from .evaluation.metrics import format_table, improves
from .evaluation.report import comparison_table, write_report
from .evaluation.results import compare_results, summarise
from .evaluation.runner import Samples, evaluate, evaluate_policy
from .evaluation.training_run import TRAINING_REPORT, write_training_report
from .files import write_whole
from .messages import question_text
from .model_card import PRINTED
from .sampling.engine import SamplingParams
from .sampling.protocols import ComparedProtocol
from .script_parser import command_line
from .scripts import DataArguments, last_checkpoint, publish, train_and_save
from .whole_policy import whole_policy

_AT_ONCE = 256  # questions for vLLM, which forms its own batches
_SHOWN = 100  # questions in the report, which holds their pictures; completions in the page of training


def train_and_compare(
    trainer: GRPOTrainer,
    data_args: DataArguments,
    rows: Dataset | None,
    protocol: ComparedProtocol,
    *,
    system_prompt: str | None = None,
) -> bool | None:
    """Train and save; with evaluation rows also evaluate before and after, print the table and write the report.

    With `log_completions` a page of what the policy wrote in training comes last, after a push to the Hub, as it holds
    pictures of the data set.

    Args:
        trainer: a trainer that has not been started.
        data_args: where the questions came from.
        rows: questions to compare on; `None` leaves the comparison out.
        protocol: how the policy is asked, greedily.
        system_prompt: put before every question.

    Returns:
        Whether acc@t2 rose by more than the intervals; `None` without rows to compare on, and on other processes.

    Raises:
        ValueError: the protocol does not ask for two answers.
    """
    if protocol.turns != 2:
        raise ValueError(f"train_and_compare: the protocol has {protocol.turns} turns, expected 2: acc@t2 is compared.")

    def measure(stage: str, saved: str | None = None) -> Samples | None:
        return None if rows is None else _answer(trainer, rows, protocol, system_prompt, stage, saved)

    checkpoint = last_checkpoint(trainer.args)
    before = measure("before")
    train_and_save(trainer, checkpoint)
    after = measure("after", trainer.args.output_dir)
    better = None
    if rows is not None and before is not None and after is not None and trainer.accelerator.is_main_process:
        better = _report(trainer, data_args, rows, {"before": before, "after": after}, protocol.metrics)
    publish(trainer, data_args.dataset_name)
    if trainer.accelerator.is_main_process and tables_of(folder := Path(trainer.args.output_dir)):
        write_training_report({folder.resolve().name: folder}, folder / TRAINING_REPORT, shown=_SHOWN)
        sys.stdout.write(f"Groups of training, with rewards and advantages: {folder / TRAINING_REPORT}\n")
    if hasattr(trainer, "end"):  # from transformers 5.18 on: closes trackers and the process group
        trainer.end()
    return better


def _answer(
    trainer: GRPOTrainer,
    rows: Dataset,
    protocol: ComparedProtocol,
    system_prompt: str | None,
    stage: str,
    saved: str | None = None,
) -> Samples:
    """Sample answers of the policy, with the vLLM of its rollouts if it is in its processes.

    `saved` is as for `whole_policy`.
    """
    limit = trainer.args.max_completion_length
    assert limit is not None  # the trainers see to it
    asking: dict[str, Any] = {
        "sampling_params": SamplingParams(limit, temperature=0.0),
        "system_prompt": system_prompt,
        "description": f"evaluating {stage}",
    }
    with rollout_engine(trainer) as engine:
        if engine is not None:
            return evaluate(rows, engine, None, protocol, batch_size=_AT_ONCE, **asking)
    with whole_policy(trainer, saved) as policy:
        return evaluate_policy(
            policy,
            trainer.processing_class,
            rows,
            protocol,
            batch_size=trainer.args.per_device_eval_batch_size,
            chat_template_kwargs=trainer.chat_template_kwargs,
            **asking,
        )


def _without_nan(value: Any) -> Any:
    """Replace NaN by None, as JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _settings(args: GRPOConfig, data_args: DataArguments) -> dict[str, Any]:
    """Settings for the report: data, the method's own, and TRL's that differ from defaults; no secrets."""
    defaults = {entry.name: entry.default for entry in fields(GRPOConfig)}
    values = {
        name: value
        for name, value in args.to_dict().items()
        if value not in (None, [], {}) and (name not in defaults or value != defaults[name])
    }
    for name in ("hub_token", "accelerator_config", "disable_tqdm"):
        values.pop(name, None)
    data = {name: value for name, value in asdict(data_args).items() if value is not None}
    return {**data, "config": type(args).__name__, **values}


def _report(
    trainer: GRPOTrainer,
    data_args: DataArguments,
    rows: Dataset,
    samples: Mapping[str, Samples],
    metrics: Sequence[str],
) -> bool:
    folder, questions = Path(trainer.args.output_dir), samples["after"].rows
    before, after = (summarise(each) for each in samples.values())
    changes = compare_results(before, after)
    comparison = {name: changes[name] for name in metrics if name in changes}
    pictures = {row["id"]: rows[k].get("images") or [] for k, row in enumerate(questions[:_SHOWN])}
    asked = {row["id"]: question_text(row["prompt"]) for row in questions}
    plot_curves(trainer.state.log_history, folder / "curves.png")
    write_report(
        folder / "report.html",
        title=f"{trainer._name} on {len(questions)} questions of {data_args.eval_dataset_name} "
        f"({data_args.eval_split})",
        command=command_line(),
        settings={"policy": trainer.model.config._name_or_path, **_settings(trainer.args, data_args)},
        tables=[comparison_table(comparison)],
        trajectories=[
            trajectory
            for stage, each in samples.items()
            for trajectory in trajectories_of(each, pictures, _SHOWN, stage, asked)
        ],
        plots=training_plots({"": trainer.state.log_history}),
    )
    results = {name: asdict(change) for name, change in comparison.items()}
    write_whole(folder / "results.json", json.dumps(_without_nan(results), indent=2))
    table, acc_t2 = format_table(comparison), comparison["acc_t2"]
    write_whole(folder / PRINTED, f"{table}\n")  # for the model's card
    better = improves(acc_t2.before.interval, acc_t2.after.interval)
    verdict = "rose by more than the intervals" if better else "did not rise by more than the intervals"
    sys.stdout.write(f"\n{table}\n\nacc@t2 {verdict}. Report: {folder / 'report.html'}\n")
    return better
