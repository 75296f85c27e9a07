"""Reading and evaluating expressions: exact values that a reader can derive."""

import math
import time
from fractions import Fraction

import pytest

from trl_mmreason.grading.expressions import read
from trl_mmreason.grading.notation import Refused, Undefined, Unreadable, normalise
from trl_mmreason.grading.numeric import limited_steps, numeric_ratio, numerically_equal, value_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 1/2", Fraction(3, 2)),
        (r"2\frac{1}{3}", Fraction(7, 3)),
        (r"-2\frac13", Fraction(-7, 3)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac{1}{2}3", Fraction(3, 2)),
        ("1,234.5", Fraction(2469, 2)),
        ("12 345", Fraction(12345)),
        ("1.5e-3", Fraction(3, 2000)),
        (r"1.5 \times 10^{-3}", Fraction(3, 2000)),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        ("2^3^2", Fraction(512)),
        ("-3^2", Fraction(-9)),
        ("(-3)^2", Fraction(9)),
        ("2^-2", Fraction(1, 4)),
        ("1/2/2", Fraction(1, 4)),
        ("5!", Fraction(120)),
        ("25%", Fraction(1, 4)),
        (r"\sqrt{16}", Fraction(4)),
        (r"\sqrt[3]{-8}", Fraction(-2)),
        ("|3-5|", Fraction(2)),
        ("2|3-5|+1", Fraction(5)),
        ("²3", None),
        ("x²", None),
        ("3²", Fraction(9)),
        ("2½", Fraction(5, 2)),
        (r"i^2", -1),
        (r"\log_{2} 8", 3),
        (r"\log 1000", 3),
        (r"\sin 30°", 0.5),
        (r"\tan^{-1} 1", math.pi / 4),
        (r"\sinh^{-1} 2", math.asinh(2)),
        (r"\sin^2 1 + \cos^2 1", 1),
        ("2e", 2 * math.e),
        ("12π", 12 * math.pi),
    ],
)
def test_values(text, value):
    if value is None:
        with pytest.raises(Unreadable):
            value_of(normalise(text))
    else:
        found = value_of(normalise(text))
        assert found == value if isinstance(value, Fraction) else found == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "text", ["", "3 4", "1/", "east", "(1", "1)", "{", "3 cats", "a cat", "1 2/0", "红", "_", "^2"]
)
def test_what_is_no_expression(text):
    with pytest.raises(Unreadable):
        read(text)


@pytest.mark.parametrize("text", ["1/0", "0/0", "0^{-1}", r"\frac{3}{2-2}", r"\ln 0", "(-1)!", "∞-∞", r"\log_1 5"])
def test_undefined(text):
    with pytest.raises(Undefined):
        value_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^9}}",
        "2^{100000}",
        "1000!",
        "5!!!!",
        "1e999",
        "(" * 60 + "1" + ")" * 60,
        r"\sqrt" * 60 + "2",
        r"\frac1" * 60 + "2",
        r"\sin" * 60 + "1",
        "2^" * 60 + "2",
        "9" * 1500,
        "*".join(["9" * 300] * 6),
    ],
)
def test_what_is_too_large_is_refused(text):
    with pytest.raises(Refused):
        value_of(text)


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("(x+1)^2", "x^2+2x+1", True),
        ("(x+1)^2", "x^2+x+1", False),
        ("2ab", "2ba", True),
        ("2x", "2X", False),
        (r"\sqrt{x^2}", "|x|", True),
        (r"\sqrt{x^2}", "x", False),  # they differ for negative x
        (r"\ln x^2", r"2\ln x", True),
        (r"\sin 2x", r"2\sin x\cos x", True),
        (r"\sin 2x", r"2\sin x", False),
        ("x_1+x_2", "x_2+x_1", True),
        ("x_1", "x_2", False),
        (r"x^{100}", r"x^{99} x", True),
        ("(1+i)^2", "2i", True),
        ("n(n+1)/2", r"\frac{n^2+n}{2}", True),
        ("1000001x", "1000000x", False),  # exact where both are
        ("3", "x", False),
        ("f'(x)", "f(x)", False),
    ],
)
def test_expressions_in_variables(answer, gold, same):
    assert numerically_equal(normalise(answer), normalise(gold)) is same


