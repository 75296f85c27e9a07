"""Answers that are stated in prose, for benchmarks whose authors extract answers."""

import pytest

from trl_mmreason.grading import Grader
from trl_mmreason.grading.extraction import extract_answer, prose_answer

STATED = [
    # examples of MathVista's and MathVerse's extraction prompts
    ("The number missing in the sequence is 14.", "14"),
    ("The fraction of females facing the camera is 0.6, which means that six out of ten of them are.", "0.6"),
    ("Luca needs $1.45 to buy a sour apple candy and a butterscotch candy.", "$1.45"),
    ("The line graph saw its maximum peak between 2007 and 2008.", "2007 and 2008"),
    ("Rounded to two decimal places, the perimeter of the sector is approximately:\n\n(-2, 1)", "(-2, 1)"),
    # others
    ("Five people sit here. She gave 5 of 12 away, which leaves her with 7. So 7 it is.", "7"),
    ("We get x = 3 + 4 = 7 and that is all.", "x = 3 + 4 = 7"),
    ("Adding them, Tom has fourteen marbles in all.", "fourteen"),
    ("That makes it option D since 4 > 3.", "D"),
    ("So the ratio is 3:4.", "3:4"),
    ("There are $\\frac{3}{4}$ of them left in the jar that we see.", r"\frac{3}{4}"),
    ("First I thought of 9. The answer is 8.", "8"),
    (r"It is 9 at first, but \boxed{8} in the end.", "8"),
    ("Blue.", "Blue"),
    # what ends the sentence after its last verb, or its last clause
    ("The one was born in 1931 and the other in 1942, which makes a difference of 11 years.", "11 years"),
    ("We have sin x = 0.5 and x is in the first quadrant, which means x is π/6.", "π/6"),
    ("Of 40 cars in the lot 10 are blue, which corresponds to 25%.", "25%"),
    ("The perimeter in simplest form would then be 4a + 6b.", "4a + 6b"),
    ("It is found from two points on it, (0, 1) and (4, 3), and equals one half.", "one half"),
    ("The kinetic energy at that point amounts to 2.0 × 10^3 J.", "2.0 × 10^3 J"),
    ("We compute 36 − 20 = 16. The roots come out as 5 and 1.", "5 and 1"),
    ("The total is 40, which is half of 80.", "40"),
    ("The total that we look for is 40 because the half is 20.", "40"),
    ("The number in the sequence is 7, as we see in figure 2.", "7"),
    ("The clock on the wall shows that it is 3:30 PM.", "3:30 PM"),
]


@pytest.mark.parametrize(("text", "answer"), STATED)
def test_the_last_sentence_with_a_value_states_the_answer(text, answer):
    assert prose_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "There are not 8 blocks in it.",
        "The number that we look for is not equal to 8.",
        "There are more than 8 blocks in the picture.",
        "The number that we look for is either 8 or 9.",
        "The number that we look for is 8 or 9.",
        "It is 8 more than the first bar has.",
        "The share is less than 8 % in this chart.",
    ],
)
def test_a_bound_is_no_value(text):
    assert not Grader(prose=True).grade(text, "8").correct


@pytest.mark.parametrize("text", ["", "I cannot see the image, and so I will not say.", "<think>It is 7."])
def test_without_a_value_there_is_no_answer(text):
    assert prose_answer(text) is None


def test_only_a_grader_that_is_asked_to_reads_prose():
    text = "She gave 5 of them to her brother, which leaves her with 7 on the table."
    assert Grader().grade(text, "7").extracted is None
    assert Grader(prose=True).grade("The number that is missing in the sequence is 14.", "14").correct
    assert not Grader(prose=True).grade("The number that is missing in the sequence is 14.", "15").correct


def test_the_time_is_linear_in_the_text():
    assert prose_answer("It is 7 and is 8 of it " * 20_000 + ".") == "8"


UNITS = [
    ("36 square meters", "36 cm²", False),
    ("The area is 36 square meters.", "36 cm²", False),
    ("The area is 36 square centimeters.", "36 cm²", True),
    ("It is 36 cm² in all.", "36 cm²", True),
    ("It is 36 cm³ in all.", "36 cm²", False),
    ("The total is 45.5 euros.", "$45.50", False),
    ("The total is 45.5 dollars.", "$45.50", True),
    ("The clock reads 3:45 AM", "3:45 PM", False),
    ("The clock reads 3:45 p.m. in the picture.", "3:45 PM", True),
    ("The rate is 8.0 per mille", "8.0%", False),
    ("The rate is 8.0‰.", "8.0%", False),
    ("The rate is 8.0 percent", "8.0%", True),
    ("The population is 5 million", "5", False),
    ("The population is 5 million", "5000000", True),
    ("There are 5 in the box that we see.", "5 apples", True),
]


