r"""Parse LaTeX for computer algebra; for worker processes only.

The grammar is that of `expressions.py`, extended by sums, integrals, limits, derivatives, matrices and the like. Only
what is known here gets through: a tree of nodes, of which `algebra.py` builds expressions. No text reaches sympy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from .expressions import ENDS, FUNCTIONS, ONE, THOUSANDS, Node, Parser
from .notation import MARKS, NeedsAlgebra, Refused, Unreadable
from .numeric import evaluate_node

_TOKEN = re.compile(
    rf"(?P<number>(?:(?:(?<![\d(,]){THOUSANDS}|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<command>\\(?:begin|end)\s*\{\s*[a-z]+\s*\}|\\[A-Za-z]+|\\\\)"
    r"|(?P<side>\^\s*(?:[+-]|\{\s*[+-]\s*\})(?=\s*\}))|(?P<word>π|[^\W\d_π]+)|(?P<symbol>\S)"
)
_DEGREE = re.compile(r"\^\s*(?:\\circ|\\degree|°|\{\s*(?:\\circ|\\degree|°)\s*\})")
_MAX_DIGITS = 400
_OF_SEVERAL = frozenset("gcd lcm max min".split())
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
    return _Parser(tokens).whole()


def _binomial(upper: Node, lower: Node) -> Node:
    """A binomial coefficient, unless its numbers make one of too many digits, which the algebra would compute."""
    try:
        values: list[Any] = [evaluate_node(each, {}) for each in (upper, lower)]
        n, k = (float(abs(value)) for value in values)
        digits = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(max(n - k, 0) + 1)) / math.log(10)
    except (KeyError, ArithmeticError, NeedsAlgebra):
        digits = 0.0  # it has variables, or what only the algebra knows
    if digits > _MAX_DIGITS:
        raise Refused(f"a number of more than {_MAX_DIGITS} digits")
    return ("binomial", upper, lower)


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
            return _binomial(self.argument(), self.argument())
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
