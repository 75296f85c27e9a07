"""Which losses pay for length: gradients that are enumerated exactly over all responses of a small policy.

The policy has two words and an end, chosen by position and last word, and at most four tokens: 31 responses, of which
the 16 without an end are cut. Expectations are sums over all groups of two, so that nothing is sampled.
"""

import math
from itertools import product

import pytest
import torch

from trl_mmreason.baselines.objective import turn_advantages
from trl_mmreason.chain_of_step.objective import step_advantages
from trl_mmreason.functional import (
    SEQUENCE_NORMALISED_LOSSES,
    TOKEN_SUMMED_LOSSES,
    aggregate_token_loss,
    k3_divergence,
)
from trl_mmreason.self_evolution.objective import log_sum_exp_advantages
from trl_mmreason.sophia.objective import off_policy_loss

WORDS, END, MOST, GROUP = (0, 1), 2, 4, 2
RESPONSES = [
    (*words, END) if length < MOST else words for length in range(MOST + 1) for words in product(WORDS, repeat=length)
]
ZERO = 1e-12


def policy(seed):
    """(position, last word, next): logits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(MOST, 3, 3, generator=generator, dtype=torch.float64).requires_grad_()


def logps_of(logits):
    """(S, T) log-probabilities of all responses, 0 behind their ends."""
    table = logits.log_softmax(dim=-1)
    rows = [[table[t, (END, *row)[t], token] for t, token in enumerate(row)] for row in RESPONSES]
    return torch.stack([torch.stack([*row, *[torch.zeros_like(row[0])] * (MOST - len(row))]) for row in rows])


MASK = torch.tensor([[1.0] * len(row) + [0.0] * (MOST - len(row)) for row in RESPONSES], dtype=torch.float64)
CUT = torch.tensor([END not in row for row in RESPONSES])


def descent(logits, loss_of):
    """Minus the expected gradient of a loss of one group of two, over all groups."""
    logps = logps_of(logits)
    chances = logps.sum(dim=1).exp().detach()
    assert chances.sum().item() == pytest.approx(1)
    total = sum(
        chances[i] * chances[j] * loss_of(logps[[i, j]], MASK[[i, j]], [i, j])
        for i, j in product(range(len(RESPONSES)), repeat=GROUP)
    )
    return -torch.autograd.grad(total, logits)[0]


def policy_loss(loss_type, advantages_of, level="token"):
    """The policy term of GRPO while the policy is the one that sampled, as TRL writes it, by `aggregate_token_loss`."""

    def loss_of(logps, mask, group):
        log_ratio = logps - logps.detach()
        if level == "sequence":
            log_ratio = (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
        advantages, keep = advantages_of(group)
        kept = mask * keep.unsqueeze(1)
        weight = len(keep) / keep.sum().clamp(min=1) if loss_type in SEQUENCE_NORMALISED_LOSSES else 1.0  # `_weighed`
        per_token = -weight * advantages.unsqueeze(1) * log_ratio.exp().expand_as(mask)
        tokens = kept.sum().clamp(min=1)
        return aggregate_token_loss(per_token, kept, loss_type, max_tokens=MOST, batch_tokens=tokens)

    return loss_of


def equal_rewards(group):
    """Self-evolution's advantages where all answers earn the same: −log G, for each response."""
    advantages = log_sum_exp_advantages(torch.ones(1, len(group), dtype=torch.float64))[0]
    assert advantages.tolist() == pytest.approx([-math.log(len(group))] * len(group))
    return advantages, torch.ones(len(group), dtype=torch.float64)


def gradient_of_length(logits):
    return torch.autograd.grad((logps_of(logits).sum(dim=1).exp() * MASK.sum(dim=1)).sum(), logits)[0]


def cosine(first, second):
    return torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), dim=0).item()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("loss_type", "level"), [("dr_grpo", "token"), ("dr_grpo", "sequence"), ("luspo", "token")])
def test_under_a_sum_over_tokens_a_common_advantage_has_no_gradient(loss_type, level, seed):
    assert loss_type in TOKEN_SUMMED_LOSSES
    assert descent(policy(seed), policy_loss(loss_type, equal_rewards, level)).norm() < ZERO


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("loss_type", "level"), [("grpo", "token"), ("grpo", "sequence"), ("bnpo", "token"), ("dapo", "token")]
)
def test_under_a_mean_over_tokens_it_pays_for_length(loss_type, level, seed):
    """Whether the mean is over the tokens of a response or of the batch, and whether the ratio is a token's or not.

    With seed 0: 0.097 under `grpo`, 0.040 under the others, where the sum has 3e-17.
    """
    logits = policy(seed)
    found = descent(logits, policy_loss(loss_type, equal_rewards, level))
    assert loss_type not in TOKEN_SUMMED_LOSSES
    assert found.norm() > 0.02
    assert cosine(found, gradient_of_length(logits)) > 0.89