@pytest.mark.parametrize(("text", "gold", "right"), UNITS)
def test_the_unit_behind_a_value_is_compared(text, gold, right):
    assert Grader(prose=True).grade(text, gold).correct is right


OF_A_KIND = [
    # text, gold, choices, question, right
    ("The car parked next to the tree is blue.", "blue", None, None, True),
    ("The car parked next to the tree is not blue.", "blue", None, None, False),
    ("The frog is therefore the primary consumer.", "frog", None, "Which animal is the primary consumer?", True),
    ("The frog is eaten by the heron.", "frog", None, "Which animal is the primary consumer?", False),
    ("The slopes are equal. So yes, the lines are parallel.", "Yes", None, None, True),
    ("No. The ladder is too short for it.", "yes", None, None, False),
    (
        "Of the five, three are false, which leaves D and E.",
        "DE",
        {"A": "p", "B": "q", "C": "r", "D": "s", "E": "t"},
        None,
        True,
    ),
    ("The animal on the left is not a dog but a cat.", "C", {"A": "dog", "B": "bird", "C": "cat"}, None, True),
    (
        "The biggest ball is yellow and the smallest one is brown.",
        "yellow",
        None,
        "What colour is the biggest ball?",
        True,
    ),
    (
        "The biggest ball is yellow and the smallest one is brown.",
        "brown",
        None,
        "What colour is the biggest ball?",
        False,
    ),
    ("There are seven plates, and five cups stand below.", "5", None, "How many cups are there?", True),
    ("It takes 2.5 hours at a speed of 60 km/h.", "60", None, "What is the speed in km/h?", True),
    ("That rules out option D.", "D", dict.fromkeys("ABCD", ""), None, False),
    ("It rained 17 mm more in April than in March.", "17", None, "How much more did it rain in April?", True),
    ("It rained 17 mm more in April than in March.", "17", None, "How much did it rain in April?", False),
]


@pytest.mark.parametrize(("text", "gold", "choices", "question", "right"), OF_A_KIND)
def test_what_the_gold_is_says_what_is_looked_for(text, gold, choices, question, right):
    assert Grader(prose=True).grade(text, gold, choices=choices, question=question).correct is right


CONCLUDED = [
    ("Counting gives 25. So the 5th figure has 25 dots.", "25 dots"),
    ("Therefore, 8 + 6 + 9 = 23.", "8 + 6 + 9 = 23"),
    ("So the three angles are 40°, 60° and 80°.", "40°, 60° and 80°"),
    ("So the arrow points to the north-east.", "the north-east"),
    ("So the population decreased by 8%.", "decreased by 8%"),
    ("So the price fell by 15%.", "15%"),
    ("So, 53% of the commuters use the bus.", "53%"),
    ("Thus the fish is 4 cm longer than the shrimp.", None),
    ("The side is therefore 12 cm long.", "12 cm"),
    ("So 3 of the 8 countries are above it.", None),
    ("So we have to divide by 7.", None),
    ("Max is 31 and min 14, the difference is 17. **17**", "17"),
    ("The bearing is **055°**.", "055°"),
    ("The tallest bar is the **dark blue** one.", "dark blue"),
    ("It is not **5**.", None),
    ("Hence $$f(x)=(x-2)(x+5).$$", "f(x)=(x-2)(x+5)"),
    ("So yes, they are similar.", "yes"),
    ("Therefore k must be at least 3/2.", "k >= 3/2"),
    ("So the domain is all real numbers except 2.", "all real numbers except 2"),
    ("So the maximum value is 5 at x = 2.", "5"),
    ("So x + y is 7.", None),
    ("So the bigger area is 18 while the smaller is 12.", None),
]


@pytest.mark.parametrize(("text", "answer"), CONCLUDED)
def test_a_conclusion_declares_what_it_ends_in(text, answer):
    assert extract_answer(text) == answer


def test_the_values_of_a_conclusion_are_one_list_where_the_gold_is_one():
    text = "So the ladder is 13 m long and its foot is 5 m from the wall."
    assert extract_answer(text) is None
    assert extract_answer(text, parts=True) == "13 m, 5 m"
    assert Grader().grade(text, "13 m; 5 m").correct
    assert not Grader().grade(text, "13 m; 4 m").correct


def test_a_conclusion_may_name_a_choice_by_its_text():
    choices = {"A": "it speeds up", "B": "it moves at constant velocity"}
    text = "Therefore, the correct statement is that it moves at constant velocity."
    assert Grader().grade(text, "B", choices=choices).correct
    assert Grader().grade(text.replace("is that", "is not that"), "B", choices=choices).correct is False


def test_a_box_is_the_answer_however_long_it_is():
    assert prose_answer(r"\boxed{x = 2, y = -3}") == "x = 2, y = -3"
    assert prose_answer(r"So \boxed 42. There are 7 dots.") == "42"
