r"""Decide whether two LaTeX expressions are equal, by computer algebra; for worker processes only.

latex2sympy2_extended parses, sympy evaluates. That parser guesses: `2(3)` is a mixed number to it, `f(x)` a call,
`\sin x \cdot y` the sine of a product, `x'` is x, γ is Euler's constant, and a degree sign means nothing. So first
`explicit.py` rewrites an answer so that nothing is left to guess, and refuses what it does not know.

Expressions are compared by their values to thirty digits; with variables, at random points. Real points only, and only
where both are real: √(x²) is |x|, not x.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
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
)

from .explicit import explicit
from .notation import Undefined, Unreadable

_DIGITS = 30
_STRICT = 1e-6
_POINTS = 6
_MIN_POINTS = 3
_TRIES = 30
# The class behind the library's one function: that always tries sets and relations as well, which takes five times as
# long (measured: 450 instead of 70 ms for an integral).
_PARSER = _Latex2Sympy(is_real=True, config=ConversionConfig(lowercase_symbols=False))


def equal(answer: str, gold: str, *, relative_tolerance: float) -> bool:
    """Whether two expressions are equal, for all real values of their variables.

    Numbers are equal when |answer − gold| ≤ `relative_tolerance`·|gold|, with two exceptions: a whole gold allows 1e-6,
    and nothing to an answer that is whole too; and zero is exactly zero. Expressions in variables allow 1e-6. Matrices
    are compared entry by entry.

    Args:
        answer, gold: LaTeX or its canonical form, without delimiters, text, units and percent signs.

    Raises:
        Unreadable: one of them cannot be read or, as `Undefined`, has no value.
        Refused: a number of more than 400 digits is in one of them.
    """
    left, right = _read(answer, gold)
    if not isinstance(left, MatrixBase) and not isinstance(right, MatrixBase):
        return _equal(left, right, relative_tolerance)
    if not isinstance(left, MatrixBase) or not isinstance(right, MatrixBase) or left.shape != right.shape:
        return False
    return all(_equal(a, g, relative_tolerance) for a, g in zip(left, right, strict=True))


def ratio(answer: str, gold: str) -> float | None:
    """The real constant c ≠ 0 with answer = c·gold for all real values of the variables; `None` if there is none.

    Raises:
        Unreadable: one of them cannot be read, is undefined, or is a matrix.
        Refused: a number of more than 400 digits is in one of them.
    """
    left, right = _read(answer, gold)
    if isinstance(left, MatrixBase) or isinstance(right, MatrixBase):
        raise Unreadable("a matrix is no side of an equation")
    pairs = [pair for pair in _values(left, right) if pair != (0, 0)]
    if not pairs or any(0 in pair for pair in pairs):
        return None
    first = complex(pairs[0].answer / pairs[0].gold)
    if abs(first.imag) > _STRICT * abs(first) or not all(_near(a, first * g, _STRICT) for a, g in pairs):
        return None
    return first.real


# ------------------------------------------------------------------------------------------------------------- reading
def _read(answer: str, gold: str) -> tuple[Expr | MatrixBase, Expr | MatrixBase]:
    """Parse both expressions, with the same symbols for the same variables."""
    names: dict[str, str] = {}
    sides = [(side, _parsed(text, side, names)) for side, text in (("answer", answer), ("gold", gold))]
    whole = {symbol: Symbol(symbol.name, integer=True) for _, side in sides for symbol in _whole(side)}
    left, right = (_settled(parsed.xreplace(whole), side) for side, parsed in sides)
    return left, right


def _parsed(text: str, side: str, names: dict[str, str]) -> Expr | MatrixBase:
    try:
        clear = explicit(text, names)
    except Unreadable as error:
        raise Unreadable(f"the {side}: {error}") from error
    try:
        parsed = _PARSER.convert_expr(_PARSER.create_parser(clear).expr())
        parsed = parsed.doit() if isinstance(parsed, MatrixExpr) else parsed
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for what it cannot parse
        raise Unreadable(f"the {side} cannot be parsed: {type(error).__name__}") from error
    if not isinstance(parsed, Expr | MatrixBase):
        raise Unreadable(f"the {side} is a {type(parsed).__name__}, no expression")
    return parsed


def _settled(value: Expr | MatrixBase, side: str) -> Expr | MatrixBase:
    """Evaluate limits, derivatives and antiderivatives; cube roots of negative numbers are real."""
    value = value.replace(_is_operation, lambda operation: operation.doit())
    value = value.replace(_is_odd_root, lambda root: (-1) ** root.exp.p * Pow(-root.base, root.exp))
    if value.has(sympy.nan, sympy.zoo):
        raise Undefined(f"the {side} is undefined")
    return value


def _is_operation(part: Expr) -> bool:
    if isinstance(part, Integral):
        return any(len(limits) == 1 for limits in part.limits)
    return isinstance(part, Limit | Derivative)


def _is_odd_root(part: Expr) -> bool:
    if not isinstance(part, Pow) or not isinstance(part.exp, Rational):
        return False
    return part.exp.q > 1 and part.exp.q % 2 == 1 and part.base.is_negative is True


def _whole(value: Expr | MatrixBase) -> set[Symbol]:
    """Variables that must be integers: bounds of sums, arguments of factorials, exponents of negative numbers."""
    parts = [bound for series in value.atoms(Sum, Product) for limits in series.limits for bound in limits]
    parts += [part for operation in value.atoms(sympy.factorial, sympy.binomial) for part in operation.args]
    parts += [power.exp for power in value.atoms(Pow) if power.base.is_negative]
    return {symbol for part in parts for symbol in part.atoms(Symbol)}


# ----------------------------------------------------------------------------------------------------------- comparing
class ValuePair(NamedTuple):
    """The values of both sides at one point."""

    answer: Expr
    gold: Expr


def _equal(answer: Expr, gold: Expr, relative_tolerance: float) -> bool:
    if not answer.free_symbols and not gold.free_symbols:
        pair = ValuePair(_number(answer, "answer"), _number(gold, "gold"))
        return _same_number(pair, relative_tolerance) or _same_in_closed_form(answer, gold, pair)
    pairs = _values(answer, gold)
    return all(a == g if g == 0 else _near(a, g, _STRICT) for a, g in pairs)


def _number(expression: Expr, side: str) -> Expr:
    value = _evaluated(expression)
    if value is None:
        raise Undefined(f"the {side} has no value")
    return value


def _evaluated(expression: Expr) -> Expr | None:
    """A rational number, an infinity, or thirty digits; `None` where it is undefined."""
    value = expression.doit(integrals=False)
    if any(len(integral.limits) > 1 for integral in value.atoms(Integral)):  # quadrature has one dimension
        value = value.doit()
    if value.is_Rational or value in (sympy.oo, -sympy.oo):
        return value
    value = value.evalf(_DIGITS)
    defined = value.is_number and all(part.is_Number and part.is_finite for part in value.as_real_imag())
    return value if defined else None


def _same_number(pair: ValuePair, relative_tolerance: float) -> bool:
    answer, gold = pair
    if answer == gold:
        return True
    if gold == 0 or not (answer.is_finite and gold.is_finite):
        return False
    whole = [_whole_number(value) for value in pair]
    if None not in whole:
        return whole[0] == whole[1]
    return _near(answer, gold, relative_tolerance if whole[1] is None else min(relative_tolerance, _STRICT))


def _whole_number(value: Expr) -> Integer | None:
    """The integer that a value equals to twenty digits, if any."""
    if value.is_Rational:
        return value if value.is_Integer else None
    nearest = Integer(round(sympy.re(value)))
    return nearest if abs(value - nearest) < abs(nearest) * sympy.Float("1e-20") else None


def _near(answer: Expr, gold: Expr, relative_tolerance: float) -> bool:
    return bool(abs(answer - gold) <= relative_tolerance * abs(gold))


def _same_in_closed_form(answer: Expr, gold: Expr, pair: ValuePair) -> bool:
    """Decide symbolically what digits leave open: tiny values, and integrals with inexact quadrature."""
    integrals = answer.has(Integral) or gold.has(Integral)
    close = sympy.Float("1e-20") + (0.01 * abs(pair.gold) if integrals else 0)
    if not abs(pair.answer - pair.gold) < close or not (integrals or 0 in pair):
        return False
    return sympy.simplify(answer.doit() - gold.doit()) == 0


def _values(answer: Expr, gold: Expr) -> list[ValuePair]:
    """Yield both values at some points where both are defined, and real unless they contain the imaginary unit.

    Raises:
        Unreadable: there are hardly any.
    """
    complex_ones = answer.has(sympy.I) or gold.has(sympy.I)
    pairs: list[ValuePair] = []
    for point in _points(answer.free_symbols | gold.free_symbols):
        values = [_evaluated(side.subs(point)) for side in (answer, gold)]
        if all(value is not None and (complex_ones or value.is_extended_real) for value in values):
            pairs.append(ValuePair(*values))
        if len(pairs) == _POINTS:
            return pairs
    if len(pairs) < _MIN_POINTS:
        raise Undefined("undefined nearly everywhere")
    return pairs


def _points(symbols: set[Symbol]) -> Iterator[dict[Symbol, Expr]]:
    """Sample points: small and large, positive and negative, the same in every run."""
    random = Random(0)
    for attempt in range(_TRIES):
        size, sign = (1, 8, 60)[attempt % 3], -1 if attempt % 4 == 3 else 1
        yield {
            symbol: Integer(random.randint(1, 9))
            if symbol.is_integer
            else sign * size * Rational(random.randint(1, 997), 997)
            for symbol in sorted(symbols, key=lambda symbol: symbol.name)
        }
