"""The maths of self-evolution, on numbers that a reader can derive."""

import math
from itertools import product

import pytest
import torch

from trl_mmreason.self_evolution.objective import (
    judge_modulation,
    log_sum_exp_advantages,
    majority_vote,
    self_consistency,
)

# The worked example: σ(0.05) = 0.512497, σ(−0.6) = 0.354344, σ(−0.55) = 0.365864, σ(0) = 0.5, σ(−0.95) = 0.278885,
# σ(0.4) = 0.598688
ANSWERS = ["4", "4", "4", "5"]
SCORES = torch.tensor([1.0, 1.0, 0.4, 0.0], dtype=torch.float64)
MODULATION = [1.03163, 1.03163, 0.97317, 0.93604]


def test_the_worked_numbers():
    shares = self_consistency(ANSWERS)
    assert shares.tolist() == [0.75, 0.75, 0.75, 0.25]
    factors = judge_modulation(SCORES)
    assert factors.tolist() == pytest.approx(MODULATION, abs=5e-6)
    rewards = shares * factors
    assert rewards.tolist() == pytest.approx([0.77372, 0.77372, 0.72988, 0.23401], abs=5e-6)
    advantages = log_sum_exp_advantages(rewards.unsqueeze(0))[0]
    assert advantages.tolist() == pytest.approx([-1.26413, -1.26413, -1.30798, -1.80385], abs=5e-6)


def test_votes_use_the_grader_s_equivalence():
    assert self_consistency(["1/2", "0.5", r"\frac{1}{2}", "3"]).tolist() == [0.75, 0.75, 0.75, 0.25]
    assert majority_vote(["3", "1/2", "3.1", "0.5"]).tolist() == [0, 1, 0, 1]


def test_a_missing_answer_never_votes():
    """Not even where most answers are missing; the size of the group stays."""
    assert self_consistency([None, None, None, "7"]).tolist() == [0, 0, 0, 0.25]
    assert majority_vote([None, None, None, "7"]).tolist() == [0, 0, 0, 1]
    assert majority_vote([None, None]).tolist() == [0, 0]
    assert self_consistency([None, None]).tolist() == [0, 0]


def test_a_tie_goes_to_the_answer_that_came_first():
    assert majority_vote(["5", "4", "4", "5"]).tolist() == [1, 0, 0, 1]


def test_modulation_is_bounded_and_neutral_without_a_score():
    factors = judge_modulation(torch.linspace(0, 1, 101), high_temperature=0.01, low_temperature=0.01)
    assert factors.min() > 0.8 - 1e-6
    assert factors.max() < 1.2 + 1e-6
    assert (factors.diff() >= 0).all()
    assert judge_modulation(torch.tensor([float("nan")])).tolist() == [1.0]


def test_modulation_has_its_own_setting_for_each_side():
    """At s = t_h the sigmoid is ½, and far below t_l by τ it is 1."""
    high = judge_modulation(torch.tensor([0.9]), high_weight=0.4, high_threshold=0.9, low_weight=0.0)
    assert high.item() == pytest.approx(1.2)
    low = judge_modulation(
        torch.tensor([0.0]), high_weight=0.0, low_weight=0.6, low_threshold=0.5, low_temperature=0.01
    )
    assert low.item() == pytest.approx(0.4)
    # (1 − 0.9)/0.1 = 1: σ(1) = 0.731059
    narrow = judge_modulation(
        torch.tensor([1.0]), high_weight=1.0, high_threshold=0.9, high_temperature=0.1, low_weight=0.0
    )
    assert narrow.item() == pytest.approx(1.731059, abs=1e-5)


def test_the_advantages_are_the_log_of_a_softmax():
    rewards = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    advantages = log_sum_exp_advantages(rewards, 2.0)
    torch.testing.assert_close(advantages.exp().sum(dim=1), torch.ones(5))
    assert (advantages < 0).all()
    torch.testing.assert_close(advantages[:, 0] - advantages[:, 1], 2 * (rewards[:, 0] - rewards[:, 1]))
    order = torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    torch.testing.assert_close(log_sum_exp_advantages(rewards[:, order], 2.0), advantages[:, order])


