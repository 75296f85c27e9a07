"""What a rollout with more questions in flight than an update takes gives of each row."""

from contextlib import contextmanager

import torch
from vllm_policies import scored

from trl_mmreason.compat.replaced import replaced
from trl_mmreason.training import grpo

SETTINGS = {"oversampling": 1.0, "oversampling_max_age": 2, "max_completion_length": 16, "max_steps": 6}


@contextmanager
def recorded_rollouts():
    """The rows of each rollout within the block, with the log-probabilities of sampler and model."""
    rollouts, oversampled = [], grpo.oversampled

    def record(trainer, rows):
        asked = len(trainer._waiting)
        rows, trajectories = oversampled(trainer, rows)
        rollouts.append(
            [
                {
                    "question": str(row["prompt"][-1]["content"]),
                    "sampled": torch.tensor(each.logprobs),
                    "own": scored(trainer.accelerator.unwrap_model(trainer.model), each),
                    "mask": torch.tensor(each.env_mask).bool(),
                    "older": each.older_tokens,
                    "turns": [len(turn.ids) for turn in each.turns],
                    "images": len(each.images),
                    "waited": (asked, len(trainer._waiting)),
                }
                for row, each in zip(rows, trajectories, strict=True)
            ]
        )
        return rows, trajectories

    with replaced(grpo, oversampled=record):
        yield rollouts
