"""Training on a rollout batch in several processes: rows shared out by work, against rows that stay where they were.

Run by torchrun. The batch is that of `padding.py`, for AdaPO alone: answers drawn beforehand, the standard workload.
Each contestant sorts its rows by length; in one of them rows change the process first. Timed is a whole batch but for
sampling, until all processes have their gradients. Rounds alternate, and the ratio is the median of theirs.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from training import ALL_ROWS, REFERENCE, TimedAdaPO, draw_two_turns, prepare, settings, train_on
from workload import GROUP, lengths, questions, save_policy

from trl_mmreason import AdaPOConfig
from trl_mmreason.commands.parsers import count
from trl_mmreason.rollouts import padding
from trl_mmreason.rollouts.exchange import balance_rows


def stay(rows: dict[str, Any], *_: Any) -> dict[str, Any]:
    """What `exchange_rows` does where there is nobody to exchange rows with."""
    return rows


def train_on_batch(trainer: TimedAdaPO, rows: list[dict[str, Any]], shares_out: bool) -> None:
    """Train on this process's part of a rollout batch."""
    with nullcontext() if shares_out else patch.object(padding, "exchange_rows", stay):
        train_on(trainer, rows)
    trainer.accelerator.wait_for_everyone()


def longest_share(rows: list[int], processes: int, batch: int) -> tuple[float, float]:
    """Tokens of the process that has most, over the mean: as the rows come, and shared out."""
    each, mean = len(rows) // processes, sum(rows) / processes
    drawn = [sum(rows[start : start + each]) for start in range(0, len(rows), each)]
    shared = [sum(rows[row] for row in share) for share in balance_rows(rows, processes, batch)]
    return max(drawn) / mean, max(shared) / mean


def main() -> None:
    parser = parser_of(__doc__, rounds=7)
    parser.add_argument("--size", default="study", help="of the miniature model")
    parser.add_argument("--questions", type=count, default=4, help=f"of each process, with {GROUP} trajectories each")
    parser.add_argument("--batch", type=count, default=4, help="trajectories a micro-batch")
    arguments = parser.parse_args()
    state = PartialState(cpu=not torch.cuda.is_available())
    asked = questions(arguments.questions * state.num_processes)
    own = asked.shard(state.num_processes, state.process_index, contiguous=True)
    rows = [row for row in own for _ in range(GROUP)]
    with TemporaryDirectory() as temporary:
        [folder] = broadcast_object_list([temporary])
        if state.is_main_process:
            save_policy(Path(folder) / "model", arguments.size)
        state.wait_for_everyone()
        args = AdaPOConfig(folder, **settings(len(rows), arguments.batch, **REFERENCE, **ALL_ROWS))
        trainer = TimedAdaPO(str(Path(folder) / "model"), args=args, train_dataset=asked)
        everyone = lengths(len(rows) * state.num_processes, shortest=len(trainer._followup_ids) + 2)
        trainer.replayed = draw_two_turns(trainer, everyone[state.process_index * len(rows) :][: len(rows)])
        prepare(trainer)
        work = {
            name: partial(train_on_batch, trainer, rows, name == "shared out") for name in ("as drawn", "shared out")
        }
        times, _ = take_turns(work, arguments.rounds)
        state.wait_for_everyone()
    if not state.is_main_process:
        return
    medians = medians_of(times)
    ratio = median_ratio(times["shared out"], times["as drawn"])
    print(f"seconds a rollout batch: {medians}")
    print(f"shared out / as drawn: {ratio:.2f} (middle half {middle_half(times['shared out'], times['as drawn'])})")
    for processes in (state.num_processes, 8):
        drawn, shared = longest_share(lengths(len(rows) * processes), processes, arguments.batch)
        print(f"{processes} processes: the longest share is {drawn:.2f} of the mean as drawn, {shared:.2f} shared out")
    write_numbers(arguments, seconds=times)


if __name__ == "__main__":
    main()
