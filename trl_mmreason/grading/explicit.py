r"""Rewrite LaTeX without ambiguity: a sign in every product, brackets around arguments, fractions for decimals.

Only what is known here gets through: digits, operators, single letters and some fifty commands. Variables are renamed
to plain single letters, so that no name can mean anything to whatever parses the result.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .notation import MARKS, Refused, Unreadable

_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<command>\\[A-Za-z]+|\\\\)"
    r"|(?P<word>[A-Za-zΑ-Ωα-ω]+)|(?P<mark>[-+*/^_!|()\[\]{}&,'=°\u0302-\u0308\u0335])"
)
_DEGREE = re.compile(r"\^\s*(?:\\circ|\\degree|°|\{\s*(?:\\circ|\\degree|°)\s*\})")
_MAX_EXPONENT = 400
# Not d (of integrals), e, i, I, E (constants) and T (transposed).
_LETTERS = "xyzabcfghjklmnopqrstuvwABCDFGHJKLMNOPQRSUVWXYZ"
_FUNCTIONS = {
    **{name: name for name in "sin cos tan csc sec cot sinh cosh tanh log ln exp".split()},
    **{name: name for name in "arcsin arccos arctan arccsc arcsec arccot arcsinh arccosh arctanh".split()},
    **{"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"},
    **{"arsinh": "arcsinh", "arcosh": "arccosh", "artanh": "arctanh"},
}
_OF_SEVERAL = frozenset("gcd lcm max min".split())
_MATRICES = {"matrix": "bmatrix", "pmatrix": "bmatrix", "bmatrix": "bmatrix", "vmatrix": "vmatrix"}
_OPERATORS = {"*": "*", "\\cdot": "*", "\\times": "*", "/": "/", "\\div": "/"}
_CLOSING = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac")
_BINOMIALS = ("\\binom", "\\dbinom", "\\tbinom")
_CONSTANTS = ("\\pi", "\\infty")
_NAMED = frozenset(f"\\{name}" for name in (*_FUNCTIONS, *_OF_SEVERAL))
_STARTS = {*_NAMED, *_CLOSING, *_FRACTIONS, *_BINOMIALS, *_CONSTANTS}
_STARTS |= {f"\\{name}" for name in "sqrt sum prod int lim begin".split()}


def explicit(text: str, names: dict[str, str]) -> str:
    """Rewrite one expression.

    Args:
        text: LaTeX without delimiters, text, units and percent signs.
        names: variable → letter; grows, so that several expressions may share it.

    Raises:
        Unreadable: it is not one expression made of what is known here.
        Refused: a number has more than 400 digits.
    """
    rewriter = _Rewriter(_tokens(text), names)
    result = rewriter.sum()
    rewriter.expect("")
    return result


def _tokens(text: str) -> list[str]:
    text = _DEGREE.sub("°", text)
    tokens: list[str] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unreadable(f"{text[position]!r} is not known")
        position = match.end()
        tokens += _word(match.group(), tokens[-2:]) if match.lastgroup == "word" else [match.group()]
    return tokens


def _word(word: str, before: list[str]) -> list[str]:
    """Handle a word: a function's name without its backslash, an environment, or a product of variables."""
    if word in _FUNCTIONS or word in _OF_SEVERAL:
        return [f"\\{word}"]
    if before in (["\\begin", "{"], ["\\end", "{"]):
        return [word]
    if len(word) > 3 and re.fullmatch(r"\w{0,3}(?:d[a-z]){1,3}", word) is None:
        raise Unreadable(f"{word!r} is a word")
    return list(word)


def _is_number(token: str) -> bool:
    return token[:1].isdigit() or (token[:1] == "." and len(token) > 1)


