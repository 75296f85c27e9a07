"""Evaluate expressions, and compare their values: exactly for rational numbers, otherwise to forty digits.

Nothing takes long on hostile text, so that it may run in the caller's process: rational numbers have at most a thousand
digits and others at most three thousand before the point, each sum has a bounded number of terms, and all operations of
a decision together are counted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from random import Random
from typing import Any

from mpmath import MPContext

from .expressions import Expression, Node, parts_of, read, read_both
from .notation import Refused, Undefined, Unreadable

MAX_BITS = 4096  # of a numerator or denominator
MAX_FACTORIAL = 300
_MAX_MAGNITUDE = 10_000  # in bits, of what is not rational
_MAX_STEPS = 200_000
_DIGITS = 40
POINTS = 8
MIN_POINTS = 3
_FAR = 1000
_FAR_POINTS = ((3, 5), (4, 5))  # of every other variable, one of them negative
STRICT = Fraction(1, 10**6)
LENIENT = Fraction(1, 100)
_EXACT = 1e30
_ZERO = 1e-30  # forty digits are not exact


class _Contexts(threading.local):
    """Each thread has its own, as the precision is part of its state."""

    def __init__(self) -> None:
        self.context = MPContext()
        self.context.dps = _DIGITS


_contexts = _Contexts()
_steps_left: ContextVar[list[int] | None] = ContextVar("steps left", default=None)


@contextmanager
def limited_steps() -> Iterator[None]:
    """Let all that is evaluated within share one limit."""
    token = _steps_left.set([_MAX_STEPS])
    try:
        yield
    finally:
        _steps_left.reset(token)


def numerically_equal(
    answer: str,
    gold: str,
    *,
    lenient: bool = False,
    answer_unit: tuple[Fraction, Fraction] = (Fraction(1), Fraction(0)),
    gold_unit: tuple[Fraction, Fraction] = (Fraction(1), Fraction(0)),
) -> bool:
    """Whether two expressions in canonical form are equal: numbers within the tolerance, variables for all values.

    Whole numbers must agree exactly; otherwise |answer − gold| ≤ 1e-6·|gold|, or 1e-2·|gold| when `lenient` and the
    gold is no whole number. The units are (factor, offset).
    """
    left, right = read_both(answer, gold)
    if not left.symbols and not right.symbols:
        value, target = _value(left), _value(right)
        whole = isinstance(target, Fraction) and target.denominator == 1 and not right.decimal
        value, target = _scaled(value, answer_unit), _scaled(target, gold_unit)
        return _close(value, target, LENIENT if lenient and not whole else STRICT)
    if left.symbols != right.symbols and left.symbols and right.symbols and left.symbols.isdisjoint(right.symbols):
        return False
    exact = not (left.decimal or right.decimal)
    for value, target in _values(left, right):
        value, target = _scaled(value, answer_unit), _scaled(target, gold_unit)
        rational = isinstance(value, Fraction) and isinstance(target, Fraction)
        if not (value == target if exact and rational else _close(value, target, STRICT)):
            return False
    return True


def _scaled(value: Any, unit: tuple[Fraction, Fraction]) -> Any:
    return value if unit == (1, 0) else value * unit[0] + unit[1]


def numeric_ratio(answer: str, gold: str) -> Any:
    """The constant c ≠ 0 with answer = c · gold for all values of the variables, if there is one."""
    try:
        left, right = read_both(answer, gold)
        pairs = _values(left, right)
    except Unreadable:
        return None
    if not left.symbols | right.symbols or any(a == 0 or g == 0 for a, g in pairs):
        return None  # any two numbers have a ratio
    factors = [_Evaluator().divided(a, g) for a, g in pairs]
    constant = all(_close(factor, factors[0], STRICT) for factor in factors)
    return factors[0] if constant and not _is_complex(factors[0]) else None


def value_of(text: str) -> Fraction | float | complex:
    """The value of an expression without variables; raises `Unreadable` where it has none."""
    expression = read(text)
    if expression.symbols:
        raise Unreadable(f"{sorted(expression.symbols)} have no value")
    value = _value(expression)
    return value if isinstance(value, Fraction) else complex(value) if _is_complex(value) else float(value)


def _value(expression: Expression) -> Any:
    try:
        value = _Evaluator().value(expression.node, {})
    except (ZeroDivisionError, ValueError, TypeError) as error:
        raise Undefined("its value is undefined") from error
    except OverflowError as error:
        raise Refused("a number of more than three thousand digits") from error
    if value != value:
        raise Undefined("its value is undefined")
    return value


def _is_complex(value: Any) -> bool:
    return hasattr(value, "_mpc_")


def _close(value: Any, target: Any, tolerance: Fraction) -> bool:
    if isinstance(value, Fraction) and isinstance(target, Fraction):
        if value.denominator == target.denominator == 1:
            return value == target
        return abs(value - target) <= tolerance * abs(target)
    context = _contexts.context
    size, target_size = context.convert(abs(value)), context.convert(abs(target))
    if context.isinf(size) or context.isinf(target_size):
        return value == target
    if value == 0 or target == 0:
        return max(size, target_size) < _ZERO
    return abs(context.convert(value) - target) <= float(tolerance) * target_size


def _values(left: Expression, right: Expression) -> list[tuple[Any, Any]]:
    """Both values at common points where both are defined; real unless they contain the imaginary unit."""
    names = sorted(left.symbols | right.symbols)
    evaluator, pairs, too_large = _Evaluator(), [], False
    numbers = [abs(part) for part in parts_of([left.node, right.node]) if isinstance(part, Fraction)]
    beyond = min(max([Fraction(1), *numbers]), Fraction(_FAR))
    for index in range(2 * POINTS):
        # the same on every process, and none that an answer could be made to fit
        random = Random(f"{index} {left.node} {right.node}")
        if left.whole or right.whole:
            point = {name: Fraction(random.randint(1, 12)) for name in names}
        else:
            point = {name: _coordinate(random, index, place % 2, beyond) for place, name in enumerate(names)}
        try:
            pair = evaluator.both(left.node, right.node, point)
        except (ZeroDivisionError, ValueError, TypeError, OverflowError) as error:
            too_large = too_large or isinstance(error, OverflowError)
            continue
        if left.imaginary or right.imaginary or not any(_is_complex(v) or v != v for v in pair):
            pairs.append(pair)
        if len(pairs) == POINTS:
            break
    if len(pairs) < MIN_POINTS:
        raise Refused("its values are too large") if too_large else Undefined("it is undefined at most points")
    return pairs


def _coordinate(random: Random, index: int, parity: int, beyond: Fraction) -> Fraction:
    """Fewer negative ones than others; each variable is now the larger one, now the smaller one."""
    sign = -1 if (0, 1 + parity, 1)[index % 3] == 1 else 1
    size = Fraction(random.randint(3, 97), random.randint(5, 29) * (1 + 4 * ((index + parity) % 2)))
    far = index in _FAR_POINTS[parity]  # on the other side of |x - 5|
    return sign * (beyond * (1 + size / 20) if far else size)


class _Evaluator:
    """Evaluates nodes; raises ZeroDivisionError or ValueError where they have no value, and OverflowError."""

    def __init__(self) -> None:
        self.steps_left = _steps_left.get() or [_MAX_STEPS]
        self.context = _contexts.context
        self.constants = {"pi": self.context.pi, "e": self.context.e, "i": self.context.j, "infinity": self.context.inf}

    def both(self, left: Node, right: Node, point: Mapping[str, Fraction]) -> tuple[Any, Any]:
        try:
            return self.value(left, point), self.value(right, point)
        except Refused:  # an exact value would have too many digits
            rough = {name: self.context.convert(value) for name, value in point.items()}
            return self.value(left, rough), self.value(right, rough)

    def value(self, node: Node, point: Mapping[str, Any]) -> Any:
        self.steps_left[0] -= 1
        if self.steps_left[0] < 0:
            raise Refused(f"more than {_MAX_STEPS} operations")
        kind, *parts = node
        if kind == "number":
            return parts[0]
        if kind == "symbol":
            return point[parts[0]]
        if kind in self.constants:
            return +self.constants[kind]
        if kind == "apply":
            return self.applied(parts[0], self.value(parts[1], point))
        operands = parts[0] if kind in ("sum", "product") else parts
        return _bounded(_OPERATIONS[kind](self, *(self.value(part, point) for part in operands)))

    def total(self, *terms: Any) -> Any:
        total = sum(terms, Fraction(0))
        if isinstance(total, Fraction):
            return total
        largest = max(abs(self.context.convert(term)) for term in terms)
        return Fraction(0) if abs(total) < _ZERO * largest else total

    def product(self, *factors: Any) -> Any:
        total: Any = Fraction(1)
        for factor in factors:
            total = _bounded(total * factor)
        return total

    def divided(self, numerator: Any, denominator: Any) -> Any:
        if isinstance(numerator, Fraction) and isinstance(denominator, Fraction):
            return numerator / denominator
        return self.context.convert(numerator) / denominator

    def applied(self, name: str, value: Any) -> Any:
        """The value of a function that is not known: a cubic polynomial of its own, which no identity holds for."""
        random = Random(f"function {name}")
        a, b, c = (random.randint(2, 9) for _ in range(3))
        return _bounded(a * value**3 + b * value**2 + c)

    def power(self, base: Any, exponent: Any) -> Any:
        if isinstance(exponent, Fraction) and exponent.denominator == 1:
            if isinstance(base, Fraction):
                bits = max(base.numerator.bit_length(), base.denominator.bit_length())
                if abs(exponent) * bits > MAX_BITS and abs(base) != 1:
                    raise Refused("a power of more than a thousand digits")
            return base ** int(exponent)
        if base == 0 and not _is_complex(exponent):
            return Fraction(0) if self.context.convert(exponent) > 0 else 1 / Fraction(0)
        if isinstance(exponent, Fraction) and exponent.denominator % 2 and not _is_complex(base) and base < 0:
            # odd roots of negative numbers are real
            return self.power(-self.root(-base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
        return self.real(self.context.power(self.context.convert(base), exponent))

    def root(self, base: Any, degree: Any) -> Any:
        if not isinstance(degree, Fraction) or degree.denominator != 1 or degree <= 0:
            return self.power(base, self.divided(Fraction(1), degree))
        index = int(degree)
        if not _is_complex(base) and base < 0 and index % 2:
            return -self.root(-base, degree)
        root = self.context.root(self.context.convert(base), index)
        return Fraction(int(root)) if self.context.isint(root) and abs(root) < _EXACT else self.real(root)

    def real(self, value: Any) -> Any:
        """Remove an imaginary part that is due to rounding."""
        return value.real if _is_complex(value) and abs(value.imag) <= _ZERO * abs(value.real) else value

    def logarithm(self, value: Any, base: Any = Fraction(10)) -> Any:
        if _is_complex(value) or _is_complex(base) or value <= 0 or base <= 0 or base == 1:
            raise ValueError("logarithm of what is not positive")
        logarithm = self.context.log
        return logarithm(value) / logarithm(base) if base != 10 else self.context.log10(value)


def _bounded(value: Any) -> Any:
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise Refused("a number of more than a thousand digits")
    else:
        for _, mantissa, exponent, size in getattr(value, "_mpc_", None) or (value._mpf_,):
            if mantissa and exponent + size > _MAX_MAGNITUDE:
                raise OverflowError("a number of more than three thousand digits")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise ValueError("no natural number")
    if value > MAX_FACTORIAL:
        raise Refused(f"the factorial of a number above {MAX_FACTORIAL}")
    return int(value)


def _elementary(name: str) -> Callable[..., Any]:
    return lambda evaluator, value: evaluator.real(getattr(evaluator.context, name)(value))


_INVERTIBLE = ("sin", "cos", "tan", "sinh", "cosh", "tanh")
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": _Evaluator.total,
    "product": _Evaluator.product,
    "minus": lambda _, value: -value,
    "inverse": lambda evaluator, value: evaluator.divided(Fraction(1), value),
    "power": _Evaluator.power,
    "root": _Evaluator.root,
    "percent": lambda _, value: value / 100,
    "degrees": lambda evaluator, value: value * +evaluator.context.pi / 180,
    "factorial": lambda _, value: Fraction(math.factorial(_whole(value))),
    "binomial": lambda _, n, k: Fraction(math.comb(_whole(n), _whole(k))),
    "\\lfloor": lambda _, value: Fraction(math.floor(value)),
    "\\lceil": lambda _, value: Fraction(math.ceil(value)),
    "abs": lambda _, value: abs(value),
    "ln": lambda evaluator, value: evaluator.logarithm(value, evaluator.context.e),
    "log": _Evaluator.logarithm,
    "lg": _Evaluator.logarithm,
    **{name: _elementary(name) for name in (*_INVERTIBLE, "exp", "cot", "sec", "csc")},
    **{f"{prefix}{name}": _elementary(f"a{name}") for prefix in ("a", "ar", "arc") for name in _INVERTIBLE},
}
