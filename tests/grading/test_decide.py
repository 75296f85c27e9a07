"""Golds: any of several, what cannot be used, and what only looks like it."""

import numpy as np
import pytest

from trl_mmreason.grading.decide import decide, gold_problem

SEVERAL = "it is a text of several sentences that declare no answer"


@pytest.mark.parametrize(
    ("gold", "problem"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("nan", "it is 'nan'"),
        (float("nan"), "it is not a number"),
        ("?", "it is '?'"),
        (r"\frac{1}{", "its braces are not balanced"),
        ("}{", "its braces are not balanced"),
        (r"\frac{1}{}", "it is not complete"),
        (r"\frac{}{2}", "it is not complete"),
        (r"\sqrt{}", "it is not complete"),
        (r"\sqrt", "it is not complete"),
        ("3 +", "it is not complete"),
        ("x =", "it is not complete"),
        ("1/0", "its value is undefined"),
        (r"\ln 0", "its value is undefined"),
        ("$$", "there is nothing in it but punctuation"),
        ("...", "there is nothing in it but punctuation"),
        ("9^{9^{9^9}}", "a power of more than a thousand digits"),
        ("a" * 3000, "3000 characters long, more than 2000 are not compared"),
        ("The chart has four sectors. Each has its own colour. One measures angles.", SEVERAL),
        ("连接AC。过点B作BD垂直于AC。由勾股定理分别求出各边。", SEVERAL),
        ({"a": 1}, "it is of type dict, expected a string or a list of strings"),
        (None, "it is of type NoneType, expected a string or a list of strings"),
        (np.array([1, 2]), "it is of type ndarray, expected a string or a list of strings"),  # which has no truth value
    ],
)
def test_unusable(gold, problem):
    assert gold_problem(gold) == problem


@pytest.mark.parametrize(
    "gold",
    ["0", 0, 2.5, "-", "<", "≥", r"\emptyset", r"\infty", "None", "no", "A", "(A)", r"\{1, 2\}", "x = 4", "1, 2"]
    + ["Yes. They have equal sides. So they are congruent.", "The first one. Not the second.", "J. S. Bach. H. Berlioz"]
    + [
        "(1) 30°。(2) 60°。(3) 5cm。",
        "The mean is 5. The mode is 6. The range is 7.",
        "不是。因为边不相等。所以不全等。",
    ]
    + [r"\begin{pmatrix}1\\2\end{pmatrix}", r"\sum_{k=1}^3 k", "7!", "5'", r"\frac12", "(-2, 1]", "红", "2^{100}"],
)
def test_usable(gold):
    assert gold_problem(gold) is None


def test_a_letter_must_be_among_the_choices():
    choices = {"A": "3", "B": "4"}
    assert gold_problem("E", choices) == "it is none of the choices A, B"
    assert gold_problem("B", choices) is None
    assert gold_problem("E", {"A": "E", "B": "F"}) is None
    assert gold_problem("E") is None
    assert gold_problem("A or B", choices) == gold_problem("3 or 4", choices) == "it is none of the choices A, B"
    assert gold_problem("A, B", choices) is None
    assert gold_problem("A or B", {"A": "B", "B": "A", "C": "A or B"}) is None


def test_any_of_several():
    assert decide("2", ["1", "2"])
    assert not decide("3", ["1", "2"])
    assert not decide("2", ["1, 2"])


@pytest.mark.parametrize(
    ("answer", "gold", "choices", "right"),
    [
        ("B", "B", {"A": "3", "B": "4"}, True),
        ("4", "B", {"A": "3", "B": "4"}, True),
        ("B", "4", {"A": "3", "B": "4"}, True),
        ("5", "B", {"A": "3", "B": "4"}, False),
        ("A", "5", {"A": "3", "B": "4"}, False),
        ("C. 24 cm", "C", None, True),
        ("24 cm", "C. 24 cm", None, True),
        ("D. 24 cm", "C. 24 cm", None, False),
        ("a hat", "A", None, False),
        ("BA", "A, B", None, True),
        ("A", "A, B", None, False),
        ("(A) 3", "A", None, True),
        ("B. 4", "B", None, True),
        ("A. x", "A", None, True),
        ("(A) or (B)", "A", None, False),
        ("A, or maybe B", "A", None, False),
        ("A, B, C", "A", None, False),
        ("A. wrong, B", "A", None, False),
        ("AAAA", "A", None, False),
        ("A. 36 cm", "C", {"A": "12 cm", "C": "36 cm"}, False),
        ("36 cm (A)", "C", {"A": "12 cm", "C": "36 cm"}, False),
        ("36 cm (C)", "C", {"A": "12 cm", "C": "36 cm"}, True),
        ("12 cm, 36 cm", "A, C", {"A": "12 cm", "C": "36 cm"}, True),
        ("12 cm or 36 cm", "A, C", {"A": "12 cm", "C": "36 cm"}, False),
        ("12 cm, 36 cm", "C", {"A": "12 cm", "C": "36 cm"}, False),
        ("Ff", "B", {"A": "ff", "B": "Ff", "C": "FF"}, True),
    ],
)
def test_choices(answer, gold, choices, right):
    assert decide(answer, [gold], choices=choices) is right


def test_the_tolerance_is_not_for_choices():
    choices = {"A": "3.14", "B": r"\pi"}
    assert decide("3.14", ["A"], choices=choices, lenient=True)
    assert not decide("3.14", ["B"], choices=choices, lenient=True)
    assert decide("3.14", [r"\pi"], lenient=True)
