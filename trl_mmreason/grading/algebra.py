r"""Decide whether two LaTeX expressions are equal, by computer algebra; for worker processes only.

`explicit.py` parses, sympy evaluates what is built of the nodes here.

Expressions are compared by their values to thirty digits; with variables, at random points. Real points only, and only
where both are real: √(x²) is |x|, not x.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import sympy
from sympy import Derivative, Expr, Integer, Integral, Limit, MatrixBase, Pow, Product, Rational, Sum, Symbol

from .explicit import explicit
from .expressions import Node
from .notation import Refused, Undefined, Unreadable

_DIGITS = 30
_STRICT = 1e-6
_POINTS = 6
_MIN_POINTS = 3
_TRIES = 30


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
    """Parse both expressions; the same variables are the same symbols."""
    sides = [(side, _parsed(text, side)) for side, text in (("answer", answer), ("gold", gold))]
    whole = {symbol: Symbol(symbol.name, integer=True) for _, side in sides for symbol in _whole(side)}
    left, right = (_settled(parsed.xreplace(whole), side) for side, parsed in sides)
    return left, right


def _parsed(text: str, side: str) -> Expr | MatrixBase:
    try:
        return _built(explicit(text))
    except Unreadable as error:
        raise Unreadable(f"the {side}: {error}") from error
    except (MemoryError, RecursionError, Refused):
        raise
    except Exception as error:  # noqa: BLE001 - sympy raises anything for what it cannot build
        raise Unreadable(f"the {side} cannot be built: {type(error).__name__}") from error


_CONSTANTS = {"i": sympy.I, "e": sympy.E, "pi": sympy.pi, "infinity": sympy.oo}
_ELEMENTARY = "sin cos tan cot sec csc sinh cosh tanh".split()
_BUILDERS: dict[str, Callable[..., Any]] = {
    "minus": operator.neg,
    "inverse": lambda value: value**-1,
    "power": operator.pow,
    "root": lambda value, degree: value ** (1 / degree),
    "degrees": lambda value: value * sympy.pi / 180,
    "\\lfloor": sympy.floor,
    "\\lceil": sympy.ceiling,
    **dict.fromkeys(("log", "lg"), lambda value, base=10: sympy.log(value, base)),
    **{name: getattr(sympy, name) for name in (*_ELEMENTARY, "exp", "factorial", "binomial", "gcd", "lcm")},
    **{prefix + name: getattr(sympy, f"a{name}") for prefix in ("a", "ar", "arc") for name in _ELEMENTARY},
    **{"abs": sympy.Abs, "ln": sympy.log, "max": sympy.Max, "min": sympy.Min, "bmatrix": sympy.Matrix},
    "derivative": lambda variable, inside: Derivative(inside, variable),
    "integral": Integral,
    "definite": lambda low, high, inside, variable: Integral(inside, (variable, low, high)),
    "\\sum": lambda variable, low, high, inside: Sum(inside, (variable, low, high)),
    "\\prod": lambda variable, low, high, inside: Product(inside, (variable, low, high)),
    "limit": lambda variable, target, inside: Limit(inside, variable, target),
    "limit+": lambda variable, target, inside: Limit(inside, variable, target, "+"),
    "limit-": lambda variable, target, inside: Limit(inside, variable, target, "-"),
    "vmatrix": lambda rows: sympy.Matrix(rows).det(),
}


def _built(node: Node) -> Any:
    kind, *parts = node
    if kind == "number":
        return Rational(*parts[0].as_integer_ratio())
    if kind == "symbol":
        return Symbol(parts[0], real=True)
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind in ("sum", "product"):
        return functools.reduce(operator.add if kind == "sum" else operator.mul, map(_built, parts[0]))
    if kind == "several":
        return _BUILDERS[parts[0]](*map(_built, parts[1]))
    if kind == "matrix":
        return _BUILDERS[parts[0]]([[_built(entry) for entry in row] for row in parts[1]])
    values = [_built(part) for part in parts]
    if kind == "power" and isinstance(values[0], MatrixBase) and parts[1] == ("symbol", "T"):
        return values[0].T
    return _BUILDERS[kind](*values)


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
