"""SRPO's formulas against numbers worked out by hand."""

import math

import pytest
import torch

from trl_mmreason.srpo.objective import ACCURACY, FORMAT, REFLECTION, accuracy_filter, brevity, effectiveness

# right→right, wrong→right, wrong→wrong, right→wrong
FIRST = torch.tensor([True, False, False, True])
SECOND = torch.tensor([True, True, False, False])


def test_all_four_cells_of_the_effectiveness_table():
    assert effectiveness(FIRST, SECOND, torch.ones(4, dtype=torch.bool)).tolist() == [0.25, 0.5, 0.0, -0.25]


def test_without_a_reflection_nothing_is_effective():
    assert effectiveness(FIRST, SECOND, torch.zeros(4, dtype=torch.bool)).tolist() == [0.0] * 4


def test_brevity_at_the_specifications_lengths():
    # L1 = 100, so T_target = 200 and T_max - T_target = 50.
    # L = 200 → 1; 225 → exp(-1/2)² = e⁻¹; 250 and 150 → e⁻²; 100 → e⁻⁴
    lengths = torch.tensor([200, 225, 250, 150, 100])
    expected = torch.tensor([1.0, math.exp(-1), math.exp(-2), math.exp(-2), math.exp(-4)])
    torch.testing.assert_close(brevity(lengths, torch.full((5,), 100)), expected)
    torch.testing.assert_close(expected, torch.tensor([1.0, 0.3679, 0.1353, 0.1353, 0.0183]), atol=5e-5, rtol=0)


def test_brevity_without_a_first_answer_is_0():
    assert brevity(torch.tensor([200, 0]), torch.tensor([0, 0])).tolist() == [0.0, 0.0]
    assert brevity(
        torch.tensor([200]), torch.tensor([0]), target_response_tokens=200, max_response_tokens=300
    ).tolist() == [0.0]


def test_other_ratios_and_fixed_targets():
    # T_target = 3 * 10 = 30, T_max = 50: L = 40 lies half a width off, exp(-1/2)² = e⁻¹
    torch.testing.assert_close(
        brevity(torch.tensor([40]), torch.tensor([10]), target_ratio=3.0, max_ratio=5.0), torch.tensor([math.exp(-1)])
    )
    # T_target = 100, T_max = 200 whatever L1 is: L = 50 lies half a width off
    fixed = brevity(torch.tensor([50, 50]), torch.tensor([10, 40]), target_response_tokens=100, max_response_tokens=200)
    torch.testing.assert_close(fixed, torch.tensor([math.exp(-1)] * 2))


@pytest.mark.parametrize(
    "settings",
    [
        {"max_ratio": 2.0},
        {"target_ratio": 0.0},
        {"target_response_tokens": 5},
        {"target_response_tokens": 9, "max_response_tokens": 9},
    ],
)
def test_targets_out_of_order_are_refused(settings):
    with pytest.raises(ValueError, match="brevity"):
        brevity(torch.tensor([1]), torch.tensor([1]), **settings)


def test_failing_first_never_pays():
    """The best that each fate of a first answer can earn, in total."""
    best = FORMAT + REFLECTION + 0.1 + ACCURACY * FIRST + effectiveness(FIRST, SECOND, torch.ones(4))
    kept, corrected, failed, spoilt = best.tolist()
    assert best.tolist() == pytest.approx([1.6, 1.35, 0.85, 1.1])
    assert kept > corrected > spoilt > failed


def test_groups_too_hard_or_too_easy():
    """Right first answers: 0, 1, 5, 9 and 10 of ten. The bounds 0.1 and 0.9 are inside, so 1 and 9 of ten stay."""
    rights = torch.tensor([0, 1, 5, 9, 10])
    correct = torch.arange(10) < rights.unsqueeze(1)
    too_hard, too_easy = accuracy_filter(correct, torch.ones_like(correct), 0.1, 0.9)
    assert too_hard.tolist() == [True, False, False, False, False]
    assert too_easy.tolist() == [False, False, False, False, True]
    too_hard, too_easy = accuracy_filter(correct, torch.ones_like(correct), 0.0, 1.0)  # off
    assert not too_hard.any()
    assert not too_easy.any()


def test_what_has_no_grade_counts_for_no_group():
    """Graded: 1 right of 2, which stays; 1 right of 1; none, which is neither hard nor easy."""
    correct = torch.tensor([[True, False, False, False], [True, False, False, False], [False] * 4])
    graded = torch.tensor([[True, True, False, False], [True, False, False, False], [False] * 4])
    too_hard, too_easy = accuracy_filter(correct, graded, 0.3, 0.9)
    assert too_hard.tolist() == [False, False, False]
    assert too_easy.tolist() == [False, True, False]
