"""What images are described as, and what is reasoned from a description alone."""

import pytest

from trl_mmreason.grading import Grader, extract_answer
from trl_mmreason.miniature.captions import NOT_SHOWN, UnseenProblem, caption, facts_in, question_of, write_trajectory
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.tasks import CATEGORIES, LEVELS, make_problem

PROBLEM = make_problem("adding", 4)  # 8+1
ADDING = UnseenProblem("adding", 1, "", None)
BARS = UnseenProblem("bar_chart", 3, "A and C", None)
EVERY_KIND = [(category, level) for category in CATEGORIES for level in LEVELS]


def test_a_caption_says_what_is_to_be_seen_and_neither_sum_nor_question():
    assert caption(PROBLEM) == "The first digit is 8. The second digit is 1."
    assert caption(make_problem("adding", 4, multiple_choice=True)) == caption(PROBLEM)


def test_a_trajectory_thinks_and_boxes():
    facts = "The first digit is 3. The second digit is 4."
    assert write_trajectory(ADDING, facts) == rf"<think>{facts} 3+4=7</think> \boxed{{7}}"
    assert write_trajectory(ADDING, facts, second_look=True) == (
        rf"<think>{facts} 3+4=7 Wait, let me look at the image again. 3+4=7</think> \boxed{{7}}"
    )


def test_a_slip_is_in_the_working_and_kept_to():
    facts = "The first digit is 3. The second digit is 4."
    slipped = {write_trajectory(ADDING, facts, slip=True, stream=str(n)) for n in range(50)}
    # two or three units off
    assert slipped == {rf"<think>{facts} 3+4={n}</think> \boxed{{{n}}}" for n in (4, 5, 9, 10)}
    twice = write_trajectory(ADDING, facts, slip=True, second_look=True, stream="0")
    (slip,) = [n for n in (4, 5, 9, 10) if rf"\boxed{{{n}}}" in twice]
    assert twice.count(f"3+4={slip}") == 2


def test_facts_are_those_of_the_caption_right_or_wrong():
    text = write_trajectory(question_of(PROBLEM), "The first digit is 2. The second digit is 1.")
    assert text.endswith(r"2+1=3</think> \boxed{3}")


@pytest.mark.parametrize(
    ("question", "description", "facts"),
    [
        (ADDING, "I see: The second digit is 4. The first digit is 3. Both are red.", {"second": 4, "first": 3}),
        (ADDING, "The first digit is 3. The first digit is 3. The second digit is 4.", {"first": 3, "second": 4}),
        (ADDING, "The first digit is 3. The first digit is 5. The second digit is 4.", None),  # told differently
        (ADDING, "The first digit is 3.", None),
        (ADDING, "The first digit is 3. The second digit is four.", None),
        (ADDING, "The first digit is 3. The second digit is 99999.", None),
        (ADDING, "", None),
        (
            UnseenProblem("clock", 2, "", None),
            "The minute hand shows 5. The hour hand shows 3.",
            {"hour": 3, "minute": 5},
        ),
        (UnseenProblem("clock", 2, "", None), "The hour hand shows 3.", None),
        (UnseenProblem("counting", 2, "red", None), "Number of red circles: 2. Number of blue squares: 1.", None),
        (UnseenProblem("bar_chart", 1, "C", None), "Bar A ends at 3. Bar C ends at 8.", {"C": 8}),
        (UnseenProblem("bar_chart", 1, "C", None), "Bar A ends at 3.", None),
        (BARS, "Bar A ends at 3. Bar B ends at 9. Bar C ends at 8.", {"A": 3, "C": 8}),
        (UnseenProblem("lengths", 1, "", None), "The red bar is 5 cells long.", None),
        (
            UnseenProblem("triangle", 1, "", None),
            "The first angle is 90 degrees. The second angle is 95 degrees.",
            None,
        ),
        (
            UnseenProblem("table", 2, "row 2", None),
            "In row 1, column 1 stands 7. In row 2, column 1 stands 4. In row 2, column 2 stands 9.",
            {"row 2, column 1": 4, "row 2, column 2": 9},
        ),
        (UnseenProblem("table", 1, "row 2, column 1", None), "In row 2, column 1 stands 4.", {"row 2, column 1": 4}),
    ],
)
def test_facts_are_read_as_they_are_told(question, description, facts):
    assert facts_in(description, question) == facts
    if facts is None:
        assert write_trajectory(question, description, slip=True) == NOT_SHOWN
    else:
        assert list(facts_in(description, question).items()) == list(facts.items())


@pytest.mark.parametrize(("category", "level"), EVERY_KIND)
@pytest.mark.parametrize("multiple_choice", [False, True])
def test_right_captions_lead_to_right_answers_and_slips_to_wrong_ones(category, level, multiple_choice):
    grader = Grader()
    for seed in range(8):
        problem = make_problem(category, seed, level=level, multiple_choice=multiple_choice)
        question, described = question_of(problem), caption(problem)
        right = write_trajectory(question, described, second_look=seed % 2 == 0)
        assert extract_answer(right) == problem.answer
        assert grader.grade(right, problem.answer, choices=problem.choices).correct is True
        slipped = write_trajectory(question, described, slip=True, stream=str(seed))
        assert grader.grade(slipped, problem.answer, choices=problem.choices).correct is False


def test_a_result_that_is_none_of_the_choices_is_not_boxed():
    question = UnseenProblem("adding", 1, "", {"A": "7", "B": "9"})
    assert write_trajectory(question, "The first digit is 3. The second digit is 4.").endswith(r"</think> \boxed{A}")
    neither = write_trajectory(question, "The first digit is 3. The second digit is 5.")
    assert neither.endswith("3+5=8</think> It is none of the choices.")


def test_without_the_facts_there_is_no_answer():
    assert extract_answer(NOT_SHOWN) is None


def test_a_policy_writes_captions_and_trajectories_in_few_tokens():
    tokenizer = build_model("qwen2_5_vl", "test", in_steps=True)[1].tokenizer
    described = "The first digit is 3. The second digit is 4."
    trajectory = write_trajectory(ADDING, described)
    # nine words, two digits with a space before each, two full stops, and the space between the sentences
    assert len(tokenizer(described)["input_ids"]) == 15
    assert len(tokenizer(trajectory)["input_ids"]) == 32
