import math

import numpy as np
import pytest
import torch

from trl_mmreason.evaluation.metrics import (
    METRICS,
    Change,
    Estimate,
    Metric,
    aligned,
    bootstrap,
    format_table,
    pass_at_k,
    two_turn_metrics,
    verdict,
)

# ten trajectories: three 0→1, one 0→0, two 1→0, four 1→1
FIRST = [False] * 4 + [True] * 6
SECOND = [True, True, True, False] + [False, False, True, True, True, True]


@pytest.mark.parametrize("as_flags", [list, tuple, np.array, torch.tensor])
def test_two_turn_metrics_of_ten_trajectories(as_flags):
    assert two_turn_metrics(as_flags(FIRST), as_flags(SECOND)) == {
        "acc_t1": 6 / 10,
        "acc_t2": 7 / 10,
        "delta": 1 / 10,
        "correction_rate": 3 / 4,
        "misjudgment_rate": 2 / 6,
        "correction_share": 3 / 10,
        "misjudgment_share": 2 / 10,
    }


def test_a_rate_without_a_denominator_is_nan():
    metrics = two_turn_metrics([True, True], [True, False])  # no first answer is wrong
    assert math.isnan(metrics.pop("correction_rate"))
    expected = {"acc_t1": 1.0, "acc_t2": 0.5, "delta": -0.5, "misjudgment_rate": 0.5}
    assert metrics == {**expected, "correction_share": 0.0, "misjudgment_share": 0.5}
    assert all(math.isnan(value) for value in two_turn_metrics([], []).values())


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([True, False], [True], "first_correct has 2 entries and second_correct 1"),
        ([True, None], [True, False], "first_correct holds object, expected bools"),
        ([True], [1], "second_correct holds int64, expected bools"),
        ([[True]], [[True]], r"first_correct has shape \(1, 1\); expected one dimension"),
    ],
)
def test_flags_that_cannot_be_used_are_named(first, second, message):
    with pytest.raises(ValueError, match=message):
        two_turn_metrics(first, second)


def intervals(first, second):
    first, second = np.array(first, dtype=bool), np.array(second, dtype=bool)
    found = bootstrap(len(first), lambda drawn: two_turn_metrics(first[drawn], second[drawn]))
    assert {name: each.value for name, each in found.items()} == pytest.approx(
        two_turn_metrics(first, second), nan_ok=True
    )
    return {name: each.interval for name, each in found.items()}


def test_bootstrap_of_outcomes_that_are_all_alike_has_no_width():
    found = intervals([True] * 5, [True] * 5)
    assert found["acc_t1"] == found["acc_t2"] == (1.0, 1.0)
    assert found["delta"] == found["misjudgment_rate"] == (0.0, 0.0)
    assert all(math.isnan(bound) for bound in found["correction_rate"])  # never a wrong first answer


def test_bootstrap_of_two_questions_follows_the_binomial():
    # Two draws from {right, wrong}: acc_t1 is 0, 1/2, 1 with chances 1/4, 1/2, 1/4. So the quantiles 2.5 % and
    # 97.5 % are 0 and 1.
    assert intervals([True, False], [True, True])["acc_t1"] == (0.0, 1.0)


def test_bootstrap_ignores_resamples_without_a_denominator():
    # A quarter of the resamples holds no wrong first answer (rate NaN); in all others each one is made right.
    assert intervals([True, False], [True, True])["correction_rate"] == (1.0, 1.0)


@pytest.mark.full
def test_bootstrap_of_a_hundred_questions_agrees_with_the_normal_interval():
    # 50 of 100 right: standard error sqrt(0.5 * 0.5 / 100) = 0.05, so 0.5 ± 1.96 * 0.05 = (0.402, 0.598)
    flags = [True, False] * 50
    low, high = intervals(flags, flags)["acc_t1"]
    assert low == pytest.approx(0.402, abs=0.015)
    assert high == pytest.approx(0.598, abs=0.015)
    assert intervals(flags, flags)["acc_t1"] == (low, high)


