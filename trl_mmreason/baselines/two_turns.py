"""Two-turn GRPO with fixed rewards, or with SCoRe's two stages.

Both are `AdaPOTrainer` with another `compute_rewards`, so that a comparison differs in nothing else: the same two
turns, grading, filters and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..adapo.config import AdaPOConfig
from ..adapo.trainer import AdaPOTrainer, RewardSignal
from ..evaluation.methods import cite
from ..functional import informative_groups
from ..training.documented import documented
from .objective import fixed_rewards, score_rewards, turn_advantages

_ADAPTIVE = ("base_correct", "base_incorrect", "k_01", "k_11", "k_10", "k_00", "threshold", "kl_scale")
_WHOLE_TRAJECTORIES = ("scale_rewards", "multi_objective_aggregation", "reward_weights")


@documented
@dataclass
class FixedRewardsConfig(AdaPOConfig):
    """`AdaPOConfig` with a fixed reward for each type of trajectory instead of adaptive ones (Fig. 2).

    Attributes:
        r_01, r_11, r_10, r_00: rewards of each type of trajectory, whose first and second answer are wrong (0) or right
            (1): r_01 is that of wrong → right. R01 > R11 prioritises correction, R11 > R01 preservation.
        kl_scale: must be 0: the KL coefficients do not adapt.
    """

    r_01: float = 1.0
    r_11: float = 1.0
    r_10: float = -1.0
    r_00: float = -1.0
    kl_scale: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_changed(self, _ADAPTIVE, "AdaPO's adaptive rewards")


class FixedRewardsTrainer(AdaPOTrainer):
    """Two-turn GRPO with fixed rewards and one KL coefficient, `beta`; takes what `AdaPOTrainer` takes."""

    _tag_names = ["trl", "trl-mmreason", "fixed-rewards"]
    _name = "Two-turn GRPO with fixed rewards"
    _config = FixedRewardsConfig

    args: FixedRewardsConfig

    def compute_rewards(self, first: Tensor, second: Tensor, keep: Tensor, errors: Tensor) -> RewardSignal:
        reward_values = {name: getattr(self.args, name) for name in ("r_01", "r_11", "r_10", "r_00")}
        rewards = fixed_rewards(first, second, **reward_values).masked_fill(~keep, torch.nan)
        return RewardSignal(rewards, _coefficients(errors, self.args.beta, self.args.beta))


@documented
@dataclass
class SCoReConfig(AdaPOConfig):
    """`AdaPOConfig` with SCoRe's two stages (AdaPO, appendix B) instead of AdaPO's rewards and KL.

    Attributes:
        alpha: α, weight in stage II of what the second answer gains over the first.
        stage_one_share: share of the training steps that are stage I; neither paper says.
        stage_one_beta: β2 of SCoRe, KL coefficient of the first answer in stage I; the second has none there.
        beta: β1 of SCoRe, KL coefficient of both answers in stage II.
        kl_scale: must be 0: the KL coefficients do not adapt.
        learning_rate: initial learning rate, 2e-5, as appendix B has it for SCoRe.
    """

    alpha: float = 10.0
    stage_one_share: float = 0.5
    stage_one_beta: float = 0.1
    beta: float = 0.01
    kl_scale: float = 0.0
    learning_rate: float = 2e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_changed(self, _ADAPTIVE, "AdaPO's adaptive rewards")
        refuse_changed(self, _WHOLE_TRAJECTORIES, "advantages of whole trajectories")
        if self.evaluation_prompt is None:
            raise ValueError(
                "SCoReConfig: got evaluation_prompt=None; expected a string, since both stages pay two turns."
            )
        if not 0 <= self.stage_one_share <= 1 or self.stage_one_beta < 0 or self.alpha < 0:
            raise ValueError(
                f"SCoReConfig: got stage_one_share={self.stage_one_share}, stage_one_beta={self.stage_one_beta} and "
                f"alpha={self.alpha}; expected 0 ≤ stage_one_share ≤ 1, stage_one_beta ≥ 0, alpha ≥ 0."
            )
        if self.stage_one_beta and not self.beta:
            raise ValueError(
                f"SCoReConfig: beta=0 leaves out the reference model that stage_one_beta={self.stage_one_beta} needs. "
                "Set beta > 0, however small."
            )


class SCoReTrainer(AdaPOTrainer):
    """SCoRe in one run; in both stages the reference is the initial policy.

    Differs from SCoRe, which maximises with REINFORCE: here it is GRPO's group-normalised advantage, of each turn by
    itself, and its clipped ratio, as in all that it is compared with. Takes what `AdaPOTrainer` takes, but no
    `reward_funcs`.
    """

    _tag_names = ["trl", "trl-mmreason", "score"]
    _name = "SCoRe"
    _paper = cite(
        "article{kumar2024training",
        "Training Language Models to Self-Correct via Reinforcement Learning",
        arxiv="2409.12917",
        author="Aviral Kumar and Vincent Zhuang and Rishabh Agarwal and Yi Su and John D. Co-Reyes and Avi Singh and "
        "Kate Baumli and Shariq Iqbal and Colton Bishop and Rebecca Roelofs and Lei M. Zhang and Kay McKinney and "
        "Disha Shrivastava and Cosmin Paduraru and George Tucker and Doina Precup and Feryal Behbahani and "
        "Aleksandra Faust",
        year="2024",
    )
    _config = SCoReConfig

    args: SCoReConfig

    def __init__(self, model: Any, *, reward_funcs: Any = None, **kwargs: Any) -> None:
        if reward_funcs is not None:
            raise ValueError("SCoReTrainer: reward_funcs are not supported: both stages replace all rewards.")
        super().__init__(model, **kwargs)

    @property
    def stage(self) -> int:
        """1 in the first share of the steps, then 2."""
        return 1 if self.state.global_step < self.args.stage_one_share * self.state.max_steps else 2

    def compute_rewards(self, first: Tensor, second: Tensor, keep: Tensor, errors: Tensor) -> RewardSignal:
        by_turn = score_rewards(first, second, stage=self.stage, alpha=self.args.alpha)
        betas = (self.args.stage_one_beta, 0.0) if self.stage == 1 else (self.args.beta, self.args.beta)
        by_turn = by_turn.masked_fill(~keep.unsqueeze(2), torch.nan)
        # of each turn: at α = 1 the sums of 0→1 and 1→1 are the same, and their turns are not
        informative = informative_groups(by_turn[..., 0]) | informative_groups(by_turn[..., 1])
        advantages = turn_advantages(by_turn.nan_to_num(), keep)
        return RewardSignal(by_turn.sum(dim=2), _coefficients(errors, *betas), advantages, informative)


def refuse_changed(config: AdaPOConfig, names: Sequence[str], what: str) -> None:
    """Refuse changed settings that would have no effect."""
    defaults = {entry.name: entry.default for entry in fields(config)}
    changed = [name for name in names if getattr(config, name) != defaults[name]]
    if changed:
        raise ValueError(
            f"{type(config).__name__}: {', '.join(changed)} belong to {what} and have no effect here; leave them out."
        )


def _coefficients(errors: Tensor, first: float, second: float) -> Tensor:
    """(Q, 2), the same for every question."""
    return torch.tensor([first, second], dtype=torch.float32, device=errors.device).expand(len(errors), 2)
