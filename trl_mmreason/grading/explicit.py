r"""Parse LaTeX for computer algebra; for worker processes only.

The grammar is that of `expressions.py`, extended by sums, integrals, limits, derivatives, matrices and the like. Only
what is known here gets through: a tree of nodes, of which `algebra.py` builds expressions. No text reaches sympy.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from .expressions import ENDS, FUNCTIONS, ONE, THOUSANDS, Node, Parser, parts_of
from .notation import MARKS, NeedsAlgebra, Refused, Unreadable
from .numeric import evaluate_node

_TOKEN = re.compile(
    rf"(?P<number>(?:(?:(?<![\d(,]){THOUSANDS}|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<command>\\(?:begin|end)\s*\{\s*[a-z]+\s*\}|\\[A-Za-z]+|\\\\)"
    r"|(?P<side>\^\s*(?:[+-]|\{\s*[+-]\s*\})(?=\s*\}))|(?P<word>π|[^\W\d_π]+)|(?P<symbol>\S)"
)
_DEGREE = re.compile(r"\^\s*(?:\\circ|\\degree|°|\{\s*(?:\\circ|\\degree|°)\s*\})")
_MAX_DIGITS = 400  # as written
_MAX_COMPUTED_DIGITS = 10_000
_MAX_TERMS = 50_000
_MAX_WORK = 10**7  # terms times digits
_OF_SEVERAL = frozenset("gcd lcm max min".split())
_NO_CLOSED_FORM = FUNCTIONS | frozenset(("several", "root", "factorial", "binomial", "\\lfloor", "\\lceil"))
_MATRICES = {"matrix": "bmatrix", "pmatrix": "bmatrix", "bmatrix": "bmatrix", "vmatrix": "vmatrix"}
_SYNONYMS = {"\\cdot": "*", "\\times": "*", "\\div": "/", "\\pi": "π", "\\infty": "∞", "\\rightarrow": "\\to"}
_SYNONYMS |= dict.fromkeys(("\\dfrac", "\\tfrac"), "\\frac") | dict.fromkeys(("\\dbinom", "\\tbinom"), "\\binom")


def explicit(text: str) -> Node:
    """Parse one expression, LaTeX or its canonical form, without delimiters, text, units and percent signs.

    Raises:
        Unreadable: it is not one expression made of what is known here.
        Refused: a number has more than 400 digits.
    """
    tokens: list[tuple[str | None, str]] = []
    for match in _TOKEN.finditer(_DEGREE.sub("°", text)):
        kind, token = match.lastgroup, _SYNONYMS.get(match[0], match[0])
        if token in _Parser.known:
            tokens.append(("command", f"\\{token}"))
        elif kind == "word" or token in ("π", "∞"):
            tokens += [("word", letter) for letter in _letters(token)]
        else:
            tokens.append((kind, token))
    node = _Parser(tokens).whole()
    _check_size(node, defaultdict(lambda: Fraction(2)))
    return node


def _magnitude(node: Node, point: Mapping[str, Any]) -> float:
    """The decimal digits of a value, at least roughly; 0 where it has none. Negative below 1."""
    kind, *parts = node
    if kind == "power" and abs(size := _magnitude(parts[0], point)) > 0:
        exponent = _rough(parts[1], point)
        return size * (exponent if exponent is not None else 10 ** min(_magnitude(parts[1], point), 300))
    if kind == "factorial":
        return _log_gamma(_rough(parts[0], point))
    if kind == "binomial":
        n, k = (_rough(part, point) or 0 for part in parts)
        return max(_log_gamma(n) - _log_gamma(k) - _log_gamma(abs(n - k)), 0)
    if kind in ("product", "sum"):
        sizes = [_magnitude(part, point) for part in parts[0]]
        return sum(sizes) if kind == "product" else max(sizes)
    if kind in ("minus", "inverse"):
        return _magnitude(parts[0], point) * (-1 if kind == "inverse" else 1)
    value = _rough(node, point)
    return math.log10(abs(value)) if value else 0.0


def _rough(node: Node, point: Mapping[str, Any]) -> float | None:
    try:
        return abs(value) * (-1 if value.real < 0 else 1) if (value := complex(evaluate_node(node, point))) else 0.0
    except (KeyError, ValueError, ArithmeticError, NeedsAlgebra, Refused):
        return None


def _log_gamma(number: float | None) -> float:
    return 0.0 if number is None or number < 0 else math.lgamma(min(number, 1e300) + 1) / math.log(10)


def _check_size(node: Any, point: defaultdict[str, Fraction]) -> None:
    """Refuse powers, factorials, sums and products that computer algebra would not compute in time.

    Args:
        node: a node, a list of them, or what else a node holds.
        point: the variables; those of the sums around it are at their upper bounds, others 2.
    """
    parts = node if isinstance(node, tuple | list) else ()
    if parts[:1] and parts[0] in ("power", "factorial", "binomial"):
        _check_digits(abs(_magnitude(node, point)))
    if parts[:1] and parts[0] in ("\\sum", "\\prod"):
        kind, variable, *bounds, term = parts
        low, high = (_rough(bound, point) for bound in bounds)
        if low is not None and high is not None and abs(terms := high - low) < math.inf:
            (half, _), (size, point) = (
                (abs(_magnitude(term, there)), there)
                for at in ((low + high) // 2, max(low, high))
                for there in [defaultdict(point.default_factory, {**point, variable[1]: Fraction(at)})]
            )
            size = max(size, half * abs(terms) / 2) if kind == "\\prod" else size
            # nothing that grows faster than a geometric series has a closed form
            _check_digits(math.inf if size > 2 * half + 9 and size * abs(terms) > _MAX_WORK else size)
            functions = (each for each in parts_of(term) if isinstance(each, tuple) and each[0] in _NO_CLOSED_FORM)
            if abs(terms) > _MAX_TERMS and any(variable in parts_of(each) for each in functions):
                raise Refused(f"more than {_MAX_TERMS} terms without a closed form")
    for part in parts:
        _check_size(part, point)


def _check_digits(number: float) -> None:
    if number > _MAX_COMPUTED_DIGITS:
        raise Refused(f"a number of more than {_MAX_COMPUTED_DIGITS} digits")


def _letters(word: str) -> str:
    """The variables of a product; more than three letters are a word, unless they end in differentials."""
    if len(word) > 3 and re.fullmatch(r"\w{0,3}(?:d[a-z]){1,3}", word) is None:
        raise Unreadable(f"{word!r} is a word")
    return word


class _Parser(Parser):
    """The grammar for computer algebra."""

    known = FUNCTIONS | _OF_SEVERAL | set("arccsc arcsec arccot arsinh arcosh artanh".split())
    ends = ENDS | frozenset(("&", "\\\\", "\\to", "\\rfloor", "\\rceil"))
    postfixes = {"!": "factorial", "°": "degrees"}

    def __init__(self, tokens: list[tuple[str | None, str]]) -> None:
        super().__init__(tokens)
        # The variable of each integral that is being read, once it has come.
        self.variables: list[str] = []
        self.behind_differential = -1  # a position, where a product ends
        texts = [token for _, token in tokens]
        self.counts_with_i = any(texts[k : k + 3] == ["{", "i", "="] for k in range(len(texts)))

    def undecided(self, what: str) -> None:
        """Computer algebra decides it."""

    def continues(self) -> bool:
        ended = self.kind() == "side" or self.peek().startswith("\\end") or self.position == self.behind_differential
        return not ended and super().continues()

    def exponent(self) -> Node:
        negative = self.sign()
        node = self.atom()
        if self.peek() == "^":
            raise Unreadable("two exponents")
        return ("minus", node) if negative else node

    def number(self) -> Node:
        if len(self.peek()) > _MAX_DIGITS:
            raise Refused(f"a number of more than {_MAX_DIGITS} digits")
        return super().number()

    def at_function(self) -> bool:
        return super().at_function() or (bool(self.variables) and self.peek() == "d")

    def word(self) -> Node:
        token, following = self.peek(), self.peek(1)
        if self.variables and not self.variables[-1] and token == "d" and following.isalpha():
            self.take()
            self.variables[-1] = self.variable()
            self.behind_differential = self.position
            return ONE
        if token in ("e", "i") and following in MARKS | {"_", "'"} or token == "i" and self.counts_with_i:
            return ("symbol", self.variable())
        return super().word()

    def variable(self) -> str:
        if not self.peek().isalpha():
            raise Unreadable(f"{self.peek()} is no variable")
        return super().variable().replace("\\", "")

    def command(self) -> Node:
        name = self.peek()[1:]
        if name.startswith("begin"):
            return self.matrix(self.take())
        if name in self.known:
            return super().command()
        command = self.take()
        if name in ("sum", "prod"):
            return self.series(command)
        if name in ("lfloor", "lceil"):
            return (command, self.group(f"\\r{name[1:]}"))
        if name == "binom":
            return ("binomial", self.argument(), self.argument())
        if read := {"int": self.integral, "lim": self.limit, "frac": self.fraction}.get(name):
            return read()
        raise Unreadable(f"{command} is not known here")

    def function(self, name: str) -> Node:
        if name not in _OF_SEVERAL:
            return super().function(name)
        self.take("(")
        arguments = self.entries(",")
        self.take(")")
        return ("several", name, arguments)

    def fraction(self) -> Node:
        ahead = [self.peek(k) for k in range(6)]
        if ahead[:5] == ["{", "d", "}", "{", "d"] and ahead[5].isalpha():
            self.position += 5
            variable = self.variable()
            self.take("}")
            return ("derivative", ("symbol", variable), self.product())
        of_differential = ahead[:2] == ["{", "d"] and ahead[2] != "}" and not self.variables
        upper = self.argument()
        if of_differential and self.peek() == "{" and self.peek(1) == "d" and self.peek(2) != "}":
            raise Unreadable("a derivative of what is not given")
        return ("product", [upper, ("inverse", self.argument())])

    def series(self, command: str) -> Node:
        bounds = self.bounds(self.first)
        if not bounds:
            raise Unreadable(f"{command} without its bounds")
        return (command, *bounds["_"], bounds["^"], self.product())

    def first(self) -> tuple[Node, Node]:
        """Read `{n=1}`."""
        self.take("{")
        variable = self.variable()
        self.take("=")
        return ("symbol", variable), self.group("}")

    def bounds(self, lower: Callable[[], Any]) -> dict[str, Any]:
        bounds: dict[str, Any] = {}
        while self.peek() in ("_", "^") and self.peek() not in bounds:
            side = self.take()
            bounds[side] = lower() if side == "_" else self.argument()
        if len(bounds) == 1:
            raise Unreadable("one bound without the other")
        return bounds

    def integral(self) -> Node:
        bounds = self.bounds(self.argument)
        self.variables.append("")
        terms = [self.product()]
        while not self.variables[-1] and self.peek() in ("+", "-"):
            terms.append(self.product())
        self.behind_differential = -1
        variable = ("symbol", self.variables.pop())
        if not variable[1]:
            raise Unreadable("an integral without its variable")
        inside = ("sum", terms)
        return ("definite", bounds["_"], bounds["^"], inside, variable) if bounds else ("integral", inside, variable)

    def limit(self) -> Node:
        self.take("_")
        self.take("{")
        variable = self.variable()
        self.take("\\to")
        target = self.sum()
        side = f"limit{self.take().strip('^{ }')}" if self.kind() == "side" else "limit"
        self.take("}")
        return (side, ("symbol", variable), target, self.product())

    def matrix(self, begin: str) -> Node:
        name = begin[6:].strip("{ }")
        if name not in _MATRICES:
            raise Unreadable(f"{name} is not known here")
        rows = [self.entries("&")]
        while self.skip("\\\\") and not self.peek().startswith("\\end"):
            rows.append(self.entries("&"))
        if self.take()[4:].strip("{ }") != name:
            raise Unreadable(f"a {name} without its end")
        return ("matrix", _MATRICES[name], rows)

    def entries(self, separator: str) -> list[Node]:
        entries = [self.sum()]
        while self.skip(separator):
            entries.append(self.sum())
        return entries
