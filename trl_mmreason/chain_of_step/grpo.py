"""GRPO with Chain-of-Step's rewards (arXiv:2509.19003, section 4.5); only the reward differs from GRPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ..compat.model_parts import freeze_vision_encoder
from ..grading import Grader
from ..training.construction import all_rewards, check_rows, config_of, load_policy_processor
from ..training.grpo import GroupGRPOTrainer, GroupOutcome, without_ungraded
from .client import process_reward_from
from .config import ChainOfStepGRPOConfig
from .grpo_reward import ChainRewards
from .paths import ProcessReward
from .recipe import PAPER
from .tokens import chain_token_ids


class ChainOfStepGRPOTrainer(GroupGRPOTrainer):
    """Trains a policy to reason in steps, rewarded by a process reward model.

    Args:
        model: path or id of a checkpoint, or a model; `ChainOfStepSFTTrainer` comes first.
        process_reward_model: a `ProcessRewardModel`, the path of one, which every process loads and scores its share
            with, or the address of `mmreason serve-prm`; `None` for the reward by outcome.
        args: a `ChainOfStepGRPOConfig`.
        train_dataset, eval_dataset: rows with `prompt` and `images`. With `answer`, and optionally `choices` (letter →
            text), accuracy is logged; the reward by outcome needs it.
        grader: decides whether an answer is right; `Grader()` by default.
        reward_funcs: further reward functions, which are added; `args.reward_weights` then weighs the chain's first.
        **kwargs: whatever `trl.GRPOTrainer` takes, by keyword.

    Raises:
        ValueError: the policy does not know the template's tokens.
        ProcessRewardServerError: there is no server at the address.
    """

    _tag_names = ["trl", "trl-mmreason", "chain-of-step", "grpo"]
    _name = "Chain-of-Step GRPO"
    _paper = PAPER

    args: ChainOfStepGRPOConfig

    def __init__(
        self,
        model: Any,
        process_reward_model: ProcessReward | str | Path | None,
        *,
        args: ChainOfStepGRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        grader: Grader | None = None,
        reward_funcs: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        args = config_of(self, ChainOfStepGRPOConfig, args, model, "CoS-GRPO")
        if kwargs.get("followup") is not None:
            raise ValueError("ChainOfStepGRPOTrainer: a chain is one turn; leave `followup` out.")
        by_outcome = process_reward_model is None
        columns = {"prompt", "answer"} if by_outcome else {"prompt"}
        check_rows("ChainOfStepGRPOTrainer", train_dataset, eval_dataset, columns)
        if by_outcome and args.step_weight != ChainOfStepGRPOConfig.step_weight:
            raise ValueError(
                f"ChainOfStepGRPOTrainer: step_weight={args.step_weight} weighs the scores of a process reward model, "
                "and there is none. Pass one, or leave step_weight out."
            )
        processing_class = processing_class or load_policy_processor(model, args)
        try:
            chain_token_ids(processing_class)
        except ValueError as error:
            raise ValueError(
                "ChainOfStepGRPOTrainer: the policy lacks the tokens of the template, so that it would never "
                f"write a chain. Train it with ChainOfStepSFTTrainer first. ({error})"
            ) from error
        if process_reward_model is not None:
            process_reward_model = process_reward_from(process_reward_model)
            _ = process_reward_model.settings  # an address without a server shows now, not after the first rollouts
        self.rewards = ChainRewards(processing_class, process_reward_model, grader, step_weight=args.step_weight)
        super().__init__(
            model,
            reward_funcs=all_rewards("ChainOfStepGRPOTrainer", [self.rewards.function], reward_funcs),
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            **kwargs,
        )
        if args.freeze_vision_encoder:
            freeze_vision_encoder(self.accelerator.unwrap_model(self.model), merger=False)

    def answers_ended(self, rows: dict[int, dict[str, Any]], texts: list[str]) -> None:
        self.rewards.begin(list(rows.values()), texts, are_all=len(rows) == len(self._sampled))

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        return without_ungraded(rewards)
