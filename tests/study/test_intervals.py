"""Intervals over seeds: Student's t, the error of repeated looks with the study's own spread, and power."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from study.intervals import ERROR, POWER, Rule, p_value, t_quantile, t_tail

PUBLISHED = Path(__file__).parents[2] / "docs/study"
STUDIES = 20_000
NAN = float("nan")


def headlines():
    """The published differences of each headline, seed by seed, as its rule for the last seed."""
    for path in sorted(PUBLISHED.glob("*.json")):
        study = json.loads(path.read_text())
        for claim in study["claims"]:
            if claim["claim"] in study["decide"].get("claims", ()):
                yield path.stem, Rule(study["decide"]["least"], study["decide"]["most"]), np.array(claim["by_seed"])


def own_spread():
    """Differences around 0 of all headlines of ten seeds or more together, each with a standard deviation of 1.

    Together, as 20 values that are drawn again and again are no stand-in for seeds: 20 normal ones would give 6.7 %.
    """
    own = [by_seed for _, _, by_seed in headlines() if len(by_seed) >= 10]
    pooled = np.concatenate([(by_seed - by_seed.mean()) / by_seed.std() for by_seed in own])
    assert len(pooled) > 100
    return pooled


def looked_at(drawn, looks):
    """|t| over the first n seeds, (studies, looks)."""
    with np.errstate(divide="ignore"):  # some studies of five seeds draw one value five times
        t = [np.abs(drawn[:, :n].mean(1)) / (drawn[:, :n].std(1, ddof=1) / math.sqrt(n)) for n in looks]
    return np.stack(t, axis=1)


def error_of(drawn, rule):
    """The share of studies in which an interval excludes 0 at one look or another."""
    looks = range(rule.least, rule.most + 1)
    bounds = [t_quantile(rule.level(n), n - 1) for n in looks]
    return (looked_at(drawn, looks) > bounds).any(axis=1).mean()


def test_student_s_t():
    """Closed forms: one degree of freedom is Cauchy's, two have 1 − t/√(2 + t²); and the usual table of 95 %."""
    assert t_tail(np.array([0.0, 1.0, -1.0]), 1).tolist() == pytest.approx([1.0, 0.5, 0.5])
    assert t_tail(np.array(2.0), 2) == pytest.approx(1 - 2 / math.sqrt(6))
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 10: 2.2281, 19: 2.0930, 60: 2.0003}
    for freedom, value in table.items():
        assert t_quantile(0.05, freedom) == pytest.approx(value, abs=1e-4)


def test_the_interval_of_one_look_is_student_s():
    """Mean 3, standard deviation √2.5, so that the half width is 2.7764 · √2.5 / √5."""
    found = Rule(5, 5).interval([1.0, 2.0, 3.0, 4.0, 5.0])
    width = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert found.value == 3
    assert found.interval == pytest.approx((3 - width, 3 + width), abs=1e-5)
    assert p_value([3 - width, 3 + width]) == pytest.approx(float(t_tail(np.array(3 / width), 1)))
    assert p_value([1.0, -1.0]) == 1
    assert p_value([0.0, 0.0]) == 1
    assert p_value([0.5, 0.5]) == 0


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.2, 0.3, 0.4], [0.1] * 21, [0.1, NAN, 0.2, 0.3, 0.4]])
def test_where_there_is_no_look_there_is_no_interval(values):
    """One seed, fewer than the first look needs, more than the last one; or a seed without a number."""
    assert all(map(math.isnan, Rule(5, 20).interval(values).interval))


def test_one_seed_has_no_interval():
    assert all(map(math.isnan, Rule(1, 1).interval([0.1]).interval))
    assert math.isnan(p_value([0.1]))
    assert math.isnan(p_value([0.1, NAN]))


def test_the_error_is_spent_in_proportion_to_the_seeds():
    """Of a simulation with other numbers: 1.25 % after five of twenty seeds, 2.5 % after ten, 5 % after all."""
    rule = Rule(5, 20)
    drawn = np.random.default_rng(1).standard_normal((100_000, 20))
    looks = range(5, 21)
    outside = looked_at(drawn, looks) > [t_quantile(rule.level(n), n - 1) for n in looks]
    spent = np.maximum.accumulate(outside, axis=1).mean(axis=0)
    assert spent == pytest.approx(ERROR * np.array(looks) / 20, abs=3e-3)
    assert np.diff(spent) == pytest.approx(ERROR / 20, abs=6e-4)  # at each look, whatever the first one's by chance
    assert rule.level(5) == pytest.approx(ERROR / 4)
    assert Rule(7, 7).level(7) == ERROR


@pytest.mark.parametrize("rule", [Rule(5, 20), Rule(5, 5)])
def test_with_the_study_s_own_spread_the_error_is_five_percent(rule):
    """Studies without a difference, looked at after 5, 6, … 20 seeds, or once after five: 5.2 % of each."""
    drawn = np.random.default_rng(2).choice(own_spread(), (50_000, rule.most))
    assert error_of(drawn, rule) == pytest.approx(ERROR, abs=0.005)


def test_the_rule_before_it_erred_three_times_as_often():
    """95 % intervals at the same looks, by a bootstrap over seeds or Student's: what the simulation has to find.

    The study's bootstrap drew questions, too, which made its intervals somewhat wider than these.
    """
    random = np.random.default_rng(3)
    drawn = random.choice(own_spread(), (500, 20))
    excluded = np.zeros(len(drawn), dtype=bool)
    for seeds in range(5, 21):
        places = random.integers(seeds, size=(len(drawn), 300, seeds))
        means = np.take_along_axis(drawn[:, None, :seeds], places, axis=2).mean(axis=2)
        low, high = np.quantile(means, [0.025, 0.975], axis=1)
        excluded |= (low > 0) | (high < 0)
    assert excluded.mean() > 3 * ERROR
    plain = looked_at(drawn, range(5, 21)) > [t_quantile(0.05, n - 1) for n in range(5, 21)]
    assert plain.any(axis=1).mean() > 2 * ERROR


@pytest.mark.parametrize(("rule", "seeds"), [(Rule(5, 20), 20), (Rule(5, 20), 11), (Rule(5, 5), 5)])
def test_a_detectable_difference_is_found_in_four_of_five_studies(rule, seeds):
    true = rule.detectable(3.0, seeds)
    drawn = true + 3.0 * np.random.default_rng(5).standard_normal((STUDIES, seeds))
    found = [
        drawn[:, :n].mean(1) > t_quantile(rule.level(n), n - 1) * drawn[:, :n].std(1, ddof=1) / math.sqrt(n)
        for n in range(rule.least, seeds + 1)
    ]
    assert np.any(found, axis=0).mean() == pytest.approx(POWER, abs=0.01)


def test_the_power_of_one_look_is_that_of_tables():
    """20 seeds find 0.66 standard deviations, five 1.68 (one-sample t-test, two-sided, 5 %)."""
    assert Rule(20, 20).detectable(1.0, 20) == pytest.approx(0.66, abs=0.01)
    assert Rule(5, 5).detectable(1.0, 5) == pytest.approx(1.68, abs=0.02)
