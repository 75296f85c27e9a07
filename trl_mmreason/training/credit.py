"""Credit: rewards, advantages and KL coefficients of a rollout's groups, and what they are for each of its tokens."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..functional import TOKEN_NORMALISED_LOSSES, aggregate_token_loss, informative_groups, k3_divergence
from .facts import why_silent

logger = logging.getLogger(__name__)

SILENT_ROLLOUTS = 10
"""Rollouts in a row without a group that teaches, after which a warning says so."""


@dataclass(frozen=True)
class GroupOutcome:
    """The rewards of the gathered groups and the trajectories to keep; equal on every process.

    Attributes:
        rewards: (N, K); NaN in a whole row keeps that trajectory out of its group's mean and std.
        keep: (N,) bool; the others take part in nothing: no policy term, no KL term, no share of a normaliser.
        kl_coefs: KL coefficients, in one of the forms of `advantages`, or `None` for `beta` everywhere.
        advantages: in the place of TRL's normalised rewards, and neither centred nor scaled afterwards; `None` for
            TRL's. (N,) of trajectories, (N, turns) with one for each turn's tokens, or a list of N tensors, each with
            one for each of `Trajectory.completion_ids`. NaN counts 0.
    """

    rewards: Tensor
    keep: Tensor
    kl_coefs: Tensor | list[Tensor] | None = None
    advantages: Tensor | list[Tensor] | None = None


def without_ungraded(rewards: Tensor) -> GroupOutcome:
    """Drop rows without a verdict, whatever their other rewards.

    Args:
        rewards: (N, K); NaN in the first column where there is no grade.
    """
    keep = ~rewards[:, 0].isnan()
    return GroupOutcome(rewards.masked_fill(~keep.unsqueeze(1), torch.nan), keep)


def check_credit(trainer: Any, outcome: GroupOutcome, local: slice) -> None:
    """Refuse KL coefficients without a reference, and credit per token with another length than its trajectory.

    Args:
        outcome: of all processes.
        local: places of this process's trajectories.
    """
    for values in (outcome.advantages, outcome.kl_coefs):
        for row, each in zip(values[local] if isinstance(values, list) else (), trainer.trajectories, strict=False):
            if len(row) != (tokens := len(each.completion_ids)):
                raise ValueError(
                    f"{type(trainer).__name__}: score_groups returned {len(row)} values per token for a trajectory of "
                    f"{tokens} tokens. Fix: one for each of trajectory.completion_ids, in which those of messages "
                    "between answers count, too; trajectory.env_mask is 1 for the others."
                )
    if outcome.kl_coefs is not None and trainer.beta == 0.0:
        raise ValueError(
            f"{type(trainer).__name__}: score_groups returned kl_coefs, but beta is 0, so that there is no reference. "
            "Fix: set beta to any other value; the coefficients take its place."
        )


def observe_outcome(trainer: Any, outcome: GroupOutcome) -> None:
    """Add the groups of a rollout to the facts of the run; warn once none has taught in many rollouts in a row."""
    if outcome.advantages is None:
        total = (outcome.rewards * trainer.reward_weights.to(outcome.rewards)).nansum(dim=1)
        unpaid = ~outcome.keep | outcome.rewards.isnan().all(dim=1)
        teaches = informative_groups(trainer.in_groups(total.masked_fill(unpaid, torch.nan)))
    else:
        rows = _on_cpu(outcome.advantages)
        paid = torch.tensor([bool(row.nan_to_num().any()) for row in rows], device=outcome.keep.device)
        teaches = trainer.in_groups(paid & outcome.keep).any(dim=1)
    facts = trainer.facts
    facts.groups += len(teaches)
    facts.taught += int(teaches.sum())
    for name, shares in trainer._metrics["train"].items():
        if name.startswith("dropped_"):
            reason = name.removeprefix("dropped_")
            mean = facts.dropped.get(reason, 0.0)
            facts.dropped[reason] = mean + (shares[-1] - mean) * len(teaches) / facts.groups
    facts.silent_rollouts = 0 if teaches.any() else facts.silent_rollouts + 1
    if facts.silent_rollouts == SILENT_ROLLOUTS:
        logger.warning(
            "No group of answers had anything to teach in %d rollouts in a row: %s", SILENT_ROLLOUTS, why_silent(facts)
        )


def by_token(values: Tensor | list[Tensor], turn: Tensor, turns: int) -> Tensor:
    """Spread values of trajectories, turns or tokens over the columns of a batch.

    Args:
        values: (B,), (B, turns) or a list of B tensors, as in `GroupOutcome`.
        turn: (B, C) turn of each token, from 1.
        turns: how many turns a trajectory has at most.

    Returns:
        (B, C), 0 behind the last token of a list.

    Examples:
        >>> by_token(torch.tensor([[1.0, 2.0]]), torch.tensor([[1, 1, 2]]), turns=2)
        tensor([[1., 1., 2.]])
        >>> by_token([torch.tensor([0.5, 1.0])], torch.tensor([[1, 1, 1]]), turns=2)
        tensor([[0.5000, 1.0000, 0.0000]])
    """
    if isinstance(values, list):
        columns = turn.shape[1]
        return torch.stack([pad(row, (0, columns - len(row))) for row in values]).nan_to_num().to(turn.device)
    values = values.view(len(values), -1).nan_to_num()
    if values.shape[1] not in (1, turns):
        raise ValueError(
            f"Credit has {values.shape[1]} columns; expected one value per trajectory, one per turn ({turns}), or a "
            "list of tensors with a value per token."
        )
    return values.gather(1, (turn - 1).clamp(max=values.shape[1] - 1))


def _on_cpu(advantages: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    """Where reading row by row does not wait for the GPU each time."""
    return advantages.cpu() if isinstance(advantages, Tensor) else [row.cpu() for row in advantages]


def own_advantages(trainer: Any, advantages: Tensor | list[Tensor], local: slice, turn: Tensor) -> Tensor:
    """(B,) or (B, C) advantages of this process, and all in the place of TRL's in the table of completions.

    Args:
        advantages: of all processes, as in `GroupOutcome`.
        local: places of this process's trajectories.
        turn: (B, C) turn of each token, from 1.
    """
    table = trainer._logs["advantages"]
    before = list(table)[: -len(advantages)]
    table.clear()
    table.extend([*before, *(row.float().nanmean().item() for row in _on_cpu(advantages))])
    own = advantages[local]
    if isinstance(own, Tensor) and own.ndim == 1:
        return own.nan_to_num()
    return by_token(own, turn, trainer.max_turns)


def kl_difference(trainer: Any, logps: Tensor, inputs: dict[str, Any], mask: Tensor) -> Tensor:
    """(β_token − β)·KL as GRPO aggregates it (Eq. 6 of AdaPO), and `kl_t1`, `kl_t2`, … logged.

    Args:
        logps: (B, T) log-probabilities under the policy.
        inputs: the batch, with `kl_coefs` (B, T) and `turn` (B, T).
        mask: (B, T), 1 for tokens that carry loss.
    """
    log_ratio = _log_ratio(trainer, logps, inputs, mask) if trainer.args.use_bias_correction_kl else None
    divergence = k3_divergence(logps, inputs["ref_per_token_logps"], log_ratio)
    _log_turn_kl(trainer, divergence.detach() * mask, mask, inputs["turn"])
    per_token = (inputs["kl_coefs"] - trainer.beta) * divergence
    return _aggregate(trainer, per_token, mask, inputs["num_items_in_batch"])


def _log_ratio(trainer: Any, logps: Tensor, inputs: dict[str, Any], mask: Tensor) -> Tensor:
    old = inputs.get("old_per_token_logps")
    log_ratio = logps - (logps.detach() if old is None else old)
    if trainer.importance_sampling_level == "sequence":
        return (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)
    return log_ratio


def _aggregate(trainer: Any, per_token: Tensor, mask: Tensor, num_items_in_batch: Tensor) -> Tensor:
    training = trainer.model.training
    steps = trainer.current_gradient_accumulation_steps if training else 1
    # `num_items_in_batch` spans all processes and the whole generation batch; a step sees its share.
    share = num_items_in_batch.clamp(min=1.0) / trainer.accelerator.num_processes
    if training:
        share = share * steps / trainer.args.steps_per_generation
    loss = aggregate_token_loss(
        per_token, mask, trainer.loss_type, max_tokens=trainer.max_completion_length, batch_tokens=share
    )
    return loss if trainer.loss_type in TOKEN_NORMALISED_LOSSES else loss / steps


def _log_turn_kl(trainer: Any, divergence: Tensor, mask: Tensor, turn: Tensor) -> None:
    turns = range(1, trainer.max_turns + 1)
    sums = torch.stack([each[turn == number].sum() for number in turns for each in (divergence, mask.to(divergence))])
    total = trainer.accelerator.reduce(sums, reduction="sum").tolist()
    metrics = trainer._metrics[trainer._mode]
    for number, value, tokens in zip(turns, total[::2], total[1::2], strict=True):
        if tokens:
            metrics[f"kl_t{number}"].append(value / tokens)
