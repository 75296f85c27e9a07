r"""Computer algebra, for worker processes only: are two LaTeX expressions equal?

latex2sympy2_extended parses, sympy evaluates. That parser guesses a lot: `2(3)` is a mixed number to it, `f(x)` a call,
`\sin x \cdot y` the sine of a product, `x'` is x, γ is Euler's constant, and a degree sign means nothing. So `explicit.py`
first rewrites a text so that nothing is left to guess, and refuses every token that it does not know.

Two expressions are compared by their values to thirty digits; with symbols, at random points. Real points only: √(x²) is
|x|, not x.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from random import Random

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from sympy import (
    Derivative,
    Expr,
    Integer,
    Integral,
    Limit,
    MatrixBase,
    MatrixExpr,
    Pow,
    Product,
    Rational,
    Sum,
    Symbol,
    binomial,
    factorial,
)

from .explicit import explicit
from .notation import Unreadable

_DIGITS = 30
_STRICT = 1e-6
_POINTS = 6
_MIN_POINTS = 3
_TRIES = 24
_READING = ConversionConfig(lowercase_symbols=False, interpret_contains_as_eq=False)


def equal(answer: str, gold: str, *, relative_tolerance: float) -> bool:
    """Whether two expressions are equal, for all real values of their symbols.

    Numbers are equal when |answer − gold| ≤ `relative_tolerance`·|gold|; two whole numbers must be the same one, a gold
    that is whole allows no more than 1e-6, and zero must be exactly zero. Symbols' values allow 1e-6 too. Matrices are
    compared entry by entry.

    Args:
        answer, gold: LaTeX without delimiters, text, units and percent signs.

    Raises:
        Unreadable: one of them cannot be read, or is undefined.
    """
    names: dict[str, str] = {}
    left, right = _read(answer, "answer", names), _read(gold, "gold", names)
    if isinstance(left, MatrixBase) != isinstance(right, MatrixBase):
        return False
    if isinstance(left, MatrixBase) and isinstance(right, MatrixBase):
        pairs = zip_longest(left, right)
        return left.shape == right.shape and all(_equal(a, g, relative_tolerance) for a, g in pairs)
    return _equal(left, right, relative_tolerance)


def ratio(answer: str, gold: str) -> float | None:
    """The real constant c ≠ 0 with answer = c·gold for all real values of the symbols; `None` if there is none.

    Raises:
        Unreadable: one of them cannot be read, or is a matrix.
    """
    names: dict[str, str] = {}
    left, right = _read(answer, "answer", names), _read(gold, "gold", names)
    if isinstance(left, MatrixBase) or isinstance(right, MatrixBase):
        raise Unreadable("a matrix is no side of an equation")
    pairs = [pair for pair in _values(left, right) if pair != (0, 0)]
    if len(pairs) < _MIN_POINTS or any(0 in pair for pair in pairs):
        return None
    quotients = [a / g for a, g in pairs]
    constant = complex(quotients[0])
    alike = all(abs(quotient - quotients[0]) <= _STRICT * abs(quotients[0]) for quotient in quotients)
    return constant.real if alike and abs(constant.imag) <= _STRICT * abs(constant) else None


def _read(text: str, side: str, names: dict[str, str]) -> Expr | MatrixBase:
    try:
        # Nothing of the text but digits, operators, known commands and renamed letters reaches the library.
        value = latex2sympy(
            explicit(text, names), is_real=True, normalization_config=None, conversion_config=_READING
        )
        value = value.doit() if isinstance(value, MatrixExpr) else value
    except Unreadable as error:
        raise Unreadable(f"the {side}: {error}") from error
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for what it cannot parse
        raise Unreadable(f"the {side} cannot be parsed: {type(error).__name__}") from error
    if isinstance(value, MatrixBase):
        return value.applyfunc(lambda entry: _settled(entry, side))
    if not isinstance(value, Expr):
        raise Unreadable(f"the {side} is a {type(value).__name__}, no expression")
    return _settled(value, side)


def _settled(expression: Expr, side: str) -> Expr:
    """With its limits, derivatives and antiderivatives taken, and whole variables known as such."""
    whole = _whole_symbols(expression)
    expression = expression.xreplace({name: Symbol(name.name, integer=True) for name in whole})
    expression = expression.replace(_is_operation, lambda operation: operation.doit())
    expression = expression.replace(_is_odd_root, lambda root: (-1) ** root.exp.p * Pow(-root.base, root.exp))
    if expression.has(sympy.nan, sympy.zoo):
        raise Unreadable(f"the {side} is undefined")
    return expression


def _is_operation(expression: Expr) -> bool:
    indefinite = isinstance(expression, Integral) and any(len(limit) == 1 for limit in expression.limits)
    return indefinite or isinstance(expression, (Limit, Derivative))


def _is_odd_root(expression: Expr) -> bool:
    """The cube root of a negative number is real here; sympy's is not."""
    if not isinstance(expression, Pow):
        return False
    base, exponent = expression.args
    return isinstance(exponent, Rational) and exponent.q > 1 and exponent.q % 2 == 1 and base.is_negative is True


def _whole_symbols(expression: Expr) -> set[Symbol]:
    """Symbols that only make sense as whole numbers: bounds of sums, factorials, binomials, exponents of −1."""
    parts: list[sympy.Basic] = []
    for operation in expression.atoms(Sum, Product):
        parts += [part for limit in operation.limits for part in limit]
    for operation in expression.atoms(factorial, binomial):
        parts += operation.args
    parts += [power.exp for power in expression.atoms(Pow) if power.base.is_negative]
    return {symbol for part in parts for symbol in part.atoms(Symbol)}
