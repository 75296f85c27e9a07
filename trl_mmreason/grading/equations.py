"""Answers with an equals sign, ratios, spans, and amounts with a direction."""

from __future__ import annotations

import itertools
import math
import re
from contextlib import suppress
from typing import NamedTuple

from .expressions import read
from .listings import Same
from .notation import Unreadable, is_name, split_top
from .numeric import numeric_ratio, value_of
from .units import PERCENT, PLAIN, split_unit, without_units
from .words import is_prose

_PARTS = re.compile(r"\\frac\s*\{|\}\s*\{|\}|\\(?:sin|cos|tan)\b|[(),:/+*]|(?<!^)-")
_OPERATION = re.compile(r"[+*^]|(?<!^)-")
_EQUALS = re.compile(r"\s*=\s*")
_BELOW = re.compile(r"\\frac ?\{[^{}]*\} ?\{([^{}]*)\}|/ ?([A-Za-z]\w*(?:\^\{?\d\}?)?|\([^()]*\))")
_MOD = re.compile(r"(\d{1,9}) mod ([1-9]\d{0,8})")
_POINTS = r"((?:[A-Z]'*)+|[a-zα-ω])"
_RELATION = re.compile(rf"(triangle |angle )?{_POINTS} ?(⊥|∥|≅|≈|\\sim) ?(?:triangle |angle )?{_POINTS}")
_NUMBER = r"[¤€£¥]?\s*\d[\d,]*(?:\.\d+)?\s*%?"
_SPAN = re.compile(rf"(?P<low>{_NUMBER})\s*(?:-|~|to)\s*(?P<high>{_NUMBER})\s*(?P<unit>[^\W\d_]{{2,}}[^\d=]*|[°%].*)?")
_WAY = r"(?:north|south)?(?:east|west)|north|south|left|right|up|down|(?:(?:counter|anti)-?)?clockwise|(?:in|de)crease"
_DIRECTED = re.compile(
    r"(?:an? )?(?P<amount>[-¤]?\d(?:[^,(]|,\d)*?)[\s,(]{1,3}(?:(?:to|towards?|in) the |due )?"
    rf"(?P<way>{_WAY})(?:wards?)?(?: direction)?\)?|(?:an? |it )?(?P<change>{_WAY})[sd]? (?:of|by) (?P<by>.+)",
    re.I,
)


class Equation(NamedTuple):
    """`name = side = side …`; the name is empty if neither outer side is a name."""

    name: str
    sides: list[str]

    def difference(self) -> str | None:
        """Left minus right, if there are two sides."""
        sides = [self.name, *self.sides] if self.name else self.sides
        return f"({sides[0]})-({sides[1]})" if len(sides) == 2 else None


def _equation(text: str) -> Equation | None:
    first, *others = split_top(text, _EQUALS)
    if not others or not all(others):
        return None
    if not first or _defines(first):  # `= 4`, `x = 4`
        return Equation("".join(first.split()), others)
    if is_name(others[-1]):
        return Equation("".join(others[-1].split()), [first, *others[:-1]])
    return Equation("", [first, *others])


def _same_name(left: str, right: str) -> bool:
    """Whether two names may mean the same: `x` and `x_1`, `y` and `f(x)` may, `x_1` and `x_2` do not."""
    names = {re.sub(r"\([a-z]\)$", "", name) for name in (left, right)}
    if len(names) == 1 or ("y" in names and {left, right} & {"f(x)", "g(x)", "h(x)"}):
        return "" not in names
    if "_" not in left or "_" not in right:
        left, right = left.partition("_")[0], right.partition("_")[0]
    return bool(left and right) and left == right


def _defines(side: str) -> bool:
    r"""Whether a side only names a value: `x`, `(x, y)`, `\frac{a}{b}`, `\sin A`; `x - 4 = 4` does not say 4."""
    if is_name(side) or "..." in side or re.fullmatch(r"\|\s*[A-Za-z\u20d7]+\s*\|", side):
        return True
    parts = _PARTS.sub(" , ", side).split(" , ")
    return all(is_name(part.strip()) for part in parts if part.strip()) and any(map(str.strip, parts))


def compare_equations(answer: str, gold: str, same: Same) -> bool | None:
    """Compare equations: `x = 4` and `4 = x` are 4; equal up to a factor; a true chain `A = lw = 3*4 = 12` is 12."""
    left, right = _equation(answer), _equation(gold)
    if left is None and right is None:
        return None
    if left and right and not _same_name(left.name, right.name):
        if (one := left.difference()) and (other := right.difference()):
            return any(numeric_ratio(*pair) is not None for pair in ((one, other), (_cleared(one), _cleared(other))))
        if left.name and right.name:
            return False
    if right and right.difference() and not is_name(right.name):
        formula = right.name or without_units(right.sides[0])
        if _OPERATION.search(formula) and _variables(formula):
            return False  # `x + y = 2` is a line
    if not all(_holds(side, one, same) for one in (left, right) if one for side in one.sides[:-1]):
        return False
    return same(left.sides[-1] if left else answer, right.sides[-1] if right else gold)


