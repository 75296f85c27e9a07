"""A training step of OffPolicyRewardTrainer beside TRL's SFTTrainer, on the same batches of pictures and completions.

A step is the trainer's `training_step`, forward and backward without the optimizer, which is the same code in both.
Rounds alternate, and ratios are between medians. With `--unrewarded` a share of the rows has reward 0: ours leaves them
out, and SFTTrainer, which knows no rewards, trains on all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, ProcessorMixin
from trl import SFTConfig, SFTTrainer

from trl_mmreason import OffPolicyRewardConfig, OffPolicyRewardTrainer
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.tasks import make_problems

WAYS = ("OffPolicyRewardTrainer", "SFTTrainer")


def build(size: str) -> tuple[PreTrainedModel, ProcessorMixin]:
    model, processor = build_model("qwen2_5_vl", size)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), processor


def draw_rows(n: int, tokens: int, unrewarded: float) -> Dataset:
    rows = []
    for number, problem in enumerate(make_problems(["adding"], n)):
        completion = " ".join(["7"] * (tokens // 2))
        row = {"prompt": problem.prompt, "images": [problem.image], "reward": float(number >= unrewarded * n)}
        rows.append({**row, "completion": [{"role": "assistant", "content": completion}]})
    return Dataset.from_list(rows)


def make_trainer(way: str, folder: str, size: str, rows: Dataset, batch_size: int) -> SFTTrainer:
    model, processor = build(size)
    settings: dict[str, Any] = {
        "per_device_train_batch_size": batch_size,
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
        return OffPolicyRewardTrainer(model, args=config, **common)
    plain = SFTConfig(folder, completion_only_loss=True, **settings)
    return SFTTrainer(model, args=plain, **common)


def epoch(trainer: SFTTrainer) -> float:
    """Seconds of a training step on every batch of the data set."""
    trainer.current_gradient_accumulation_steps = 1  # as `train` would set it
    batches = list(trainer.get_train_dataloader())
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    for batch in batches:
        items = trainer._get_num_items_in_batch([batch], trainer.args.device)
        trainer.training_step(trainer.model, batch, num_items_in_batch=items)
        trainer.model.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(trainers: dict[str, SFTTrainer], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {way: [] for way in trainers}
    for number in range(rounds + 1):
        for way, trainer in trainers.items():
            took = epoch(trainer)
            if number:  # the first round warms up
                seconds[way].append(took)
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="demo", help="of the miniature model: test, demo or study")
    parser.add_argument("--rows", type=int, default=16, help="completions")
    parser.add_argument("--tokens", type=int, default=128, help="of each completion")
    parser.add_argument("--unrewarded", type=float, default=0.0, help="share of the rows with reward 0")
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a step")
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians are taken")
    parser.add_argument("--json", help="file for the seconds of every round")
    given = parser.parse_args(arguments)
    rows = draw_rows(given.rows, given.tokens, given.unrewarded)
    with tempfile.TemporaryDirectory() as folder:
        trainers = {way: make_trainer(way, folder, given.size, rows, given.batch_size) for way in WAYS}
        seconds = measure(trainers, given.rounds)
    medians = {way: statistics.median(found) for way, found in seconds.items()}
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"arguments": vars(given), "seconds": seconds}, file, indent=2)
    print(f"{given.rows} rows, {given.unrewarded:.0%} of them without reward; medians of {given.rounds} rounds")
    for way, median in medians.items():
        print(f"{way:24} {median:8.3f} s   x {median / medians[WAYS[0]]:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