class _Rewriter:
    """Recursive-descent parser; methods consume tokens and return LaTeX, from `power` down of one factor."""

    def __init__(self, tokens: list[str], names: dict[str, str]) -> None:
        self.tokens = tokens
        self.names = names
        self.position = 0
        self.bars = 0
        # The variable of each integral that is being read, once it has come.
        self.variables: list[str] = []
        self.counts_with_i = any(tokens[k : k + 3] == ["{", "i", "="] for k in range(len(tokens)))

    def peek(self, ahead: int = 0) -> str:
        position = self.position + ahead
        return self.tokens[position] if position < len(self.tokens) else ""

    def comes(self, *tokens: str) -> bool:
        return tuple(self.tokens[self.position : self.position + len(tokens)]) == tokens

    def take(self) -> str:
        if not self.peek():
            raise Unreadable("it ends too early")
        self.position += 1
        return self.tokens[self.position - 1]

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if self.peek() != token:
                raise Unreadable(f"expected {token or 'the end'}, came {self.peek() or 'the end'}")
            self.position += 1

    def skip(self, token: str) -> bool:
        is_next = self.peek() == token
        self.position += is_next
        return is_next

    def sum(self) -> str:
        result = self.product()
        while self.peek() in ("+", "-"):
            result += self.term()
        return result

    def term(self) -> str:
        product = self.product()
        return product if product.startswith("-") else f"+{product}"

    def product(self) -> str:
        sign = self.sign()
        if self.differential():
            return f"{sign}1"
        result = self.power()
        while self.peek() in _OPERATORS or self.starts_factor():
            operator = _OPERATORS.get(self.peek())
            if operator:
                self.take()
            elif _is_number(self.peek()) and _is_number(self.peek(-1)):
                raise Unreadable("two numbers stand side by side")
            if self.differential():
                break
            factor = f"(-{self.power()})" if self.sign() else self.power()
            result = f"\\frac{{{result}}}{{{factor}}}" if operator == "/" else f"{result} \\cdot {factor}"
        return sign + result

    def sign(self) -> str:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        return "-" if negative else ""

    def starts_factor(self) -> bool:
        token = self.peek()
        return _is_number(token) or token.isalpha() or token in _STARTS or (token == "|" and not self.bars)

    def differential(self) -> bool:
        """Consume the `dx` of the innermost integral if it is next."""
        if not self.variables or self.variables[-1] or self.peek() != "d" or not self.peek(1).isalpha():
            return False
        self.take()
        self.variables[-1] = self.variable()
        return True

    def power(self) -> str:
        base = self.postfix(self.atom())
        if "\\begin" in base and (self.comes("^", "T") or self.comes("^", "{", "T", "}")):
            self.take()
            self.position += 1 if self.peek() == "T" else 3
            return f"{base}^{{T}}"
        if self.peek() != "^" or self.one_sided():
            return base
        self.take()
        sign = self.sign()
        exponent = sign + (self.take() if self.peek().isdigit() else self.argument())
        if self.peek() == "^":
            raise Unreadable("two exponents")
        return self.postfix(f"{base}^{{{exponent}}}")

    def one_sided(self) -> bool:
        """Whether a limit's `^+` is next."""
        return any(self.comes("^", sign, "}") or self.comes("^", "{", sign, "}") for sign in "+-")

    def postfix(self, factor: str) -> str:
        while self.peek() in ("!", "°"):
            factor = f"(({factor})!)" if self.take() == "!" else f"({factor} \\cdot \\frac{{\\pi }}{{180}})"
        return factor

    def argument(self) -> str:
        r"""Read the argument of `\frac`, `\sqrt` or `_`: a group, or one character as in `\frac12`."""
        if self.skip("{"):
            bars, self.bars = self.bars, 0
            result = self.sum()
            self.bars = bars
            self.expect("}")
            return result
        token = self.peek()
        if token.isdigit():
            self.tokens[self.position : self.position + 1] = list(token)
            return self.take()
        return self.atom()

    def atom(self) -> str:
        token = self.peek()
        if _is_number(token):
            return self.number()
        if token.isalpha():
            return self.letter()
        if token in _CLOSING:
            return self.group()
        if token == "|":
            return self.absolute()
        self.take()
        if token in _CONSTANTS:
            return f"{token} "
        if token in _NAMED:
            return self.several(token) if token[1:] in _OF_SEVERAL else self.function(_FUNCTIONS[token[1:]])
        if token in ("\\sum", "\\prod"):
            return self.series(token)
        if token in _BINOMIALS:
            return f"\\binom{{{self.argument()}}}{{{self.argument()}}}"
        rest = {"\\sqrt": self.root, "\\int": self.integral, "\\lim": self.limit, "\\begin": self.matrix}
        if read := rest.get(token, self.fraction if token in _FRACTIONS else None):
            return read()
        raise Unreadable(f"{token} is not known here")

    def number(self) -> str:
        token = self.take()
        mantissa, _, exponent = token.lower().partition("e")
        if abs(int(exponent or 0)) > _MAX_EXPONENT or len(mantissa) > _MAX_EXPONENT:
            raise Refused(f"a number of more than {_MAX_EXPONENT} digits")
        value = Fraction(token)
        upper, lower = self.peek(2), self.peek(5)
        if token.isdigit() and self.peek() in _FRACTIONS and upper.isdigit() and lower.isdigit() and int(lower):
            self.take()  # a mixed number
            self.expect("{", upper, "}", "{", lower, "}")
            value += Fraction(int(upper), int(lower))
        return str(value) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"

    def letter(self) -> str:
        if self.peek() == "π":
            self.take()
            return "\\pi "
        if self.peek(1) not in MARKS | {"_", "'"}:
            if self.peek() == "e":
                return self.take()
            if self.peek() == "i" and not self.counts_with_i:
                self.take()
                return "I"
        return self.variable()

    def variable(self) -> str:
        """Read a letter with its index and primes, and return its new name."""
        name = self.take()
        if not name.isalpha():
            raise Unreadable(f"{name} is no variable")
        while self.peek() in MARKS:
            name += self.take()
        if self.skip("_"):
            index = [self.take()]
            if index == ["{"]:
                while self.peek() != "}":
                    index.append(self.take())
                self.take()
            name += "_" + "".join(index).strip("{").replace("\\", "")
        while self.skip("'"):
            name += "'"
        if name not in self.names:
            if len(self.names) == len(_LETTERS):
                raise Unreadable("too many variables")
            self.names[name] = _LETTERS[len(self.names)]
        return self.names[name]

    def group(self) -> str:
        opening = self.take()
        bars, self.bars = self.bars, 0
        inside = self.sum()
        self.bars = bars
        self.expect(_CLOSING[opening])
        return f"{opening} {inside} {_CLOSING[opening]}" if opening[0] == "\\" else f"({inside})"

    def absolute(self) -> str:
        self.take()
        self.bars += 1
        inside = self.sum()
        self.bars -= 1
        self.expect("|")
        return f"\\lvert {inside} \\rvert "

    def fraction(self) -> str:
        if self.comes("{", "d", "}", "{", "d") and self.peek(5).isalpha():
            self.position += 5
            variable = self.variable()
            self.expect("}")
            return f"(\\frac{{d}}{{d {variable}}} ({self.product()}))"
        of_differential = self.comes("{", "d") and self.peek(2) != "}" and not self.variables
        upper = self.argument()
        if of_differential and self.comes("{", "d") and self.peek(2) != "}":
            raise Unreadable("a derivative of what is not given")
        return f"\\frac{{{upper}}}{{{self.argument()}}}"

    def root(self) -> str:
        degree = ""
        if self.skip("["):
            degree = f"[{self.sum()}]"
            self.expect("]")
        return f"\\sqrt{degree}{{{self.argument()}}}"

    def function(self, name: str) -> str:
        base = f"_{{{self.argument()}}}" if self.skip("_") else ""
        exponent = ""
        if self.skip("^"):
            exponent = self.sign() + self.argument()
        if exponent == "-1" and f"arc{name}" in _FUNCTIONS:
            name, exponent = f"arc{name}", ""
        if self.peek() in ("(", "[", "{"):
            inside = self.group()[1:-1]
        elif self.peek() == "|":
            inside = self.absolute()
        else:  # `\sin 2x` takes the whole product, but stops before an operator and before the next function
            inside = self.power()
            while self.starts_factor() and self.peek() not in _NAMED and not (self.variables and self.peek() == "d"):
                inside += f" \\cdot {self.power()}"
        applied = f"(\\{name}{base} ({inside}))"
        return f"{applied}^{{{exponent}}}" if exponent else applied

    def several(self, command: str) -> str:
        self.expect("(")
        arguments = [self.sum()]
        while self.skip(","):
            arguments.append(self.sum())
        self.expect(")")
        return f"({command} ({','.join(arguments)}))"

    def series(self, command: str) -> str:
        bounds = {}
        for _ in range(2):
            side = self.take()
            if side == "_":
                self.expect("{")
                variable = self.variable()
                self.expect("=")
                bounds["_"] = f"{{{variable}={self.sum()}}}"
                self.expect("}")
            elif side == "^":
                bounds["^"] = f"{{{self.argument()}}}"
        if len(bounds) < 2:
            raise Unreadable(f"{command} without its bounds")
        return f"({command}_{bounds['_']}^{bounds['^']} ({self.product()}))"

    def integral(self) -> str:
        bounds = {}
        while self.peek() in ("_", "^"):
            side = self.take()
            bounds[side] = f"{{{self.argument()}}}"
        if len(bounds) == 1:
            raise Unreadable("an integral with one bound")
        limits = f"_{bounds['_']}^{bounds['^']}" if bounds else ""
        self.variables.append("")
        inside = self.product()
        while not self.variables[-1] and self.peek() in ("+", "-"):
            inside += self.term()
        variable = self.variables.pop()
        if not variable:
            raise Unreadable("an integral without its variable")
        return f"(\\int{limits} ({inside}) d {variable})"

    def limit(self) -> str:
        self.expect("_", "{")
        variable = self.variable()
        if self.take() not in ("\\to", "\\rightarrow"):
            raise Unreadable("a limit without an arrow")
        target = self.sum()
        side = ""
        if self.skip("^"):
            side = "^{+}" if "+" in (self.peek(), self.peek(1)) else "^{-}"
            self.position += 3 if self.peek() == "{" else 1
        self.expect("}")
        return f"(\\lim_{{{variable} \\to ({target}){side}}} ({self.product()}))"

    def matrix(self) -> str:
        self.expect("{")
        name = self.take()
        if name not in _MATRICES:
            raise Unreadable(f"{name} is not known here")
        self.expect("}")
        rows = [self.row()]
        while self.skip("\\\\") and self.peek() != "\\end":
            rows.append(self.row())
        self.expect("\\end", "{", name, "}")
        inside = " \\\\ ".join(" & ".join(row) for row in rows)
        return f"(\\begin{{{_MATRICES[name]}}}{inside}\\end{{{_MATRICES[name]}}})"

    def row(self) -> list[str]:
        entries = [self.sum()]
        while self.skip("&"):
            entries.append(self.sum())
        return entries
