"""The rows of rollouts from a trainer's data loader: TRL's way, and ours, which reads each row once a rollout.

Questions with pictures in a parquet file, as on the Hub, in groups of 8; a rollout of 8 questions is trained on in
`--steps` micro-batches, for each of which TRL's sampler asks for all of its rows. No model runs. Rounds alternate. The
exit code is 1 if a batch differs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from datasets import Dataset, Image, List
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from trl import GRPOTrainer
from workload import GROUP, questions, save_policy

from trl_mmreason.commands.parsers import count
from trl_mmreason.engines.config import RolloutConfig
from trl_mmreason.grpo import GroupGRPOTrainer


def constant(completions: list, **_: Any) -> list[float]:
    """A reward function; none is called."""
    return [0.0] * len(completions)


def main() -> int:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--side", type=count, default=756, help="of the square pictures, in pixels; a multiple of 28")
    parser.add_argument("--steps", type=count, default=8, help="micro-batches of a rollout")
    parser.add_argument("--rollouts", type=count, default=2)
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_policy(folder / "policy", "study")
        rows = questions(8 * arguments.rollouts, sides=[arguments.side], most_pictures=1)
        rows.cast_column("images", List(Image())).to_parquet(str(folder / "rows.parquet"))
        stored = Dataset.from_parquet(str(folder / "rows.parquet"))
        settings = {
            "per_device_train_batch_size": 8 * GROUP // arguments.steps,
            "steps_per_generation": arguments.steps,
            "num_generations": GROUP,
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
        }
        args = RolloutConfig(str(folder / "run"), **settings)
        trainers = {
            "TRL": GRPOTrainer(str(folder / "policy"), constant, args, train_dataset=stored),
            "ours": GroupGRPOTrainer(str(folder / "policy"), constant, args, train_dataset=stored),
        }
        differs = 0
        for ours, trls in zip(*(trainer.get_train_dataloader() for trainer in trainers.values()), strict=True):
            differs += ours != trls

        def read_all(trainer: GRPOTrainer) -> int:
            return sum(len(batch) for batch in trainer.get_train_dataloader())

        work = {name: lambda trainer=trainer: read_all(trainer) for name, trainer in trainers.items()}
        seconds, _ = take_turns(work, arguments.rounds)
    median, both = medians_of(seconds), (seconds["TRL"], seconds["ours"])
    print(
        f"a rollout of 8 questions, {GROUP} answers each, {arguments.steps} micro-batches, a picture of "
        f"{arguments.side} x {arguments.side} a row; medians of {arguments.rounds} rounds\n"
        + "\n".join(f"{name:<6}{value / arguments.rollouts:>10.3f} s a rollout" for name, value in median.items())
        + f"\nratio {median_ratio(*both):.1f} (middle half {middle_half(*both)}), {differs} batches differ"
    )
    write_numbers(arguments, seconds=seconds)
    return int(differs > 0)


if __name__ == "__main__":
    sys.exit(main())
