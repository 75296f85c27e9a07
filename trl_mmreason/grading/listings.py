"""Compare answers with several entries: lists, tuples, sets and matrices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .expressions import THOUSANDS
from .notation import Refused, bracketed, split_top
from .words import is_prose

MAX_ENTRIES = 100

Same = Callable[[str, str], bool]
# What is said to lie in a set
MEMBER = re.compile(r"([^\W\d_](?:_\w+|_\{\w+\})?)\s*∈\s*(?=[^∈]*$)")
# The point P of P(2, 3)
_POINT = re.compile(r"([A-Z]'?)\s*(?=\()")
_NAMED_ENTRIES = re.compile(r"\(([a-z](?:\s?,\s?[a-z])+)\)\s?=\s?\(([^()=]+)\)")  # (a, b) = (8, 3)
_SET = "\\{\\}"
_LOOSE = re.compile(r"\s*[,;]\s*")
_WORDED = re.compile(
    r"\s*[,;]\s*(?:and\s|or\s|和|或|及|与)?|\s+(?:and|or)\s+|(?<=[)\]}])\s*(?:and|or)\s*(?=[(\[{\\])|\s*(?:和|或|以及|及|与)\s*"
)
_GROUPED = re.compile(rf"(?<![\d.,]){THOUSANDS}(?!,\d)")
_MARK = "\ue000"  # stands for the comma inside 1,000
# (a) 3 (b) 7
_LABEL = re.compile(r"(?:^|(?<=[\s,;.:]))\(([a-h]|[1-9]|i{1,3}|iv|v)\)\s*")
_ORDERS = (*"abcdefgh",), (*"123456789",), ("i", "ii", "iii", "iv", "v")
_NO_PART = re.compile(r"[+*/^=].*|.*[-+*/^=]|")
_CIRCLED = re.compile(r"\(\d\)(?:[\s,;和与及]*(?:and\s+)?\(\d\))+")
_FLAT = re.compile(r"\[[^\[\]]*\]")
_SCALED = re.compile(r"(.+?)\s*\*?\s*(\\begin\{.*)", re.DOTALL)
_MATRIX = re.compile(r"\\begin\{((?:[pbB]|small)?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_COMPONENT = re.compile(r"([+-]?)([^-+,=ijk]*)([ijk])(\u0302?)")
_PRODUCT = re.compile(r"[A-Z\d^{}()_-]+")


class Listing(NamedTuple):
    """A list of entries; its brackets are empty for a bare list."""

    brackets: str
    entries: list[str]


def entries(text: str, *, bare: bool) -> list[str]:
    """Split a list at its separators; without brackets (`bare`) `and` and `or` separate too."""
    if bare or ", " in text:  # (100,200) is a point, but 100,200 a number
        text = _GROUPED.sub(lambda match: match.group().replace(",", _MARK), text)
    pieces = split_top(text, _WORDED if bare or is_prose(text) else _LOOSE)
    return [piece.replace(_MARK, ",") for piece in few(pieces) if piece]


def few(pieces: list[str]) -> list[str]:
    """The pieces, unless there are too many to compare."""
    if len(pieces) > MAX_ENTRIES:
        raise Refused(f"{len(pieces)} entries, more than {MAX_ENTRIES} are not compared")
    return pieces


def listing(text: str) -> Listing | None:
    """Split `1, 2`, `(1, 2)`, `\\{1, 2\\}`, `P(1, 2)`, `x ∈ \\{1, 2\\}`, `±2` … into entries; None for a single one."""
    if match := MEMBER.match(text):
        text = text[match.end() :]
    if match := _NAMED_ENTRIES.fullmatch(text):
        named = zip(match[1].split(","), entries(match[2], bare=False), strict=False)
        return Listing("", [f"{name.strip()} = {value}" for name, value in named])
    if (match := _POINT.match(text)) and bracketed(text[match.end(1) :].strip()):
        text = text[match.end(1) :].strip()
    if text == "∅":
        return Listing(_SET, [])
    held = bracketed(text)
    if held is None:
        items = _both_signs(entries(text, bare=True))
        return Listing("", items) if len(items) > 1 else None
    opening, inside, closing = held
    if opening == "\\{" and (builder := re.match(r"\s*[a-z]\s*(?:∈[^|:]+)?[|:]\s*(?=[a-z] ?=)", inside)):
        stated = listing(inside[builder.end() :])
        return Listing(_SET, stated.entries if stated else [inside[builder.end() :]])
    if opening + closing == "()" and inside.count("±") == 1 and len(entries(inside, bare=False)) > 1:  # (0, ±4)
        return Listing("", [f"({inside.replace('±', sign)})" for sign in "+-"])
    items = _both_signs(entries(inside, bare=False))
    brackets = _SET if opening == "{" else opening + closing  # braces may have lost their backslash
    return Listing(brackets, items) if len(items) > 1 or opening in ("\\{", "{", "[") else None


def _both_signs(items: list[str]) -> list[str]:
    """Replace each entry with ± or ∓ by two."""
    both = ([entry.replace("±", a).replace("∓", b) for a, b in ("+-", "-+")] for entry in items)
    return [reading for readings in both for reading in dict.fromkeys(readings)]


def labelled_parts(text: str) -> list[str] | None:
    """The answers to the parts of a question, by the order of their labels; `None` without at least two labels."""
    before, *pieces = _LABEL.split(text)
    parts = {label: part.strip(" ,;.") for label, part in zip(pieces[::2], pieces[1::2], strict=True)}
    labels = next((order[: len(parts)] for order in _ORDERS if {*order[: len(parts)]} == parts.keys()), ())
    if before or len(labels) < 2 or any(map(_NO_PART.fullmatch, parts.values())):
        return None
    return [parts[label].removesuffix(" and").rstrip(" ,;") for label in labels]


def compare_circled(answer: str, gold: str) -> bool | None:
    """Compare `②④` and `②, ④`, no product: in any order, unless the gold's own is another than theirs, as ③①② is."""
    if not (_CIRCLED.fullmatch(answer) and _CIRCLED.fullmatch(gold)):
        return None
    numbers, wanted = (re.findall(r"\d", text) for text in (answer, gold))
    return numbers == wanted or sorted(numbers) == wanted


