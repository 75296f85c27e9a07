"""What the example scripts share: a policy and data by name, and the report on what training changed."""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, get_peft_config, get_quantization_config
from trl.models import unwrap_model_for_generation

from .data import load_rows
from .evaluation.curves import plot_curves
from .evaluation.metrics import compare, format_table, improves
from .evaluation.report import TwoTurnTrajectory, write_report
from .evaluation.two_turn import evaluate_two_turns
from .miniature.cold_start import cold_start
from .miniature.models import build_model
from .miniature.tasks import make_dataset

MINIATURE = "miniature/"
_SHOWN = 100  # questions in the report, which holds their pictures


@dataclass
class DataArguments:
    """Where questions come from.

    Attributes:
        dataset_name: Hub id, local file or folder (see `trl_mmreason.data.load_rows`), or `miniature/<category>` for
            drawn problems.
        dataset_split: the split to train on.
        eval_dataset_name: the same, for the comparison before and after training; `None` leaves it out.
        eval_split: the split to compare on. For the miniature: `new_pictures`, or `heldout` for problems whose
            content does not occur in training either.
        columns: our column names → the source's.
        image_root: folder that relative picture paths start from.
        system_prompt: put before every question.
        on_error: "drop" leaves bad rows out and names them; "raise" stops.
        train_rows, eval_rows: use no more than these.
        cold_start_accuracy: for a miniature policy, the accuracy at which its supervised start ends.
    """

    dataset_name: str = field(metadata={"help": "Hub id, local file or folder, or miniature/<category>."})
    dataset_split: str = field(default="train", metadata={"help": "Split to train on."})
    eval_dataset_name: str | None = field(default=None, metadata={"help": "Questions for before and after."})
    eval_split: str = field(default="test", metadata={"help": "Split for before and after."})
    columns: dict | str | None = field(default=None, metadata={"help": "Our column names to the source's, as JSON."})
    image_root: str | None = field(default=None, metadata={"help": "Folder of relative picture paths."})
    system_prompt: str | None = field(default=None, metadata={"help": "Put before every question."})
    on_error: str = field(default="drop", metadata={"help": "Bad rows: drop or raise."})
    train_rows: int | None = field(default=None, metadata={"help": "Train on no more rows than this."})
    eval_rows: int | None = field(default=None, metadata={"help": "Compare on no more rows than this."})
    cold_start_accuracy: float = field(default=0.5, metadata={"help": "Miniature: where the supervised start ends."})

    def __post_init__(self) -> None:
        if isinstance(self.columns, str):  # from the command line
            self.columns = json.loads(self.columns)


def load_split(arguments: DataArguments, name: str, split: str, rows: int | None, *, seed: int) -> Dataset:
    """The rows of one split; `miniature/…` names are drawn, 3,000 of them unless `rows` says otherwise."""
    if name.startswith(MINIATURE):
        return make_dataset([name.removeprefix(MINIATURE)], rows or 3000, split=split, seed=seed)
    loaded = load_rows(
        name,
        split=split,
        columns=arguments.columns,  # type: ignore[arg-type]  # a str became a dict in __post_init__
        image_root=arguments.image_root,
        system_prompt=arguments.system_prompt,
        on_error="raise" if arguments.on_error == "raise" else "drop",
        max_rows=rows,
    )
    return loaded.dataset


def policy_path(arguments: DataArguments, model_args: ModelConfig, training_args: GRPOConfig, followup: str) -> str:
    """The checkpoint to start from; `miniature/<family>/<size>` is built and cold-started unless that was done."""
    name = model_args.model_name_or_path
    if name is None:
        raise ValueError("Name a policy: --model_name_or_path with a Hub id, a path or miniature/<family>/<size>.")
    if not name.startswith(MINIATURE):
        return name
    folder = Path(training_args.output_dir) / "cold_start"
    if not (folder / "config.json").exists():
        family, size = name.removeprefix(MINIATURE).split("/")
        model, processor = build_model(family, size, seed=training_args.seed)
        cold_start(
            model.to(training_args.device),
            processor,
            [arguments.dataset_name.removeprefix(MINIATURE)],
            folder,
            followup=followup,
            target_accuracy=arguments.cold_start_accuracy,
            seed=training_args.seed,
        )
    return str(folder)


