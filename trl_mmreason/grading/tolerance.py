"""Grade with a benchmark's own tolerance for numbers, in addition to the grader's.

The grader takes 2.9 for wrong where the gold answer is 3.0. ChartQA takes it for right, as it is within 5 %; other
benchmarks state an absolute error. Such a row has a `tolerance`, and a wrong answer to it gets a second look. ChartQA
also compares as strings what is no number, labels such as "65+" and "N/A" included, which the grader cannot use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from .equivalence import HEDGE, in_full, quantity
from .expressions import read
from .extraction import extract_answer, read_gold
from .listings import unordered
from .notation import MAX_CHARACTERS, Refused, Unreadable, is_name, normalise, split_top
from .numeric import value_of
from .units import PERCENT, PLAIN, MeasurementUnit, speaks_of_percent
from .verdict import Verdict
from .words import squeezed

_LONGEST_NUMBER = 200  # characters; model text is hostile
_MOST_NUMBERS = 20
_SHOWN = 80
_SLACK = 1e-9  # of the tolerance: 0.3 - 0.2 is not 0.1 in floating point
_SEVERAL = re.compile(r"[,;]|\b(?:and|or)\b")


class Tolerance(NamedTuple):
    """The allowed difference of an answer from the gold answer; of two widths the larger counts.

    Attributes:
        relative: as a share of the gold number.
        absolute: in the gold's own unit; one for each, where the gold answer has several numbers.
        as_text: what is no number is compared as text, whatever its case.
    """

    relative: float = 0.0
    absolute: float | Sequence[float] = 0.0
    as_text: bool = False


def tolerance_of(value: Any) -> Tolerance | None:
    """A row's tolerance: a share of the gold number, or a mapping of a `Tolerance`'s fields; `None` without one."""
    if not value:
        return None
    return Tolerance(**value) if isinstance(value, Mapping) else Tolerance(relative=float(value))


def within(answer: str, gold: str, tolerance: Tolerance) -> bool:
    """Whether answer and gold answer are numbers, or equally long lists of numbers in any order, within the tolerance.

    A percent sign divides by 100, as ChartQA reads it. Other units must measure the same where both sides have one.

    Examples:
        >>> within("2.9", "3.0", Tolerance(relative=0.05)), within("2.9", "3.0", Tolerance(absolute=0.01))
        (True, False)
    """
    answers, golds = ([one] if (one := _quantity(text)) else _quantities(text) for text in (answer, gold))
    absolute = tolerance.absolute if isinstance(tolerance.absolute, Sequence) else [tolerance.absolute] * len(golds)
    if not golds or not len(answers) == len(golds) == len(absolute):
        return False
    targets = list(zip(golds, absolute, strict=True))
    return unordered(
        answers, targets, lambda one, target: _near(one, target[0], tolerance.relative, target[1]), once=False
    )


class _Quantity(NamedTuple):
    value: float
    unit: MeasurementUnit
    name: str  # of `x = 3`


def second_look(verdict: Verdict, gold: Any, text: str, tolerance: Tolerance, question: str | None = None) -> Verdict:
    """The verdict with a tolerance: a wrong answer within it is right, and texts are compared where that is asked for.

    `text` is what the model wrote. Where the question speaks of percent, 44 % is near 45.
    """
    if verdict.correct:
        return verdict
    golds = [str(one) for one in gold] if isinstance(gold, list | tuple | set) else [str(gold)]
    if verdict.correct is False and verdict.extracted is not None:
        pairs = [(gold, verdict.extracted, read_gold(gold)) for gold in golds]
        if speaks_of_percent(question):
            pairs += [(gold, re.sub(r"[%\\]", "", answer), told.rstrip("\\%")) for gold, answer, told in pairs]
        near = next((gold for gold, answer, told in pairs if within(answer, told, tolerance)), None)
        if near is not None:
            reason = f"within the tolerance of the gold answer {near[:_SHOWN]!r}"
            return Verdict(True, verdict.extracted, reason, "tolerance")
    return _compared_as_texts(verdict, golds, text) if tolerance.as_text else verdict


def _compared_as_texts(verdict: Verdict, golds: Sequence[str], text: str) -> Verdict:
    """Compare as strings: right if equal; wrong if they differ and the grader could not use the gold answer."""
    known = {spelled: gold for gold in golds if (spelled := _spelled(read_gold(gold)))}
    answer = extract_answer(text) if verdict.correct is None else verdict.extracted
    if known and answer is not None and (gold := known.get(_spelled(answer))):
        return Verdict(True, answer, f"the same text as the gold answer {gold[:_SHOWN]!r}", "text")
    if not known or verdict.correct is False:
        return verdict
    if answer is None:
        return Verdict(False, None, "no answer found", "text")
    shown = answer if len(answer) <= MAX_CHARACTERS else f"{answer[:_SHOWN]}…"
    return Verdict(False, shown, f"another text than the gold answer {' or '.join(golds)[:_SHOWN]!r}", "text")


def _spelled(text: str) -> str:
    r"""Normalise for comparison: no case, outer spaces or `\text{…}`; "" if it is too long."""
    try:
        return normalise(text).casefold()
    except Refused:
        return ""


def _near(answer: _Quantity, gold: _Quantity, relative: float, absolute: float) -> bool:
    value = answer.value
    if answer.name and gold.name and answer.name != gold.name:
        return False
    if answer.unit != PLAIN and gold.unit != PLAIN:
        if (answer.unit.dimensions, answer.unit.noun) != (gold.unit.dimensions, gold.unit.noun):
            return False
        value = float((value * answer.unit.factor + answer.unit.offset - gold.unit.offset) / gold.unit.factor)
    allowed = max(relative * abs(gold.value), absolute)
    return abs(value - gold.value) <= allowed * (1 + _SLACK)


def _quantities(text: str) -> list[_Quantity]:
    """Parse numbers separated by commas; none if there is anything else."""
    if len(text) > _MOST_NUMBERS * _LONGEST_NUMBER:
        return []
    parts = split_top(text, re.compile(","))
    quantities = [one for part in parts[:_MOST_NUMBERS] if (one := _quantity(part))]
    return quantities if len(quantities) == len(parts) else []


def _quantity(text: str) -> _Quantity | None:
    """Parse a single number: `1,234`, `12 %`, `$5`, `1.2 \\times 10^{3}`, `1/2`, `x = 3 cm`."""
    if len(text) > _LONGEST_NUMBER:
        return None
    try:
        name, _, stated = normalise(text).rpartition("=")
        if _SEVERAL.search(name):
            return None
        number, unit = quantity(in_full(HEDGE.sub("", stated.strip())))
        exact = value_of(number)
        if isinstance(exact, complex) or (isinstance(exact, Fraction) and read(number).node[0] == "sum"):
            return None  # 18-24 is a range; a sum with a root or with π is a number
        value = float(exact)
    except (Unreadable, Refused, OverflowError, RecursionError):
        return None
    if abs(value) == float("inf"):
        return None
    name = squeezed(name) if is_name(name.strip()) else ""
    return _Quantity(value / 100, PLAIN, name) if unit == PERCENT else _Quantity(value, unit, name)
