"""Which of the choices an answer names."""

import pytest

from trl_mmreason.grading import Grader
from trl_mmreason.grading.choices import chosen, implied_choices
from trl_mmreason.grading.equivalence import same_answer

LENGTHS = {"A": "12 cm", "B": "24 cm", "C": "30 cm", "D": "0.24 m and more"}
ANIMALS = {"A": "a cat", "B": "a hat"}
FORCES = {"A": "kx", "B": "mg", "C": "Mg"}
TWICE = {"A": "1/2", "B": "0.5", "C": "2"}


@pytest.mark.parametrize(
    ("answer", "choices", "labels"),
    [
        ("B", LENGTHS, "B"),
        ("b", LENGTHS, "B"),
        ("(B)", LENGTHS, "B"),
        ("B.", LENGTHS, "B"),
        (r"\textbf{(B)}", LENGTHS, "B"),
        ("Ｂ", LENGTHS, "B"),
        ("选B", LENGTHS, "B"),
        ("B选项", LENGTHS, "B"),
        ("Option B", LENGTHS, "B"),
        ("B. 24 cm", LENGTHS, "B"),
        ("B, because it is twice 12 cm", LENGTHS, "B"),
        ("24 cm", LENGTHS, "B"),
        ("24", LENGTHS, "B"),
        ("240 mm", LENGTHS, "B"),
        ("B. 30 cm", LENGTHS, ""),  # letter and text disagree
        ("B. 25 cm", LENGTHS, ""),
        ("25 cm", LENGTHS, None),
        ("E", LENGTHS, None),
        ("A, C", LENGTHS, "AC"),
        ("CA", LENGTHS, "AC"),
        ("A and C", LENGTHS, "AC"),
        ("A和C", LENGTHS, "AC"),
        ("(A)(C)", LENGTHS, "AC"),
        ("A or B", LENGTHS, "AB"),
        ("a hat", ANIMALS, "B"),  # neither A nor its first letter
        ("hat", ANIMALS, "B"),
        ("bat", ANIMALS, None),
        ("0.5", TWICE, "B"),  # as written
        ("0.50", TWICE, None),  # two choices have that value
        ("2.0", TWICE, "C"),
        (r"\text{12 cm, 30 cm}", LENGTHS, "AC"),
        ("24 cm and 12 cm", LENGTHS, "AB"),
        ("12 cm, 31 cm", LENGTHS, None),
        ("12 cm, 12 cm", LENGTHS, None),
        ("0.50, 2", TWICE, None),
        ("0.50, 7", TWICE, None),
        ("0.50, 0.50", TWICE, None),
        ("-kx", FORCES, None),
        ("Mg", FORCES, "C"),
        ('option "B"', LENGTHS, "B"),
        ("B", {"A": "B", "B": "A"}, "B"),  # the letter goes first
        ("7", {"1": "5", "2": "7"}, "2"),
        ("2", {"1": "5", "2": "7"}, "2"),
    ],
)
def test_chosen(answer, choices, labels):
    assert chosen(answer, choices, same_answer) == (None if labels is None else frozenset(labels))


@pytest.mark.parametrize(
    ("gold", "implied"),
    [
        ("C", {"C": ""}),
        ("(C)", {"C": ""}),
        ("C. 24 cm", {"C": "24 cm"}),
        ("A, C", {"A": "", "C": ""}),
        ("ABD", {"A": "", "B": "", "D": ""}),
        ("CAB", {}),  # no one lists choices in that order: a name
        ("AB = 5", {}),
        ("x", {}),
        ("A hat", {}),
        ("CD", {"C": "", "D": ""}),
    ],
)
def test_choices_that_a_gold_implies(gold, implied):
    assert implied_choices(gold) == implied


def test_the_label_of_a_tenth_choice_is_no_joule():
    """As in MMMU-Pro, where 2.5 kg could not be answered by 2.5."""
    masses = {letter: f"{number}.5 kg" for number, letter in enumerate("ABCDEFGHIJ", 1)}
    question = "\n".join(["What is its mass?", *(f"({letter}) {mass}" for letter, mass in masses.items())])
    assert Grader().grade(r"\boxed{2.5}", "B", choices=masses, question=question).correct
