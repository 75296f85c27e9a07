"""Evaluate expressions, and compare their values."""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping
from fractions import Fraction
from random import Random

from .expressions import Expression, Node, functions_in, parts_of, read
from .notation import NeedsAlgebra, Refused, Undefined, Unreadable

Number = Fraction | float | complex

MAX_BITS = 4096  # of a numerator or denominator
MAX_FACTORIAL = 300
POINTS = 8
MIN_POINTS = 3
_FAR = 1000
_FAR_POINTS = ((3, 5), (4, 5))  # of every other variable, one of them negative
STRICT = Fraction(1, 10**6)
LENIENT = Fraction(1, 100)
_NEGLIGIBLE = 1e-9  # below this, a sum in floating point may be zero or not


def numerically_equal(
    answer: str,
    gold: str,
    *,
    lenient: bool = False,
    answer_unit: tuple[Fraction, Fraction] = (Fraction(1), Fraction(0)),
    gold_unit: tuple[Fraction, Fraction] = (Fraction(1), Fraction(0)),
) -> bool:
    """Whether two expressions are equal: numbers within the tolerance, variables for all values.

    Whole numbers must agree exactly; otherwise |answer − gold| ≤ 1e-6·|gold|, or 1e-2·|gold| when `lenient` and the
    gold is no whole number.

    Args:
        answer, gold: in canonical form.
        answer_unit, gold_unit: (factor, offset) that bring each to common units.

    Raises:
        Unreadable, Refused: see `read`; also for an undefined value such as 1/0.
        NeedsAlgebra: floating point cannot tell.
    """
    functions = functions_in(answer, gold)
    left, right = read(answer, functions), read(gold, functions)
    if not left.symbols and not right.symbols:
        value, target = _value(left.node), _value(right.node)
        whole = isinstance(target, Fraction) and target.denominator == 1 and not right.decimal
        value, target = value * answer_unit[0] + answer_unit[1], target * gold_unit[0] + gold_unit[1]
        return _close(value, target, LENIENT if lenient and not whole else STRICT)
    if left.symbols != right.symbols and left.symbols and right.symbols and left.symbols.isdisjoint(right.symbols):
        return False
    pairs = _values(left, right)
    if answer_unit != gold_unit:
        pairs = [(a * answer_unit[0] + answer_unit[1], g * gold_unit[0] + gold_unit[1]) for a, g in pairs]
    exact = not (left.decimal or right.decimal)
    return all(
        a == g if exact and isinstance(a, Fraction) and isinstance(g, Fraction) else _close(a, g, STRICT)
        for a, g in pairs
    )


def numeric_ratio(answer: str, gold: str) -> float | None:
    """The constant c ≠ 0 with answer = c · gold for all values of the variables, if there is one."""
    functions = functions_in(answer, gold)
    left, right = read(answer, functions), read(gold, functions)
    pairs = _values(left, right)
    if not left.symbols | right.symbols or any(a == 0 or g == 0 for a, g in pairs):
        return None  # any two numbers have a ratio
    try:
        factors = [a / g for a, g in pairs]
        constant = all(_close(factor, factors[0], STRICT) for factor in factors)
        return float(factors[0]) if constant and not isinstance(factors[0], complex) else None
    except OverflowError as error:
        raise Refused("a factor beyond floating point") from error


def differ_by_constant(answer: str, gold: str) -> bool:
    """Whether answer − gold is the same for all values of the variables, as of two antiderivatives."""
    functions = functions_in(answer, gold)
    pairs = _values(read(answer, functions), read(gold, functions))
    differences = [complex(a - g) for a, g in pairs]
    sizes = [1 + _size(a) + _size(g) for a, g in pairs]
    return all(abs(d - differences[0]) <= STRICT * size for d, size in zip(differences, sizes, strict=True))


def value_of(text: str) -> Number:
    """The value of an expression without variables; raises `Unreadable` where it has none."""
    expression = read(text)
    if expression.symbols:
        raise Unreadable(f"{sorted(expression.symbols)} have no value")
    return _value(expression.node)