def compare_parts(answer: str, gold: str, same: Same) -> bool | None:
    """Compare the parts of an answer one by one, without their labels; `None` if neither has any."""
    parts = labelled_parts(answer), labelled_parts(gold)
    if parts == (None, None):
        return None
    left, right = (found or entries(text, bare=True) for found, text in zip(parts, (answer, gold), strict=True))
    return len(left) == len(right) and all(map(same, left, right))


def compare_listings(answer: str, gold: str, same: Same) -> bool | None:
    """Compare tuples in order, sets and bare lists in any order; `None` if neither has several entries.

    A bare list against brackets must keep their order; different brackets differ, as (1, 2] does from (1, 2).
    """
    labels = [match[1] for text in (answer, gold) if (match := _POINT.match(text)) and bracketed(text[match.end() :])]
    if len(labels) == 2 and labels[0] != labels[1]:
        return False
    left, right = listing(answer), listing(gold)
    if left is None or right is None:
        several = left or right
        if several is None or "=" in (answer if left is None else gold):
            return None  # `(x, y) = (2, 3)`
        if len(several.entries) != 1:
            return False
        return same(several.entries[0], gold) if left else same(answer, several.entries[0])
    kinds = {left.brackets, right.brackets}
    if kinds == {""}:
        names = [
            {entry.partition("=")[0].partition("_")[0].strip() for entry in each.entries if "=" in entry}
            for each in (left, right)
        ]
        # values of one thing, for which "and", "or" and a comma mean the same
        of_one = len(names[0] | names[1]) <= 1 and not any(map(is_prose, left.entries + right.entries))
        if not of_one and len({re.search(r"\b(?:or|either)\b|或", text) is None for text in (answer, gold)}) > 1:
            return False  # `red or blue`, `a = 2 or b = 5`
        if all(names) or max(map(len, names)) < 2:  # `2, 1` for `x = 2, y = 1` has an order
            return unordered(left.entries, right.entries, same, once=False)
    if _SET in kinds:
        return kinds <= {"", _SET} and unordered(left.entries, right.entries, same, once=True)
    if len(kinds) > 1 and (kinds & {"(]", "[)"} or not kinds <= {"", "()", "⟨⟩"} and "" not in kinds):
        return False
    entries_of = [_by_name(each) if each.brackets == "" else each.entries for each in (left, right)]
    return len(left.entries) == len(right.entries) and all(map(same, *entries_of))


def _by_name(bare: Listing) -> list[str]:
    """The entries of `y = 2, x = 1` in the order of a point's, by their names."""
    named = [entry.partition("=") for entry in bare.entries]
    if not all(equals and len(name.strip()) == 1 for name, equals, _ in named):
        return bare.entries
    return [value.strip() for _, _, value in sorted(named)]


