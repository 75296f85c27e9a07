"""Compare answers that leave something open: a constant of integration, `+ C`, or any integer, `2kπ, k ∈ Z`."""

from __future__ import annotations

import re

from .listings import listing, unordered
from .notation import Unreadable
from .numeric import differ_by_constant, value_of

_CONSTANT = re.compile(r"\s*[CcKk](?:_\d|_\{\d\})?")
_INTEGERS = re.compile(
    r"(?:[\s,(]|where\b|for\b|with\b)*(?P<letter>[a-z])\s*"
    r"(?:∈|is an? |are )\s*(?:Z|ℤ|(?:any |all )?integers?)\s*\)?"
)

# A constant before what solves a differential equation
_FACTOR = re.compile(r"(?<![A-Za-z\\])([cC])(_\d)?(?=\s*\*?\s*x?\s*(?:e\s*\^|\\(?:cos|sin)))")


def with_capitals(text: str) -> str:
    """Write `ce^{2x}` as `Ce^{2x}`, where c stands for nothing else, and without its index where there is one only."""
    found = _FACTOR.findall(text) if "c" in text.casefold() else []
    if not found or re.search("[cC]", re.sub(r"\\[a-z]+", "", _FACTOR.sub("", text))):
        return text
    return _FACTOR.sub("C" if len(found) == 1 else r"C\2", text)


_Line = tuple[float, float]
"""Value at k = 0, and step."""


def compare_antiderivatives(answer: str, gold: str) -> bool | None:
    """Whether two functions `… + C` differ by a constant; `None` if one of them does not end so."""
    left, right = _without_constant(answer), _without_constant(gold)
    if left is None or right is None or "C" not in gold:
        return None
    try:
        return differ_by_constant(left, right)
    except Unreadable:
        return None


def _without_constant(text: str) -> str | None:
    """The function in `y = x^2 + C`; `None` for anything else."""
    function, _, constant = text.rpartition("+")
    function = function.rpartition("=")[2].strip()
    return function if _CONSTANT.fullmatch(constant) and any(map(str.islower, function)) else None


def compare_families(answer: str, gold: str) -> bool | None:
    """Whether two values, lists or intervals are the same for all integers together; `None` without any.

    The answer need not say that its k is an integer.
    """
    congruent = "≡" in answer
    answer, gold = (_CONGRUENT.sub(_in_steps, text) for text in (answer, gold))
    said = [text for text in (answer, gold) if (match := _INTEGERS.search(text)) and match.end() == len(text)]
    if gold not in said and not (said and ("π" in gold or congruent)):  # a gold `kπ` may leave it to be understood
        return None
    left, right = _family(answer), _family(gold)
    if left is None or right is None:
        return None
    if left[0] != right[0] or len(left[1]) != len(right[1]):
        return False
    if not right[0] and len(right[1]) > 1:  # ±π/3 + 2kπ
        return unordered(left[1], right[1], lambda a, g: _shifted([a], [g]), once=False)
    return _shifted(left[1], right[1])


_CONGRUENT = re.compile(r"^(?:([a-zA-Z])\s*≡)\s*([^≡]{1,60}?),? mod (\d+)$")


def _in_steps(match: re.Match[str]) -> str:
    """Write `x ≡ 2 mod 5` as `x = 2 + 5k, k ∈ Z`."""
    values = listing(match[2])
    entries = values.entries if values else [match[2]]
    return ", ".join(f"{entry}+{match[3]}*k" for entry in entries) + ", k ∈ Z"


def _shifted(left: list[_Line], right: list[_Line]) -> bool:
    """Whether values or ends of an interval are the same, all of them by the same number of steps further."""
    step = right[0][1]
    shifts = [(a - g) / step if step else float(a != g) for (a, _), (g, _) in zip(left, right, strict=True)]
    steps = {round(abs(each), 9) for _, each in left + right}
    return len(steps) == 1 and all(abs(shift - round(shifts[0])) < 1e-6 for shift in shifts)


def _family(text: str) -> tuple[str, list[_Line]] | None:
    """The brackets of a list or an interval, and the value of each entry at 0 with its step; `None` for others."""
    said = _INTEGERS.search(text)
    if said and said.end() == len(text):
        text = text[: said.start()]
    text = re.sub(r"^[^\W\d_](?:_\w)?\s*(?:=|∈)\s*", "", text.strip())
    letters = {said["letter"]} if said else set(re.findall(r"(?<![A-Za-z\\])[kmn](?![A-Za-z])", text))
    if len(letters) != 1:
        return None
    (letter,) = letters
    held = listing(text)
    values = []
    for entry in held.entries if held else [text]:
        try:
            at = [complex(value_of(_with(entry, letter, number))).real for number in (0, 1, 2)]
        except Unreadable:
            return None
        if abs(at[2] - 2 * at[1] + at[0]) > 1e-9:
            return None  # not the same step everywhere
        values.append((at[0], at[1] - at[0]))
    return held.brackets if held else "", values


def _with(text: str, letter: str, number: int) -> str:
    return re.sub(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", f"({number})", text)
