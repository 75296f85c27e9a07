"""Training on a rollout batch of the standard workload: AdaPO's time over that of TRL's GRPO on as many tokens.

Sampling is replaced by answers drawn beforehand: GRPO's answer has as many tokens as AdaPO's two answers and the user's
turn between them. Timed is the rest of a rollout batch: scoring by the reference, rewards, and forward and backward
passes of all micro-batches. TRL computes the padding of the whole batch, and the trainers here only that of a
micro-batch of rows of like length. Rounds alternate, and the ratio is the median of theirs.
The exit code is 1 above `--limit`, and where AdaPO's peak memory is above GRPO's.
"""

from __future__ import annotations

import gc
import random
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rounds import forget_peak, median_ratio, medians_of, memory, middle_half, parser_of, take_turns, write_numbers
from torch import Tensor
from trainer_overhead import Answers, TimedAdaPO, TimedGRPO
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer
from workload import GROUP, lengths, questions, save_policy

from trl_mmreason import AdaPOConfig
from trl_mmreason.commands.parsers import count, share
from trl_mmreason.grading.reward import accuracy_reward
from trl_mmreason.grpo import GroupOutcome


def draw_answers(trainer: GRPOTrainer, tokens: list[int]) -> Answers:
    """Answers of so many random tokens, each ended by the end-of-turn token."""
    tokenizer, rng = trainer._tokenizer, random.Random(0)
    words = [token for token in range(len(tokenizer)) if token not in tokenizer.added_tokens_decoder]
    return [[*rng.choices(words, k=length - 1), tokenizer.eos_token_id] for length in tokens]


class DropsSome(TimedAdaPO):
    """Keeps `--dropped` of every group out of the loss, as filters do."""

    dropped = 0.0

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        outcome = super().score_groups(rewards)
        self.in_groups(outcome.keep)[:, : round(self.dropped * GROUP)] = False
        return outcome


def train_on_batch(trainer: TimedGRPO, rows: list[dict[str, Any]]) -> float:
    """Train on a rollout batch whose answers are there; gives the most memory in it, in MiB.

    Of a GPU it is what is allocated, of a CPU what the process holds beyond what it held before.
    """
    on_gpu = torch.cuda.is_initialized()
    trainer._buffered_inputs = None
    gc.collect()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    held = 0.0 if on_gpu else forget_peak()
    for _ in range(trainer.args.steps_per_generation):
        trainer.training_step(trainer.model_wrapped, [dict(row) for row in rows], None)
    trainer.model_wrapped.zero_grad()
    return torch.cuda.max_memory_allocated() / 2**20 if on_gpu else memory("VmHWM") - held


def main() -> None:
    parser = parser_of(__doc__, rounds=7)
    parser.add_argument("--size", default="study", help="of the miniature model")
    parser.add_argument(
        "--questions", type=count, default=4, help=f"in a rollout batch, with {GROUP} trajectories each"
    )
    parser.add_argument("--batch", type=count, default=4, help="trajectories a micro-batch")
    parser.add_argument("--dropped", type=share, default=0.0, help="share of AdaPO's trajectories that filters drop")
    parser.add_argument("--limit", type=float, default=0.65, help="highest ratio")
    arguments = parser.parse_args()
    asked = questions(arguments.questions)
    rows = [row for row in asked for _ in range(GROUP)]
    on_gpu = torch.cuda.is_available()
    settings: dict[str, Any] = {
        "per_device_train_batch_size": arguments.batch,
        "gradient_accumulation_steps": len(rows) // arguments.batch,
        "num_generations": GROUP,
        "beta": 0.001,
        "use_bias_correction_kl": False,
        "max_steps": 1,
        "learning_rate": 0.0,
        "optim": "sgd",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "gradient_checkpointing": on_gpu,
    }
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        save_policy(Path(path), arguments.size)
        grpo = TimedGRPO(path, accuracy_reward, args=GRPOConfig(folder, **settings), train_dataset=asked)
        settings |= {"filter_zero_advantage": False, "filter_truncated": False}  # all rows carry loss
        adapo = DropsSome(path, args=AdaPOConfig(folder, **settings), train_dataset=asked)
        adapo.dropped = arguments.dropped
        between = len(adapo._followup_ids)
        whole = lengths(len(rows), shortest=between + 2)
        firsts = [(total - between) // 2 for total in whole]
        seconds = [total - between - first for total, first in zip(whole, firsts, strict=True)]
        grpo.replayed = [draw_answers(grpo, whole)]
        adapo.replayed = [draw_answers(adapo, firsts), draw_answers(adapo, seconds)]
        for trainer in (grpo, adapo):
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        work = {"GRPO": partial(train_on_batch, grpo, rows), "AdaPO": partial(train_on_batch, adapo, rows)}
        times, peaks = take_turns(work, arguments.rounds)
    medians = medians_of(times)
    ratio = median_ratio(times["AdaPO"], times["GRPO"])
    print(f"{len(rows)} trajectories of {min(whole)} to {max(whole)} tokens, {sum(whole)} in all")
    print(f"seconds a rollout batch: {medians}")
    print(f"AdaPO / GRPO: {ratio:.2f} (middle half {middle_half(times['AdaPO'], times['GRPO'])})")
    most = medians_of(peaks)
    print(f"{'GPU' if on_gpu else 'CPU'} memory at most, MiB: {most}")
    write_numbers(arguments, seconds=times, mebibytes=peaks)
    if ratio > arguments.limit:
        sys.exit(f"The ratio is {ratio:.2f}; the limit is {arguments.limit}.")
    if most["AdaPO"] > most["GRPO"]:
        sys.exit(f"AdaPO holds {most['AdaPO']:.0f} MiB at most; GRPO {most['GRPO']:.0f}.")


if __name__ == "__main__":
    main()
