"""Decide whether two answers are equivalent, from lists, intervals, equations and units down to expressions."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial

from . import equations, listings, moments, numeric, regions
from .expressions import read
from .notation import Refused, Unreadable, bracketed, is_name, normalise, split_top
from .units import (
    NAMELESS,
    PERCENT,
    PLAIN,
    UNITS,
    MeasurementUnit,
    asked_unit,
    compound_quantity,
    parse_unit,
    speaks_of_percent,
    split_unit,
)
from .words import FRACTIONS, NUMBER_WORDS, same_words, squeezed, words

_TRUTH = dict.fromkeys("T true yes √ ✓ ✔ checkmark 对 正确".split(), "true") | dict.fromkeys(
    "f false × ✗ ✘ times 错 错误".split(), "false"
)
_HEADING = re.compile(r"^(?!.*answer)[A-Z][a-z]+(?: [a-z]+){0,4}: (?=.*\d|[A-Z])")  # Domain: all numbers
_HEADED = re.compile(r"\b(?!answer)([a-z]+): (?=[-\d])")  # mean: 7, mode: 5
_PHONE = re.compile(r"\+?(?=[\d() -]{8,20}\Z)(?:[^ ()-]*[ ()-]){2}.*")
_CLAIMS = re.compile(r"(?:yes|no|true|false|[TF])(?:,\s*(?:yes|no|true|false|[TF]))+", re.I)
_HOW_MANY = re.compile(r"\b(?:how many|in) ((?:thousand|million|billion|trillion|lakh|crore)s?)\b", re.I)
_SIZE = re.compile(r"\b(?:order|size|dimensions?) of\b", re.I)
_TIMES = re.compile(r"(\d+) ?(?:\*|x|by) ?(\d+)")
_ORDERED = re.compile(
    r"\bin order\b(?! to)|\bfrom (?:the )?(?:\w+est|most|least)\b|\bin (?:which|what) order\b"
    r"|\bin (?:that|this|the (?:same|given|following)) order\b|\brespectively\b|依次",
    re.I,
)
_ROUND = re.compile(r"\b(?:round(?:ed)?|nearest|decimals?(?: places?)?|significant|approximately)\b|保留|精确到", re.I)
_IN_TERMS_OF = re.compile(r"\bin terms of (?:(?:its|the|a) [a-z]+ )?\$?([A-Za-z])\b", re.IGNORECASE)
_OF_THE = re.compile(r"(?:(?<=\d%)|(?<=\d\})|(?<=/\d)|(?<=/\d\d))\s+of (?:the|its|all)(?: [a-z]+){1,3}$")
_SOLUTION = re.compile(r"[a-z].*[+] ?C$|^y ?=.*(?:[cC]_|A.*B|B.*A)")
_BEHIND = r"(?!(?!e\^|sin|cos)[A-Za-z_(])"  # what a constant is not followed by: Be^x is B times a function
_CONSTANT = re.compile(rf"(?<![A-Za-z\\_])(?:[ckCK](?:_\{{?\d\}}?)?|[ABD]){_BEHIND}")  # of integration
_INTEGERS = re.compile(
    r"(?:[\s,(]|where\b|for\b|with\b)*([a-z])\s*(?:∈|is an? |are )\s*(?:Z|ℤ|(?:any |all )?integers?)\s*\)?$"
)
_COUNTER = re.compile(r"(?<![A-Za-z\\])[kmn](?![A-Za-z])")
_CAPITALS = re.compile(r"[A-Z]{3,}")
_ELEMENTS = (
    "He Li Be Ne Na Mg Al Si Cl Ar Ca Cr Mn Fe Co Ni Cu Zn Br Kr Ag Cd Sn Xe Ba Pt Au Hg Pb H B C N O F P S K I U"
)
_ATOM = rf"(?:{_ELEMENTS.replace(' ', '|')})\d*"
# One quantifier over the atoms, or a long formula would be tried in every way to part it
_SPECIES = rf"(?:\^?\d+)?(?:{_ATOM}|\((?:{_ATOM})+\)\d*)+(?:\^?\d*[+-])?(?:\.\d*H2O)?"
_CHEMICAL = re.compile(rf"(?=\^\d|.*[A-Z].*[A-Z\d+-]){_SPECIES}(?:(?:\+|->){_SPECIES})*")
# 3,75 and 1.234,5; 1,234 is a whole number, and 12,0 two of them
_DECIMAL_COMMA = re.compile(
    r"(?:^|(?<==)|(?<== ))(-?(?:\d{1,3}(?:\.\d{3})+|\d+)),(?!0(?!\d))(\d{1,2}|\d{4,})(?![\d,.])(?!\s*,)"
)
# What a sentence in a box says its value is
_STATED = re.compile(
    r"(?:the (?:[a-z]+ ){1,5}(?:is|are|equals|gets|becomes)\s"
    r"|there (?:is|are)\s|it(?: is|'s) (?:an? )?|(?:in )?total:)\s*(?!not\b)",
    re.I,
)
_STATED_NUMBER = re.compile(rf"{_STATED.pattern}(?=[-¤]?\d)", re.I)
# India (1.4 billion), iron (Fe)
_DETAIL = re.compile(r"(?<=[a-z])\s?\((?:(?:about |≈ ?)?[-¤€£]?\d[^()]*|[A-Z][a-z]?)\)$")
HEDGE = re.compile(
    r"^(?:(?:the )?(?:final |correct )?answer(?: is|:)|答案[是为:]|≈"
    r"|about |approximately |approx\.? |around |roughly |exactly |the year |大约|约为?"
    r"|in (?=\d{4}$)|on (?=[a-z]+day\b)|from (?=\d+ (?:to|-) ))\s*",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"no (?:real )?solutions?|无解|empty set|空集", re.I)
_MINUS = re.compile(r"^(?:negative|minus)\s+(?=\d)", re.IGNORECASE)
_ASIDE = re.compile(r"\s*\(\s*≈\s*([^()]*)\)$")
_REMARK = re.compile(
    r"(?<=[\d°}π])\s*(?:\((?:(?:[a-z]+ )?angles?|approx(?:imately|\.)?|exact(?:ly)?"
    r"|(?:rounded|correct to|to the nearest|nearest|since|because|using|based on)\b[^()]*)\)|in total|times|✅|✓)$"
)
_CLAIM = re.compile(
    r"(?P<claim>yes|no|true|false|是的?|不是|否|对|不对|正确|错误?)"
    r"(?:$|\s*[,.;:]?\s*(?:because|since|as|因为)\b.*|(?P<rest>\s*[,.;:](?!\s*\d).*|\s-\s.*|\s+(?:it|they|this|that|there)\b.*))",
    re.IGNORECASE | re.DOTALL,
)
_SYNONYMS = {"是的": "是", "正确": "对", "错误": "错", "不对": "错"}
_TAKES_BACK = re.compile(
    r"\b(?:yes|no|true|false|or|maybe|perhaps|if|unless|otherwise|but|however|actually)\b|是的|不是|或|但|如果",
    re.IGNORECASE,
)
_RATE = re.compile(r"-?[¤€£¥].*(?:per |/ ?)([a-z]+)$")
_MOLAR = re.compile(r"(?<=\d)\s+(m?)M$")
_DEGREE, _RADIAN = (MeasurementUnit(Fraction(size), (("degree", 1),)) for size in ("1", "57.29577951308232"))
MAGNITUDES = {"dozen": 12, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8, "hundred": 100, "thousand": 1000}
MAGNITUDES |= {"lakh": 10**5, "million": 10**6, "crore": 10**7, "billion": 10**9, "trillion": 10**12}
_HAN = "一二三四五六七八九十"
_PART = re.compile(
    rf"({'|'.join(word for word in NUMBER_WORDS if re.fullmatch('[a-z]+', word))}|\d+(?= [a-z]+s\b)|\b1(?= ))"
    rf"[ -]({'|'.join(FRACTIONS)})s?"
    rf"|([{_HAN}]+)分之([{_HAN}]+)",
    re.I,
)
_CHANCE = re.compile(r"(?:an? )?([a-z]+|\d+) (?:in|out of) ([a-z]+|\d+)(?: chance)?", re.I)  # one in five
_AND_A_HALF = re.compile(r"^([a-z]+|\d+) and (?:a|one)[ -]half\b", re.I)
_MAGNITUDE = re.compile(rf"(\d[\d,]*(?:\.\d+)?)((?:\s*(?:{'|'.join(MAGNITUDES)})s?(?![a-z]))+)", re.IGNORECASE)
_SHORT = {"k": " thousand", "m": " million", "b": " billion", "bn": " billion"}
_NAMED = re.compile(r"^[^\\^_=]*[a-z]{4}[^\\^_=]*$")  # 2-Methylbutane
_COUNT = re.compile(rf"\d[\d,.]*(?:\s*(?:{'|'.join(MAGNITUDES)})s?)?", re.I)
_SHORT_NUMBER = re.compile(r"(\d[\d,.]*)([kKM]|bn)")
_SHORT_MONEY = re.compile(r"(?<=[¤€£¥])(\s*\d[\d,.]*)\s?(k|m|bn?)\.?$", re.IGNORECASE)


def truth(text: str) -> str | None:
    """Whether it is a sign or a word for true or for false, as answers of Chinese tests are."""
    plain = text.strip("$\\ ")
    return _TRUTH.get(plain if len(plain) == 1 else plain.lower())


@dataclass(frozen=True)
class Terms:
    """The conditions under which two answers are compared."""

    lenient: bool = False
    unit: MeasurementUnit | None = None  # that the question asks for
    variables: str = ""  # in terms of which it asks, so that they are no units
    percent: bool = False  # the gold or the question speaks of percent
    rounded: bool = False  # the question asks for a rounded number


def without_rounding(question: str) -> str:
    """The question without its words on rounding, which let a number be off by half a unit of its last place."""
    return _ROUND.sub("", question)


def same_answer(answer: str, gold: str, *, question: str | None = None, lenient: bool = False) -> bool:
    """Whether `answer` equals `gold`, both as written by people or models; `Refused` if one is too large to compare."""
    if same_words(answer, gold):
        return True
    asked = question or ""
    left, right = normalise(answer), normalise(gold)
    left = left if ":" in right else _HEADED.sub(r"\1 = ", _HEADING.sub("", left))
    if not _STATED.match(right):
        left = _STATED.sub("", left, count=1)
    elif not _STATED.match(left):
        right = _STATED_NUMBER.sub("", right, count=1)
    if re.fullmatch("[A-Z]{2}", right) and left == right[::-1] and re.search("line|segment|side", answer + gold):
        return True
    if (claimed := truth(gold)) and truth(answer) == claimed:
        return True
    if all(_PHONE.fullmatch(text) for text in (answer, gold)):
        return re.sub(r"\D", "", answer) == re.sub(r"\D", "", gold)
    if re.fullmatch("[A-Z](?:, ?[A-Z])+", gold) and answer.isalpha():
        return answer == re.sub("[, ]", "", gold)  # ACB for A, C, B
    if gold == "0" and answer.lower().strip(" .") in ("none", "no") and re.search("how many", asked, re.I):
        return True
    percent = speaks_of_percent(gold) or speaks_of_percent(asked)
    if (_ORDERED.search(asked) or _CLAIMS.fullmatch(right)) and all(
        (many := listings.listing(text)) and not many.brackets for text in (left, right)
    ):
        left, right = f"({left})", f"({right})"
    if counted := _HOW_MANY.search(asked):  # how many million people: 2.3, or 2.3 million
        left, right = (
            re.sub(rf"(?<=\d)\s*{counted[1].rstrip('s')}s?$", "", text, flags=re.I) for text in (left, right)
        )
    if _SIZE.search(asked) and _TIMES.fullmatch(right):
        left, right = (_TIMES.sub(r"(\1, \2)", text) for text in (left, right))
    unit = asked_unit(question)
    unit = None if unit == UNITS["pound"] and "£" in answer + gold else unit
    variables = "".join(_IN_TERMS_OF.findall(asked))
    return _same(left, right, Terms(lenient, unit, variables, percent, bool(_ROUND.search(asked))))


@lru_cache(maxsize=1024)  # or a chain of nested equations would be compared over and over
def _same(answer: str, gold: str, terms: Terms) -> bool:
    answer, gold = _undressed(answer), _undressed(gold)
    if squeezed(answer) == squeezed(gold):
        return bool(gold)
    if answer.casefold() == gold.casefold() and _NAMED.search(gold):
        return True
    counters = [{*_COUNTER.findall(text)} for text in (answer, gold)]  # k in one and n in the other: 2kπ, 2nπ
    if _INTEGERS.search(gold) or "π" in gold and counters[0] != counters[1] and [*map(len, counters)] == [1, 1]:
        return _same(_counted_by_n(answer), _counted_by_n(gold), terms)
    if _SOLUTION.search(gold) and (constants := _CONSTANT.findall(gold)):
        return any(
            _same(_renamed(answer, names), _renamed(gold, [*dict.fromkeys(constants)]), terms)
            for names in itertools.permutations([*dict.fromkeys(_CONSTANT.findall(answer))][:3])
        )
    if (formula := chemical(gold)) and chemical(answer) == formula:
        return True
    if _CAPITALS.fullmatch(gold) and _CAPITALS.fullmatch(answer):
        return False  # no product but names in an order: ABCD, HTH, CTG
    answer = answer if " of " in gold else _OF_THE.sub("", answer)
    answer = answer if "(" in gold or any(map(str.isdigit, gold)) else _DETAIL.sub("", answer)
    pointed = _DECIMAL_COMMA.sub(lambda match: f"{match[1].replace('.', '')}.{match[2]}", answer, count=1)
    if "," not in gold and pointed != answer and _same(pointed, gold, terms):
        return True
    for short, other in ((answer, gold), (gold, answer)):  # 25k beside 25,000: the letter is no variable
        full = in_full(short.replace("K", "k") if short is answer else short)  # a gold's K are kelvins
        if full != short and _COUNT.fullmatch(other.lstrip("¤€£¥")):
            return _same(full, other, terms)
    if len(answer) == len(gold) == 1 and answer.isascii() and answer.isalpha() and gold.isalpha():
        return answer == gold or answer.upper() == gold.upper() in "ABCDE"  # a choice; H is not h
    if claim := _claim(gold):
        return _claim(answer) == claim
    if same_words(answer, gold):
        return True
    if any(" and " in text and compound_quantity(text) for text in (answer, gold)):
        return _quantities(answer, gold, terms)
    same = partial(_same, terms=terms)
    for verdict in (
        # lazily: the first that knows what kind of answer this is decides
        lambda: listings.compare_circled(answer, gold),
        lambda: listings.compare_parts(answer, gold, same),
        lambda: equations.compare_relations(answer, gold),
        lambda: _rounded(answer, gold, terms),
        lambda: moments.compare_moments(answer, gold),
        lambda: equations.compare_directed(answer, gold, same),
        lambda: regions.compare_regions(answer, gold, same),
        lambda: listings.compare_vectors(answer, gold, same),
        lambda: listings.compare_matrices(answer, gold, same),
        lambda: listings.compare_matrix_products(answer, gold),
        lambda: listings.compare_listings(answer, gold, same),
        lambda: equations.compare_equations(answer, gold, same),
        lambda: equations.compare_ratios(answer, gold, same),
        lambda: equations.compare_spans(answer, gold, same),
    ):
        if (known := verdict()) is not None:
            return known
    return _quantities(answer, gold, terms)


def _renamed(text: str, constants: Sequence[str]) -> str:
    for number, name in enumerate(constants):
        text = re.sub(rf"(?<![A-Za-z\\_]){re.escape(name)}{_BEHIND}", f"κ_{number} ", text)
    return text


def _counted_by_n(text: str) -> str:
    """Write `2kπ, k ∈ Z` and `2kπ` as `2nπ`."""
    said = _INTEGERS.search(text)
    letters = [said[1]] if said else _COUNTER.findall(text)
    text = text[: said.start()] if said else text
    return re.sub(rf"(?<![A-Za-z\\]){letters[0]}(?![A-Za-z])", "n", text) if letters else text


def chemical(text: str) -> str | None:
    """A chemical formula or equation, however its numbers are set, or hybrid orbitals; `None` for anything else."""
    if re.fullmatch(r"d?\^?\d?sp\^?\d?(?:d\^?\d?)?", text):  # sp^3d^2
        return text.replace("^", "")
    if not re.search(r"[A-Z]", text):
        return None
    text = re.sub(r"\*(?=\s?\d*\s?H\s?_?2\s?O)", ".", text)  # CuSO4 · 5H2O
    plain = re.sub(r"[\s_{}]", "", re.sub(r"\\(?:longr|r)ightarrow|\\to(?![a-z])|→", "->", text))
    plain = re.sub(r"^([A-Z][a-z]?)(\d[+-])$", r"\1^\2", plain).replace("=", "->")
    if re.fullmatch(r"(?=.+[A-Z])[A-Z][\w()]*\^\d*[+-]|[A-Z][a-z]?\^[+-]", plain):  # NH4+
        plain = plain.replace("^", "")
    if not _CHEMICAL.fullmatch(plain) or plain.isdigit() or not re.search(r"[A-Z]", plain):
        return None
    sides = [sorted(re.split(r"\+(?=[\dA-Z(^])", side)) for side in plain.split("->")]  # in any order
    return plain if len(sides) < 2 else "->".join(map("+".join, sides))


def _claim(text: str) -> str | None:
    """A leading yes or no without its reason; `None` if the following text takes it back."""
    match = _CLAIM.fullmatch(text)
    claim = match["claim"].lower() if match else ""
    if match is None or {word.lower() for word in _TAKES_BACK.findall(match["rest"] or "")} - {claim}:
        return None
    return _SYNONYMS.get(claim, claim)


def _undressed(text: str) -> str:
    """Remove hedges, a final full stop and brackets around a single entry."""
    text = _AND_A_HALF.sub(lambda match: f"{NUMBER_WORDS.get(match[1].lower(), match[1])} 1/2", HEDGE.sub("", text))
    if _NOTHING.fullmatch(text):
        return "∅"
    text = "does not exist" if text == "DNE" else text
    text = re.sub(r"^only | only$", "", text)
    text = _REMARK.sub("", _MINUS.sub("-", _ASIDE.sub(r" ≈ \1", text)))
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    if text.endswith(".") and not text.endswith("..."):
        text = text[:-1].rstrip()
    text = text.rstrip(",;:").rstrip()
    inner = bracketed(text)
    plain = inner and inner[0] in "({" and inner[2] in ")}" and inner[1]
    return _undressed(plain) if plain and len(listings.entries(plain, bare=False)) == 1 else text


def _rounded(answer: str, gold: str, terms: Terms) -> bool | None:
    """Compare `5√2 ≈ 7.07`, which states both if the second is the first, rounded; `None` without rounding."""
    stated = [[side for side in split_top(text, re.compile("≈")) if side] for text in (answer, gold)]
    if stated == [[answer], [gold]]:
        return None
    for position, sides in enumerate(stated):
        if len(sides) == 2 and is_name(sides[0]):  # `x ≈ 3.14`
            stated[position] = [" = ".join(sides)]
        elif len(sides) > 2 or (len(sides) == 2 and not _rounds_to(*sides)):
            return False
    return any(_same(a, g, terms) for a, g in itertools.product(*stated))


def _rounds_to(exact: str, rounded: str) -> bool:
    try:
        (value, _), (target, _) = quantity(exact.rpartition("=")[2].strip()), quantity(rounded)
        difference = abs(complex(numeric.value_of(value)) - complex(numeric.value_of(target)))
    except (Unreadable, OverflowError):
        return False
    places = len(re.sub(r"\D", "", target.partition(".")[2]))
    return difference <= 0.5 * 10.0**-places * (1 + 1e-9)


def _quantities(answer: str, gold: str, terms: Terms) -> bool:
    if len(answer) > 1 and (named := parse_unit(answer)) and (gold_named := parse_unit(gold)):
        return named == gold_named  # `cm` and `centimetre`
    rates = [rate and parse_unit(rate[1]) for rate in map(_RATE.match, (answer, gold))]
    if all(rates) and rates[0] != rates[1]:
        return False  # ¤3 per hour is not ¤3 per day
    (value, unit), (target, gold_unit) = (
        (text, PLAIN) if terms.variables and text[-1] in terms.variables else quantity(text) for text in (answer, gold)
    )
    if (unit == PLAIN) != (gold_unit == PLAIN):
        bare, named = (answer, gold_unit) if unit == PLAIN else (gold, unit)
        letters = split_unit(_MOLAR.sub(r" \1mol/L", bare), products=True)
        if letters and letters[1].dimensions == named.dimensions != ():  # 5 N*m, where the other says newton metres
            left, right = (letters, (target, gold_unit)) if unit == PLAIN else ((value, unit), letters)
            return _values(left[0], right[0], terms, left[1], right[1])
        held = bracketed(value if unit != PLAIN else target)
        if _is_formula(bare) and not held and not compound_quantity(answer if bare == gold else gold):
            return _values(answer, gold, terms)  # 0.5g for g/2: the letter is no unit
    if unit == gold_unit == PLAIN:
        return _values(value, target, terms)
    if PERCENT in (unit, gold_unit):
        return _percents(value, unit, target, gold_unit, terms)
    if unit.noun or gold_unit.noun:
        counted = not (unit.noun and gold_unit.noun) or _same_noun(unit.noun, gold_unit.noun)
        return counted and not (unit.dimensions or gold_unit.dimensions) and _values(value, target, terms)
    if powers := {power for each in (unit, gold_unit) for name, power in each.dimensions if name == NAMELESS}:
        return len(powers) == 1 and _values(value, target, terms)
    if terms.unit and terms.unit.dimensions:
        unit, gold_unit = (u if u.dimensions else terms.unit for u in (unit, gold_unit))
    if all("°" in text for text in (answer, gold)) and PLAIN in (unit, gold_unit):  # 180° - 35°
        return _values(answer, gold, terms)
    if "π" in value + target and {unit, gold_unit} == {PLAIN, _DEGREE}:
        unit, gold_unit = (_RADIAN if u == PLAIN else u for u in (unit, gold_unit))  # π/4 is 45°
    dimensions = {unit.dimensions, gold_unit.dimensions}
    if () in dimensions or dimensions == {(("degree", 1),), (("K", 1),)}:
        return _values(value, target, terms)
    return len(dimensions) == 1 and _values(value, target, terms, unit, gold_unit)


def _is_formula(text: str) -> bool:
    with suppress(Unreadable):
        return not re.fullmatch(r"[A-Za-z]+\d+", text) and bool(read(text).symbols)
    return False


def in_full(text: str) -> str:
    """Write `3.15M` as `3.15 million`; 300K may be kelvins."""
    match = _SHORT_NUMBER.fullmatch(text)
    return match[1] + _SHORT[match[2].lower()] if match and match[2] != "K" else text


def quantity(text: str) -> tuple[str, MeasurementUnit]:
    """The number and the unit of `5 cm`, `four apples`, `3.5 million`, in canonical form."""
    text = re.sub(r"^an? (?=dozen|hundred|thousand|million)", "1 ", _PART.sub(_fraction, text))
    first, space, rest = text.partition(" ")
    if chance := _CHANCE.fullmatch(text):
        above, below = (NUMBER_WORDS.get(part.lower(), part) for part in chance.groups())
        return f"{above}/{below}", PLAIN
    if first.lower() in ("minus", "negative") and rest.lower() in NUMBER_WORDS:
        return f"-{NUMBER_WORDS[rest.lower()]}", PLAIN
    if space and first.lower() in NUMBER_WORDS:  # four apples
        first = NUMBER_WORDS[first.lower()]
    elif re.fullmatch("[a-z]{4,}", rest):  # 25k visitors
        first = in_full(first)
    text = _SHORT_MONEY.sub(lambda match: match[1] + _SHORT[match[2].lower()], f"{first}{space}{rest}")
    text = _MAGNITUDE.sub(_multiplied, text).strip()
    return split_unit(text) or (text, PLAIN)


def _fraction(part: re.Match[str]) -> str:
    """Write `two thirds`, `2 thirds` and 三分之二 as 2/3."""
    if part[1]:
        return f"{NUMBER_WORDS.get(part[1].lower(), part[1])}/{FRACTIONS[part[2].lower()]}"
    above, below = NUMBER_WORDS.get(part[4]), NUMBER_WORDS.get(part[3])
    return f"{above}/{below}" if above and below else part[0]


def unit_of_number(text: str) -> MeasurementUnit | None:
    """The unit of a number or of an equation that states one; `None` for anything else."""
    with suppress(Unreadable, Refused):
        number, unit = quantity(normalise(text).rpartition("=")[2].strip())
        numeric.value_of(number)
        return unit
    return None


def _multiplied(match: re.Match[str]) -> str:
    scales = re.findall("|".join(MAGNITUDES), match[2].lower())
    return format(Decimal(match[1].replace(",", "")) * math.prod(MAGNITUDES[name] for name in scales), "f")


def _percents(value: str, unit: MeasurementUnit, target: str, gold_unit: MeasurementUnit, terms: Terms) -> bool:
    if (unit if gold_unit == PERCENT else gold_unit) not in (PERCENT, PLAIN):
        return False
    as_written = unit != gold_unit and terms.percent and "%" not in value + target and _values(value, target, terms)
    if gold_unit == PLAIN and terms.percent and not re.fullmatch(r"0?\.\d+", target):  # 25% of a question is not 0.25%
        return as_written
    return as_written or _values(value, target, terms, unit, gold_unit)


def _same_noun(left: str, right: str) -> bool:
    """Whether two nouns agree: `apple` and `red apple`; Chinese counters are written without a space."""
    short, long = sorted((left, right), key=len)
    counter = not short.isascii() and (long.startswith(short) or long.endswith(short))
    return short == long or long.endswith(f" {short}") or counter


def _values(
    answer: str, gold: str, terms: Terms, unit: MeasurementUnit = PLAIN, gold_unit: MeasurementUnit = PLAIN
) -> bool:
    """Compare two expressions by evaluation, or as words where they are not mathematics."""
    value, target = (NUMBER_WORDS.get(text.lower(), text) for text in (answer, gold))
    roundings = [(value, target)] if "." in target else []
    roundings += [(target, value)] if re.search(r"\.\d\d", value) else []
    if terms.rounded and unit == gold_unit and any(itertools.starmap(_rounds_to, roundings)):
        return True
    scales = {"answer_unit": (unit.factor, unit.offset), "gold_unit": (gold_unit.factor, gold_unit.offset)}
    try:
        return numeric.numerically_equal(value, target, lenient=terms.lenient, **scales)
    except Unreadable:
        return bool(words(gold)) and same_words(answer, gold)
