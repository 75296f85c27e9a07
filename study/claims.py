"""Judge a paper's claims, each a weighted sum of measured metrics that should be above zero.

    Claim("AdaPO raises acc@t2 above GRPO's", contrast=((1, "adapo", "acc_t2"), (-1, "grpo", "acc_t2")), …)

Every arm of one seed starts from the same policy and answers the same questions. So a contrast is taken seed by seed,
and its interval is that of its mean over seeds (`intervals.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

from trl_mmreason.evaluation.metrics import Estimate
from trl_mmreason.evaluation.question_table import QuestionTable

from .intervals import Rule

ClaimVerdict = Literal["holds", "does not hold", "no difference", "undecided"]


class Term(NamedTuple):
    """A weight times an arm's metric."""

    weight: float
    arm: str
    metric: str


def above(higher: str, lower: str, metric: str) -> list[Term]:
    """The contrast for one arm being higher in a metric than another."""
    return [Term(1, higher, metric), Term(-1, lower, metric)]


@dataclass(frozen=True)
class Claim:
    """A paper's statement, and the contrast that it says is above zero.

    Attributes:
        text: the claim.
        place: where in the paper.
        paper: the paper's numbers, in its words.
        contrast: the sum that should be positive.
        unit: unit of the sum; "share" is printed in percentage points.
    """

    text: str
    place: str
    paper: str
    contrast: Sequence[Term]
    unit: Literal["share", "number"] = "share"


def better_in(place: str, *rows: tuple[str, str, str, str], metric: str = "accuracy") -> tuple[Claim, ...]:
    """Claims from one place in a paper that an arm is better than others.

    Args:
        place: where in the paper.
        rows: per claim its text, the paper's numbers, the arm that should be better, and the other.
        metric: the metric that should be better, a share.
    """
    return tuple(Claim(text, place, paper, above(better, worse, metric)) for text, paper, better, worse in rows)


def claims_about(claims: Sequence[Claim], arms: Collection[str]) -> list[Claim]:
    """The claims about these arms only, as a study may train a subset of a part's."""
    return [claim for claim in claims if {term.arm for term in claim.contrast} <= set(arms)]


@dataclass(frozen=True)
class Judged:
    """A claim and its measurement.

    Attributes:
        claim: the claim.
        measured: the mean of the sum over seeds and its interval.
        by_seed: the sum of every seed, in their order.
        values: "arm metric" → mean over seeds of each term.
        margin: difference that counts as none, of a claim that seeds are added for; `None` for another.
    """

    claim: Claim
    measured: Estimate
    by_seed: list[float]
    values: dict[str, float]
    margin: float | None = None

    @property
    def verdict(self) -> ClaimVerdict:
        """ "holds" if the interval is above zero, "does not hold" below it, "no difference" within ± `margin`."""
        low, high = self.measured.interval
        if low > 0:
            return "holds"
        if high < 0:
            return "does not hold"
        within = self.margin is not None and -self.margin <= low and high <= self.margin
        return "no difference" if within else "undecided"


ArmTables = Mapping[int, Mapping[str, QuestionTable]]
"""Seed → arm → what each question adds to each metric; all arms of a seed answer the same questions, in one order."""


def judge(claim: Claim, outcomes: ArmTables, rule: Rule | None = None, margin: float | None = None) -> Judged:
    """Judge whether a claim holds.

    Args:
        claim: its arms have to be in every outcome.
        outcomes: outcomes of one or more seeds.
        rule: when seeds are looked at; once, after these, by default.
        margin: see `Judged`.

    Raises:
        ValueError: arms of one seed answered different numbers of questions.
    """
    seeds = list(outcomes)
    for seed in seeds:
        _check_questions(outcomes[seed], claim, seed)

    def value(seed: int) -> float:
        return sum(term.weight * outcomes[seed][term.arm].values()[term.metric] for term in claim.contrast)

    by_seed = [value(seed) for seed in seeds]
    values = {
        f"{term.arm} {term.metric}": fmean(outcomes[seed][term.arm].values()[term.metric] for seed in seeds)
        for term in claim.contrast
    }
    rule = rule or Rule(len(seeds), len(seeds))
    return Judged(claim, rule.interval(by_seed), by_seed, values, margin)


def _check_questions(arms: Mapping[str, QuestionTable], claim: Claim, seed: int) -> None:
    sizes = {term.arm: len(arms[term.arm].numerator) for term in claim.contrast}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"judge: the arms of seed {seed} answered different numbers of questions: {sizes}.")