def _cleared(difference: str) -> str:
    """Multiply `(y)-(6/x)` by x, which stands nowhere else: (x)-(x^2/x) would be 0 there."""
    plain = re.sub(r"\\[a-z]+", "", difference)
    below = next((match[1] or match[2] for match in _BELOW.finditer(difference)), "")
    alone = all(plain.count(letter) == below.count(letter) for letter in re.findall("[A-Za-z]", below))
    return f"({difference})*({below})" if below and alone else difference


def _holds(side: str, equation: Equation, same: Same) -> bool:
    """Whether a side of a chain has the value of the last one; a formula does, unless it is all there is."""
    last, side = equation.sides[-1], _MOD.sub(lambda match: str(int(match[1]) % int(match[2])), side)
    number, unit = split_unit(last) or (last, PLAIN)
    bare = without_units(side)
    if _variables(bare) and (equation.name or len(equation.sides) > 2):
        return True
    if re.search(r"\\(?:begin|lim)", side) or unit == PERCENT and same(side, last):
        return True
    if bare == side or unit == PLAIN:
        return same(bare, number)
    return same(without_units(side, scaled=True), f"({number})*{unit.factor}") or same(side, last)


def _variables(side: str) -> bool:
    """Whether a formula has variables, or words."""
    try:
        return bool(read(side).symbols)
    except Unreadable:
        return any(map(str.isalpha, side))


def _scales(part: str) -> bool:
    """Whether a part of a ratio is a finite number other than 0."""
    with suppress(Unreadable):
        return abs(value_of(part)) not in (0, math.inf)
    return False


def compare_ratios(answer: str, gold: str, same: Same) -> bool | None:
    """Compare ratios: 2:3 is 4:6 and 2/3."""
    if ":" not in answer + gold and not (re.search(r"frac|/", gold) and re.fullmatch(r"\d+ to \d+", answer)):
        return None
    answer, gold = (re.sub(r"(?<=\d) to (?=\d)", ":", text) for text in (answer, gold))
    if is_prose(answer) or is_prose(gold):
        return None
    left, right = (text.split(":") for text in (answer, gold))
    if len(left) == len(right):
        if not all(map(_scales, left + right)):
            return all(map(same, left, right))
        products = ((f"({a})*({right[0]})", f"({g})*({left[0]})") for a, g in zip(left, right, strict=True))
        return all(same(a, g) for a, g in products)
    if {len(left), len(right)} != {1, 2} or re.search(r":0", answer + gold):  # 7:05 is a time
        return False
    quotients = [f"({one[0]})/({one[1]})" if len(one) == 2 else one[0] for one in (left, right)]
    return same(*quotients)


def compare_relations(answer: str, gold: str) -> bool | None:
    """Compare `AC ⊥ BD` and `BD ⊥ CA`; figures that are congruent or similar keep which corner belongs to which."""
    relations = []
    for match in map(_RELATION.fullmatch, (answer, gold)):
        if match is None:
            return None
        corners = [re.findall(r"[^\W\d_]'*", side) for side in match.group(2, 4)]
        left, right = corners if match[1] or len(corners[0]) > 2 else map(sorted, corners)
        pairs = {frozenset(itertools.zip_longest(*both)) for both in ((left, right), (right, left))}
        relations.append((match[1], match[3].replace("\\sim", "≈"), pairs))
    return relations[0] == relations[1]


def compare_spans(answer: str, gold: str, same: Same) -> bool | None:
    """Compare both ends of spans such as `20-29`, which are not differences; `None` if the gold is not a span."""
    spans = [_SPAN.fullmatch(text) for text in (answer, gold)]
    if spans[1] is None:
        return None
    ends = [[f"{span[end]} {span['unit'] or ''}" for end in ("low", "high")] for span in spans if span]
    return len(ends) == 2 and all(map(same, *ends))


def compare_directed(answer: str, gold: str, same: Same) -> bool | None:
    """Compare amounts with a direction: `5 m/s, east`, `20% increase`; `None` unless both have one.

    A change with a direction in words is as large as a gold without one: `increased by 8%` for `8%`.
    """
    left, right = _DIRECTED.fullmatch(answer), _DIRECTED.fullmatch(gold)
    if left and not right and "crease" in (way := str(left["change"] or left["way"]).lower()):
        amount = left["by"] or left["amount"]
        return same(amount, gold) or "de" in way and same(f"-{amount}", gold)
    if left is None or right is None:
        return None
    ways = {(match["way"] or match["change"]).lower().replace("anti", "counter") for match in (left, right)}
    return len(ways) == 1 and same(left["amount"] or left["by"], right["amount"] or right["by"])
