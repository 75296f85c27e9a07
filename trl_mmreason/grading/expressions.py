"""Parse expressions, for `numeric.py` to evaluate.

A recursive descent over the canonical form of `notation.py`. It knows numbers, letters as variables, `+ - * / ^ !`,
roots, absolute values, percent, degrees, binomials and the elementary functions. What else a text holds makes it
unreadable; nothing of it is ever run as code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from .notation import MARKS, MAX_DEPTH, Refused, Unreadable

Node = tuple[Any, ...]
"""("number", Fraction) | ("symbol", name) | ("sum" | "product", [nodes]) | (operation or function, node, …)."""

ONE: Node = ("number", Fraction(1))
MAX_POSTFIXES = 5
_LOOKAHEAD = 3  # tokens behind the last one, which are empty
THOUSANDS = r"\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d])"
_TOKEN = re.compile(
    rf"(?P<number>(?:{THOUSANDS}|\d+)(?:\.\d*)?(?:[eE][+-]?\d+(?![\d.]))?|\.\d+)"
    r"|(?P<command>\\[A-Za-z]+)|(?P<word>[^\W\d_]+)|(?P<symbol>\S)"
)
# 2\frac{1}{2}, 3\frac12, 5 3/4; 1 200/3 has a thousand
_MIXED = re.compile(
    r"(?<![\d.,^_])(?<!\^ )(\d+) ?(?:\\frac ?(?:\{ ?(\d+) ?\} ?\{ ?(\d+) ?\}|(\d)([1-9])(?!\d))"
    r"| (?!\d{3}(?!\d))(\d+) ?/ ?(\d+)(?![\d.]))"
)
FUNCTIONS = frozenset(
    (
        "sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh arcsinh arccosh arctanh ln log lg "
        "arsinh arcosh artanh exp sqrt cbrt abs"
    ).split()
)
_CONSTANTS = {"π": ("pi",), "pi": ("pi",), "e": ("e",), "i": ("i",), "∞": ("infinity",), "inf": ("infinity",)}
_ENDS = frozenset((*"+-)]}|,=<>", "\\rfloor", "\\rceil", ""))
_POSTFIXES = {"!": "factorial", "%": "percent", "°": "degrees"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_VOWELS = frozenset("aeiou")
# The 2 of N2O and x2 is no factor: N2O is not NO2
_INDEX = re.compile(r"(\\?)(?!(?<=[\d.])E\d)([^\W\d_]+)(?<![πei])(?=\d+(?![\d.]))")
_APPLIED = re.compile(r"(?<![A-Za-z\\])([A-Za-z])'*[(\[]\s*[A-Za-z0-9]\s*[)\]]")


class Expression(NamedTuple):
    """A parsed expression; whether it contains a decimal point or `i`; whether its variables are whole numbers."""

    node: Node
    symbols: frozenset[str]
    decimal: bool
    imaginary: bool
    whole: bool


def read_both(answer: str, gold: str) -> tuple[Expression, Expression]:
    """Parse two expressions; a letter before one letter or digit in brackets names a function in both."""
    functions = frozenset(_APPLIED.findall(f"{answer} {gold}"))
    return read(answer, functions), read(gold, functions)


@lru_cache(maxsize=512)
def read(text: str, functions: frozenset[str] = frozenset()) -> Expression:
    """Parse the canonical form of one expression, in which some letters may name functions."""
    parser = Parser(text, functions)
    node = parser.sum()
    if parser.peek():
        raise Unreadable(f"{parser.peek()!r} is out of place")
    return Expression(node, frozenset(parser.symbols), "." in text, parser.imaginary, parser.whole)


class Parser:
    """Recursive descent: each method reads one rule of the grammar."""

    def __init__(self, text: str, functions: frozenset[str]) -> None:
        self.functions = functions
        text = _INDEX.sub(lambda name: name[0] if name[1] or name[2] in FUNCTIONS else f"{name[0]}_", text)
        tokens = _TOKEN.finditer(_MIXED.sub(_improper, text))
        self.tokens = [*((match.lastgroup, match[0]) for match in tokens), *[(None, "")] * _LOOKAHEAD]
        # whether letters side by side are a product: `no` is a word, `2ab` is not
        self.in_formula = re.search(r"[\d^_+\-*/\\]", text) is not None
        self.position = self.depth = self.bars = 0
        self.symbols: set[str] = set()
        self.imaginary = self.whole = False

    def peek(self, offset: int = 0) -> str:
        return self.tokens[self.position + offset][1]

    def kind(self, offset: int = 0) -> str | None:
        return self.tokens[self.position + offset][0]

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            raise Unreadable(f"expected {expected or 'more'!r}, came {token or 'the end'!r}")
        self.position += 1
        return token

    def skip(self, token: str) -> bool:
        is_next = self.peek() == token
        self.position += is_next
        return is_next

    def sum(self) -> Node:
        terms = [self.product()]
        while self.peek() in ("+", "-"):  # which the product takes for its own
            terms.append(self.product())
        return terms[0] if len(terms) == 1 else ("sum", terms)

    def product(self) -> Node:
        negative = self.sign()
        factors = [self.power()]
        while self.continues():
            if self.peek() in ("*", "/"):
                operator, sign = self.take(), self.skip("-")
                letters = self.kind() == "word" and 1 < len(self.peek()) < 4 and self.peek() not in FUNCTIONS
                if operator == "/" and letters and self.peek(1) in _ENDS:  # t/RC is t/(RC)
                    here = self.position
                    self.tokens[here : here + 1] = [("symbol", "("), self.tokens[here], ("symbol", ")")]
                factor = ("minus", self.power()) if sign else self.power()
                factors.append(("inverse", factor) if operator == "/" else factor)
            elif self.kind() == "number" and self.kind(-1) == "number":
                raise Unreadable("two numbers stand side by side")
            else:
                factors.append(self.power())
        node = factors[0] if len(factors) == 1 else ("product", factors)
        return ("minus", node) if negative else node

    def sign(self) -> bool:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        return negative

    def continues(self) -> bool:
        return self.peek() not in _ENDS or (self.peek() == "|" and not self.bars)

    def power(self) -> Node:
        node = self.postfix(self.deeper())
        if self.skip("^"):
            exponent = self.exponent()
            self.whole |= node[0] == "minus" and "symbol" in parts_of(exponent)
            node = self.postfix(("power", node, exponent))
        return node

    def exponent(self) -> Node:
        return ("minus", self.power()) if self.sign() else self.power()

    def postfix(self, node: Node) -> Node:
        for _ in range(MAX_POSTFIXES):
            if self.peek() not in _POSTFIXES:
                return node
            self.whole |= self.peek() == "!"
            node = (_POSTFIXES[self.take()], node)
        raise Refused(f"more than {MAX_POSTFIXES} signs after a number")

    def atom(self) -> Node:
        kind, token = self.kind(), self.peek()
        if kind == "number":
            return self.number()
        if kind == "command":
            return self.command()
        if kind == "word" or token == "∞":
            return self.word()
        if token in _CLOSING:
            return self.group(_CLOSING[self.take()])
        if self.skip("|"):
            self.bars += 1
            node = self.sum()
            self.take("|")
            self.bars -= 1
            return ("abs", node)
        raise Unreadable(f"{token!r} is not mathematics" if token else "it ends too early")

    def group(self, closing: str) -> Node:
        bars, self.bars = self.bars, 0
        node = self.sum()
        self.bars = bars
        self.take(closing)
        return node

    def number(self) -> Node:
        token = self.take()
        value = _decimal(token)
        if "." in token and self.peek() in ("\\overline", "\\dot", "\\bar"):
            self.take()
            digits = self.take() if self.peek() != "{" else (self.take("{"), self.take(), self.take("}"))[1]
            if not digits.isdigit():
                raise Unreadable("only digits repeat")
            places = len(token.partition(".")[2])
            value += Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
        return ("number", value)

    def command(self) -> Node:
        command = self.take()
        name = command[1:]
        if name == "frac":
            upper, lower = self.argument(), self.argument()
            if lower[0] == "product" and lower[1][0] == ("symbol", "d"):
                raise Unreadable("a derivative of what is not given")
            return ("product", [upper, ("inverse", lower)])
        if name == "sqrt":
            degree: Node = ("number", Fraction(2))
            if self.skip("["):
                degree = self.sum()
                self.take("]")
            return ("root", self.argument(), degree)
        if name in FUNCTIONS:
            return self.function(name)
        if name in ("lfloor", "lceil"):
            return (command, self.group(f"\\r{name[1:]}"))
        if name == "binom":
            self.whole = True
            return ("binomial", self.argument(), self.argument())
        raise Unreadable(f"{command} is not known here")

    def argument(self) -> Node:
        r"""Read the argument of `\frac` or `\sqrt`: a group, or one character as in `\frac12`."""
        token = self.peek()
        if len(token) > 1 and token.isdigit() and self.peek(-1) == "\\frac":
            self.tokens[self.position : self.position + 1] = [("number", token[0]), ("number", token[1:])]
            return ("number", Fraction(int(self.take())))
        return self.deeper()

    def deeper(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Refused(f"nested deeper than {MAX_DEPTH} levels")
        node = self.atom()
        self.depth -= 1
        return node

    def function(self, name: str) -> Node:
        if name in ("sqrt", "cbrt"):
            return ("root", self.argument(), ("number", Fraction(2 if name == "sqrt" else 3)))
        base = self.argument() if name == "log" and self.skip("_") else None
        exponent = self.exponent() if self.skip("^") else None
        if self.peek() in ("(", "[", "{", "|"):
            argument = self.atom()
        else:  # `\sin 2x` takes the whole product, but stops before the next function
            factors = [self.power()]
            while self.continues() and self.peek() not in ("*", "/", "|") and self.peek().lstrip("\\") not in FUNCTIONS:
                factors.append(self.power())
            argument = factors[0] if len(factors) == 1 else ("product", factors)
        if exponent == ("minus", ONE) and f"arc{name}" in FUNCTIONS:
            return (f"arc{name}", argument)
        node: Node = (name, argument) if base is None else ("log", argument, base)
        return node if exponent is None else ("power", node, exponent)

    def word(self) -> Node:
        token = self.peek()
        if token in FUNCTIONS:
            return self.function(self.take())
        if token in _CONSTANTS and self.peek(1) not in MARKS:  # î is a variable
            self.imaginary |= token == "i"
            self.take()
            return _CONSTANTS[token]
        latin = "".join(letter for letter in token if not "α" <= letter.lower() <= "ω")
        is_product = self.in_formula or len(latin) < len(token) or _VOWELS.isdisjoint(latin.lower())
        if not latin.isascii() or len(token) > 1 and not (len(latin) <= 3 and is_product):
            raise Unreadable(f"{token!r} is a word")
        if len(token) > 1:
            self.tokens[self.position : self.position + 1] = [("word", letter) for letter in token]
            return self.word()
        name = self.variable()
        if name[0] in self.functions and self.peek() in ("(", "["):
            return ("apply", name, self.atom())
        self.symbols.add(name)
        return ("symbol", name)

    def variable(self) -> str:
        """Read a letter with its marks, index and primes."""
        name = self.take()
        while self.peek() in MARKS:
            name += self.take()
        if self.skip("_"):
            name += "_"
            if self.skip("{"):
                while not self.skip("}"):
                    name += self.take()
            else:
                name += self.take()
        while self.peek() == "'":
            name += self.take()
        return name


def _improper(mixed: re.Match[str]) -> str:
    whole, upper, lower = (int(part) for part in mixed.groups() if part)
    if not lower:
        raise Unreadable("a division by zero")
    return f"({whole * lower + upper}/{lower})"


def parts_of(node: Any) -> Iterator[Any]:
    """A node, and all that it holds."""
    yield node
    if isinstance(node, tuple | list):
        for part in node:
            yield from parts_of(part)


def _decimal(token: str) -> Fraction:
    mantissa, _, exponent = token.replace(",", "").replace(" ", "").lower().partition("e")
    if abs(int(exponent or 0)) > 400 or len(mantissa) > 1000:
        raise Refused("a number of more than 400 digits")
    whole, _, places = mantissa.partition(".")
    value = Fraction(int((whole + places) or 0), 10 ** len(places))
    return value * Fraction(10) ** int(exponent or 0)
