"""Training on a rollout batch of the standard workload: AdaPO's time over that of TRL's GRPO on as many tokens.

Sampling is replaced by answers drawn beforehand: GRPO's answer has as many tokens as AdaPO's two answers and the user's
turn between them. Timed is the rest of a rollout batch: scoring by the reference, rewards, and forward and backward
passes of all micro-batches. TRL computes the padding of the whole batch, and the trainers here only that of a
micro-batch of rows of similar length. Rounds alternate, and the ratio is the median of theirs.
The exit code is 1 above `--limit`, and where AdaPO's peak memory is above GRPO's.
"""

from __future__ import annotations

import gc
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rounds import forget_peak, median_ratio, medians_of, memory, middle_half, parser_of, take_turns, write_numbers
from torch import Tensor
from training import (
    ALL_ROWS,
    REFERENCE,
    TimedAdaPO,
    TimedGRPO,
    draw_answers,
    draw_two_turns,
    prepare,
    settings,
    train_on,
)
from trl import GRPOConfig
from workload import GROUP, lengths, questions, save_policy

from trl_mmreason import AdaPOConfig
from trl_mmreason.commands.parsers import count, share
from trl_mmreason.grading.reward import accuracy_reward
from trl_mmreason.grpo import GroupOutcome


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
    trainer._buffered_inputs = None  # freed before the first look at memory
    gc.collect()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    held = 0.0 if on_gpu else forget_peak()
    train_on(trainer, rows)
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
    run = settings(len(rows), arguments.batch, gradient_checkpointing=on_gpu, **REFERENCE)
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        save_policy(Path(path), arguments.size)
        grpo = TimedGRPO(path, accuracy_reward, args=GRPOConfig(folder, **run), train_dataset=asked)
        adapo = DropsSome(path, args=AdaPOConfig(folder, **run, **ALL_ROWS), train_dataset=asked)
        adapo.dropped = arguments.dropped
        whole = lengths(len(rows), shortest=len(adapo._followup_ids) + 2)
        grpo.replayed, adapo.replayed = [draw_answers(grpo, whole)], draw_two_turns(adapo, whole)
        for trainer in (grpo, adapo):
            prepare(trainer)
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
