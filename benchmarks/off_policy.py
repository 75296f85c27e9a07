"""A training step of OffPolicyRewardTrainer beside TRL's SFTTrainer, on the same rows of the standard workload.

A step is loading and collating all rows, and the trainer's `training_step` on all micro-batches, forward and backward;
without the optimizer, which is the same code in both. Ours puts rows of similar length into a micro-batch, and with
`--unsorted` takes them as they come. Rounds alternate, and a ratio is the median of theirs. With `--unrewarded` a share
of the rows has reward 0: ours leaves them out, and SFTTrainer, which knows no rewards, trains on all.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from transformers import PreTrainedModel, ProcessorMixin
from trl import SFTConfig, SFTTrainer
from workload import lengths, questions

from trl_mmreason import OffPolicyRewardConfig, OffPolicyRewardTrainer
from trl_mmreason.commands.parsers import count
from trl_mmreason.miniature.models import build_model

WAYS = ("OffPolicyRewardTrainer", "SFTTrainer")


def build(size: str) -> tuple[PreTrainedModel, ProcessorMixin]:
    model, processor = build_model("qwen2_5_vl", size)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), processor


def draw_rows(n: int, unrewarded: float) -> Dataset:
    rows = [
        {
            "prompt": question["prompt"],
            "images": question["images"],
            "completion": [{"role": "assistant", "content": "7" * tokens}],  # a token a digit
            "reward": float(number >= unrewarded * n),
        }
        for number, (question, tokens) in enumerate(zip(questions(n), lengths(n), strict=True))
    ]
    return Dataset.from_list(rows)


class Unsorted(OffPolicyRewardTrainer):
    """Takes rows as they come."""

    def _sorts_rows(self) -> bool:
        return False


def make_trainer(way: str, folder: str, rows: Dataset, given: argparse.Namespace) -> SFTTrainer:
    model, processor = build(given.size)
    settings: dict[str, Any] = {
        "per_device_train_batch_size": given.batch_size,
        "gradient_accumulation_steps": given.rows // given.batch_size,
        "bf16": torch.cuda.is_available(),
        "use_cpu": not torch.cuda.is_available(),
        "gradient_checkpointing": False,
        "max_length": None,
        "report_to": [],
    }
    common: dict[str, Any] = {"train_dataset": rows, "processing_class": processor}
    if way == "OffPolicyRewardTrainer":
        parts = ["vision", "projector", "language"]
        config = OffPolicyRewardConfig(folder, trainable_parts=parts, **settings)
        return (Unsorted if given.unsorted else OffPolicyRewardTrainer)(model, args=config, **common)
    plain = SFTConfig(folder, completion_only_loss=True, **settings)
    return SFTTrainer(model, args=plain, **common)


def step(trainer: SFTTrainer) -> None:
    """A training step on all rows."""
    steps = trainer.args.gradient_accumulation_steps
    batches, items = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), steps, trainer.args.device)
    trainer.current_gradient_accumulation_steps = len(batches)  # as `train` would set it
    for batch in batches:
        trainer.training_step(trainer.model, batch, num_items_in_batch=items)
    trainer.model.zero_grad()


def main() -> None:
    parser = parser_of(__doc__, rounds=7)
    parser.add_argument("--size", default="demo", help="of the miniature model: test, demo or study")
    parser.add_argument("--rows", type=count, default=32, help="completions")
    parser.add_argument("--unrewarded", type=float, default=0.0, help="share of the rows with reward 0")
    parser.add_argument("--batch-size", type=count, default=4, help="rows of a micro-batch")
    parser.add_argument("--unsorted", action="store_true", help="ours takes rows as they come, too")
    given = parser.parse_args()
    rows = draw_rows(given.rows, given.unrewarded)
    contestants = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            trainer = make_trainer(way, folder, rows, given)
            contestants[way] = partial(step, trainer)
        seconds, _ = take_turns(contestants, given.rounds)
    medians = medians_of(seconds)
    write_numbers(given, seconds=seconds)
    print(f"{given.rows} rows, {given.unrewarded:.0%} of them without reward; medians of {given.rounds} rounds")
    for way, median in medians.items():
        print(f"{way:24} {median:8.3f} s")
    pair = [seconds[way] for way in WAYS]
    print(f"ratio {median_ratio(*pair):.2f} (middle half {middle_half(*pair)})")


if __name__ == "__main__":
    main()