@pytest.mark.parametrize(
    ("answer", "gold", "strict", "lenient"),
    [
        ("1000001", "1000000", False, False),  # whole numbers are exact
        ("3.1415927", "π", True, True),
        ("3.14", "π", False, True),  # off by 5e-4 of the gold
        ("3.10", "π", False, False),  # 1.3e-2
        ("0.333333", "1/3", True, True),  # |d| = 1/3·1e-6, just within
        ("0.33333", "1/3", False, True),
        ("0.33", "1/3", False, True),  # 1e-2, just within
        ("0.32", "1/3", False, False),
        ("4.01", "4", False, False),  # a whole gold
        ("4.01", "4.0", False, True),  # a decimal one
        ("1.2e-7", "3.4e-7", False, False),
        ("0.0000001", "0", False, False),
        (r"\sqrt{2}", "1.41", False, True),
        (r"2\sqrt{2}", r"\sqrt{8}", True, True),
    ],
)
def test_tolerances(answer, gold, strict, lenient):
    assert numerically_equal(normalise(answer), normalise(gold)) is strict
    assert numerically_equal(normalise(answer), normalise(gold), lenient=True) is lenient


def test_ratio():
    assert numeric_ratio("2x+2y-4", "x+y-2") == 2
    assert numeric_ratio("2-x-y", "x+y-2") == -1
    assert numeric_ratio("x-4", "y-4") is None
    assert numeric_ratio("x^2-x", "x-1") is None
    assert numeric_ratio("0", "x") is None


SAME = [
    (r"2^3\frac{1}{2}", "4"),
    (r"\sin x \cdot \cos x", r"\frac{1}{2}\sin 2x"),
    (r"\sin{x} y", r"y\sin(x)"),
    (r"\sin(x)^{2}", r"1-\cos^{2} x"),
    (r"\cos n\pi \cdot (-1)^{n}", "1"),
    ("2^{n+1}", r"2 \cdot 2^{n}"),
    ("n!", "n(n-1)!"),
    (r"\sqrt{7+4\sqrt{3}}", r"2+\sqrt{3}"),
    (r"\sqrt{2}\sqrt{3}-\sqrt{6}", "0"),
    (r"\sin \pi", "0"),
    ("e^{-100}", "e^{-50}e^{-50}"),
    ("e^{i\\pi}", "-1"),
    (r"\sqrt{-4}", "2i"),
    (r"\binom{5}{2}", "10"),
    (r"\lfloor 3.7 \rfloor", "3"),
    (r"\lceil \pi \rceil", "4"),
    (r"\ln(ab)", r"\ln a+\ln b"),
]
DIFFERENT = [
    (r"\sin x \cdot \cos x", r"\sin(x\cos x)"),
    ("10^{-30}", "0"),
    ("e^{-100}", "e^{-101}"),
    (r"\sqrt{2}-\frac{99}{70}", "0"),
    (r"\sqrt{10^{20}+1}-10^{10}", "0"),  # it is 5e-11
    ("x^{8}+1", "x^{8}"),
    ("(-1)^{n}", "1"),
    ("2i", "-2i"),
    (r"\infty", r"-\infty"),
    (r"\infty", "5"),
    (r"\log_{2} 8", r"\log 8"),
]


@pytest.mark.parametrize(("answer", "gold"), SAME)
def test_equal(answer, gold):
    assert numerically_equal(normalise(answer), normalise(gold))
    assert numerically_equal(normalise(gold), normalise(answer))


@pytest.mark.parametrize(("answer", "gold"), DIFFERENT)
def test_not_equal(answer, gold):
    assert not numerically_equal(normalise(answer), normalise(gold))


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{1}",
        r"\frac{dy}{dx}",
        r"\operatorname{os.system}(1)",
        "__import__('os')",
    ],
)
def test_what_has_no_value(text):
    with pytest.raises(Unreadable):
        value_of(normalise(text))


@pytest.mark.parametrize(
    "text",
    [
        r"1+(\frac{1}{9})^{9^{9}}",
        "e^{10000000}",
    ],
)
def test_what_takes_for_ever_is_refused(text):
    start = time.process_time()
    with pytest.raises(Refused):
        value_of(normalise(text))
    assert time.process_time() - start < 3


def test_comparisons_share_one_limit():
    long = "+".join(rf"\sqrt{{{number}}}" for number in range(300))
    with limited_steps():
        value_of(long)
        with pytest.raises(Refused, match="operations"):
            assert all(value_of(long) for _ in range(1000))
