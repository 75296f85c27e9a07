"""Claims judged on outcomes that are written out."""

import numpy as np
import pytest

from study.claims import Claim, Judged, Term, claims_about, judge
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
    assert found.measured.interval[0] >= 0  # a draw with theirs right throughout is the worst
    assert found.measured.interval[1] <= 1


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


def test_claims_about_arms_that_were_not_trained_are_left_out():
    gain = claim((1, "ours", "accuracy"))
    assert claims_about([BETTER, gain], ["ours"]) == [gain]
    assert claims_about([BETTER, gain], ["theirs", "ours", "other"]) == [BETTER, gain]


def test_the_same_questions_are_drawn_for_all_arms():
    """Ours is right wherever theirs is and once more: no draw of questions can make it worse."""
    theirs = [1] * 20 + [0] * 20
    outcomes = {0: {"ours": arm(*theirs[:-1], 1), "theirs": arm(*theirs)}}
    low, high = judge(BETTER, outcomes).measured.interval
    assert low == 0
    assert high <= 4 / 40


def test_seeds_are_drawn_too():
    """Of two seeds one says +1 and the other -1: the interval holds both."""
    good, bad = {"ours": arm(1, 1), "theirs": arm(0, 0)}, {"ours": arm(0, 0), "theirs": arm(1, 1)}
    found = judge(BETTER, {0: good, 1: bad})
    assert found.measured.value == 0
    assert found.measured.interval == (-1.0, 1.0)
    assert found.verdict == "undecided"


def test_arms_that_answered_other_questions_are_refused():
    with pytest.raises(ValueError, match=r"seed 7 answered different numbers of questions: \{'ours': 1, 'theirs': 2\}"):
        judge(BETTER, {7: {"ours": arm(1), "theirs": arm(1, 0)}})


@pytest.mark.full
def test_a_seed_that_says_otherwise_leaves_a_claim_undecided():
    """Nine seeds at +1 and one at -1/20: no draw of ten seeds but the rarest has a mean below zero."""
    better = {"ours": arm(*[1] * 20), "theirs": arm(*[0] * 20)}
    worse = {"ours": arm(*[0] * 20), "theirs": arm(1, *[0] * 19)}
    found = judge(BETTER, {**dict.fromkeys(range(9), better), 9: worse})
    assert found.measured.interval[0] > 0
    assert found.verdict == "undecided"


def test_a_seed_without_a_number_leaves_a_claim_undecided():
    """Such as the share of first answers that were corrected, where none was wrong."""
    for sign in (1, -1):
        found = Judged(BETTER, Estimate(sign * 0.2, (sign * 0.1, sign * 0.3)), [sign * 0.2, float("nan")], {})
        assert found.verdict == "undecided"


def test_an_interval_that_has_zero_in_it_leaves_a_claim_undecided():
    """Whatever the seeds say."""
    for sign in (1, -1):
        ends = sorted((sign * -0.05, sign * 0.3))
        assert Judged(BETTER, Estimate(sign * 0.1, (ends[0], ends[1])), [sign * 0.1] * 3, {}).verdict == "undecided"
