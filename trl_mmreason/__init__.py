"""Trainers on top of TRL that teach vision-language models to reason.

The names below are imported on first use, so that `import trl_mmreason` stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .compat.quiet import silence_harmless

__version__ = "0.1.0"

silence_harmless()

_PUBLIC = {
    "AdaPOConfig": "adapo.config",
    "AdaPOTrainer": "adapo.trainer",
    "ChainOfStepGRPOConfig": "chain_of_step.config",
    "ChainOfStepGRPOTrainer": "chain_of_step.grpo",
    "ChainOfStepSFTConfig": "chain_of_step.config",
    "ChainOfStepSFTTrainer": "chain_of_step.sft",
    "Grader": "grading",
    "GroupGRPOTrainer": "training.grpo",
    "IterativeDPOConfig": "chain_of_step.config",
    "IterativeDPOTrainer": "chain_of_step.dpo",
    "MixedGroupsGRPOConfig": "sophia.config",
    "MixedGroupsGRPOTrainer": "sophia.grpo",
    "OffPolicyRewardConfig": "sophia.config",
    "OffPolicyRewardTrainer": "sophia.trainer",
    "ProcessRewardConfig": "chain_of_step.config",
    "ProcessRewardModel": "chain_of_step.process_reward",
    "ProcessRewardTrainer": "chain_of_step.process_reward_trainer",
    "ReflectionSFTConfig": "srpo.config",
    "ReflectionSFTTrainer": "srpo.sft",
    "RolloutConfig": "training.vllm_config",
    "SRPOConfig": "srpo.config",
    "SRPOTrainer": "srpo.trainer",
    "SelfEvolutionConfig": "self_evolution.config",
    "SelfEvolutionTrainer": "self_evolution.trainer",
}
__all__ = [
    "AdaPOConfig",
    "AdaPOTrainer",
    "ChainOfStepGRPOConfig",
    "ChainOfStepGRPOTrainer",
    "ChainOfStepSFTConfig",
    "ChainOfStepSFTTrainer",
    "Grader",
    "GroupGRPOTrainer",
    "IterativeDPOConfig",
    "IterativeDPOTrainer",
    "MixedGroupsGRPOConfig",
    "MixedGroupsGRPOTrainer",
    "OffPolicyRewardConfig",
    "OffPolicyRewardTrainer",
    "ProcessRewardConfig",
    "ProcessRewardModel",
    "ProcessRewardTrainer",
    "ReflectionSFTConfig",
    "ReflectionSFTTrainer",
    "RolloutConfig",
    "SRPOConfig",
    "SRPOTrainer",
    "SelfEvolutionConfig",
    "SelfEvolutionTrainer",
]

if TYPE_CHECKING:
    from .adapo.config import AdaPOConfig
    from .adapo.trainer import AdaPOTrainer
    from .chain_of_step.config import (
        ChainOfStepGRPOConfig,
        ChainOfStepSFTConfig,
        IterativeDPOConfig,
        ProcessRewardConfig,
    )
    from .chain_of_step.dpo import IterativeDPOTrainer
    from .chain_of_step.grpo import ChainOfStepGRPOTrainer
    from .chain_of_step.process_reward import ProcessRewardModel
    from .chain_of_step.process_reward_trainer import ProcessRewardTrainer
    from .chain_of_step.sft import ChainOfStepSFTTrainer
    from .grading import Grader
    from .self_evolution.config import SelfEvolutionConfig
    from .self_evolution.trainer import SelfEvolutionTrainer
    from .sophia.config import MixedGroupsGRPOConfig, OffPolicyRewardConfig
    from .sophia.grpo import MixedGroupsGRPOTrainer
    from .sophia.trainer import OffPolicyRewardTrainer
    from .srpo.config import ReflectionSFTConfig, SRPOConfig
    from .srpo.sft import ReflectionSFTTrainer
    from .srpo.trainer import SRPOTrainer
    from .training.grpo import GroupGRPOTrainer
    from .training.vllm_config import RolloutConfig


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
