"""AdaPO on top of GRPO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers.utils import logging

from ..evaluation.metrics import two_turn_metrics
from ..functional import informative_groups
from ..grading import Grader, grader_or_rules
from ..grading.async_rewards import Ahead
from ..grading.reward import ended_items, grading_items, log_verdicts
from ..training.construction import all_rewards, check_rows, config_of
from ..training.credit import GroupOutcome
from ..training.grpo import GroupGRPOTrainer
from ..training.read_once import RowsReadOnce
from .config import AdaPOConfig
from .objective import adaptive_rewards, error_rate, kl_coefficients
from .recipe import PAPER

logger = logging.get_logger(__name__)


class TrajectoryType(NamedTuple):
    """The type i→j of a trajectory.

    Attributes:
        first_correct: i.
        second_correct: j; an answer that was never given is not right.
        truncated: whether an answer hit the length limit, or left no room for the second one in vLLM's context.
    """

    first_correct: bool
    second_correct: bool
    truncated: bool = False


class RewardSignal(NamedTuple):
    """Rewards and KL coefficients of the trajectories of Q groups.

    Attributes:
        rewards: (Q, G), NaN for those that are not kept.
        betas: (Q, 2) KL coefficients of both turns.
        advantages: (Q, G, 2) of each turn's tokens; `None` for GRPO's, of whole trajectories.
        informative: (Q,) bool, which groups can teach something; `None` for those whose rewards differ.
    """

    rewards: Tensor
    betas: Tensor
    advantages: Tensor | None = None
    informative: Tensor | None = None


class AdaPOTrainer(GroupGRPOTrainer):
    """Trains a policy to answer, to check its answer and to answer again, as AdaPO does.

    It pays two answers, or one where `args.evaluation_prompt` is `None`; `GroupGRPOTrainer` has any number of turns.

    Args:
        model: path or id of a checkpoint, or a model.
        args: an `AdaPOConfig`.
        train_dataset, eval_dataset: rows with `prompt`, `images` and `answer`, optionally `choices` (letter → text).
        grader: decides whether an answer is right; `Grader()` by default.
        reward_funcs: further reward functions, which are added to AdaPO's reward; `args.reward_weights` then weighs
            AdaPO's first.
        **kwargs: whatever `trl.GRPOTrainer` takes, by keyword.
    """

    _tag_names = ["trl", "trl-mmreason", "adapo"]
    _name = "AdaPO"
    _paper = PAPER
    telling_metrics = ("acc_t2", "reward")
    _config: ClassVar[type[AdaPOConfig]] = AdaPOConfig

    args: AdaPOConfig

    def __init__(
        self,
        model: Any,
        *,
        args: AdaPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        grader: Grader | None = None,
        reward_funcs: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        **kwargs: Any,
    ) -> None:
        args = config_of(self, self._config, args, model, "AdaPO")
        turns, asked = 1 if args.evaluation_prompt is None else 2, kwargs.get("max_turns")
        if asked not in (None, turns):
            raise ValueError(
                f"{type(self).__name__}: got max_turns={asked}, expected {turns}, since it pays two answers, or one "
                "where evaluation_prompt=None; leave max_turns out, or train a GroupGRPOTrainer whose `next_message` "
                "says what follows each answer."
            )
        prompting = {"system_prompt": kwargs.get("system_prompt"), "followup": args.evaluation_prompt}
        check_rows("AdaPOTrainer", train_dataset, eval_dataset, {"prompt", "answer"}, **prompting)
        self.grader = grader_or_rules(grader, type(self).__name__)
        self._graded = Ahead(self.grader.grade_batch, self.grader)
        self.types: list[TrajectoryType | None] = []  # of this process's trajectories; `None` without a verdict
        # Whether first and second answers were right, of all graded trajectories since the last log.
        self._correct: dict[str, tuple[list[bool], list[bool]]] = {"train": ([], []), "eval": ([], [])}
        self._to_count: int | None = None  # trajectories of the evaluation at hand that come yet, if that is known
        super().__init__(
            model,
            reward_funcs=all_rewards("AdaPOTrainer", [self.adapo], reward_funcs),
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            peft_config=peft_config,
            followup=args.evaluation_prompt,
            **kwargs,
        )

    def adapo(
        self,
        completions: list,
        completion_ids: list,
        answer: list,
        prompts: list | None = None,
        choices: list | None = None,
        id: list | None = None,
        tolerance: list | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        **kwargs: Any,
    ) -> list[float | None]:
        """TRL reward function that finds the type of each trajectory, which `score_groups` turns into rewards."""
        turns = [
            [m["content"] for m in completion if m["role"] == "assistant" and not m.get("tool_calls")] or [""]
            for completion in completions
        ]
        has_second = [len(texts) > 1 or self.followup is None for texts in turns]
        items = [
            item
            for index in ((0, -1) if self.followup else (0,))
            for item in grading_items([texts[index] for texts in turns], answer, prompts, choices, id, tolerance)
        ]
        verdicts = self._graded.finish(items)
        if log_metric:
            log_verdicts(verdicts, log_metric)
        first, second = verdicts[: len(turns)], verdicts[-len(turns) :]
        # a second answer that was never given is not right
        second_correct = [j.correct and exists for j, exists in zip(second, has_second, strict=True)]
        if log_extra:
            log_extra("first_correct", [i.correct for i in first])
            if self.followup:
                log_extra("second_correct", second_correct)
        # without a second answer the first was cut, or left no room for one in the context
        ended = [
            ids[-1] in self.eos_token_ids and exists for ids, exists in zip(completion_ids, has_second, strict=True)
        ]
        self.types = [
            None if i.correct is None or j is None else TrajectoryType(i.correct, j, not end)
            for i, j, end in zip(first, second_correct, ended, strict=True)
        ]
        return [None if kind is None else 0.0 for kind in self.types]

    def answers_ended(self, rows: dict[int, dict[str, Any]], texts: list[str]) -> None:
        self._graded.begin(ended_items(list(rows.values()), texts))

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        """Adaptive rewards, KL coefficients and filters from the types of all processes' trajectories."""
        args, types = self.args, gather_object(self.types)
        first, second, truncated = (
            self.in_groups(torch.tensor([kind is not None and kind[field] for kind in types], device=rewards.device))
            for field in range(3)
        )
        graded = self.in_groups(torch.tensor([kind is not None for kind in types], device=rewards.device))
        keep = graded & ~truncated if args.filter_truncated else graded

        errors = error_rate(first, keep)
        earned, betas, advantages, informative = self.compute_rewards(first, second, keep, errors)

        rewards = rewards.clone()
        rewards[:, 0] = earned.flatten()
        rewards[~keep.flatten()] = torch.nan
        total = (rewards * self.reward_weights.to(rewards)).nansum(dim=1).masked_fill(~keep.flatten(), torch.nan)
        if not args.filter_zero_advantage:
            informative = keep.sum(dim=1) >= 2
        elif args.zero_advantage_criterion == "correctness":
            informative = informative_groups(second.float().masked_fill(~keep, torch.nan))
        elif informative is None:
            informative = informative_groups(self.in_groups(total))
        if not keep.any():
            logger.warning_once(
                f"AdaPO: not one of {keep.numel()} trajectories can be trained on: {(~graded).sum()} have no verdict "
                f"(see grading/*), {truncated.sum()} hit the length limit. Raise max_completion_length, or fix the "
                "answers."
            )
        elif args.filter_truncated and truncated.float().mean() > 0.5:
            logger.warning_once(
                "AdaPO: more than half of the trajectories of a batch hit the length limit and train nothing, so that "
                "nothing keeps answers short. Raise max_completion_length, or set filter_truncated=False."
            )
        self._count(first, second, graded)
        self._log_groups(
            errors,
            betas,
            ungraded=~graded,
            truncated=graded & ~keep,
            zero_advantage=keep & ~informative.unsqueeze(1),
        )
        trained = (keep & informative.unsqueeze(1)).flatten()
        # A question without P has no kept trajectory, so its coefficients multiply nothing.
        kl_coefs = betas[:, : self.max_turns].nan_to_num(args.beta).repeat_interleave(keep.shape[1], dim=0)
        return GroupOutcome(
            self.without_dropped(rewards, trained),
            keep=trained,
            kl_coefs=kl_coefs if self.beta else None,
            advantages=None if advantages is None else advantages.flatten(end_dim=1),
        )

    def compute_rewards(self, first: Tensor, second: Tensor, keep: Tensor, errors: Tensor) -> RewardSignal:
        """Compute each trajectory's reward, and the KL coefficients of its turns.

        Args:
            first, second: (Q, G) bool, whether the answers are right.
            keep: (Q, G) bool; the others take part in nothing.
            errors: (Q,) P; NaN for a question without a kept trajectory.
        """
        args = self.args
        shared = {"k_01": args.k_01, "k_11": args.k_11, "threshold": args.threshold}
        rewards = adaptive_rewards(
            first,
            second,
            keep,
            base_correct=args.base_correct,
            base_incorrect=args.base_incorrect,
            k_10=args.k_10,
            k_00=args.k_00,
            **shared,
        )
        betas = kl_coefficients(errors, beta=args.beta, kl_scale=args.kl_scale, **shared)
        return RewardSignal(rewards, torch.stack(betas, dim=1))

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        self._correct["eval"] = ([], [])  # drops those of a prediction, which logs nothing
        rows = dataloader.dataset
        self._to_count = len(rows) * self.num_generations_eval if isinstance(rows, RowsReadOnce) else None
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def _count(self, first: Tensor, second: Tensor, graded: Tensor) -> None:
        """Keep whether answers were right, of (Q, G) trajectories, for the next log.

        Where rows do not suffice for a last batch of all processes, an evaluation's first ones come again behind them.
        """
        counts = graded.flatten().clone()
        if self._to_count is not None and self._mode == "eval":
            counts[self._to_count :] = False
            self._to_count = max(self._to_count - len(counts), 0)
        for flags, seen in zip(self._correct[self._mode], (first, second), strict=True):
            flags.extend(seen.flatten()[counts].tolist())

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add accuracies and transition rates of all graded trajectories since the last log, including dropped ones."""
        first, second = self._correct[self._mode]
        if first:
            for name, value in two_turn_metrics(first, second).items():
                self._metrics[self._mode][name] = [value]
            self._correct[self._mode] = ([], [])
        super().log(logs, start_time)

    def _log_groups(self, errors: Tensor, betas: Tensor, **dropped: Tensor) -> None:
        """Log P, rewards and KL coefficients (means over questions), and the shares of dropped trajectories by kind."""
        known = ~errors.isnan()
        if known.any():
            beta_1, beta_2 = betas[known].mean(dim=0).tolist()
            correcting = (errors[known] > self.args.threshold).float().mean().item()
            self._log({"error_rate": errors[known].mean().item(), "correction_state": correcting})
            self._log({"beta_1": beta_1, "beta_2": beta_2})
        self._log({f"dropped_{reason}": mask.float().mean().item() for reason, mask in dropped.items()})

    def _log(self, values: Mapping[str, float]) -> None:
        """Log values that are equal on every process."""
        for name, value in values.items():
            self._metrics[self._mode][name].append(value)
