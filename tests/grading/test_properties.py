"""What must hold for any answer: symmetry, products in any order, and units that never make a wrong answer right."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_mmreason.grading import Grader, equivalent
from trl_mmreason.grading.units import split_unit

UNIT_LETTERS = "mgshdtlLAKNJWVCFT"
"""Letters that are units, too."""
LETTERS = st.sampled_from(UNIT_LETTERS + "xyabkr")
FACTORS = st.one_of(
    st.integers(2, 99).map(str),
    LETTERS,
    LETTERS.map(lambda letter: f"{letter}_1"),
    LETTERS.map(lambda letter: f"{letter}^2"),
    st.sampled_from([r"\pi", r"\sqrt{3}", r"\frac{1}{2}", r"\frac{2}{7}", r"\omega", r"\hbar", r"\bar{x}", "(x+2)"]),
)
EXPRESSIONS = st.lists(FACTORS, min_size=1, max_size=4, unique=True)
FAST = settings(max_examples=150, deadline=None)


def product(factors):
    r"""Numbers first, as people write them: `2 h 3` is no product, and `2\frac{1}{2}` a mixed number."""
    numbers = [factor for factor in factors if factor.isdigit() or "frac" in factor]
    others = [factor for factor in factors if factor not in numbers]
    return " ".join([r" \cdot ".join(numbers), *others]).strip()


def right(answer, gold):
    return Grader().grade(rf"\boxed{{{answer}}}", gold).correct


@FAST
@given(EXPRESSIONS, st.randoms(use_true_random=False))
def test_factors_commute(factors, random):
    shuffled = random.sample(factors, len(factors))
    assert right(product(shuffled), product(factors)), f"{product(shuffled)} for {product(factors)}"


@FAST
@given(EXPRESSIONS, EXPRESSIONS)
def test_equality_is_symmetric(one, other):
    assert right(product(one), product(other)) == right(product(other), product(one))
    assert equivalent(product(one), product(one))


@FAST
@given(EXPRESSIONS, LETTERS)
def test_another_variable_makes_another_answer(factors, letter):
    """But for a single letter after a plain number, which may be its unit."""
    gold, answer = product([*factors, letter]), product(factors)
    if letter in factors or not any(not factor.isdigit() for factor in factors):
        return
    assert not right(answer, gold), f"{answer} for {gold}"
    assert not right(gold, answer), f"{gold} for {answer}"


NUMBERS = st.one_of(st.integers(2, 999).map(str), st.decimals(1, 99, places=2).map(str))
SIZES = {"mm": "length", "cm": "length", "km": "length", "kg": "mass", "mg": "mass", "s": "time", "min": "time"}
UNITS = [*SIZES, "N", "J", "km/h", "m/s", "cm^2", r"\text{ m}", r"\,\mathrm{A}", r"^\circ", "dollars"]


@FAST
@given(NUMBERS, st.sampled_from(list(itertools.permutations(UNITS, 2))))
def test_another_unit_makes_another_answer(number, units):
    one, other = (f"{number} {unit}" for unit in units)
    assert right(one, one)
    assert not right(one, other), f"{one} for {other}"


@FAST
@given(NUMBERS, NUMBERS, st.sampled_from(UNITS))
def test_a_unit_never_makes_a_wrong_number_right(number, gold, unit):
    assert right(f"{number} {unit}", f"{gold} {unit}") == (float(number) == float(gold))
    if "^" not in unit and "." not in number + gold:
        assert right(f"{number} {unit}", gold) == (int(number) == int(gold))


@pytest.mark.parametrize("letter", UNIT_LETTERS)
def test_a_letter_is_a_unit_after_a_plain_number_or_as_text_only(letter):
    assert split_unit(f"5 {letter}")[0] == "5"
    for formula in (
        rf"\frac{{1}}{{2}} {letter}",
        f"π {letter}",
        f"(x+2) {letter}",
        f"x {letter}",
        rf"\sqrt{{3}} {letter}",
    ):
        assert split_unit(formula) is None, formula
        assert not right(formula.rpartition(" ")[0], formula)
    assert right(r"2\sqrt{3}", rf"2\sqrt{{3}}\text{{ {letter}}}")


TYPES = {
    "number": ["7", "0.5", r"\frac{2}{3}", "-4"],
    "interval": ["(1, 5]", "[2, 7)"],
    "set": [r"\{1, 2\}", r"\{7\}, \{8\}"],
    "expression": ["x+2", "gt^2"],
    "text": ["isosceles", "red hat"],
    "equation": ["y = 2x + 1", "x^2 + y^2 = 4"],
}


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(TYPES, 2)))
def test_an_answer_of_another_type_is_wrong(one, other):
    for answer, gold in itertools.product(TYPES[one], TYPES[other]):
        assert right(answer, gold) is False, f"{answer} for {gold}"
