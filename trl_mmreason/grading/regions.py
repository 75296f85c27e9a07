"""Compare ranges: intervals, their unions, and inequalities, which are intervals of a variable."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .listings import MEMBER, Same, entries, few, unordered
from .notation import Unreadable, bracketed, is_name, split_top
from .numeric import numeric_ratio, value_of
from .units import parse_unit
from .words import squeezed

_TURNED = str.maketrans("<>", "><")
_RELATION = re.compile(r"\s*(<=|>=|!=|<|>)\s*")
_UNION = re.compile(r"\s*∪\s*|\s*,?\s+or\s+|\s*或者?\s*|\s*,\s*(?=[(\[])")
_BOTH = re.compile(r"\s*∩\s*|\s*,?\s+and\s+|\s*且\s*|\s*,\s*(?!and\b)")
_UNIT = re.compile(r"([(\[].*[)\]])\s*([^\d\s()\[\]][^()\[\]]*)")  # [2, 5] m/s
_REALS = re.compile(r"(?:[A-Za-z]\s*∈\s*)?R|all real numbers|全体实数")
# A range but some points: `R \\setminus \\{1, 2\\}`, `all real numbers except 1 and 2`, `[0, 2π) \\setminus \\{π\\}`
_WITHOUT = re.compile(
    r"(?:[A-Za-z]\s*∈\s*)?(?P<base>R|(?:all |the )?real numbers|(?:all |the )?reals|[(\[][^()\[\]]+[)\]])\s*"
    r"(?:\\setminus|\\(?=\\\{)|-(?=\s*\\\{)|except(?: for)?|other than|but|without)\s*(?:[a-z]\s*=)?\s*(?P<points>.+)"
)


class Interval(NamedTuple):
    """Between `low` and `high`, each with whether it belongs to it."""

    low: str
    has_low: bool
    high: str
    has_high: bool


class Piece(NamedTuple):
    """Conditions that hold together, each a union of intervals; `loose` ones are alternatives where they cannot."""

    conditions: list[list[Interval]]
    loose: bool = False


class Region(NamedTuple):
    """A union of pieces, for the variable `name`, which is empty for a bare interval."""

    name: str
    pieces: list[Piece]

    def intervals(self) -> list[Interval]:
        return [one for piece in self.pieces for condition in piece.conditions for one in condition]


def compare_regions(answer: str, gold: str, same: Same) -> bool | None:
    """Compare two ranges: where they hold, and the variables if both name one; `None` where neither is a range."""
    if not (_speaks_of_order(answer) or _speaks_of_order(gold)):
        return None
    left, right = _region(answer), _region(gold)
    if left is None or right is None:
        return _inequalities(answer, gold)
    if left.name and right.name and left.name != right.name:
        return False
    try:
        places = _places([*left.intervals(), *right.intervals()], same)
    except Unreadable:  # ends that cannot be put in order
        shapes = [sorted([*map(len, piece.conditions)] for piece in one.pieces) for one in (left, right)]
        return shapes[0] == shapes[1] and unordered(
            left.intervals(),
            right.intervals(),
            lambda a, g: a[1::2] == g[1::2] and same(a.low, g.low) and same(a.high, g.high),
            once=False,
        )
    return _held(left, places) == _held(right, places)


def _speaks_of_order(text: str) -> bool:
    return ("∪" in text and "=" not in text) or bool(
        _RELATION.search(text) or _WITHOUT.fullmatch(text) or _REALS.fullmatch(text)
    )


def _places(intervals: list[Interval], same: Same) -> dict[str, int]:
    """An odd number for each end, in order; even ones lie between."""
    ends = sorted({end for one in intervals for end in (one.low, one.high)}, key=_bound)
    places: dict[str, int] = {}
    last = ""
    for end in ends:
        new = not last or not (_bound(end) == _bound(last) or same(end, last))
        places[end], last = (max(places.values(), default=-1) + 2 if new else places[last]), end
    return places


def _held(region: Region, places: dict[str, int]) -> list[bool]:
    """Whether the region holds at and between the ends."""
    held = [False] * (2 * len(places) + 2)
    for piece in region.pieces:
        columns = [
            [any(_holds(one, place, places) for one in condition) for condition in piece.conditions]
            for place in range(len(held))
        ]
        together = any(map(all, columns)) or not piece.loose
        held = [before or (all if together else any)(column) for before, column in zip(held, columns, strict=True)]
    return held


def _holds(one: Interval, place: int, places: dict[str, int]) -> bool:
    low, high = places[one.low], places[one.high]
    return (low < place or (low == place and one.has_low)) and (place < high or (place == high and one.has_high))


def _region(text: str) -> Region | None:
    held = bracketed(text)
    if held and held[0] == "\\{" and (match := re.match(r"[^|:]{1,12}[|:]", held[1])):
        return _region(held[1][match.end() :].strip())  # {x | x > 3}
    if match := MEMBER.match(text):
        inner = _region(text[match.end() :])
        return inner and Region(squeezed(match[1]), inner.pieces)
    if match := _WITHOUT.fullmatch(text):
        held = bracketed(match["points"])
        points = entries(held[1] if held else match["points"], bare=held is None)
        whole = _bracket_interval(match["base"]) or ("", [Interval("-∞", False, "∞", False)])
        return Region("", [Piece([whole[1], *(_rays("!=", point) for point in points)])])
    name, pieces = "", []
    for piece in few(split_top(text, _UNION)):
        conditions = []
        for one in few(split_top(piece, _BOTH)):
            known = _bracket_interval(one) or _relation_intervals(one)
            if known is None:
                return None
            name = name or known[0]
            conditions.append(known[1])
        # what stands side by side all holds, `x > 0, x < 3`, unless it cannot: `x < 1, x > 3`
        pieces.append(Piece(conditions, loose=len(split_top(piece, re.compile(","))) > 1))
    return Region(name, pieces)


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


def _bracket_interval(text: str) -> tuple[str, list[Interval]] | None:
    if _REALS.fullmatch(text):
        return "", [Interval("-∞", False, "∞", False)]
    text, unit = (match[1], match[2]) if (match := _UNIT.fullmatch(text)) and parse_unit(match[2]) else (text, "")
    held = bracketed(text)
    if held and held[0] == "\\{":
        return "", [Interval(point, True, point, True) for point in entries(held[1], bare=False)]
    if held is None or held[0] not in "([" or len(ends := entries(held[1], bare=False)) != 2:
        return None
    ends = [f"{end} {unit}".strip() for end in ends]
    return "", [Interval(ends[0], held[0] == "[", ends[1], held[2] == "]")]


def _relation_intervals(text: str) -> tuple[str, list[Interval]] | None:
    """The variable and the intervals of `x > 3`, `3 < x`, `2 < x <= 5`, `x != 2`, `|x| < 3`."""
    pieces = _RELATION.split(text)
    if len(pieces) == 5 and pieces[1][0] == pieces[3][0] != "!" and is_name(pieces[2]):
        low, first, name, second, high = pieces if pieces[1][0] == "<" else pieces[::-1]
        return squeezed(name), [Interval(low, "=" in first, high, "=" in second)]
    if len(pieces) != 3:
        return None
    left, relation, right = pieces
    if (size := re.fullmatch(r"\|(.+)\|", left)) and is_name(size[1]) and relation[0] in "<>":
        if relation[0] == "<":
            return squeezed(size[1]), [Interval(f"-({right})", "=" in relation, right, "=" in relation)]
        return squeezed(size[1]), _rays(relation.replace(">", "<"), f"-({right})") + _rays(relation, right)
    if left and not is_name(left):
        left, right, relation = right, left, relation.translate(_TURNED)
    return (squeezed(left), _rays(relation, right)) if (not left or is_name(left)) and not is_name(right) else None


def _rays(relation: str, end: str) -> list[Interval]:
    """What is smaller or larger than `end`, or both for `!=`."""
    below, above = Interval("-∞", False, end, relation == "<="), Interval(end, relation == ">=", "∞", False)
    return [ray for sign, ray in (("<", below), (">", above)) if relation[0] in (sign, "!")]


def _inequalities(answer: str, gold: str) -> bool:
    """Compare inequalities such as `2x + y > 4` and `y > 4 − 2x`, up to a positive factor."""
    sides = [_RELATION.split(text) for text in (answer, gold)]
    if any(len(pieces) != 3 for pieces in sides):
        return False
    (a, first, b), (c, second, d) = sides
    factor = numeric_ratio(f"({a})-({b})", f"({c})-({d})")
    return factor is not None and (first if factor > 0 else first.translate(_TURNED)) == second
