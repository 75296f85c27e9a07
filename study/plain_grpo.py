"""Plain GRPO, the baseline of three parts: one answer to a question, rewarded when right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_mmreason.grading import accuracy_reward
from trl_mmreason.scripts.single_stage import train_once
from trl_mmreason.training.grpo import GroupGRPOTrainer
from trl_mmreason.training.vllm_config import RolloutConfig

from .running import Start


def train_plain_grpo(policy: str, start: Start, settings: Mapping[str, Any], folder: Path) -> None:
    """Train a policy on the problems of a seed.

    Args:
        policy: path of the model to begin with.
        start: start with the problems, and the section `rl`, from which GRPO takes the settings that it has.
        settings: settings of the arm, which override the section's.
        folder: gets `model`.
    """
    known = RolloutConfig.__dataclass_fields__
    given = {name: value for name, value in start.of("rl", {}).items() if name in known}
    args = RolloutConfig(str(folder), **{**given, **settings})
    grpo = GroupGRPOTrainer(policy, reward_funcs=accuracy_reward, args=args, train_dataset=start.train)
    train_once(grpo, folder / "model")
