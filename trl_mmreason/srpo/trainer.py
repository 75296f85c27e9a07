"""SRPO on top of GRPO; only the reward differs."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.utils import logging

from ..compat.model_parts import freeze_vision_encoder
from ..grading import Grader
from ..training.construction import all_rewards, check_rows, config_of, load_policy_processor
from ..training.credit import GroupOutcome, without_ungraded
from ..training.grpo import GroupGRPOTrainer
from .config import SRPOConfig
from .objective import accuracy_filter
from .recipe import PAPER
from .rewards import ReflectionRewards

logger = logging.get_logger(__name__)


class SRPOTrainer(GroupGRPOTrainer):
    """Trains a policy to solve, reflect on its solution and solve again, in one generation.

    Args:
        model: path or id of a checkpoint, or a model; a cold start by `ReflectionSFTTrainer` comes first.
        args: an `SRPOConfig`.
        train_dataset, eval_dataset: rows with `prompt`, `images` and `answer`, optionally `choices` (letter → text).
        grader: decides whether an answer is right; `Grader()` by default.
        reward_funcs: further reward functions, which are added to SRPO's; `args.reward_weights` then weighs SRPO's five
            first, in the order of `ReflectionRewards.functions` (two without `args.reflection_reward`).
        **kwargs: whatever `trl.GRPOTrainer` takes, by keyword.
    """

    _tag_names = ["trl", "trl-mmreason", "srpo"]
    _name = "SRPO"
    _paper = PAPER

    args: SRPOConfig

    def __init__(
        self,
        model: Any,
        *,
        args: SRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        grader: Grader | None = None,
        reward_funcs: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        args = config_of(self, SRPOConfig, args, model, "SRPO")
        columns, spoken = {"prompt", "answer"}, args.reflection_prompt
        check_rows("SRPOTrainer", train_dataset, eval_dataset, columns, system_prompt=spoken)
        processing_class = processing_class or load_policy_processor(model, args)
        self.rewards = ReflectionRewards(
            processing_class,
            grader,
            brevity_coef=args.brevity_coef,
            missing_second_is_wrong=args.missing_second_is_wrong,
            chat_template_kwargs=args.chat_template_kwargs,
            **args.lengths,
        )
        own = self.rewards.functions if args.reflection_reward else self.rewards.task_functions
        super().__init__(
            model,
            reward_funcs=all_rewards("SRPOTrainer", own, reward_funcs),
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            system_prompt=args.reflection_prompt,
            **kwargs,
        )
        if args.freeze_vision_encoder:
            freeze_vision_encoder(self.accelerator.unwrap_model(self.model))

    def answers_ended(self, rows: dict[int, dict[str, Any]], texts: list[str]) -> None:
        self.rewards.begin(list(rows.values()), texts)

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        """Drop ungraded rows and, in training, the groups outside the accuracy filter (appendix B.2)."""
        outcome = without_ungraded(rewards)
        if not self.model.training:
            return outcome
        graded = self.in_groups(outcome.keep)
        first_correct = self.in_groups(rewards[:, self.reward_func_names.index("accuracy_reward")] > 0)
        low, high = self.args.filter_min_accuracy, self.args.filter_max_accuracy
        too_hard, too_easy = accuracy_filter(first_correct, graded, low, high)
        for reason, mask in {"too_hard": too_hard, "too_easy": too_easy, "ungraded": ~graded}.items():
            self._metrics["train"][f"dropped_{reason}"].append(mask.float().mean().item())
        keep = (graded & ~(too_hard | too_easy).unsqueeze(1)).flatten()
        if not keep.any():
            logger.warning_once(
                f"SRPO: not one of {len(keep)} responses can be trained on. Of {len(graded)} groups {too_hard.sum()} "
                f"have fewer right first answers than filter_min_accuracy={low} and {too_easy.sum()} more than "
                f"filter_max_accuracy={high}; {(~graded).sum()} responses have no verdict (see grading/*). Filter "
                "the questions (mmreason prefilter --rule srpo), begin with a longer cold start, or widen the bounds."
            )
        return GroupOutcome(self.without_dropped(outcome.rewards, keep), keep)
