"""Units of measurement: parse them from an answer, and from the question that asks for them.

A table of its own, because libraries of units read almost any word as a unit (`cats` are centi-atmospheres) and convert
in floating point. Factors are exact.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .moments import MONTHS
from .notation import bracketed
from .words import FRACTIONS, NUMBER_WORDS

Dimensions = tuple[tuple[str, int], ...]
_EXPONENT = r"\s*\^\s*(?:-?\d+|\{\s*[-+]?\d+\s*\})"
# Behind these a single letter is a unit: 5, 1,200, 3/4, 5 3/4, 3*10^{8}, 5e-3
_PLAIN_NUMBER = re.compile(
    rf"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?(?:\s*\*\s*10{_EXPONENT}|(?:\s+\d+)?\s*/\s*\d+)?|10{_EXPONENT})"
)
# Side by side they are a product of variables, unless there is a negative power: `m s^{-1}`
_LETTERS = re.compile(rf"[/*]?\s*[A-Za-z](?:{_EXPONENT})?(?P<more>(?:[\s*]+[A-Za-z](?:{_EXPONENT})?)*)")
# What behind a bracket is no product of variables, as mg may be
_UNMISTAKABLE = re.compile(rf"(?:[ckd]m|(?:square|cubic|sq\.?) \w+|[a-z]{{4,}}|[\u4e00-\u9fff]+)(?:{_EXPONENT})?")
_COMMAND = re.compile(r"\\[A-Za-z]+|e(?![A-Za-z])|E(?=[-+]?\d)|π")
_BEHIND_A_NUMBER = re.compile(
    rf"[¤€£¥]|(?<=[\d)}}π])\s*(?:°|(?:(?:square|cubic|sq)\s)?[^\W\d_π]+(?:{_EXPONENT})?(?:\s*/\s*[^\W\d_π]+(?:{_EXPONENT})?)?)"
)
_PLURAL = re.compile(r"(?<=ch)es\b|(?<=sh)es\b|(?<=ss)es\b|(?<=x)es\b|(?<!s)s\b")
_PERCENT_WORDS = re.compile(r"%|％|percent|per cent|\bpct\b|百分", re.IGNORECASE)
_NAMED = r"(?:square |cubic |sq )?[A-Za-zμ°]+(?:/[a-z]+|\^\{?[23]\}?| per [a-z]+)?"
_ASKED = re.compile(  # (s) is no unit in value(s) and f(s), nor (J) at the beginning of a line, the label of a choice
    rf"\b(?i:in|how many|units?:)\s+(?:the\s+)?({_NAMED})"
    rf"|(?!(?<=[A-Za-z\n])\([A-Za-z]\))\(\s*(?:in |unit: ?|单位[:：]? ?)?({_NAMED}|[\u4e00-\u9fff]{{1,4}})\s*\)"
    rf"|(?:单位[:：是为]?\s*|多少|几)((?:平方|立方)?[\u4e00-\u9fff]{{1,2}}|{_NAMED})"
)
# The other single letters are variables and articles more often than units.
_ASKED_LETTERS = frozenset("mgshNJW")


class MeasurementUnit(NamedTuple):
    """A unit: value · factor + offset is the value in base units; `noun` names counted things instead."""

    factor: Fraction
    dimensions: Dimensions
    offset: Fraction = Fraction(0)
    noun: str = ""


PERCENT = MeasurementUnit(Fraction(1, 100), (("percent", 1),))
PLAIN = MeasurementUnit(Fraction(1), ())

_PREFIXES = {
    "p": ("pico", "皮", Fraction(1, 10**12)),
    "n": ("nano", "纳", Fraction(1, 10**9)),
    "μ": ("micro", "微", Fraction(1, 10**6)),
    "u": ("micro", "微", Fraction(1, 10**6)),  # on keyboards without μ
    "m": ("milli", "毫", Fraction(1, 1000)),
    "c": ("centi", "厘", Fraction(1, 100)),
    "d": ("deci", "分", Fraction(1, 10)),
    "h": ("hecto", "百", Fraction(100)),
    "k": ("kilo", "千", Fraction(1000)),
    "M": ("mega", "兆", Fraction(10**6)),
    "G": ("giga", "吉", Fraction(10**9)),
    "T": ("tera", "太", Fraction(10**12)),
}
# symbol, names, the prefixes in use, factor, dimensions in base units (kg, m, s, A, K, mol)
_METRIC: list[tuple[str, str, str, int | Fraction, dict[str, int]]] = [
    ("m", "meter metre 米", "nμumcdk", 1, {"m": 1}),
    ("g", "gram gramme 克", "μumk", Fraction(1, 1000), {"kg": 1}),
    ("s", "second 秒 秒钟", "pnμum", 1, {"s": 1}),
    ("L", "liter litre 升", "μumcdk", Fraction(1, 1000), {"m": 3}),
    ("l", "", "mcd", Fraction(1, 1000), {"m": 3}),
    ("A", "ampere amp 安 安培", "nμum", 1, {"A": 1}),
    ("K", "kelvin 开尔文", "", 1, {"K": 1}),
    ("N", "newton 牛 牛顿", "mk", 1, {"kg": 1, "m": 1, "s": -2}),
    ("J", "joule 焦 焦耳", "mkM", 1, {"kg": 1, "m": 2, "s": -2}),
    ("W", "watt 瓦 瓦特", "μumkMG", 1, {"kg": 1, "m": 2, "s": -3}),
    ("Pa", "pascal 帕 帕斯卡", "hkM", 1, {"kg": 1, "m": -1, "s": -2}),
    ("Hz", "hertz 赫兹", "kMG", 1, {"s": -1}),
    ("V", "volt 伏 伏特", "μumkM", 1, {"kg": 1, "m": 2, "s": -3, "A": -1}),
    ("C", "coulomb 库仑", "pnμum", 1, {"A": 1, "s": 1}),
    ("F", "farad", "pnμum", 1, {"kg": -1, "m": -2, "s": 4, "A": 2}),
    ("H", "henry 亨 亨利", "nμum", 1, {"kg": 1, "m": 2, "s": -2, "A": -2}),
    ("Ω", "ohm 欧 欧姆", "mkM", 1, {"kg": 1, "m": 2, "s": -3, "A": -2}),
    ("mol", "mole 摩尔", "m", 1, {"mol": 1}),
    ("eV", "electronvolt", "kMG", Fraction("1.602176634e-19"), {"kg": 1, "m": 2, "s": -2}),
    ("Wh", "", "k", 3600, {"kg": 1, "m": 2, "s": -2}),
    ("T", "tesla", "m", 1, {"kg": 1, "s": -2, "A": -1}),
    ("bit", "bit", "", 1, {"bit": 1}),
    ("ha", "hectare 公顷", "", 10000, {"m": 2}),
    ("kmph", "", "", Fraction(1000, 3600), {"m": 1, "s": -1}),
    ("B", "byte", "kMGT", 8, {"bit": 1}),
]
# Of a unit, or of what is measured in nothing else: the names of others, and how many of it each is
_OTHERS = {
    "s": "sec secs=1; min minute minutes mins 分钟=60; h hr hrs hour hours 小时 时=3600; day days d 天 日=86400; "
    "week weeks 周 星期=604800",
    "month": "month months 个月=1; year years yr yrs 年=12",
    "kmph": "kmh kph=1; mph=1.609344",
    "m": "公分=0.01; 公里=1000; inch inches in=0.0254; foot feet ft=0.3048; yard yards yd=0.9144; "
    "mile miles mi=1609.344",
    "kg": "公斤 kilo kilos=1; ton tons tonne tonnes t 吨=1000; pound pounds lb lbs=0.45359237; "
    "ounce ounces oz=0.028349523125",
    "L": "gallon gallons gal=3.785411784; cc=0.001",
    "ha": "acre acres=0.40468564224",
    "degree": "° degree degrees deg 度=1; rad radian radians 弧度=57.29577951308232",
    "usd": "dollar dollars usd USD 美元=1; cent cents ¢=0.01",
    "eur": "euro euros eur EUR € 欧元=1",
    "gbp": "£ gbp GBP=1",
    "cny": "元 yuan rmb RMB cny CNY ¥ 块=1; 角=0.1",
    "J": "cal calorie calories=4.184; kcal Cal=4184",
    "Pa": "atm=101325",
    "B": "KB=1000",
}
_CELSIUS = MeasurementUnit(Fraction(1), (("K", 1),), offset=Fraction("273.15"))
_FAHRENHEIT = MeasurementUnit(Fraction(5, 9), (("K", 1),), offset=Fraction("273.15") - Fraction(160, 9))
_TEMPERATURE = re.compile(r"(?:° ?|degrees )[CF]|(?:degrees? )?(?:Celsius|Fahrenheit)|摄氏度")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3}
CURRENCIES = {"¤": "dollar", "€": "€", "£": "£", "¥": "¥"}


def _table() -> dict[str, MeasurementUnit]:
    table = {}
    for symbol, names, prefixes, size, dimensions in _METRIC:
        for short, (long, chinese, scale) in [("", ("", "", Fraction(1))), *((p, _PREFIXES[p]) for p in prefixes)]:
            unit = MeasurementUnit(size * scale, tuple(sorted(dimensions.items())))
            table[short + symbol] = unit
            for name in names.split():
                for form in (long + name, f"{long}{name}s") if name.isascii() else (chinese + name,):
                    table[form] = unit
    for base, others in _OTHERS.items():
        unit = table.get(base) or MeasurementUnit(Fraction(1), ((base, 1),))
        for names, _, times in (each.partition("=") for each in others.split("; ")):
            table.update(dict.fromkeys(names.split(), unit._replace(factor=unit.factor * Fraction(times))))
    for prefix, power in (("平方", 2), ("立方", 3)):
        for name in ("毫米", "厘米", "分米", "米", "千米", "公里"):
            table[prefix + name] = MeasurementUnit(table[name].factor ** power, (("m", power),))
    return table


UNITS = _table()
_FACTOR = re.compile(
    r"\s*(?P<operator>[/*]|per\b|每)?\s*(?P<name>[^\W\d_]+|[°¢€£¥])(?:\s*\^\s*\{?\s*(?P<power>-?[1-4])\s*\}?)?"
)


@lru_cache(maxsize=4096)
def parse_unit(text: str) -> MeasurementUnit | None:
    """Parse `cm`, `km/h`, `square metres`, `kg*m/s^{2}`, `°C`, `%` … as a unit; `None` if it is not one."""
    text = CURRENCIES.get(text, text).strip().rstrip(".").replace("μ ", "μ").replace("k Ω", "kΩ")
    for written, meant in ((" squared", "^2"), (" cubed", "^3"), ("ms^{-", "m s^{-")):  # no milliseconds
        text = text.replace(written, meant)
    text = re.sub(r"(?<=[a-z])-(?=[a-z]{3})|(?<=\bsq)\.|(?<=\bcu)\.", " ", text)  # newton-metres, sq.cm
    text = re.sub(r"(?<=[*/(\s])° ?C(?=\)|$)", "K", text)  # J/(kg*°C): a difference
    text = re.sub(r"/\s*\(([^()]*)\)", lambda match: "/" + "/".join(re.split(r"[*\s]+", match[1].strip())), text)
    if text in ("%", "percent", "per cent", "pct", "percentage", "百分之"):
        return PERCENT
    if _TEMPERATURE.fullmatch(text):
        return _FAHRENHEIT if "F" in text else _CELSIUS
    factor, dimensions, position, power, inverse = Fraction(1), dict[str, int](), 0, 1, 1
    while position < len(text):
        if not (match := _FACTOR.match(text, position)):
            return None
        position, name = match.end(), match["name"]
        inverse = -1 if match["operator"] in ("/", "per", "每") else inverse
        if name in _POWERS:
            power = _POWERS[name]
            continue
        unit = UNITS.get(name) or UNITS.get(name.lower() if len(name) > 2 else "")
        if unit is None:
            return None
        exponent = int(match["power"] or 1) * power * inverse
        factor *= unit.factor**exponent
        for base, value in unit.dimensions:
            dimensions[base] = dimensions.get(base, 0) + value * exponent
        power, inverse = 1, 1
    if not text or power != 1:
        return None
    return MeasurementUnit(factor, tuple(sorted((name, value) for name, value in dimensions.items() if value)))


_PIECE = re.compile(r"[^\W\d_]+|\d+(?:[.,]\d+)*|\S")
_NOT_COUNTED = (
    NUMBER_WORDS.keys()
    | MONTHS.keys()
    | {f"{name}{plural}" for name in FRACTIONS for plural in ("", "s")}
    | set(
        """
    or and to not is of than but if no are was it times out at by in on for with from plus minus mod either neither x y
    z maybe perhaps never wrong incorrect false negative squared cubed factorial point below above under over too first
    less more fewer short unknown doubled tripled pair pairs gross score tens lakh crore millionen millones millions
    billions thousands mio
    """.split()
    )
)
_IN_BRACKETS = re.compile(r"(?<=[\d}π])\s*\(\s*([^\W\d][^()\d=]*)\)$")
NAMELESS = "units"
"""Stands for the dimension of `5 square units`."""
_NAMELESS = re.compile(
    r"(?<=[\d)}π])\s*(?:(?:(?P<area>square|sq\.?)|(?P<volume>cubic|cu\.?)) )?\s*"
    r"units?(?:\s*\^\s*\{?(?P<power>[23])\}?)?$",
    re.IGNORECASE,
)
_COMPOUND = re.compile(r"(\d+(?:\.\d+)?)\s*([^\W\d_]{1,8})\s*(?:,\s*|\band\s+)?")


def split_unit(text: str, *, products: bool = False) -> tuple[str, MeasurementUnit] | None:
    """Split `12π cm^{2}`, `¤5`, `25%`, `5 apples`, `1 h 30 min` into (number, unit); `None` without a unit.

    With `products` the letters of `5 N*m` are units, too, as they are where the other answer marks them as text.
    """
    for sign, name in CURRENCIES.items():
        if text.startswith((sign, f"-{sign}")):
            return re.sub(r"\s*(?:per |/ ?|each\b)[a-z]*$", "", text.replace(sign, "", 1)).strip(), UNITS[name]
    if text.startswith("百分之"):
        return text[3:].strip(), PERCENT
    text = _IN_BRACKETS.sub(r"\1", text)
    if match := _NAMELESS.search(text):
        power = 2 if match["area"] else 3 if match["volume"] else int(match["power"] or 0)
        return text[: match.start()], PLAIN._replace(dimensions=((NAMELESS, power),) if power else ())
    if (compound := compound_quantity(text)) is not None:
        return compound
    for start in [match.start() for match in _PIECE.finditer(text)][-24:]:
        number, suffix = text[:start].strip(), text[start:].strip()
        if (unit := parse_unit(suffix)) is not None and _goes_with(suffix, number, products=products):
            return number, unit
    return _counted(text)


def _goes_with(unit: str, number: str, *, products: bool = False) -> bool:
    """Whether a unit is meant, no variable: it stands behind a number, a single letter only behind a plain one.

    In a formula h is a height and g an acceleration. Single letters marked as text have become names (`notation.py`).
    """
    if not number or number[-1] in "*/^+-=(_<>\\" or "=" in number:
        return False
    if unit == "°":
        return not re.search(r"sin|cos|tan|cot|sec|csc|°", number)
    if number[-1] == ")" and bracketed(number) and _UNMISTAKABLE.fullmatch(unit):  # (4a - 3) cm
        return True
    if letters := _LETTERS.fullmatch(unit):
        product = bool(letters["more"]) and "-" not in letters["more"]
        return unit[0] not in "/*" and (products or not product) and _PLAIN_NUMBER.fullmatch(number) is not None
    if unit[0] == "%":
        return "%" not in number  # 100% - 81%
    return not any(character.isalpha() for character in _COMMAND.sub("", number))


def without_units(text: str, *, scaled: bool = False) -> str:
    """Remove the units of all numbers in a calculation, `3 cm + 4 cm`; `scaled` brings each number to base units."""

    def replacement(match: re.Match[str]) -> str:
        if match[0].strip() == "°" and re.search(r"(?:sin|cos|tan|cot|sec|csc)\s*\(?\s*[\d.]+$", text[: match.start()]):
            return match[0]
        unit = parse_unit(match[0])
        if match[0] in CURRENCIES or unit is None:
            return "" if unit else match[0]
        return f"*({unit.factor})" if scaled else ""

    return _BEHIND_A_NUMBER.sub(replacement, text)


def compound_quantity(text: str) -> tuple[str, MeasurementUnit] | None:
    """Add up `1 h 30 min`, `5 feet and 3 inches`, amounts of ever smaller units, in base units."""
    parts, position = [], 0
    text = re.sub(r"(时\s*\d+\s*分)$", r"\1钟", text)
    while (match := _COMPOUND.match(text, position)) and (unit := UNITS.get(match[2])):
        parts.append((Fraction(match[1]), unit))
        position = match.end()
    sizes = [unit.factor for _, unit in parts]
    if len(parts) < 2 or position < len(text) or len({unit.dimensions for _, unit in parts}) > 1:
        return None
    if sizes != sorted(set(sizes), reverse=True):
        return None
    total = sum((amount * unit.factor for amount, unit in parts), Fraction(0))
    return f"{total.numerator}/{total.denominator}", MeasurementUnit(Fraction(1), parts[0][1].dimensions)


def _counted(text: str) -> tuple[str, MeasurementUnit] | None:
    """Parse a count such as `5 red apples`: a number and at most three words."""
    match = re.fullmatch(
        r"(-?(?:\d+ (?=\d+/))?\d[\d.,/]*)(?:\s+|(?=[^\W\d_a-zA-Z]))([^\W\d_]+(?:[ -][^\W\d_]+){0,2})[ -]?\.?", text
    )
    if not match:
        return None
    nouns = match[2].lower().replace("-", " ").split()
    if any(noun in _NOT_COUNTED or len(noun) < 3 and not "\u4e00" <= noun[0] <= "\u9fff" for noun in nouns):
        return None
    return match[1], PLAIN._replace(
        noun=_PLURAL.sub("", re.sub(r"ies\b", "y", " ".join(nouns))) if len(match[2]) > 3 else match[2]
    )


def speaks_of_percent(text: str | None) -> bool:
    """Whether a question or a gold answer speaks of percent."""
    return text is not None and _PERCENT_WORDS.search(text) is not None


def asked_unit(question: str | None) -> MeasurementUnit | None:
    """The one unit that a question asks for (`in cm`, `how many minutes`, `(km/h)`, `多少厘米`), if any."""
    if not question:
        return None
    candidates = set()
    for match in _ASKED.finditer(question.replace("²", "^2").replace("³", "^3")):
        name = next(group for group in match.groups() if group)
        # Chinese sentences run on after the unit
        names = [name] if name.isascii() else [name[:size] for size in range(len(name), 0, -1)]
        usual = (one for one in names if len(one) > 1 or one in _ASKED_LETTERS or not one.isascii())
        units = [unit for one in usual if (unit := parse_unit(one))]
        if units and units[0] != PERCENT:
            candidates.add(units[0])
    return candidates.pop() if len(candidates) == 1 else None