def test_a_large_alpha_leaves_one_winner():
    """A.9: exp(A) is one-hot; with the paper's α = 1 the others keep most of their share."""
    rewards = torch.tensor([[0.75, 0.5, 0.25]])
    sharp, soft = (log_sum_exp_advantages(rewards, alpha).exp() for alpha in (1000.0, 1.0))
    torch.testing.assert_close(sharp, torch.tensor([[1.0, 0.0, 0.0]]))
    torch.testing.assert_close(soft[:, 1:] / soft[:, :1], torch.tensor([[0.7788, 0.6065]]), rtol=0, atol=1e-4)


def test_large_rewards_do_not_overflow():
    advantages = log_sum_exp_advantages(torch.tensor([[1e4, 1e4, 0.0, -1e4]]))
    assert advantages[0].tolist() == pytest.approx([-0.693147, -0.693147, -10000.693, -20000.693])


def test_centring_cancels_the_log_sum_exp():
    rewards = torch.tensor([[1.0, 0.0, 0.5, 0.5]])
    assert log_sum_exp_advantages(rewards, 3.0, centred=True).tolist() == [[1.5, -1.5, 0.0, 0.0]]


@pytest.mark.parametrize("centred", [False, True])
def test_what_has_no_reward_takes_no_part(centred):
    rewards = torch.tensor([[1.0, float("nan"), 0.0]])
    advantages = log_sum_exp_advantages(rewards, centred=centred)
    expected = log_sum_exp_advantages(torch.tensor([[1.0, 0.0]]), centred=centred)
    assert advantages[0, [0, 2]].tolist() == expected[0].tolist()
    assert advantages[0, 1].isnan()


@pytest.mark.parametrize(
    ("chances", "questions", "centred_ones"),
    [([0.5, 0.2, 0.1, 0.1, 0.1], 83.4, 1.0), ([0.3, 0.25, 0.2, 0.15, 0.1], 1058, 11.4), ([0.8, 0.2], 22.9, 0.36)],
)
def test_what_all_answers_lose_is_noise(chances, questions, centred_ones):
    """A softmax over answers, groups of eight and votes as rewards; expectations are sums over all counts of a group.

    The expected gradient is almost that of the centred advantages, and its noise eight to ten times as large: an update
    needs so many questions until their noise is no larger than what they teach, instead of `centred_ones`.
    """
    size, p = 8, torch.tensor(chances, dtype=torch.float64)
    found = {}
    for centred in (False, True):
        mean, square = torch.zeros_like(p), 0.0
        for counts in product(range(size + 1), repeat=len(p)):
            if sum(counts) != size:
                continue
            count = torch.tensor(counts, dtype=torch.float64)
            ways = math.factorial(size) / math.prod(map(math.factorial, counts))
            chance = ways * (p**count).prod()
            votes = [float(n) / size for n in counts for _ in range(n)]
            paid = log_sum_exp_advantages(torch.tensor([votes], dtype=torch.float64), centred=centred)[0]
            answers = [answer for answer, n in enumerate(counts) for _ in range(n)]
            gradient = sum(paid[k] * (torch.eye(len(p), dtype=p.dtype)[a] - p) for k, a in enumerate(answers)) / size
            mean, square = mean + chance * gradient, square + chance * gradient.square().sum()
        signal = mean.square().sum()
        found[centred] = mean, ((square - signal) / signal).item()
    assert found[False][1] == pytest.approx(questions, rel=5e-3)
    assert found[True][1] == pytest.approx(centred_ones, rel=2e-2)
    assert (found[False][0] - found[True][0]).norm() < 0.05 * found[True][0].norm()