def test_bootstrap_ignores_resamples_that_lack_a_metric():
    found = bootstrap(2, lambda drawn: {"share": 1.0} if 0 in drawn else {})  # a quarter holds the other question alone
    assert found == {"share": Estimate(1.0, (1.0, 1.0))}


def test_bootstrap_without_questions_knows_nothing():
    assert all(math.isnan(bound) for interval in intervals([], []).values() for bound in interval)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((0.01, 0.2), "rose"),
        ((-0.2, -0.01), "fell"),
        *(((low, high), "is undecided") for low, high in ((0.0, 0.2), (-0.2, 0.0), (-0.1, 0.1), (math.nan, math.nan))),
    ],
)
def test_a_verdict_is_that_of_the_interval_of_the_change(change, said):
    assert verdict(change).split(":")[0] == said


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (5, 2, 1, 2 / 5),
        (5, 2, 2, 1 - 3 / 10),  # 3 of the 10 pairs hold no right sample
        (5, 4, 2, 1.0),  # one wrong sample: every pair holds a right one
        (5, 0, 5, 0.0),
        (4, 1, 4, 1.0),
        (2000, 1000, 1, 0.5),
    ],
)
def test_pass_at_k(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        (5, 6, 1, "c=6 of n=5"),
        (5, -1, 1, "c=-1 of n=5"),
        (5, 2, 6, "k=6 with n=5"),
        (5, 2, 0, "k=0 with n=5"),
        (0, 0, 1, "k=1 with n=0"),
    ],
)
def test_pass_at_k_refuses_impossible_numbers(n, c, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(n, c, k)


def test_shares_are_shown_in_percent_and_other_numbers_as_they_are():
    share, number = METRICS["acc_t1"], Metric("tokens", is_share=False)
    assert [share.text(value) for value in (0.1234, -0.0001, 1.0, math.nan)] == ["12.3", "0.0", "100.0", "n/a"]
    assert [share.text(value, signed=True) for value in (0.1234, -0.5, 0.0)] == ["+12.3", "-50.0", "0.0"]
    assert [number.text(value) for value in (67.126, -0.001, math.nan)] == ["67.13", "0.00", "n/a"]
    assert [number.text(value, signed=True) for value in (0.25, -3.0, 0.0)] == ["+0.25", "-3.00", "0.00"]


def test_decimals_and_intervals():
    tokens = Metric("tokens", is_share=False, decimals=0)
    assert tokens.with_interval(Estimate(67.6, (-0.4, 1200.5))) == "68 [0, 1200]"  # a half goes to the even number
    assert METRICS["delta"].with_interval(Estimate(0.25, (-0.1, math.nan)), signed=True) == "+25.0 [-10.0, n/a]"


def test_aligned_cells():
    lines = [["", "long"], ["name", "1"]]
    assert aligned(lines) == "      long\nname  1"
    assert aligned(lines, right=True) == "      long\nname     1"
    assert aligned([]) == ""
    with pytest.raises(ValueError, match="zip"):
        aligned([["a"], ["b", "c"]])


def test_table_text():
    nothing = Estimate(math.nan, (math.nan, math.nan))
    changes = {
        "acc_t2": Change(Estimate(0.5, (0.4, 0.6)), Estimate(0.75, (0.7, 0.8)), Estimate(0.25, (0.125, 0.375))),
        "correction_rate": Change(Estimate(0.2, (0.0, 0.4)), nothing, nothing),
        "tokens": Change(Estimate(60, (55.5, 64)), Estimate(48, (48, 48)), Estimate(-12, (-16, -7.5))),
    }
    assert format_table(changes).splitlines() == [
        "percent [95 % interval]     before             after              change",
        "acc@t2                      50.0 [40.0, 60.0]  75.0 [70.0, 80.0]  +25.0 [+12.5, +37.5]",
        "correction, of first wrong  20.0 [0.0, 40.0]   n/a [n/a, n/a]     n/a [n/a, n/a]",
        "tokens a sample             60.0 [55.5, 64.0]  48.0 [48.0, 48.0]  -12.0 [-16.0, -7.5]",
    ]
