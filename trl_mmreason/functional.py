"""Tensor maths that several methods share. Pure functions; they import only torch.

Notation, here and everywhere: B local completions, N gathered completions, G completions of one group (question),
Q = N / G questions, K reward functions, T tokens. Masks say True (or 1) = keep.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Which losses of TRL divide by the number of sequences, and so would count a sequence whose tokens are all masked.
SEQUENCE_NORMALISED_LOSSES = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
# Which of these sum over the tokens of a sequence and divide by nothing that depends on its length. With them an
# advantage that all sequences have in common has no expected gradient; with the others it has one along the length's.
TOKEN_SUMMED_LOSSES = frozenset({"dr_grpo", "luspo"})
# Which divide by the number of kept tokens of the whole generation batch.
TOKEN_NORMALISED_LOSSES = frozenset({"dapo", "cispo", "vespo"})


def k3_divergence(logps: Tensor, ref_logps: Tensor, log_ratio: Tensor | None = None) -> Tensor:
    """Per-token estimate of KL[policy || reference] in nats: exp(d) − d − 1 with d = log ref − log policy ("k3").

    Args:
        logps: (B, T) log-probabilities under the policy.
        ref_logps: (B, T) log-probabilities under the reference.
        log_ratio: (B, T) or (B, 1) log of the importance weight policy / sampling policy that the estimate is
            multiplied by, which makes its gradient unbiased (TRL's `use_bias_correction_kl`); `None` leaves it out.

    Returns:
        (B, T), 0 where the two agree and positive elsewhere.

    Examples:
        >>> import torch
        >>> logps = torch.tensor([[0.5, 0.25]]).log()
        >>> k3_divergence(logps, torch.tensor([[0.5, 0.5]]).log())  # 0 where they agree; 2 - log 2 - 1
        tensor([[0.0000, 0.3069]])
    """
    difference = ref_logps - logps
    divergence = torch.exp(difference) - difference - 1
    return divergence if log_ratio is None else divergence * torch.exp(log_ratio)


def aggregate_token_loss(
    per_token: Tensor,
    mask: Tensor,
    loss_type: str,
    *,
    max_tokens: int,
    batch_tokens: Tensor | float,
) -> Tensor:
    """Sum a per-token loss over a micro-batch as TRL's GRPOTrainer does for `loss_type`, before accumulation.

    Args:
        per_token: (B, T).
        mask: (B, T), 1 = keep.
        loss_type: a `loss_type` of `GRPOConfig`.
        max_tokens: tokens that one trajectory may hold at most; `dr_grpo` divides by it.
        batch_tokens: this process's share of the kept tokens in one optimizer step; `dapo`, `cispo` and `vespo` divide
            by it, and need no further division for gradient accumulation.

    Returns:
        A scalar.
    """
    masked = per_token * mask
    if loss_type in {"grpo", "sapo"}:
        return (masked.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    if loss_type == "bnpo":
        return masked.sum() / mask.sum().clamp(min=1.0)
    if loss_type == "dr_grpo":
        return masked.sum() / (per_token.size(0) * max_tokens)
    if loss_type == "luspo":
        return masked.sum(-1).mean()
    if loss_type in TOKEN_NORMALISED_LOSSES:
        return masked.sum() / batch_tokens
    raise ValueError(f"aggregate_token_loss: unknown loss_type {loss_type!r}; expected one of TRL's GRPO losses.")


def turn_of_token(env_mask: Tensor) -> Tensor:
    """Number the turns of a trajectory token by token.

    Args:
        env_mask: (B, T), 1 = the model wrote the token (or padding), 0 = the user's turn and the template around it.

    Returns:
        (B, T) integers: 1 up to the user's first message, 2 from it up to the next one, and so on.

    Examples:
        >>> import torch
        >>> turn_of_token(torch.tensor([[1, 1, 0, 0, 1, 0, 1]]))  # two tokens, a message, a token, a message, a token
        tensor([[1, 1, 2, 2, 2, 3, 3]])
    """
    sampled = env_mask.bool()
    begins = torch.zeros_like(sampled)
    begins[:, 1:] = sampled[:, :-1] & ~sampled[:, 1:]
    return 1 + begins.long().cumsum(dim=1)


def informative_groups(rewards: Tensor) -> Tensor:
    """Find the groups with a gradient: two or more kept trajectories whose rewards are not all the same.

    Args:
        rewards: (Q, G), NaN where a trajectory is not kept.

    Returns:
        (Q,) bool.
    """
    missing = rewards.isnan()
    highest = rewards.masked_fill(missing, -torch.inf).amax(dim=1)
    lowest = rewards.masked_fill(missing, torch.inf).amin(dim=1)
    return ((~missing).sum(dim=1) >= 2) & (highest > lowest)
