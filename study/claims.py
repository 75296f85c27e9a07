"""Judge a paper's claims, each a weighted sum of measured metrics that should be above zero.

    Claim("AdaPO raises acc@t2 above GRPO's", contrast=((1, "adapo", "acc_t2"), (-1, "grpo", "acc_t2")), …)

Every arm of one seed starts from the same policy and answers the same questions. So a contrast is taken question by
question and seed by seed, and the bootstrap draws seeds, and within each of them questions, for all arms together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from trl_mmreason.evaluation.metrics import Estimate
from trl_mmreason.evaluation.question_table import QuestionTable

_RESAMPLES = 2000

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
        measured: the sum and its 95 % interval, over seeds and questions.
        by_seed: the sum of every seed, in their order.
        values: "arm metric" → mean over seeds of each term.
        margin: difference that counts as none, of a claim that seeds are added for; `None` where their number is fixed.
    """

    claim: Claim
    measured: Estimate
    by_seed: list[float]
    values: dict[str, float]
    margin: float | None = None

    @property
    def verdict(self) -> ClaimVerdict:
        """ "holds" if the whole interval and every seed are above zero, "does not hold" if both are below.

        A bootstrap over few seeds is too sure of itself; a seed that says otherwise leaves a claim undecided. Where
        seeds are added, the interval decides alone, and "no difference" is one within ± `margin`.
        """
        low, high = self.measured.interval
        seeds = self.by_seed if self.margin is None else []
        if all(value > 0 for value in (low, *seeds)):
            return "holds"
        if all(value < 0 for value in (high, *seeds)):
            return "does not hold"
        within = self.margin is not None and -self.margin <= low and high <= self.margin
        return "no difference" if within else "undecided"


ArmTables = Mapping[int, Mapping[str, QuestionTable]]
"""Seed → arm → what each question adds to each metric; all arms of a seed answer the same questions, in one order."""


def judge(claim: Claim, outcomes: ArmTables, margin: float | None = None) -> Judged:
    """Judge whether a claim holds.

    Args:
        claim: its arms have to be in every outcome.
        outcomes: outcomes of one or more seeds.
        margin: see `Judged`.

    Raises:
        ValueError: arms of one seed answered different numbers of questions.
    """
    seeds = list(outcomes)
    sizes = [_questions(outcomes[each], claim, each) for each in seeds]

    def value(each: int, drawn: np.ndarray | slice = slice(None)) -> float:
        return sum(term.weight * outcomes[each][term.arm].values(drawn)[term.metric] for term in claim.contrast)

    by_seed = [value(each) for each in seeds]
    random = np.random.default_rng(0)
    draws = []
    for _ in range(_RESAMPLES):
        places = random.integers(len(seeds), size=len(seeds))
        draws.append(np.mean([value(seeds[k], random.integers(sizes[k], size=sizes[k])) for k in places]))
    low, high = np.nanquantile(draws, [0.025, 0.975])
    values = {
        f"{term.arm} {term.metric}": float(np.mean([outcomes[each][term.arm].values()[term.metric] for each in seeds]))
        for term in claim.contrast
    }
    return Judged(claim, Estimate(float(np.mean(by_seed)), (float(low), float(high))), by_seed, values, margin)


def _questions(arms: Mapping[str, QuestionTable], claim: Claim, seed: int) -> int:
    sizes = {term.arm: len(arms[term.arm].numerator) for term in claim.contrast}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"judge: the arms of seed {seed} answered different numbers of questions: {sizes}.")
    return next(iter(sizes.values()))
