"""Intervals over seeds that exclude the truth in 5 % of studies at most, however often they are looked at.

A difference is measured once in each seed, and seeds are independent, so that its interval is Student's, with one
degree of freedom fewer than seeds. Where seeds are added until a claim is decided, such an interval is looked at after
each of them, and 95 % intervals would exclude a difference of 0 that is true in far more than 5 % of studies. So the
error is spent over the looks: after n seeds of at most N all looks so far have excluded the truth in 5 % · n/N of
studies (alpha spending, linear in n; Lan and DeMets 1983, Kim and DeMets 1987). A study may end at any look, for any
reason, as later looks only add to the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from trl_mmreason.evaluation.metrics import Estimate

ERROR = 0.05
"""Share of studies in which an interval may exclude the true difference at one look or another."""

POWER = 0.8
"""Share of studies that should find a difference, where the size of one that could be found is given."""

_SIMULATED = 200_000  # studies


@dataclass(frozen=True)
class Rule:
    """When seeds are looked at: after `least` of them and after each further one up to `most`.

    Where the two are equal there is one look, and the interval is Student's plain 95 % one.

    Attributes:
        least: seeds at the first look.
        most: seeds at the last look.
    """

    least: int
    most: int

    def level(self, seeds: int) -> float:
        """Two-sided level of the t-test after this many seeds; NaN where there is no look."""
        return _levels(self.least, self.most)[seeds - self.least] if self.least <= seeds <= self.most else math.nan

    def interval(self, values: Sequence[float]) -> Estimate:
        """The mean over seeds and its interval; NaN where there is no look, or a seed has no number.

        Args:
            values: a difference in each seed.
        """
        mean, level = fmean(values), self.level(len(values))
        if math.isnan(mean + level) or len(values) < 2:
            return Estimate(mean, (math.nan, math.nan))
        width = t_quantile(level, len(values) - 1) * stdev(values) / math.sqrt(len(values))
        return Estimate(mean, (mean - width, mean + width))

    def detectable(self, spread: float, seeds: int) -> float:
        """The true difference that is found by one of the looks in 80 % of studies (`POWER`).

        Args:
            spread: standard deviation of the difference over seeds.
            seeds: seeds at the last look.
        """
        looks = range(self.least, seeds + 1)
        means, errors = _simulated(self.most)
        needed = [
            t_quantile(self.level(look), look - 1) * errors[:, look - 1] - means[:, look - 1]  # in standard deviations
            for look in looks
        ]
        return spread * float(np.quantile(np.min(needed, axis=0), POWER))


def p_value(values: Sequence[float]) -> float:
    """Two-sided p of Student's test that the mean over seeds is 0; NaN for one seed or where a seed has no number."""
    if len(values) < 2 or math.isnan(fmean(values)):
        return math.nan
    error = stdev(values) / math.sqrt(len(values))
    return float(t_tail(np.array(fmean(values) / error), len(values) - 1)) if error else float(fmean(values) == 0)


def t_tail(t: np.ndarray, freedom: int) -> np.ndarray:
    """The probability that Student's t is at least this far from 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    Args:
        t: values of any shape.
        freedom: degrees of freedom, an integer ≥ 1.
    """
    angle = np.arctan(np.abs(t) / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (np.cos(angle) if odd else np.ones_like(angle)), np.zeros_like(angle)
    for power in range(odd, freedom - 1, 2):
        total = total + term
        term = term * np.cos(angle) ** 2 * (power + 1) / (power + 2)
    within = np.sin(angle) * total
    return 1 - (2 / math.pi * (angle + within) if odd else within)


def t_quantile(level: float, freedom: int) -> float:
    """The value that Student's t exceeds, in either direction, with the probability `level`."""
    low, high = 0.0, 1.0
    while t_tail(np.array(high), freedom) > level:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(np.array(middle), freedom) > level else (low, middle)
    return high


class _Paths(NamedTuple):
    """Means and standard errors over the first 1, 2, … seeds, each (studies, seeds)."""

    means: np.ndarray
    errors: np.ndarray


@lru_cache
def _simulated(seeds: int) -> _Paths:
    """Studies without a difference, of a standard deviation of 1; the error of one seed is NaN."""
    drawn = np.random.default_rng(0).standard_normal((_SIMULATED, seeds))
    counts = np.arange(1, seeds + 1)
    means = drawn.cumsum(axis=1) / counts
    squares = (drawn**2).cumsum(axis=1) - counts * means**2
    with np.errstate(invalid="ignore", divide="ignore"):
        return _Paths(means, np.sqrt(squares.clip(min=0) / (counts - 1) / counts))


@lru_cache
def _levels(least: int, most: int) -> list[float]:
    """The level of each look, by which the error that is due is spent.

    At the first look this is the share that is due, as p is uniform where there is no difference. At later ones it is
    the quantile of p among the simulated studies that no look has ended so far: what the first look ended by chance too
    often is not made up for.
    """
    levels = [ERROR * least / most]
    if least == most or least < 2:
        return levels * (most - least + 1)
    means, errors = _simulated(most)
    running = np.ones(len(means), dtype=bool)
    for look in range(least, most + 1):
        p = t_tail(means[:, look - 1] / errors[:, look - 1], look - 1)
        if look > least:
            due = round(ERROR / most * len(means))
            levels.append(float(np.partition(p[running], due)[due]))
        running &= p > levels[-1]
    return levels
