"""Chain-of-Step's formulas against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trl_mmreason.chain_of_step.objective import (
    auroc,
    judge_labels,
    label_accuracy,
    monte_carlo_labels,
    prm_loss,
    select_pairs,
    step_advantages,
    trajectory_score,
)

unit = st.floats(0, 1, width=32)


def test_trajectory_score_at_the_specifications_numbers():
    # 0.2 * (0.9 + 0.7 + 0.8) / 3 + 0.8 * 0.6 = 0.16 + 0.48
    assert trajectory_score([0.9, 0.7, 0.8], 0.6).item() == pytest.approx(0.64)
    tensors = trajectory_score(torch.tensor([0.9, 0.7, 0.8]), torch.tensor(0.6))
    torch.testing.assert_close(tensors, torch.tensor(0.64))


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 0.6), (0.5, 0.7), (1.0, 0.8)])
def test_other_step_weights(weight, expected):
    assert trajectory_score([0.9, 0.7, 0.8], 0.6, step_weight=weight).item() == pytest.approx(expected)


def test_without_a_step_only_the_answer_counts():
    # 0.8 * 0.6, and with w = 1 nothing is left
    assert trajectory_score([], 0.6).item() == pytest.approx(0.48)
    assert trajectory_score(torch.tensor([]), torch.tensor(0.6), step_weight=1.0).item() == 0.0


@given(st.lists(unit, max_size=5), unit, unit)
def test_trajectory_scores_lie_between_0_and_1(steps, answer, weight):
    score = trajectory_score(steps, answer, weight).item()
    assert 0 <= score <= 1 + 1e-6
    assert score >= trajectory_score([], answer, weight).item() - 1e-6  # leaving the steps out never pays


@pytest.mark.parametrize(
    ("steps", "answer", "weight", "named"),
    [
        ([0.5, 1.5], 0.5, 0.2, "step_scores"),
        ([math.nan], 0.5, 0.2, "step_scores"),
        ([0.5], -0.1, 0.2, "answer_score"),
        ([0.5], 0.5, 1.2, "step_weight"),
        ([0.5], 0.5, math.nan, "step_weight"),
    ],
)
def test_scores_outside_0_to_1_are_refused(steps, answer, weight, named):
    with pytest.raises(ValueError, match=f"{named} is .*expected 0 to 1"):
        trajectory_score(steps, answer, weight)


SCORES = [0.5, 0.9, 0.1, 0.8, 0.3]


def test_the_best_is_paired_with_the_worst():
    assert select_pairs(SCORES) == [(1, 2)]
    assert select_pairs(torch.tensor(SCORES)) == [(1, 2)]


def test_ranked_pairs_use_each_path_once():
    # 0.9 with 0.1, 0.8 with 0.3; 0.5 is left over
    assert select_pairs(SCORES, pairing="ranked") == [(1, 2), (3, 4)]
    assert select_pairs(SCORES, 0.5, "ranked") == [(1, 2)]  # 0.8 − 0.3 is not more than 0.5
    assert select_pairs(SCORES, pairing="ranked", max_pairs=1) == [(1, 2)]


def test_all_pairs_with_the_widest_margins_first():
    # margins 0.8 (1,2), 0.7 (3,2), 0.6 (1,4), 0.5 (3,4), 0.4 (0,2), (1,0), 0.3 (3,0), 0.2 (0,4), (4,2), 0.1 (1,3)
    pairs = select_pairs(torch.tensor(SCORES, dtype=torch.float64), 0.35, "all")
    assert pairs[:4] == [(1, 2), (3, 2), (1, 4), (3, 4)]
    assert set(pairs[4:]) == {(0, 2), (1, 0)}
    assert select_pairs(SCORES, 0.35, "all", max_pairs=2) == [(1, 2), (3, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("high", [0.5, 0.7, 0.8, 0.9, 1.0])
def test_a_margin_of_exactly_the_threshold_is_too_small(high, dtype):
    exact = torch.tensor([high - 0.2, high], dtype=dtype)
    assert select_pairs(exact) == []
    assert select_pairs(exact, 0.19) == [(1, 0)]
    assert select_pairs([round(high - 0.2, 1), high]) == []


def test_no_pair_of_one_path_of_none_or_of_equals():
    assert select_pairs([0.9]) == []
    assert select_pairs([]) == []
    assert select_pairs([0.5, 0.5, 0.5], 0.0, "all") == []


def test_of_equal_scores_the_earlier_is_the_better():
    assert select_pairs([0.9, 0.9, 0.1, 0.1]) == [(0, 3)]
    assert select_pairs([0.9, 0.9, 0.1, 0.1], pairing="ranked") == [(0, 3), (1, 2)]


@given(st.lists(unit, max_size=9), st.floats(0, 1), st.integers(1, 5))
def test_pairs_are_apart_by_more_than_the_threshold(scores, threshold, limit):
    every = select_pairs(scores, threshold, "all")
    ranked = select_pairs(scores, threshold, "ranked")
    assert all(scores[positive] - scores[negative] > threshold for positive, negative in every)
    assert set(ranked) <= set(every)
    assert select_pairs(scores, threshold) == ranked[:1]
    assert bool(every) == bool(ranked)
    assert len({path for pair in ranked for path in pair}) == 2 * len(ranked)
    assert select_pairs(scores, threshold, "all", max_pairs=limit) == every[:limit]
    places = range(len(scores))
    assert set(every) == {(i, j) for i in places for j in places if scores[i] - scores[j] > threshold + 1e-6}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pairing": "best"}, "unknown pairing 'best'; expected one of best_worst, ranked, all"),
        ({"threshold": -0.1}, "threshold is -0.1"),
        ({"threshold": math.nan}, "threshold is nan"),
        ({"max_pairs": 2}, "max_pairs is 2 with pairing 'best_worst'"),
        ({"pairing": "all", "max_pairs": 0}, "max_pairs is 0"),
    ],
)
def test_pairings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        select_pairs(SCORES, **settings)


def test_a_path_without_a_score_is_refused():
    with pytest.raises(ValueError, match="leave paths without a score out"):
        select_pairs([0.9, math.nan, 0.1])


def test_monte_carlo_labels_are_shares_and_whether_there_is_any():
    soft, hard = monte_carlo_labels(torch.tensor([[True, True, True, False], [False, True, False, False], [False] * 4]))
    assert (soft.tolist(), hard.tolist()) == ([0.75, 0.25, 0.0], [1.0, 1.0, 0.0])
    assert (soft.dtype, hard.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("correct", [[True, False], torch.ones(2, 0), [[1, -100]]])
def test_outcomes_of_another_shape_or_value_are_refused(correct):
    with pytest.raises(ValueError, match="monte_carlo_labels: got .*expected"):
        monte_carlo_labels(correct)


@pytest.mark.parametrize(("answer_correct", "expected"), [(True, [1.0, 1.0, 0.0]), (False, [1.0, 0.0, 0.0])])
def test_all_six_cells_of_the_judges_labels(answer_correct, expected):
    for ratings in (["Good", "Neutral", "Bad"], [1, 0, -1]):
        assert judge_labels(ratings, answer_correct).tolist() == expected


@pytest.mark.parametrize("rating", ["good", 2, None])
def test_other_ratings_are_refused(rating):
    with pytest.raises(ValueError, match="unknown rating"):
        judge_labels(["Good", rating], True)


def test_prm_loss_is_the_mean_cross_entropy_of_the_labelled_positions():
    # σ(ln 3) = 3/4: −ln 3/4 for label 1, −ln 1/4 for label 0, ln 2 at d = 0 whatever the label
    difference = torch.tensor([[math.log(3), math.log(3)], [0.0, 5.0]])
    labels = torch.tensor([[1.0, 0.0], [0.3, -100.0]])
    mask = torch.tensor([[True, True], [True, False]])
    total = math.log(4 / 3) + math.log(4) + math.log(2)
    torch.testing.assert_close(prm_loss(difference, labels, mask), torch.tensor(total / 3))
    torch.testing.assert_close(prm_loss(difference, labels, mask.long(), num_labels=6), torch.tensor(total / 6))


def test_prm_loss_of_a_soft_label():
    # −3/4 ln 3/4 − 1/4 ln 1/4, the least that label 3/4 can have: the gradient is σ(d) − y = 0
    difference = torch.tensor([math.log(3)], requires_grad=True)
    loss = prm_loss(difference, torch.tensor([0.75]), torch.tensor([True]))
    loss.backward()
    assert loss.item() == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    assert difference.grad.item() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saturated_scores_have_finite_losses_and_gradients(dtype):
    # σ(±1e4) is 1 and 0 in any precision; the losses are |d| where the label is the other, 0 where it is the same
    difference = torch.tensor([1e4, -1e4, 1e4, -1e4], dtype=dtype, requires_grad=True)
    labels = torch.tensor([0.0, 1.0, 1.0, 0.5])
    loss = prm_loss(difference, labels, torch.ones(4, dtype=torch.bool), num_labels=1)
    loss.backward()
    assert loss.item() == pytest.approx(2.5e4, rel=1e-2)
    assert difference.grad.tolist() == [1.0, -1.0, 0.0, -0.5]


def test_positions_without_a_label_get_no_gradient():
    difference = torch.tensor([0.0, 0.0, math.nan], requires_grad=True)
    prm_loss(difference, torch.tensor([1.0, -100.0, math.nan]), torch.tensor([True, False, False])).backward()
    assert difference.grad.tolist() == [-0.5, 0.0, 0.0]


def test_without_any_label_the_loss_is_0_and_can_be_trained_on():
    difference = torch.tensor([3.0], requires_grad=True)
    loss = prm_loss(difference, torch.tensor([-100.0]), torch.tensor([False]))
    loss.backward()
    assert (loss.item(), difference.grad.item()) == (0.0, 0.0)


@pytest.mark.parametrize("label", [-100.0, 1.1, math.nan])
def test_a_label_that_counts_has_to_be_one(label):
    with pytest.raises(ValueError, match="expected 0 to 1; mask positions without one"):
        prm_loss(torch.zeros(2), torch.tensor([1.0, label]), torch.ones(2, dtype=torch.bool))


def test_accuracy_is_the_share_on_the_same_side():
    # right, wrong, right, right (a soft label), right (both at the border)
    scores = torch.tensor([0.9, 0.6, 0.1, 0.2, 0.5])
    labels = torch.tensor([1.0, 0.0, 0.0, 0.25, 0.5])
    assert label_accuracy(scores, labels).item() == pytest.approx(0.8)
    assert label_accuracy(torch.tensor([]), torch.tensor([])).isnan()


def test_auroc_counts_pairs_and_half_of_the_ties():
    # right 0.8, 0.4; wrong 0.4, 0.1: three of four pairs are in order and one is a tie: 3.5 / 4
    scores = torch.tensor([0.8, 0.4, 0.4, 0.1])
    labels = torch.tensor([1.0, 1.0, 0.0, 0.0])
    assert auroc(scores, labels).item() == 0.875
    assert auroc(-scores, labels).item() == 0.125
    assert auroc(torch.zeros(4), labels).item() == 0.5
    assert auroc(scores, torch.tensor([0.5, 0.5, 0.49, 0.0])).item() == 0.875  # right from 0.5 on


@pytest.mark.parametrize("labels", [torch.ones(3), torch.zeros(3), torch.tensor([])])
def test_auroc_without_two_classes_is_nan(labels):
    assert auroc(torch.arange(float(len(labels))), labels).isnan()


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=30))
def test_auroc_is_the_share_of_pairs_in_order(positions):
    right, wrong = ([score for score, label in positions if label is side] for side in (True, False))
    result = auroc(*torch.tensor(positions, dtype=torch.float32).reshape(len(positions), 2).T)
    if not right or not wrong:
        assert result.isnan()
        return
    wins = sum((a > b) + 0.5 * (a == b) for a in right for b in wrong)
    assert result.item() == pytest.approx(wins / (len(right) * len(wrong)))


def test_the_advantages_of_steps_by_hand():
    """Steps 0.2, 0.4, 0.9: mean 0.5, std √(0.26 / 2); answers 1 and 0: mean 1/2, std √(1/2)."""
    first, second, third = step_advantages([[0.2, 0.4], [], [0.9]], [1.0, None, 0.0])
    assert first.tolist() == pytest.approx([-0.3 / 0.36066, -0.1 / 0.36066, 0.5 / 0.70721], abs=1e-4)
    assert second.tolist() == []
    assert third.tolist() == pytest.approx([0.4 / 0.36066, -0.5 / 0.70721], abs=1e-4)
    assert [each.tolist() for each in step_advantages([[0.3], []], [None, 0.7])] == [[0.0], [0.0]]  # one of each