def unordered(left: Sequence[Any], right: Sequence[Any], same: Callable[[Any, Any], bool], *, once: bool) -> bool:
    """Whether entries match in any order; with `once`, repeated entries count once, as in sets."""
    if once:
        return all(any(same(a, g) for g in right) for a in left) and all(any(same(a, g) for a in left) for g in right)
    if len(left) != len(right):
        return False
    taken_by: dict[int, Any] = {}

    def finds_one(entry: Any, tried: set[int]) -> bool:
        for place in sorted(range(len(right)), key=taken_by.__contains__):  # free ones first
            if place not in tried and same(entry, right[place]):
                tried.add(place)  # who takes the first that fits may have to leave it to another
                if place not in taken_by or finds_one(taken_by[place], tried):
                    taken_by[place] = entry
                    return True
        return False

    return all(finds_one(entry, set()) for entry in left)


def compare_matrices(answer: str, gold: str, same: Same) -> bool | None:
    """Compare matrices by entry; lists of lists are matrices, a tuple a column. `None` without a LaTeX matrix."""
    if not (_MATRIX.fullmatch(answer) or _MATRIX.fullmatch(gold)):
        return None
    left, right = _rows(answer), _rows(gold)
    if left and right and 1 in (len(left), len(right)) and (_FLAT.fullmatch(answer) or _FLAT.fullmatch(gold)):
        left, right = [sum(left, [])], [sum(right, [])]  # [a, b] may be a row
    if (left is None and "\\begin" in answer) or (right is None and "\\begin" in gold):
        return None  # products and powers of matrices
    if left is None or right is None or [len(row) for row in left] != [len(row) for row in right]:
        return False
    return all(map(same, sum(left, []), sum(right, [])))


def compare_vectors(answer: str, gold: str, same: Same) -> bool | None:
    """Compare `3i + 4j` with `⟨3, 4⟩`, and with `3î + 4ĵ`, by component; `None` without a sum of unit vectors."""
    sums = [_components(text) for text in (answer, gold)]
    left, right = (found or sum(_rows(text) or [], []) for found, text in zip(sums, (answer, gold), strict=True))
    if not any(sums) or all(sums) and "\u0302" not in answer + gold or not {len(left), len(right)} <= {2, 3}:
        return None
    return all(map(same, [*left, "0"][:3], [*right, "0"][:3]))


def _components(text: str) -> list[str]:
    plain = re.sub(r"[\s*]", "", text)
    terms = _COMPONENT.findall(plain)
    sizes = {letter: f"{sign}{size or 1}" for sign, size, letter, _ in terms}
    is_sum = "".join(map("".join, terms)) == plain and len(sizes) == len(terms) > ("\u0302" not in plain)
    return [sizes.get(letter, "0") for letter in "ijk"] if is_sum else []


def compare_matrix_products(answer: str, gold: str) -> bool | None:
    """Matrices do not commute: a product of capitals with an inverse or a transpose is right as it is written."""
    plain = [re.sub(r"[\s*]", "", text).replace("{T}", "T") for text in (answer, gold)]
    shown = any(re.search(r"\^T|\{-", text) and len(set(re.findall("[A-SU-Z]", text))) > 1 for text in plain)
    return plain[0] == plain[1] if shown and all(map(_PRODUCT.fullmatch, plain)) else None


def _rows(text: str) -> list[list[str]] | None:
    if (scaled := _SCALED.fullmatch(text)) and _MATRIX.fullmatch(scaled[2]) and not re.search("begin|=", scaled[1]):
        factor = "-1" if scaled[1] == "-" else scaled[1]
        return [[f"({factor})*({entry})" for entry in row] for row in _rows(scaled[2]) or []] or None
    if match := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in match.group(2).split("\\\\") if row.strip()]
        if sum(map(len, rows)) > MAX_ENTRIES:
            raise Refused(f"a matrix of more than {MAX_ENTRIES} entries")
        return [[entry.strip() for entry in row] for row in rows]
    held = listing(text)
    if held is None or held.brackets not in ("[]", "()", "⟨⟩"):
        return None
    inner = [listing(entry) for entry in held.entries]
    nested = [row.entries for row in inner if row is not None and row.brackets[:1] == "["]
    return nested if len(nested) == len(inner) else [[entry] for entry in held.entries]
