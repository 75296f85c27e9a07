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
THOUSANDS = r"\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d])"
_TOKEN = re.compile(
    rf"(?P<number>(?:{THOUSANDS}|\d+)(?:\.\d*)?(?:[eE][+-]?\d+(?![\d.]))?|\.\d+)"
    r"|(?P<command>\\[A-Za-z]+)|(?P<word>[^\W\d_]+)|(?P<symbol>\S)"
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


class Expression(NamedTuple):
    """A parsed expression; whether it contains a decimal point or `i`; whether its variables are whole numbers."""

    node: Node
    symbols: frozenset[str]
    decimal: bool
    imaginary: bool
    whole: bool


_APPLIED = re.compile(r"(?<![A-Za-z\\])([A-Za-z])'*[(\[]\s*[A-Za-z0-9]\s*[)\]]")


def functions_in(*texts: str) -> frozenset[str]:
    """Letters that name functions in one of these expressions: they stand before one letter or digit in brackets."""
    return frozenset(letter for text in texts for letter in _APPLIED.findall(text))


@lru_cache(maxsize=512)
def read(text: str, functions: frozenset[str] = frozenset()) -> Expression:
    """Parse the canonical form of one expression, in which some letters may name functions."""
    # `no` is a word, `2ab` a product
    in_formula = re.search(r"[\d^_+\-*/\\]", text) is not None
    parser = Parser([(match.lastgroup, match.group()) for match in _TOKEN.finditer(text)], functions, in_formula)
    return Expression(parser.all(), frozenset(parser.symbols), "." in text, parser.imaginary, parser.whole)


class Parser:
    """Recursive descent: each method reads one rule of the grammar."""

    def __init__(self, tokens: list[tuple[str | None, str]], functions: frozenset[str], in_formula: bool) -> None:
        self.functions = functions
        self.tokens = tokens
        self.in_formula = in_formula  # whether two or three letters side by side are a product
        self.position = self.depth = self.bars = 0
        self.symbols: set[str] = set()
        self.imaginary = self.whole = False

    def peek(self, offset: int = 0) -> str:
        position = self.position + offset
        return self.tokens[position][1] if position < len(self.tokens) else ""

    def kind(self, offset: int = 0) -> str | None:
        position = self.position + offset
        return self.tokens[position][0] if position < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            raise Unreadable(f"expected {expected or 'more'!r}, came {token or 'the end'!r}")
        self.position += 1
        return token

    def all(self) -> Node:
        node = self.sum()
        if self.peek():
            raise Unreadable(f"{self.peek()!r} is out of place")
        return node

    def skip(self, token: str) -> bool:
        is_next = self.peek() == token
        self.position += is_next
        return is_next

    def sum(self) -> Node:
        terms = [self.product()]
        while self.peek() in ("+", "-"):
            sign = self.take()
            term = self.product()
            terms.append(("minus", term) if sign == "-" else term)
        return terms[0] if len(terms) == 1 else ("sum", terms)

    def product(self) -> Node:
        negative = self.sign()
        factors = [self.power()]
        while self.continues():
            token = self.peek()
            if token in ("*", "/"):
                self.take()
                sign = self.peek() == "-" and bool(self.take())
                letters = self.kind() == "word" and 1 < len(self.peek()) < 4 and self.peek() not in FUNCTIONS
                if token == "/" and letters and self.peek(1) in _ENDS:  # t/RC is t/(RC)
                    here = self.position
                    self.tokens[here : here + 1] = [("symbol", "("), self.tokens[here], ("symbol", ")")]
                factor = self.power()
                factor = ("minus", factor) if sign else factor
                factors.append(("inverse", factor) if token == "/" else factor)
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
        token = self.peek()
        return token not in _ENDS or (token == "|" and not self.bars)

    def power(self) -> Node:
        node = self.postfix(self.deeper())
        if self.skip("^"):
            exponent = self.exponent()
            self.whole |= node[0] == "minus" and "symbol" in parts_of(exponent)
            node = self.postfix(("power", node, exponent))
        return node

    def exponent(self) -> Node:
        if self.peek() in ("+", "-"):
            return ("minus", self.power()) if self.take() == "-" else self.power()
        return self.power()

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
        if token.isdigit() and self.peek(-2) != "^":
            if self.peek() == "\\frac" and (part := self.plain_fraction()) is not None:
                return ("number", value + part)
            if self.kind() == "number" and self.peek(1) == "/" and self.kind(2) == "number":
                upper, _, lower = self.take(), self.take(), self.take()
                if not (upper.isdigit() and lower.isdigit() and int(lower)):
                    raise Unreadable("two numbers stand side by side")
                return ("number", value + Fraction(int(upper), int(lower)))
        if "." in token and self.peek() in ("\\overline", "\\dot", "\\bar"):
            self.take()
            digits = self.take() if self.peek() != "{" else (self.take("{"), self.take(), self.take("}"))[1]
            if not digits.isdigit():
                raise Unreadable("only digits repeat")
            places = len(token.partition(".")[2])
            value += Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
        return ("number", value)

    def plain_fraction(self) -> Fraction | None:
        r"""Read a `\frac{1}{2}` of whole numbers if it is next, as in a mixed number."""
        digits = self.peek(1)
        if digits.isdigit() and len(digits) == 2 and digits[1] != "0":  # 3\frac12
            self.position += 2
            return Fraction(int(digits[0]), int(digits[1]))
        shape = [self.peek(k) for k in range(1, 7)]
        if shape[::3] == ["{", "{"] and shape[2::3] == ["}", "}"] and shape[1].isdigit() and shape[4].isdigit():
            if not int(shape[4]):
                raise Unreadable("a division by zero")
            self.position += 7
            return Fraction(int(shape[1]), int(shape[4]))
        return None

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
        kind, token = self.kind(), self.peek()
        if kind == "number" and len(token) > 1 and self.tokens[self.position - 1][1] == "\\frac" and token.isdigit():
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
        marked = any(mark in MARKS for _, mark in self.tokens[self.position + 1 : self.position + 2])  # î is a variable
        if token in _CONSTANTS and not marked:
            self.imaginary |= token == "i"
            self.take()
            return _CONSTANTS[token]
        if len(token) > 1:
            latin = "".join(letter for letter in token if not "α" <= letter.lower() <= "ω")
            in_formula = self.in_formula or len(latin) < len(token) or not _VOWELS & set(latin.lower())
            if not (len(latin) <= 3 and latin.isascii() and in_formula):
                raise Unreadable(f"{token!r} is a word")
            self.tokens[self.position : self.position + 1] = [("word", letter) for letter in token]
            return self.word()
        if not (token.isascii() or "α" <= token.lower() <= "ω"):
            raise Unreadable(f"{token!r} is a word")
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
