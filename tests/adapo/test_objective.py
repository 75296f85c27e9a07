"""AdaPO's formulas against numbers worked out by hand."""

import pytest
import torch

from trl_mmreason.adapo.objective import adaptive_rewards, error_rate, kl_coefficients

NAN = float("nan")


def flags(*rows: str) -> torch.Tensor:
    return torch.tensor([[c == "1" for c in row] for row in rows])


def test_error_rate_counts_wrong_first_answers_among_the_kept():
    first = flags("0001", "0001", "0001")
    keep = flags("1111", "1001", "0000")
    # 3 of 4 wrong; 1 of the 2 kept wrong; nothing kept
    assert error_rate(first).tolist() == [0.75, 0.75, 0.75]
    assert error_rate(first, keep)[:2].tolist() == [0.75, 0.5]
    assert error_rate(first, keep)[2].isnan()


def test_rewards_of_all_four_types_at_p_three_quarters():
    # P = 3/4: R01 = 1 + 0.15, R11 = 1 - 0.15, R10 = -1 + 0.5*0.75, R00 = -1 - 0.5*0.75
    first, second = flags("0001", "0001"), flags("1001", "0000")
    expected = torch.tensor([[1.15, -1.375, -1.375, 0.85], [-1.375, -1.375, -1.375, -0.625]])
    torch.testing.assert_close(adaptive_rewards(first, second), expected)


def test_rewards_of_all_four_types_at_p_one_quarter():
    # P = 1/4: R01 = 1 - 0.35, R11 = 1 + 0.35, R10 = -1 + 0.125, R00 = -1 - 0.125
    first, second = flags("0111", "0111"), flags("1110", "0111")
    expected = torch.tensor([[0.65, 1.35, 1.35, -0.875], [-1.125, 1.35, 1.35, 1.35]])
    torch.testing.assert_close(adaptive_rewards(first, second), expected)


def test_a_dropped_trajectory_counts_neither_for_p_nor_gets_a_reward():
    # kept: 0→1, 1→1, so P = 1/2: R01 = 1 - 0.1, R11 = 1 + 0.1
    rewards = adaptive_rewards(flags("0010"), flags("1010"), flags("1010"))
    assert rewards[0, [0, 2]].tolist() == pytest.approx([0.9, 1.1])
    assert rewards[0, [1, 3]].isnan().all()


def test_every_constant_is_used_where_it_belongs():
    # P = 1/2 in a group with one trajectory of each type
    slopes = {"k_01": 0.4, "k_11": -0.8, "k_10": 0.6, "k_00": -0.2}
    bases = {"base_correct": 2.0, "base_incorrect": -3.0, "threshold": 0.25}
    rewards = adaptive_rewards(flags("0110"), flags("1100"), **slopes, **bases)
    assert rewards[0].tolist() == pytest.approx([2 + 0.4 * 0.25, 2 - 0.8 * 0.25, -3 + 0.6 * 0.5, -3 - 0.2 * 0.5])


@pytest.mark.parametrize(
    ("p", "beta_1", "beta_2"),
    [
        (1.0, 0.009, 0.001),  # 2 * 0.4 * 0.01 = 0.008 above the base
        (0.6, 0.001, 0.001),
        (0.25, 0.001, 0.008),  # 2 * 0.35 * 0.01
        (0.0, 0.001, 0.013),  # 2 * 0.6 * 0.01
    ],
)
def test_kl_coefficients(p, beta_1, beta_2):
    first, second = kl_coefficients(torch.tensor([p]))
    assert first.item() == pytest.approx(beta_1, rel=1e-5)
    assert second.item() == pytest.approx(beta_2, rel=1e-5)


def test_kl_coefficients_follow_the_gap_between_the_two_right_rewards():
    # Eq. 7 and 8 written with the rewards themselves, for K that do not cancel
    settings = {"k_01": 0.3, "k_11": -0.9, "threshold": 0.5}
    first, second = flags("0001"), flags("1111")
    rewards = adaptive_rewards(first, second, **settings)[0]
    gap = (rewards[0] - rewards[3]).item()  # R01 - R11 at P = 3/4: 1.2 * 0.25 = 0.3
    assert gap == pytest.approx(0.3)
    beta_1, beta_2 = kl_coefficients(error_rate(first), beta=0.02, kl_scale=0.1, **settings)
    assert beta_1.item() == pytest.approx(0.02 + 0.03)
    assert beta_2.item() == pytest.approx(0.02)