def _value(node: Node) -> Number:
    try:
        value = evaluate_node(node, {})
    except Refused:
        raise
    except (ZeroDivisionError, ValueError) as error:
        raise Undefined("its value is undefined") from error
    except OverflowError as error:
        raise NeedsAlgebra("too large for floating point") from error
    if value != value:
        raise Undefined("its value is undefined")
    return value


def _size(value: Number) -> float:
    return abs(complex(value))


def _close(value: Number, target: Number, tolerance: Fraction) -> bool:
    if isinstance(value, Fraction) and isinstance(target, Fraction):
        if value.denominator == target.denominator == 1:
            return value == target
        return abs(value - target) <= tolerance * abs(target)
    if value == target and target != 0:
        return True
    try:
        size, target_size = _size(value), _size(target)
    except OverflowError:  # one is a whole number beyond floating point, the other is not
        return False
    if math.isinf(size) or math.isinf(target_size):
        return False
    if max(size, target_size) < _NEGLIGIBLE:
        raise NeedsAlgebra("close to zero")
    return abs(complex(value) - complex(target)) <= tolerance * target_size


def _values(left: Expression, right: Expression) -> list[tuple[Number, Number]]:
    """Yield both values at common points where both are defined; real unless they contain the imaginary unit."""
    names = sorted(left.symbols | right.symbols)
    pairs, too_large = [], None
    numbers = [abs(part) for part in parts_of([left.node, right.node]) if isinstance(part, Fraction)]
    beyond = min(max([Fraction(1), *numbers]), Fraction(_FAR))
    for index in range(2 * POINTS):
        point: dict[str, Fraction] = {}
        for place, name in enumerate(names):
            # the same on every process, and none that an answer could be made to fit; fewer negative ones, and each
            # variable is now the larger one, now the smaller one
            random = Random(f"{name} {index} {left.node} {right.node}")
            sign = -1 if (0, 1 + place % 2, 1)[index % 3] == 1 else 1
            size = Fraction(random.randint(3, 97), random.randint(5, 29) * (1 + 4 * ((index + place) % 2)))
            far = index in _FAR_POINTS[place % 2]  # on the other side of |x - 5|
            point[name] = sign * (beyond * (1 + size / 20) if far else size)
        try:
            pair = _at(left, right, point)
        except OverflowError as error:
            too_large = error
            continue
        except NeedsAlgebra:
            if any(index in each for each in _FAR_POINTS):
                continue
            raise
        except Refused:
            raise
        except (ZeroDivisionError, ValueError):
            continue
        if left.imaginary or right.imaginary or not any(isinstance(v, complex) or v != v for v in pair):
            pairs.append(pair)
        if len(pairs) == POINTS:
            break
    if len(pairs) < MIN_POINTS and too_large:
        raise Refused("its values are too large") from too_large
    if len(pairs) < MIN_POINTS:
        raise NeedsAlgebra("it is undefined at most points")
    return pairs


def _at(left: Expression, right: Expression, point: Mapping[str, Fraction]) -> tuple[Number, Number]:
    try:
        return evaluate_node(left.node, point), evaluate_node(right.node, point)
    except Refused:  # an exact value would have too many digits
        rough = {name: float(value) for name, value in point.items()}
        return evaluate_node(left.node, rough), evaluate_node(right.node, rough)


def evaluate_node(node: Node, point: Mapping[str, Number]) -> Number:
    """The value of `node` with the variables of `point`.

    Raises:
        ZeroDivisionError, ValueError, OverflowError: it is undefined there, or beyond floating point.
        Refused: a power or a factorial is too large.
    """
    kind = node[0]
    if kind == "number":
        return node[1]
    if kind == "symbol":
        return point[node[1]]
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind == "apply":
        return _applied(node[1], evaluate_node(node[2], point))
    if kind == "sum":
        total: Number = Fraction(0)
        terms = [evaluate_node(term, point) for term in node[1]]
        for term in terms:
            total = _bounded(total + term)
        if not isinstance(total, Fraction) and _size(total) < _NEGLIGIBLE * max(map(_size, terms)):
            raise NeedsAlgebra("nearly everything cancels")
        return total
    if kind == "product":
        total = Fraction(1)
        for factor in node[1]:
            total = _bounded(total * evaluate_node(factor, point))
        return total
    values = [evaluate_node(part, point) for part in node[1:]]
    return _bounded(_OPERATIONS[kind](*values))


