"""Normalise notation: full-width and typographic characters, LaTeX markup, white space.

The canonical form is plain text with π ∞ ± ∪ ∅ ∈ ≈ ° as single characters, `* / ^ = < > <= >= !=` as operators,
`\\{ \\}` for sets, and the LaTeX commands that carry meaning (`\\frac`, `\\sqrt`, `\\sum`, …) left as they are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

MAX_CHARACTERS = 2000
MAX_DEPTH = 50
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_FRACTIONS = {
    character: f" {unicodedata.normalize('NFKC', character).replace('⁄', '/')} " for character in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
}
_GREEK = {
    name: unicodedata.lookup(
        f"GREEK {'SMALL' if name.islower() else 'CAPITAL'} LETTER {name.upper().replace('LAMBDA', 'LAMDA')}"
    )
    for name in "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi psi "
    "omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega".split()
}
_CHARACTERS = str.maketrans(
    {
        **_FRACTIONS,
        **dict(zip("−–—‒×·⋅∙∗✕÷⁄∕“”„〝〞‘’‛′`˚º≌〃∼⋃【】〈〉", "----******///\"\"\"\"\"'''''°°≅∥≈∪[]⟨⟩", strict=True)),
        **dict(zip("、﹐≤⩽≦≥⩾≧ħℏ", [", ", ", ", *["<="] * 3, *[">="] * 3, "h\u0335", "h\u0335"], strict=True)),
        **{chr(ord("₀") + digit): f"_{digit}" for digit in range(10)},
        **{chr(ord("①") + number): f" ({number + 1}) " for number in range(9)},
        "‰": " /1000 ",
        "∠": " angle ",
        "∶": ":",
        "△": " triangle ",
        "≠": "!=",
        "√": "\\sqrt ",
        "∛": "\\sqrt[3] ",
        "㎡": "m^2",
        "㎥": "m^3",
        "㎠": "cm^2",
        "。": ". ",
    }
)
# What a command means in the canonical form; "" drops it. A command that is not here keeps its name.
_COMMANDS = {
    **_GREEK,
    **dict.fromkeys(
        "left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle limits nolimits".split(), ""
    ),
    **dict.fromkeys("quad qquad space enspace thinspace hspace newline checkmark blacksquare".split(), " "),
    **dict(
        pair.split("=", 1)
        for pair in "dfrac=\\frac tfrac=\\frac cfrac=\\frac setminus=\\setminus cdot=* times=* ast=* bullet=* div=/ "
        "lt=< gt=> le=<= leq=<= leqslant=<= leqq=<= ge=>= geq=>= geqslant=>= geqq=>= ne=!= neq=!= approx=≈ simeq=≈ "
        "thickapprox=≈ emptyset=∅ varnothing=∅ cup=∪ bigcup=∪ cap=∩ vert=| lvert=| rvert=| mid=| degree=° circ=° "
        "ldots=... dots=... cdots=... pi=π infty=∞ pm=± mp=∓ in=∈ langle=⟨ rangle=⟩ lbrack=[ rbrack=] colon=: "
        "equiv=≡ wedge=∧ land=∧ vee=∨ lor=∨ parallel=∥ perp=⊥ cong=≅ backsim=\\sim lbrace=\\{ rbrace=\\} "
        "backslash=\\ imath=i jmath=j".split()
    ),
    "varphi": _GREEK["phi"],
    "varepsilon": _GREEK["epsilon"],
    "hbar": " h\u0335 ",
    "ell": " l ",
    "angle": " angle ",
    "triangle": " triangle ",
}
# Commands around words: only their contents count.
_WRAPPERS = frozenset(
    (
        "text textbf textit textrm textsf texttt textnormal mathrm mathbf mathit mathsf mathbb "
        "mathcal mathtt ce mbox hbox boldsymbol bm operatorname emph underline boxed fbox"
    ).split()
)
# The segment AB, however it is marked; marks over digits stay, as in 0.\overline{3}.
_MARKED_LETTERS = re.compile(
    r"\\(overline|overrightarrow|overleftrightarrow|widehat|wideparen|vec|bar|hat)\s*\{\s*([A-Za-z]\s*[A-Za-z][A-Za-z\s']*)\}"
)
# Marks over one letter make another variable of it; an arrow, as bold type, only says that it is a vector.
_ACCENTS = {
    **dict.fromkeys(["vec", "overrightarrow"], ""),
    **dict.fromkeys(["bar", "overline"], "\u0304"),
    **dict.fromkeys(["hat", "widehat"], "\u0302"),
    **dict.fromkeys(["tilde", "widetilde"], "\u0303"),
    "dot": "\u0307",
    "ddot": "\u0308",
}
_ARROW, _ARROWS = "\u20d7", ("overrightarrow", "vec")
MARKS = frozenset((*filter(None, _ACCENTS.values()), "\u0335", _ARROW))
_LESS = r"(?P<less>less|fewer|(?:small|short|low|young|cheap|slow|light)er)"
_COMPARISON = re.compile(
    rf"(?:^|\s)(?:(?:is|are|(?:must|has to) be)\s)?(?:(?:{_LESS}|more|(?:great|larg|bigg|long|high|tall|old)er)"
    r"\s+than(?P<equal>\sor\sequal\sto)?|(?P<least>at\s+least)|(?P<most>at\s+most))"
    r"(?:\s+(?=[$(]?[-−]?[\d√\\])|(?=\s*\}\s*[-−]?[\d√\\]))",
    re.I,
)
# Another way of writing the same: what has to occur in the text, pattern, replacement
_REWRITTEN: tuple[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    ("!=", re.compile(r"(?<=\d)!=(?=\s*\d)"), "! ="),  # 4! = 24
    ("\\", re.compile(r"\\(?:mathrm|mathbb|rm)\s+([A-Za-z])(?![A-Za-z])"), r" \1 "),
    ("{", re.compile(r"(?<=\d)\\(?:text|mathrm)\s*\{\s*[eE]\s*\}\s*(?=[-+]?\d)"), "e"),  # 5.0\text{E}14
    ("prime", re.compile(r"\^\s*(?:\{\s*(?:\\prime\s*)+\}|\\prime\b)"), lambda match: "'" * match[0].count("prime")),
    ("0x", re.compile(r"(?<![\w.])0x([\dA-Fa-f]+)(?!\w)"), lambda match: f"{match[1].upper()}_{{16}}"),
    ("度", re.compile(r"(?<=\d)\s?度\s?(\d+)\s?分(?!钟)"), r"°\1'"),
    ("秒", re.compile(r"(?<=\d')\s?(\d+)\s?秒"), r"\1''"),
    ("//", re.compile(r"(?<=[A-Z])\s*//\s*(?=[A-Z])"), "∥"),
    ("'", re.compile(r"(?<![\d.°])(\d+)\s*'\s*(\d+)\s*(?:\"|'')$"), r"\1 ft \2 in"),
    ("mil", re.compile(r"(?<=\d)\s*per ?mil(?:le?)?\b"), " /1000 "),
    ("^", re.compile(r"(?<=\d)\s*\^\s*\{\s*(?:\\(?:text|textrm|mathrm)\s*\{\s*)?(st|nd|rd|th)[\s}]*\}"), r"\1"),
    ("\\text", re.compile(r"(?<=\d)\s*\\text\{(st|nd|rd|th)\}"), r"\1"),
    ("0b", re.compile(r"(?<![\w.])0b([01]+)(?!\w)"), r"\1_2"),
    ("\\over", re.compile(r"\{([^{}]+?)\\over\b([^{}]+?)\}"), r"\\frac{\1}{\2}"),
    ("=", re.compile(r"^([a-z]) ?= ?[^=]*(?:±|\\pm\b)[^=]*=(?!=)"), r"\1 = "),
    ("→", re.compile(r"(?<=\d) ?→ ?(?=[A-Za-z]\b)"), "-"),
    ("choose", re.compile(r"\{\s*([^{}]+?)\s*\\choose\s*([^{}]+?)\s*\}"), r"\\binom{\1}{\2}"),
    ("US", re.compile(r"\bUS(?:D\s?\\?\$?|\\?\$)\s*(?=\d)"), "¤"),
    ("EUR", re.compile(r"\bEUR\s*(?=\d)"), "€"),
    ("pH", re.compile(r"\bpH\s+(?=\d)"), "pH = "),
    ("mod", re.compile(r"\s*\(?\\?\b[pb]?mod\s*\{?(\d+)\}?\)?"), r" mod \1"),
    ("且", re.compile(r"(?<=[\d)}])\s*且\s*(?=[A-Za-z(\d-])"), " and "),
    ("或", re.compile(r"(?<=[\d)}])\s*或\s*(?=[A-Za-z(\d-])"), " or "),
    ("_", re.compile(r"\(\s*([\dA-F]+)\s*\)\s*_\s*\{?\s*(\d+)\s*\}?"), r"\1_\2"),  # the base of a number
    (
        "\\",
        re.compile(r"\\(?:mathbf|bm|boldsymbol|vec)\s*(?:\{\s*([ijk])\s*\}|([ijk])(?![A-Za-z]))"),
        lambda match: rf"\hat{{{match[1] or match[2]}}}",
    ),
)
_ACCENT = re.compile(
    rf"\\(?P<accent>{'|'.join(_ACCENTS)})(?![A-Za-z])\s*(?P<brace>\{{)?\s*(?P<letter>[A-Za-z]|\\[a-z]+)\s*(?(brace)\}})"
)
_VECTOR = r"\\(?:vec|mathbf|bm|boldsymbol|overrightarrow)\s*(?:\{[^{}]*\}|[A-Za-z])"
# What does not commute: the cross product of vectors, products of bold matrices, functions of functions.
_VECTOR_PRODUCT = re.compile(
    rf"({_VECTOR}(?:\^\{{[^{{}}]*\}})?|\\nabla)\s*(?:\\times\b|(?=\\(?:mathbf|bm|boldsymbol)\s*\{{\s*[A-Z]\s*\}}))\s*"
)
_COMPOSED = re.compile(r"(?<=[A-Za-z])\s*\\circ\b\s*(?=[A-Za-z])")
_NAMED_INDEX = re.compile(r"_\s*(?:\{\s*)?\\(max|min|sup|inf|lim)(?![A-Za-z])\s*\}?")
# Brackets around an array make a matrix of it.
_ARRAY = re.compile(
    r"(?:\\left\s*)?[\[(]\s*\\begin\{(array|matrix|smallmatrix)\}(?:\{[lcr| ]*\})?(.*?)\\end\{\1\}"
    r"\s*(?:\\right\s*)?[\])]",
    re.DOTALL,
)
# What changes how an answer looks, not what it says.
_LAYOUT = re.compile(
    r"\\(?:textcolor|color|phantom|hphantom|vphantom|label|tag)\s*\{[^{}]*\}"
    r"|\\(?:rm|bf|it|sf|tt|tiny|small|normalsize|large|Large|LARGE|huge|Huge|centering|boldmath)\b\s*"
)
# Equations under one another are a list.
_CASES = re.compile(r"\\begin\{(cases|aligned|align|gathered|split)\*?\}(.*?)\\end\{\1\*?\}", re.DOTALL)
_OUTWARD = re.compile(r"(?:^|(?<=[∪∈\s=]))(?:\]|(\[))([^\[\],;]+[,;][^\[\],;]+)(?:\[|(\]))(?=$|[∪,.\s])")  # ]0, 1[
_MEASURE = re.compile(
    r"\b(length|width|height|radius|diameter|perimeter|area|volume|depth|breadth|mean|median)"
    r"(?: is| of|:| ?=)? ?(?=[-¤]?\d)",
    re.I,
)
_ANGLE = re.compile(r"(?<![a-z])angle ([A-Z]{3})\b")  # from either end
_SEGMENT = re.compile(r"\b(?:the )?(?:line )?(?:segment|side|chord|diagonal) (?=[A-Z]{2}$)")
_ALIGNED = re.compile(r"&\s*(?=[=<>]|\\[lg]e)")
_IF = re.compile(r"\\text ?\{ ?(?:if|for|when)? ?\}|\b(?:if|for|when)\b")
_BRACED_ARRAY = re.compile(r"\\left\s*\\\{\s*\\begin\{(array)\}\{[lcr| ]*\}(.*?)\\end\{\1\}\s*\\right\s*\.", re.DOTALL)
# The letter x as a sign: `3 x 10^8`, `1.6x10^{-19}`, `2 x 3`
_TIMES = re.compile(r"(?<=[\d.)}])\s*[xX]\s*(?=10\s*\^)|(?<=\d)\s+[xX]\s+(?=[¤\d])|(?<=\})\s+[xX]\s+(?=\d)")
# `v^2_0` is `v_0^2`
_POWER_FIRST = re.compile(r"\^\s*(\w|\{[^{}]*\})\s*_\s*(\w|\{[^{}]*\})")
_SPACE = r"(?:\\[,;:! ]|[\s~])*"
_TEXT = r"\\(?:text|textrm|textnormal|mathrm|mathsf|mbox|rm|operatorname)\s*"
# Units behind a number: `5\,\mathrm{m}\cdot\mathrm{s}^{-2}`, `3\text{ km/h}`
_MARKED_UNITS = re.compile(
    rf"(?:(?<=[\d)}}π])|(?<=\\pi))(?:{_SPACE}(?:\\cdot\b|\\times\b|[*/·])?{_SPACE}{_TEXT}"
    r"\{(?:[^{}]|\{[^{}]*\})*\}(?:\s*\^\s*(?:\{\s*-?\d\s*\}|\d))?)+(?![A-Za-z])"
)
_NOT_BEFORE_UNITS = re.compile(rf"(?:_\s*(?:\d|\{{[^{{}}]*\}})|{_TEXT}\{{[^{{}}]*\}}|\\circ\s*\}}|\\degree\s*\}})$")
_UNIT_NAMES = dict(
    pair.split(":")
    for pair in "m:meter g:gram s:second h:hour d:day t:ton l:liter L:liter A:ampere K:kelvin N:newton J:joule W:watt "
    "V:volt C:coulomb F:farad T:tesla".split()
)
_COMMAND = re.compile(r"\\([A-Za-z]+)|\\(.)|\\", re.DOTALL)
_SYMBOLS = {"{": "\\{", "}": "\\}", "\\": "\\\\", "$": "¤", "!": "", **dict.fromkeys("()[]", ""), "|": "|"}
_MINUTES = re.compile(r"(\d{1,3})° ?(\d{1,2})'(?: ?(\d{1,2})'')?(?!\d)")  # of an angle
_REMAINDER = re.compile(r"^(-?[\d.]+) (?:R|r|remainder) ([\d./]+)$")
# A function or a sign before a name makes a value of it.
_NO_NAME = re.compile(
    r"(?<![A-Za-z])(?:(?:sin|cos|tan|cot|log|ln|lg)(?:\b|[xyzABC]\b)|(?:exp|sqrt|abs|minus|negative|not|never)\b|minus)"
)
_NAME = re.compile(
    r"(?:(?:m\s*)?angle\s*\d+|(?:[^\W\d_]|[\\'\s\u0302-\u0308\u0335\u20d7])+(?:_\s*(?:\w|\{[^{}]*\})|\^\s*\{\s*-1\s*\}(?=\s*\())?'*"
    r"(?:\s*\((?:-?[A-Za-z0-9, ]{1,20}|[A-Z'] ?[∪∩|] ?[A-Z'])\))?)"
)


class Refused(Exception):
    """Too large to compare: too long, too deep, or a tower of exponents."""


class Unreadable(ValueError):
    """Not readable as mathematics."""


class Undefined(Unreadable):
    """Mathematics without a value, such as 1/0."""


def comparisons_as_signs(text: str) -> str:
    """Write comparisons with numbers as signs: at least 3, longer than 4 cm."""
    return _COMPARISON.sub(
        lambda match: (
            f" {'<' if match['less'] or match['most'] else '>'}"
            f"{'=' if match['equal'] or match['least'] or match['most'] else ''} "
        ),
        text,
    )


def normalise(text: str) -> str:
    """The canonical form of one answer; `Refused` if it is too long or nested too deep."""
    if len(text) > MAX_CHARACTERS:
        raise Refused(f"{len(text)} characters long, more than {MAX_CHARACTERS} are not compared")
    text = re.sub(f"[{''.join(_SUPERSCRIPTS)}]+", _superscript, text).translate(_CHARACTERS)
    text = unicodedata.normalize("NFKC", text).replace("⁄", "/").replace("∕", "/")
    if len(text) > 2 * MAX_CHARACTERS:
        raise Refused("it unfolds into a string too long to compare")
    # format and control characters have no width and no meaning
    text = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    text = comparisons_as_signs(text) if "than" in text or "at " in text else text
    for needed, pattern, replacement in _REWRITTEN:
        if needed in text:
            text = pattern.sub(replacement, text)
    text = re.sub(r"\{([,:])\}", r"\1", text)
    if "\\" in text:
        text = _without_commands(text)
    depth = 0
    for character in text:
        depth = max(depth + _step(character), 0)
        if depth > MAX_DEPTH:
            raise Refused(f"brackets nested deeper than {MAX_DEPTH} levels are not compared")
    # a dollar sign that has no partner is money
    text = text.replace("$", "" if text.count("$") % 2 == 0 else "¤").replace("~", " ").replace("**", "^")
    text = re.sub(r"(?:\{ ?\} ?)?\^ ?(?:\{ ?[°∘] ?\}|[°∘])", "°", text)
    text = _MINUTES.sub(_in_degrees, text)
    text = _TIMES.sub("*", re.sub(r"==+", "=", text))
    text = _POWER_FIRST.sub(r"_\2^\1", text)
    text = re.sub(r"_\{(\w)\}", r"_\1", text)
    text = re.sub(r"\\\{\s*\\\}", "∅", text)
    text = re.sub(
        r"\b(?:(negative|minus)|positive|plus)?\s*infinity\b", lambda m: "-∞" if m[1] else "∞", text, flags=re.I
    )
    text = " ".join(text.split())
    if "[" in text or "]" in text:
        text = _OUTWARD.sub(lambda match: f"{match[1] or '('}{match[2]}{match[3] or ')'}", text)
    text = _REMAINDER.sub(r"(\1, \2)", text)
    text = _ANGLE.sub(lambda match: "angle " + min(match[1], match[1][::-1]), _SEGMENT.sub("", text))
    return _MEASURE.sub(lambda match: f"{match[1].lower()} = ", text)


def _without_commands(text: str) -> str:
    text = _LAYOUT.sub("", re.sub(r",\\!\s*", ",", text))
    text = _COMPOSED.sub(" ∘ ", _VECTOR_PRODUCT.sub(r"\1 ⨯ ", text))
    text = _ARRAY.sub(lambda match: rf"\begin{{bmatrix}}{match[2]}\end{{bmatrix}}", text)
    text = _CASES.sub(_listed, _BRACED_ARRAY.sub(_listed, text))
    text = _unwrap(_MARKED_UNITS.sub(_named_units, text))
    # an arrow has a direction
    text = _MARKED_LETTERS.sub(lambda match: f" {match[2]}{_ARROW if match[1] in _ARROWS else ''} ", text)
    text = _ACCENT.sub(lambda match: f" {match['letter']}{_ACCENTS[match['accent']]} ", text)
    return _COMMAND.sub(_canonical, _NAMED_INDEX.sub(r"_{\1}", text))


def _listed(match: re.Match[str]) -> str:
    """The rows of equations as a list, in which a value with its condition is a pair."""
    if match[1] not in ("cases", "array"):
        return ", ".join(row.replace("&", "").strip(" ,;\n") for row in match[2].split("\\\\"))
    rows = [re.split("[&,;]", _ALIGNED.sub("", _IF.sub(" ", row))) for row in match[2].split("\\\\")]
    entries = [[part.strip() for part in row if part.strip()] for row in rows]
    return ", ".join(f"({', '.join(row)})" if len(row) > 1 else "".join(row) for row in entries)


def _in_degrees(match: re.Match[str]) -> str:
    degrees, minutes, seconds = (int(number or 0) for number in match.groups())
    return f"({Fraction(3600 * degrees + 60 * minutes + seconds, 3600)})°"


def _superscript(match: re.Match[str]) -> str:
    raised = "".join(_SUPERSCRIPTS[c] for c in match.group())
    return f"^{raised}" if len(raised) == 1 else f"^{{{raised}}}"


def _named_units(match: re.Match[str]) -> str:
    """Write single letters that are marked as units as their names, so that they are no variables."""
    symbols = re.findall(r"[A-Za-z]+", re.sub(r"\\[A-Za-z]+", " ", match[0]))
    if (
        max(map(len, symbols), default=9) > 4
        or re.search(r"[AaPp]\.\s?[Mm]", match[0])
        or _NOT_BEFORE_UNITS.search(match.string, 0, match.start())
    ):
        return match[0]  # words, or what follows them
    return re.sub(
        r"(?<![A-Za-z\\])(?<!circ[\s}])[A-Za-z](?![A-Za-z])", lambda one: _UNIT_NAMES.get(one[0], one[0]), match[0]
    )


def _canonical(match: re.Match[str]) -> str:
    name, symbol = match.groups()
    if name is None:
        return _SYMBOLS.get(symbol, symbol if symbol in "%&#_" else " ") if symbol else ""
    meaning = _COMMANDS.get(name)
    if meaning is None:
        return match.group()
    # keeps `\cdot x` and `\le x` apart from what follows
    return f"{meaning} " if meaning[:1] == "\\" and meaning[1:].isalpha() else meaning


def _unwrap(text: str) -> str:
    r"""Unwrap text commands, `3\text{ cm}` → `3  cm `, in one pass with a stack of their braces."""
    pieces: list[str] = []
    wrapped: list[bool] = []
    position = 0
    for match in re.finditer(r"\\([A-Za-z]+)\s*\{|\\.|[{}]", text, re.DOTALL):
        pieces.append(text[position : match.start()])
        position = match.end()
        dropped = False
        if match[1] or match[0] == "{":
            wrapped.append(dropped := match[1] in _WRAPPERS)
        elif match[0] == "}" and wrapped:
            dropped = wrapped.pop()
        pieces.append(" " if dropped else match[0])
    return "".join([*pieces, text[position:]])


def split_top(text: str, separators: re.Pattern[str]) -> list[str]:
    """Split at the separators outside all brackets; pieces are stripped."""
    pieces, depth, start, position = [], 0, 0, 0
    while position < len(text):
        if depth == 0 and (match := separators.match(text, position)) and match.end() > position:
            pieces.append(text[start:position].strip())
            start = position = match.end()
            continue
        depth += _step(text[position])
        position += 1
    return [*pieces, text[start:].strip()]


def bracketed(text: str) -> tuple[str, str, str] | None:
    r"""(opening, inside, closing) if one pair of brackets, `( ) [ ] \{ \} ⟨ ⟩`, encloses the whole text."""
    for opening, closings in (("(", ")]"), ("[", "])"), ("\\{", ("\\}",)), ("⟨", "⟩"), ("{", "}")):
        for closing in closings:
            if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening + closing):
                inside = text[len(opening) : len(text) - len(closing)]
                if balanced(inside):
                    return opening, inside.strip(), closing
    return None


def balanced(text: str) -> bool:
    """Whether brackets close as often as they open, and never before; of whatever kind."""
    depth = 0
    for character in text:
        depth += _step(character)
        if depth < 0:
            return False
    return depth == 0


def _step(character: str) -> int:
    return (character in "([{⟨") - (character in ")]}⟩")


def is_name(text: str) -> bool:
    r"""Whether an equation may define it: `x`, `S_{ABC}`, `f(x)`, `∠A`, `Area`."""
    named = len(text) <= 60 and _NAME.fullmatch(text) is not None and text not in ("π", "e", "∞", "∅")
    return named and _NO_NAME.search(text) is None
