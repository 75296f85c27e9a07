"""The reward of SRPO (arXiv:2506.01713, Eq. 4–8): R = R_task + R_reflection.

    R_task       = R_format + R_accuracy                 0.5 for the first solution's form, 0.5 if its answer is right
    R_reflection = I_eff + I_ref + α · f_len             what the reflection did, 0.25 that it is there, its brevity

Keeping a right answer pays 1.6 at most, correcting a wrong one 1.35: failing first never pays.

Notation: B responses, L tokens of a response, L1 tokens up to and including the first `</answer>`; Q questions, G
responses to each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .response import parse_reflection_response as parse_reflection_response  # a name of this file, too

FORMAT = 0.5
"""R_format (Eq. 5)."""
ACCURACY = 0.5
"""R_accuracy (Eq. 5)."""
REFLECTION = 0.25
"""I_ref (Eq. 6)."""

# I_eff (Eq. 8), row: was the first answer right, column: is the second.
_EFFECTIVENESS = ((0.0, 0.5), (-0.25, 0.25))


def effectiveness(first_correct: Tensor | bool, second_correct: Tensor | bool, has_reflection: Tensor | bool) -> Tensor:
    """I_eff (Eq. 8): the effect of the reflection on the first answer.

    The paper names four cases, and none of a reflection without a second answer. Such an answer is not right, so
    right → missing is −0.25 and wrong → missing 0: paid 0, a policy that spoils half of its right answers would earn
    more by never answering twice.

    Args:
        first_correct, second_correct: (B,) or one bool; a missing answer is not right.
        has_reflection: likewise, True = there is a well-formed reflection.

    Returns:
        (B,), or one number: 0.25 right → right, 0.5 wrong → right, 0 wrong → wrong, −0.25 right → wrong; 0 without a
        reflection.

    Examples:
        >>> first, second = torch.tensor([True, False, False, True]), torch.tensor([True, True, False, False])
        >>> effectiveness(first, second, torch.ones(4, dtype=torch.bool))
        tensor([ 0.2500,  0.5000,  0.0000, -0.2500])
    """
    table = torch.tensor(_EFFECTIVENESS)
    first, second, reflected = (torch.as_tensor(flags) for flags in (first_correct, second_correct, has_reflection))
    return table.to(first.device)[first.long(), second.long()] * reflected


def brevity(
    response_tokens: Tensor,
    first_solution_tokens: Tensor,
    *,
    target_ratio: float = 2.0,
    max_ratio: float = 2.5,
    target_response_tokens: int | None = None,
    max_response_tokens: int | None = None,
) -> Tensor:
    """f_len = exp(−|L − T_target| / (T_max − T_target))² (Eq. 7), which peaks at 1 where L = T_target.

    Args:
        response_tokens: (B,) L.
        first_solution_tokens: (B,) L1, 0 where the response has no first answer.
        target_ratio: T_target / L1; the paper has 2, so that reflection and second solution are as long as the first.
        max_ratio: T_max / L1; the paper has 2.5.
        target_response_tokens, max_response_tokens: T_target and T_max in tokens, for all responses alike, instead of
            the ratios.

    Returns:
        (B,) in [0, 1]; 0 where L1 is 0.

    Raises:
        ValueError: T_max is not above T_target, or only one of the fixed targets is given.

    Examples:
        >>> brevity(torch.tensor([200, 250, 90]), torch.tensor([100, 100, 0]))  # as long as wished, too long, no answer
        tensor([1.0000, 0.1353, 0.0000])
    """
    length, first = (torch.as_tensor(tokens).float() for tokens in (response_tokens, first_solution_tokens))
    if (target_response_tokens is None) != (max_response_tokens is None):
        raise ValueError(
            f"brevity: got target_response_tokens={target_response_tokens} and "
            f"max_response_tokens={max_response_tokens}, expected both or neither."
        )
    low, high = (
        (target_ratio, max_ratio)
        if target_response_tokens is None or max_response_tokens is None
        else (target_response_tokens, max_response_tokens)
    )
    if not 0 < low < high:
        raise ValueError(f"brevity: the target is {low} and the maximum {high}, expected 0 < target < maximum.")
    unit = first if target_response_tokens is None else torch.ones_like(first)
    distance = (length - low * unit).abs() / ((high - low) * unit)  # 0/0 or x/0 where L1 is 0
    return torch.where(first > 0, torch.exp(-distance) ** 2, torch.zeros_like(distance))


def accuracy_filter(first_correct: Tensor, graded: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Find the groups that the accuracy filter drops as too hard or too easy (appendix B.2).

    A group's accuracy is the share of its graded responses whose first answer is right. Both bounds are inside: a group
    stays if low ≤ accuracy ≤ high, as in `sampling.difficulty`.

    Args:
        first_correct: (Q, G) bool.
        graded: (Q, G) bool; responses that count.
        low, high: the bounds, shares between 0 and 1; the paper has 0.1 and 0.9.

    Returns:
        Two (Q,) bool: accuracy below `low`, accuracy above `high`; both False for a group without a graded response.
    """
    accuracy = (first_correct & graded).sum(dim=1) / graded.sum(dim=1)
    return accuracy < low, accuracy > high