def trainer_settings(model_args: ModelConfig, training_args: GRPOConfig) -> dict[str, Any]:
    """Arguments of a trainer that follow from TRL's `ModelConfig`; fills in `training_args.model_init_kwargs`."""
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    return {
        "quantization_config": get_quantization_config(model_args),
        "peft_config": get_peft_config(model_args),
    }


def train_and_compare(trainer: GRPOTrainer, data_args: DataArguments, followup: str) -> bool | None:
    """Train and save; with an evaluation split, answer it before and after, print the table and write the report.

    Returns:
        Whether acc@t2 rose by more than the intervals; `None` without an evaluation split, and on other processes.
    """
    args = trainer.args
    evaluation = None
    if data_args.eval_dataset_name is not None:
        evaluation = load_split(
            data_args, data_args.eval_dataset_name, data_args.eval_split, data_args.eval_rows, seed=args.seed + 1
        )
    before = [] if evaluation is None else _answer(trainer, evaluation, followup, "before")
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model(args.output_dir)
    trainer.create_model_card(model_name=Path(args.output_dir).name, dataset_name=data_args.dataset_name)
    if args.push_to_hub:
        trainer.push_to_hub(dataset_name=data_args.dataset_name)
    after = [] if evaluation is None else _answer(trainer, evaluation, followup, "after")
    if hasattr(trainer, "end"):  # from transformers 5.18 on: closes trackers and the process group
        trainer.end()
    return _report(trainer, before, after) if after and trainer.accelerator.is_main_process else None


def _answer(trainer: GRPOTrainer, rows: Dataset, followup: str, stage: str) -> list[TwoTurnTrajectory]:
    """Greedy answers of the trainer's present policy to every row, in both turns."""
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as policy:
        return evaluate_two_turns(
            policy,
            trainer.processing_class,
            rows,
            followup,
            stage=stage,
            max_new_tokens=trainer.args.max_completion_length,
            batch_size=trainer.args.per_device_eval_batch_size,
        )


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: a rate of nothing becomes null."""
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _settings(args: GRPOConfig) -> dict[str, Any]:
    """The method, and every setting that differs from its default; secrets masked by `to_dict`."""
    defaults = {entry.name: entry.default for entry in fields(args)}
    shown = {name: value for name, value in args.to_dict().items() if value != defaults[name] and value is not None}
    shown.pop("hub_token", None)
    return {"config": type(args).__name__, **shown}


def _report(trainer: GRPOTrainer, before: list[TwoTurnTrajectory], after: list[TwoTurnTrajectory]) -> bool:
    folder = Path(trainer.args.output_dir)
    flags = [([t.first_correct for t in stage], [t.second_correct for t in stage]) for stage in (before, after)]
    comparison = compare(*flags)
    plot_curves(trainer.state.log_history, folder / "curves.png")
    write_report(
        folder / "report.html",
        title=f"{trainer._name} on {len(after)} held-out questions",
        command=shlex.join(sys.argv),
        settings=_settings(trainer.args),
        comparison=comparison,
        trajectories=[*before[:_SHOWN], *after[:_SHOWN]],
        curves_png=folder / "curves.png",
    )
    results = {name: asdict(change) for name, change in comparison.items()}
    (folder / "results.json").write_text(json.dumps(_without_nan(results), indent=2))
    acc_t2 = comparison["acc_t2"]
    better = improves(acc_t2.before.interval, acc_t2.after.interval)
    verdict = "rose by more than the intervals" if better else "did not rise by more than the intervals"
    sys.stdout.write(f"\n{format_table(comparison)}\n\nacc@t2 {verdict}. Report: {folder / 'report.html'}\n")
    return better
