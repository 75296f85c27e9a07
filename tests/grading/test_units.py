"""Reading units off answers and questions."""

from fractions import Fraction

import pytest

from trl_mmreason.grading.notation import normalise
from trl_mmreason.grading.units import asked_unit, parse_unit, speaks_of_percent, split_unit


@pytest.mark.parametrize(
    ("text", "number", "factor", "dimensions"),
    [
        ("50 cm", "50", Fraction(1, 100), {"m": 1}),
        (r"12\pi\text{ cm}^2", "12π", Fraction(1, 10**4), {"m": 2}),
        ("3 m/s", "3", 1, {"m": 1, "s": -1}),
        ("3 m s^{-1}", "3", 1, {"m": 1, "s": -1}),
        ("36 km/h", "36", Fraction(1000, 3600), {"m": 1, "s": -1}),
        ("5 kg·m/s²", "5", 1, {"kg": 1, "m": 1, "s": -2}),
        ("2 N", "2", 1, {"kg": 1, "m": 1, "s": -2}),
        ("4 square metres", "4", 1, {"m": 2}),
        ("3平方厘米", "3", Fraction(1, 10**4), {"m": 2}),
        ("2 L", "2", Fraction(1, 1000), {"m": 3}),
        ("100 pF", "100", Fraction(1, 10**12), {"kg": -1, "m": -2, "s": 4, "A": 2}),
        ("10 mH", "10", Fraction(1, 1000), {"kg": 1, "m": 2, "s": -2, "A": -2}),
        ("5 uA", "5", Fraction(1, 10**6), {"A": 1}),
        ("3 μV", "3", Fraction(1, 10**6), {"kg": 1, "m": 2, "s": -3, "A": -1}),
        ("$5", "5", 1, {"usd": 1}),
        (r"\$1,000", "1,000", 1, {"usd": 1}),
        ("30°", "30", 1, {"degree": 1}),
        ("25%", "25", Fraction(1, 100), {"percent": 1}),
        ("25 percent", "25", Fraction(1, 100), {"percent": 1}),
        ("1 h 30 min", "5400/1", 1, {"s": 1}),
        ("5 feet 3 inches", "8001/5000", 1, {"m": 1}),  # 63 inches of 0.0254 m
        ("4 square units", "4", 1, {"units": 2}),
    ],
)
def test_quantities(text, number, factor, dimensions):
    value, unit = split_unit(normalise(text))
    assert (value, unit.factor, dict(unit.dimensions)) == (number, factor, dimensions)
    assert not unit.noun


def test_temperatures_have_an_offset():
    value, unit = split_unit("77°F")
    assert Fraction(value) * unit.factor + unit.offset == Fraction("298.15")  # 25 °C


@pytest.mark.parametrize(
    ("text", "noun"),
    [("5 apples", "apple"), ("5 red apples", "red apple"), ("3 boxes", "box"), ("2 cities", "city"), ("5个", "个")],
)
def test_counted_things(text, noun):
    assert split_unit(text)[1].noun == noun


@pytest.mark.parametrize(
    "text", ["100", "3x", "2a+3", r"\sin 30°", "7 or 8", "3 is wrong", "12π", "cm", "x = 5 cm", "2 of 3", "m", ""]
)
def test_no_unit(text):
    assert split_unit(normalise(text)) is None


@pytest.mark.parametrize("text", ["", "cats", "km/", "apples", "mm cats", "m^9", "m cube"])
def test_what_is_no_unit(text):
    assert parse_unit(text) is None


@pytest.mark.parametrize(
    ("question", "unit"),
    [
        ("How long is the rod in cm?", "cm"),
        ("How many minutes does it take?", "min"),
        ("A rod of 3 m: find its length (in cm).", "cm"),
        ("Find the area (cm²).", "cm^2"),
        ("长多少厘米？", "cm"),
        ("面积是多少平方厘米？", "cm^2"),
        ("What is the speed in km/h?", "km/h"),
        ("In the figure, AB = 3 m. How long is CD?", None),
        ("In how many ways can it be done?", None),
        ("Is it 5 in cm or in m?", None),  # two
        ("How many apples are there?", None),
        ("Find the value(s) of x.", None),
        ("If f(s) is the speed, how far is it?", None),
        ("How heavy is it?\n(A) 1 kg\n(J) 2 kg", None),  # the label of a tenth choice
        ("How heavy is it (g)?", "g"),
        ("Length(cm):", "cm"),
        ("长度(厘米)", "cm"),
        (None, None),
    ],
)
def test_the_unit_a_question_asks_for(question, unit):
    assert asked_unit(question) == (unit and parse_unit(unit))


def test_percent():
    assert speaks_of_percent("What percentage of them…")
    assert speaks_of_percent("百分之几")
    assert not speaks_of_percent("How many of them…")
    assert not speaks_of_percent(None)