def _applied(name: str, value: Number) -> Number:
    """The value of a function that is not known: a cubic polynomial of its own, which no identity holds for."""
    random = Random(f"function {name}")
    a, b, c = (random.randint(2, 9) for _ in range(3))
    return _bounded(a * value**3 + b * value**2 + c)


def _bounded(value: Number) -> Number:
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise Refused("a number of more than a thousand digits")
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        if isinstance(base, Fraction):
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(exponent) * bits > MAX_BITS and abs(base) != 1:
                raise Refused("a power of more than a thousand digits")
        return base ** int(exponent)
    if isinstance(exponent, Fraction) and isinstance(base, Fraction | float) and exponent.denominator % 2 and base < 0:
        # odd roots of negative numbers are real
        return _power(-_root(-base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
    if base == 0:
        return Fraction(0) if not isinstance(exponent, complex) and exponent > 0 else 1 / Fraction(0)
    return _real(complex(base) ** complex(exponent)) if isinstance(base, complex) else base**exponent


def _root(base: Number, degree: Number) -> Number:
    if not isinstance(degree, Fraction) or degree.denominator != 1 or degree <= 0:
        return _power(base, 1 / degree)
    index = int(degree)
    if isinstance(base, Fraction):
        if base < 0 and index % 2:
            return -_root(-base, degree)
        if base >= 0 and index <= 64:
            upper, lower = _whole_root(base.numerator, index), _whole_root(base.denominator, index)
            if upper is not None and lower is not None:
                return Fraction(upper, lower)
    if isinstance(base, float) and base < 0 and index % 2:
        return -((-base) ** (1 / index))
    if isinstance(base, complex) or base < 0:
        return _real(complex(base) ** (1 / index))
    return float(base) ** (1 / index)


def _whole_root(number: int, index: int) -> int | None:
    if index == 2:
        root = math.isqrt(number)
    elif number.bit_length() < 50:
        root = round(number ** (1 / index))
    else:
        return None
    return root if root**index == number else None


def _real(value: complex) -> Number:
    """Remove an imaginary part that is due to rounding."""
    return value.real if abs(value.imag) <= 1e-14 * abs(value.real) else value


def _factorial(value: Number) -> Number:
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise ValueError("factorial of what is no natural number")
    if value > MAX_FACTORIAL:
        raise Refused(f"the factorial of a number above {MAX_FACTORIAL}")
    return Fraction(math.factorial(int(value)))


def _log(value: Number, base: Number = Fraction(10)) -> Number:
    if isinstance(value, complex) or isinstance(base, complex) or value <= 0 or base <= 0 or base == 1:
        raise ValueError("logarithm of what is not positive")
    if base == 10:
        return math.log10(value)
    return math.log(value) / math.log(base)


def _elementary(name: str):
    real, general = getattr(math, name), getattr(cmath, name)
    return lambda value: general(value) if isinstance(value, complex) else real(value)


_INVERTIBLE = ("sin", "cos", "tan", "sinh", "cosh", "tanh")
_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "i": 1j, "infinity": math.inf}
_OPERATIONS = {
    "minus": lambda value: -value,
    "inverse": lambda value: 1 / value,
    "power": _power,
    "root": _root,
    "percent": lambda value: value / 100,
    "degrees": lambda value: value * math.pi / 180,
    "factorial": _factorial,
    "abs": abs,
    "ln": lambda value: _log(value, math.e),
    "log": _log,
    "lg": _log,
    **{name: _elementary(name) for name in (*_INVERTIBLE, "exp")},
    **{f"{prefix}{name}": _elementary(f"a{name}") for prefix in ("a", "arc") for name in _INVERTIBLE},
    "cot": lambda value: 1 / _elementary("tan")(value),
    "sec": lambda value: 1 / _elementary("cos")(value),
    "csc": lambda value: 1 / _elementary("sin")(value),
}