def test_a_step_makes_responses_longer():
    def mean_length(logits):
        return (logps_of(logits).sum(dim=1).exp() * MASK.sum(dim=1)).sum().item()

    logits = policy(0)
    before = mean_length(logits)
    for loss_type, grows in (("grpo", True), ("dr_grpo", False)):
        after = mean_length(logits + 0.1 * descent(logits, policy_loss(loss_type, equal_rewards)))
        assert (after > before + 1e-3) == grows
        assert grows or after == pytest.approx(before, abs=ZERO)


def test_a_filter_of_cut_responses_lets_the_sum_pay_for_being_cut():
    """Kept responses lose log G, and cut ones nothing, so that each kept one is pushed towards the cut ones."""
    logits = policy(0)

    def kept_only(group):
        return equal_rewards(group)[0], (~CUT[group]).double()

    found = descent(logits, policy_loss("dr_grpo", kept_only))
    more_cut = torch.autograd.grad(logps_of(logits).sum(dim=1).exp()[CUT].sum(), logits)[0]
    assert found.norm() > 0.02
    assert cosine(found, more_cut) == pytest.approx(1)


@pytest.mark.parametrize("filtered", [False, True])
def test_advantages_that_are_centred_have_nothing_in_common(filtered):
    """Equal rewards are advantages of 0, which have no gradient under any loss.

    GRPO's by group, which SRPO, SOPHIA's GRPO, AdaPO and SCoRe's turns have, and self-evolution's with the mean taken
    off. What a filter drops, such as AdaPO's of cut answers, takes no part in the mean.
    """
    keep = ~CUT[: len(CUT) // 4 * 4].reshape(-1, 4) if filtered else torch.ones(7, 4, dtype=torch.bool)
    assert keep.any()
    assert filtered == (not keep.all())
    rewards = torch.full((len(keep), 4), 0.75, dtype=torch.float64)
    assert turn_advantages(rewards.unsqueeze(2), keep).abs().max() < ZERO
    missing = rewards.masked_fill(~keep, torch.nan)
    assert log_sum_exp_advantages(missing, centred=True).nan_to_num().abs().max() < ZERO


def test_scores_in_common_are_no_credit_for_steps():
    """Chain-of-Step's credit per step: whatever the number of steps, equal scores give 0."""
    found = step_advantages([[0.7, 0.7, 0.7], [0.7]], [0.4, 0.4])
    assert torch.cat(found).tolist() == pytest.approx([0.0] * 6, abs=1e-6)


def test_rewards_of_sophia_s_update_are_not_centred_and_its_sum_needs_no_centring():
    """Eq. 7 with the policy's own responses, all of one reward: the sum has no gradient, the mean over tokens has."""
    logits = policy(0)

    def loss_of(reduction):
        return lambda logps, mask, group: off_policy_loss(
            logps, torch.full((len(group),), 0.7, dtype=torch.float64), mask, sequence_reduction=reduction
        )

    assert descent(logits, loss_of("sum")).norm() < ZERO
    shorter = descent(logits, loss_of("mean"))  # a reward above 0, where self-evolution's advantages are below
    assert cosine(shorter, -gradient_of_length(logits)) > 0.9


def kl_loss(loss_type, reference):
    ref_logps = logps_of(reference).detach()

    def loss_of(logps, mask, group):
        per_token = k3_divergence(logps, ref_logps[group])
        return aggregate_token_loss(per_token, mask, loss_type, max_tokens=MOST, batch_tokens=mask.sum())

    return loss_of


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_the_kl_term_has_no_gradient_where_it_is_zero(loss_type):
    logits = policy(0)
    assert descent(logits, kl_loss(loss_type, logits.detach())).norm() == 0


def test_under_a_sum_the_kl_term_holds_each_token_to_the_reference():
    """k3 at sampled tokens has the expected gradient of Σ KL[reference ‖ policy] over the prefixes that are visited.

    Under a mean over the tokens of a response it is weighed by one over the length of what follows, so that it is not.
    """
    logits, reference = policy(0), policy(1).detach()
    ours, theirs = logits.log_softmax(dim=-1), reference.log_softmax(dim=-1)
    chances = logps_of(logits).sum(dim=1).exp().detach()
    total = 0.0
    for row, chance in zip(RESPONSES, chances, strict=True):
        for t in range(len(row)):
            place = t, (END, *row)[t]
            total = total + chance * (theirs[place].exp() * (theirs[place] - ours[place])).sum()
    expected = -torch.autograd.grad(total / MOST, logits)[0]
    torch.testing.assert_close(descent(logits, kl_loss("dr_grpo", reference)), expected, rtol=0, atol=ZERO)
    weighed = descent(logits, kl_loss("grpo", reference))
    assert cosine(weighed, expected) < 0.99
