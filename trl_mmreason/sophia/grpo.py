"""GRPO after the off-policy update, on questions of medium difficulty (arXiv:2507.16814, appendix B.2).

Keep those with a share of right answers from 0.4 to 0.6 beforehand (`difficulty_filter`, `mmreason prefilter`); here a
group whose answers are all right or all wrong takes part in nothing.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..compat.model_parts import train_parts
from ..grading import grader_or_rules
from ..grading.reward import get_accuracy_reward
from ..training.construction import all_rewards, check_rows, config_of
from ..training.credit import GroupOutcome, without_ungraded
from ..training.grpo import GroupGRPOTrainer
from .config import MixedGroupsGRPOConfig
from .recipe import PAPER


class MixedGroupsGRPOTrainer(GroupGRPOTrainer):
    """GRPO with a reward of 1 for a right answer, on groups with right and wrong answers.

    It logs the shares of trajectories that were left out: `dropped_all_right`, `dropped_all_wrong`, and
    `dropped_ungraded`, whose gold answer cannot be used.

    Args:
        model: path or id of a checkpoint, or a model.
        args: a `MixedGroupsGRPOConfig`.
        train_dataset, eval_dataset: rows with `prompt`, `images`, `answer` and optionally `choices`.
        grader: decides whether an answer is right; `Grader()` by default, `JudgeGrader` for a generative verifier.
        reward_funcs: further reward functions, which are added; `args.reward_weights` then weighs accuracy first.
        **kwargs: whatever `trl.GRPOTrainer` takes, by keyword; and `system_prompt`, which is put before every question;
            the paper has `prompts.THINKING_PROMPT`.

    Attributes:
        parts: what is trained and frozen of vision, projector and language.
    """

    _tag_names = ["trl", "trl-mmreason", "sophia", "grpo"]
    _name = "SOPHIA + GRPO"
    _paper = PAPER

    args: MixedGroupsGRPOConfig

    def __init__(
        self,
        model: Any,
        *,
        args: MixedGroupsGRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        grader: Any = None,
        reward_funcs: Any = None,
        **kwargs: Any,
    ) -> None:
        name = "MixedGroupsGRPOTrainer"
        spoken = kwargs.get("system_prompt")
        check_rows(name, train_dataset, eval_dataset, {"prompt", "answer"}, system_prompt=spoken)
        if kwargs.get("followup") is not None:
            raise ValueError(f"{name}: it asks for one answer; leave `followup` out.")
        args = config_of(self, MixedGroupsGRPOConfig, args, model, "GRPO")
        rewards = all_rewards(name, [get_accuracy_reward(grader_or_rules(grader, name))], reward_funcs)
        super().__init__(model, rewards, args, train_dataset=train_dataset, eval_dataset=eval_dataset, **kwargs)
        self.parts = train_parts(self, self.args.trainable_parts)

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        """Keep groups whose pass rate in the gathered accuracy rewards (column 0) is neither 0 nor 1."""
        graded = without_ungraded(rewards)
        right = self.in_groups(rewards[:, 0])
        rates = right.nanmean(dim=1)
        known, rate_of_each = ~right.isnan(), rates.unsqueeze(1).expand_as(right)
        dropped = {
            "all_right": known & (rate_of_each == 1),
            "all_wrong": known & (rate_of_each == 0),
            "ungraded": ~known,
        }
        for reason, mask in dropped.items():
            self._metrics[self._mode][f"dropped_{reason}"].append(mask.float().mean().item())
        keep = graded.keep & ((rates > 0) & (rates < 1)).repeat_interleave(right.shape[1])
        return GroupOutcome(self.without_dropped(graded.rewards, keep), keep)
