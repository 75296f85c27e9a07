"""Compare ranges: intervals, their unions, and inequalities, which are intervals of a variable."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache, reduce
from typing import NamedTuple

from .listings import MEMBER, Ratio, Same, entries, few, unordered
from .notation import Unreadable, bracketed, is_name, split_top
from .numeric import value_of
from .words import squeezed


class Interval(NamedTuple):
    """Between `low` and `high`, each with its bracket."""

    opening: str
    low: str
    high: str
    closing: str


class Region(NamedTuple):
    """A union of intervals of the variable `name`, which is empty for a bare interval."""

    name: str
    intervals: list[Interval]


_TURNED = str.maketrans("<>", "><")
_RELATION = re.compile(r"\s*(<=|>=|!=|<|>)\s*")
_UNION = re.compile(r"\s*∪\s*|\s*,?\s+or\s+|\s*或者?\s*|\s*,\s*(?=[(\[])")
_BOTH = re.compile(r"\s*∩\s*|\s*,?\s+and\s+|\s*且\s*")
_SIDE_BY_SIDE = re.compile(r"\s*,\s*(?!and\b)")
_REALS = re.compile(r"(?:[A-Za-z]\s*∈\s*)?R|all real numbers|全体实数")
# All reals but some points: `R \\setminus \\{1, 2\\}`, `all real numbers except 1 and 2`
_WITHOUT = re.compile(
    r"(?:[A-Za-z]\s*∈\s*)?(?:R|(?:all |the )?real numbers|(?:all |the )?reals)\s*"
    r"(?:\\setminus|\\(?=\\\{)|-(?=\s*\\\{)|except(?: for)?|other than|but|without)\s*(?:[a-z]\s*=)?\s*(?P<points>.+)"
)


def compare_regions(answer: str, gold: str, same: Same, ratio: Ratio) -> bool | None:
    """Compare two ranges: ends and brackets must agree, and the variables if both name one.

    Args:
        answer, gold: in canonical form.
        same: compares the ends.
        ratio: the constant factor between two expressions, for inequalities that are not solved.

    Returns:
        None where neither is a range.
    """
    if not (_speaks_of_order(answer) or _speaks_of_order(gold)):
        return None
    try:
        left, right = _region(answer), _region(gold)
    except Unreadable:  # ends that cannot be put in order
        left = right = None
    if left is None or right is None:
        return _inequalities(answer, gold, ratio)
    if left.name and right.name and left.name != right.name:
        return False

    def same_interval(one: Interval, other: Interval) -> bool:
        brackets_agree = (one.opening, one.closing) == (other.opening, other.closing)
        return brackets_agree and same(one.low, other.low) and same(one.high, other.high)

    return unordered(left.intervals, right.intervals, same_interval, once=False)


def _speaks_of_order(text: str) -> bool:
    return "∪" in text or bool(_RELATION.search(text) or _WITHOUT.fullmatch(text) or _REALS.fullmatch(text))


def _region(text: str) -> Region | None:
    held = bracketed(text)
    if held and held[0] == "\\{" and (match := re.match(r"[^|:]{1,12}[|:]", held[1])):
        return _region(held[1][match.end() :].strip())  # {x | x > 3}
    if match := MEMBER.match(text):
        inner = _region(text[match.end() :])
        return inner and Region(squeezed(match[1]), inner.intervals)
    if match := _WITHOUT.fullmatch(text):
        held = bracketed(match["points"])
        points = entries(held[1] if held else match["points"], bare=held is None)
        return Region("", reduce(_intersection, [_rays("!=", point) for point in points]))
    name, intervals = "", []
    for piece in few(split_top(text, _UNION)):
        conditions = [_conditions(one) for one in split_top(piece, _SIDE_BY_SIDE)]
        known = [part for part in conditions if part]
        if len(known) < len(conditions):
            return None
        # what stands side by side all holds, `x > 0, x < 3`, unless it cannot: `x < 1, x > 3`
        together = reduce(_intersection, [part.intervals for part in known])
        intervals += together or [one for part in known for one in part.intervals]
        name = next((part.name for part in known if part.name), name)
    return Region(name, _joined(intervals))


def _conditions(text: str) -> Region | None:
    """The region of one condition, or the intersection, possibly empty, of several joined by `and`."""
    parts = [_bracket_interval(one) or _relation_interval(one) for one in few(split_top(text, _BOTH))]
    known = [part for part in parts if part]
    if len(known) < len(parts):
        return None
    name = next((part.name for part in known if part.name), "")
    return Region(name, reduce(_intersection, [part.intervals for part in known]))


@lru_cache(maxsize=512)
def _bound(text: str) -> float:
    """The value of an end; raises `Unreadable` if it is not a real number."""
    value = value_of(text)
    if isinstance(value, complex):
        raise Unreadable("complex numbers have no order")
    try:
        return float(value)
    except OverflowError as error:
        raise Unreadable("an end beyond floating point") from error


def _intersection(left: list[Interval], right: list[Interval]) -> list[Interval]:
    intervals = []
    for a, b in itertools.product(left, right):
        # of two ends at the same place the open one counts
        low = max(a, b, key=lambda one: (_bound(one.low), one.opening == "("))
        high = min(a, b, key=lambda one: (_bound(one.high), one.closing != ")"))
        bottom, top = _bound(low.low), _bound(high.high)
        if bottom < top or (bottom == top and (low.opening, high.closing) == ("[", "]")):
            intervals.append(Interval(low.opening, low.low, high.high, high.closing))
    return intervals


def _joined(intervals: list[Interval]) -> list[Interval]:
    """Merge intervals that touch or overlap; unchanged where an end is not a number."""
    try:
        ordered = sorted(intervals, key=lambda one: (_bound(one.low), one.opening == "("))
        joined = ordered[:1]
        for one in ordered[1:]:
            last = joined[-1]
            if _bound(one.low) > _bound(last.high) or (
                _bound(one.low) == _bound(last.high) and (one.opening, last.closing) == ("(", ")")
            ):
                joined.append(one)
            elif (_bound(one.high), one.closing == "]") > (_bound(last.high), last.closing == "]"):
                joined[-1] = Interval(last.opening, last.low, one.high, one.closing)
    except Unreadable:
        return intervals
    return joined


def _bracket_interval(text: str) -> Region | None:
    if _REALS.fullmatch(text):
        return Region("", [Interval("(", "-∞", "∞", ")")])
    held = bracketed(text)
    if held is None or held[0] not in "([" or len(ends := entries(held[1], bare=False)) != 2:
        return None
    low, high = ends
    return Region("", [Interval(held[0], low, high, held[2])])


def _relation_interval(text: str) -> Region | None:
    """The intervals of `x > 3`, `3 < x`, `2 < x <= 5`, `x != 2`."""
    pieces = _RELATION.split(text)
    if len(pieces) == 5 and pieces[1][0] == pieces[3][0] and pieces[1][0] in "<>" and is_name(pieces[2]):
        low, first, name, second, high = pieces if pieces[1][0] == "<" else pieces[::-1]
        return Region(squeezed(name), [Interval("(["["=" in first], low, high, ")]"["=" in second])])
    if len(pieces) != 3:
        return None
    left, relation, right = pieces
    if (size := re.fullmatch(r"\|(.+)\|", left)) and is_name(size[1]) and relation[0] in "<>":
        if relation[0] == "<":
            closed = "=" in relation
            return Region(squeezed(size[1]), [Interval("(["[closed], f"-({right})", right, ")]"[closed])])
        return Region(squeezed(size[1]), _rays(relation.replace(">", "<"), f"-({right})") + _rays(relation, right))
    if not is_name(left):
        left, right, relation = right, left, relation.translate(_TURNED)
    return Region(squeezed(left), _rays(relation, right)) if is_name(left) and not is_name(right) else None


def _rays(relation: str, end: str) -> list[Interval]:
    """What is smaller or larger than `end`, or both for `!=`."""
    below = Interval("(", "-∞", end, ")]"[relation == "<="])
    above = Interval("(["[relation == ">="], end, "∞", ")")
    return [ray for sign, ray in (("<", below), (">", above)) if relation[0] in (sign, "!")]


def _inequalities(answer: str, gold: str, ratio: Ratio) -> bool:
    """Compare inequalities such as `2x + y > 4` and `y > 4 − 2x`, up to a positive factor."""
    sides = [_RELATION.split(text) for text in (answer, gold)]
    if any(len(pieces) != 3 for pieces in sides):
        return False
    (a, first, b), (c, second, d) = sides
    factor = ratio(f"({a})-({b})", f"({c})-({d})")
    if factor is None:
        return False
    return (first if factor > 0 else first.translate(_TURNED)) == second
