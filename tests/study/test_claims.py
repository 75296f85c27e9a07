"""Claims judged on outcomes that are written out."""

import math

import numpy as np
import pytest

from study.claims import Claim, Judged, Term, claims_about, judge
from study.intervals import Rule
from trl_mmreason.evaluation.metrics import Estimate
from trl_mmreason.evaluation.question_table import QuestionTable


def arm(*right):
    """The accuracy of an arm, question by question."""
    over = np.array(right, dtype=float).reshape(-1, 1)
    return QuestionTable(("accuracy",), over, np.ones_like(over))


def claim(*terms):
    return Claim("ours is better", "Table 1", "60.2 > 57.5", [Term(*term) for term in terms])


BETTER = claim((1, "ours", "accuracy"), (-1, "theirs", "accuracy"))


def test_a_difference_is_taken_seed_by_seed():
    # seed 0: 4 of 4 against 1 of 4; seed 1: 4 of 4 against 2 of 4
    outcomes = {
        0: {"ours": arm(1, 1, 1, 1), "theirs": arm(1, 0, 0, 0)},
        1: {"ours": arm(1, 1, 1, 1), "theirs": arm(1, 1, 0, 0)},
    }
    found = judge(BETTER, outcomes)
    assert found.by_seed == [0.75, 0.5]
    assert found.measured.value == 0.625
    assert found.values == {"ours accuracy": 1.0, "theirs accuracy": 0.375}
    # the standard error of two values is half of their distance; 12.706 is the 97.5 % point of one degree of freedom
    assert found.measured.interval == pytest.approx((0.625 - 12.706 * 0.125, 0.625 + 12.706 * 0.125), abs=1e-4)


def test_verdicts():
    clear = {seed: {"ours": arm(*[1] * 50), "theirs": arm(*[1] * 10, *[0] * 40)} for seed in range(3)}
    assert judge(BETTER, clear).verdict == "holds"
    assert judge(claim((-1, "ours", "accuracy"), (1, "theirs", "accuracy")), clear).verdict == "does not hold"
    equal = {seed: {"ours": arm(1, 0, 1, 0), "theirs": arm(0, 1, 0, 1)} for seed in range(3)}
    assert judge(BETTER, equal).verdict == "undecided"


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.001, 0.09), "holds"),
        ((-0.09, -0.001), "does not hold"),
        ((-0.02, 0.02), "no difference"),
        ((-0.021, 0.01), "undecided"),
        ((-0.01, 0.021), "undecided"),
        ((0.0, 0.05), "undecided"),
        ((float("nan"), float("nan")), "undecided"),
    ],
)
def test_a_claim_is_decided_by_its_interval(interval, expected):
    seeds_disagree = [0.1, -0.1]
    assert Judged(BETTER, Estimate(0.0, interval), seeds_disagree, {}, margin=0.02).verdict == expected
    without = {"no difference": "undecided"}.get(expected, expected)
    assert Judged(BETTER, Estimate(0.0, interval), seeds_disagree, {}).verdict == without


def test_claims_about_arms_that_were_not_trained_are_left_out():
    gain = claim((1, "ours", "accuracy"))
    assert claims_about([BETTER, gain], ["ours"]) == [gain]
    assert claims_about([BETTER, gain], ["theirs", "ours", "other"]) == [BETTER, gain]


def test_seeds_that_disagree_decide_nothing():
    """Of two seeds one says +1 and the other -1."""
    good, bad = {"ours": arm(1, 1), "theirs": arm(0, 0)}, {"ours": arm(0, 0), "theirs": arm(1, 1)}
    found = judge(BETTER, {0: good, 1: bad})
    assert found.measured.value == 0
    assert found.measured.interval == pytest.approx((-12.706, 12.706), abs=1e-3)
    assert found.verdict == "undecided"


def test_one_seed_decides_nothing():
    found = judge(BETTER, {0: {"ours": arm(1, 1), "theirs": arm(0, 0)}})
    assert found.measured.value == 1
    assert all(map(math.isnan, found.measured.interval))
    assert found.verdict == "undecided"


def test_repeated_looks_have_wider_intervals():
    """Five seeds by 0.1, 0.2, 0.2, 0.2 and 0.3: the same mean, once by 2.776 standard errors, once by 4.315 of them."""
    right = [1, 2, 2, 2, 3]
    outcomes = {
        seed: {"ours": arm(*[1] * n, *[0] * (10 - n)), "theirs": arm(*[0] * 10)} for seed, n in enumerate(right)
    }
    error = math.sqrt(0.005) / math.sqrt(5)
    for rule, width in ((None, 2.776), (Rule(5, 20), 4.315)):
        measured = judge(BETTER, outcomes, rule).measured
        assert measured.value == pytest.approx(0.2)
        assert measured.interval == pytest.approx((0.2 - width * error, 0.2 + width * error), abs=1e-4)


def test_arms_that_answered_other_questions_are_refused():
    with pytest.raises(ValueError, match=r"seed 7 answered different numbers of questions: \{'ours': 1, 'theirs': 2\}"):
        judge(BETTER, {7: {"ours": arm(1), "theirs": arm(1, 0)}})


def test_a_seed_without_a_number_leaves_a_claim_undecided():
    """Such as the share of first answers that were corrected, where none was wrong."""
    nothing = QuestionTable(("accuracy",), np.zeros((2, 1)), np.zeros((2, 1)))
    with np.errstate(invalid="ignore"):
        found = judge(BETTER, {0: {"ours": arm(1, 1), "theirs": arm(0, 0)}, 1: {"ours": nothing, "theirs": arm(0, 0)}})
    assert found.by_seed[0] == 1
    assert math.isnan(found.by_seed[1])
    assert math.isnan(found.measured.value)
    assert found.verdict == "undecided"
