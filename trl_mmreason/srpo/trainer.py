"""SRPO on top of GRPO: the reward is the difference."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..construction import all_rewards, check_rows, freeze_vision_encoder, load_processor
from ..grading import Grader
from ..grpo import GroupGRPOTrainer, GroupOutcome, without_ungraded
from .config import SRPOConfig
from .paper import PAPER
from .rewards import ReflectionRewards


class SRPOTrainer(GroupGRPOTrainer):
    """Trains a policy to solve, to reflect on its solution and to solve again, in one generation, as SRPO does.

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
        if args is None:
            args = SRPOConfig(f"{str(getattr(model, 'name_or_path', model)).split('/')[-1]}-SRPO")
        if not isinstance(args, SRPOConfig):
            raise TypeError(f"SRPOTrainer: args is a {type(args).__name__}, expected an SRPOConfig.")
        check_rows("SRPOTrainer", train_dataset, eval_dataset, {"prompt", "answer"})
        processing_class = processing_class or load_processor(model, args)
        self.rewards = ReflectionRewards(
            processing_class,
            grader,
            brevity_coef=args.brevity_coef,
            chat_template_kwargs=args.chat_template_kwargs,
            target_ratio=args.target_ratio,
            max_ratio=args.max_ratio,
            target_response_tokens=args.target_response_tokens,
            max_response_tokens=args.max_response_tokens,
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

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        return without_ungraded(rewards)
