"""Worked solutions: each mistake where it is said to be, and every format's exact text."""

import pytest
from solution_chains import chain_of_steps

from trl_mmreason.miniature.solutions import (
    ERRORS,
    attempt,
    boxed_thoughts,
    first_mistake,
    plain,
    solve,
    tagged,
    wrong_results,
)
from trl_mmreason.miniature.tasks import CATEGORIES, LEVELS, make_problem

EVERY_KIND = [(category, level) for category in CATEGORIES for level in LEVELS]

# 8+1: the seed is that of test_tasks' example of choices, A 10, B 13, C 9, D 11 in some order
PROBLEM = make_problem("adding", 4)


@pytest.mark.parametrize(("category", "level"), EVERY_KIND)
@pytest.mark.parametrize("multiple_choice", [False, True])
def test_right_solutions_are_right_in_every_step(category, level, multiple_choice):
    for seed in range(50):
        problem = make_problem(category, seed, level=level, multiple_choice=multiple_choice)
        solution = solve(problem)
        assert solution.answer == problem.answer
        assert solution.steps == problem.steps
        assert len(solution.steps) == len(problem.facts) + 2  # one reading a fact, the working, the answer
        for step, value in zip(solution.steps, problem.facts.values(), strict=False):
            assert str(value) in step.thought


@pytest.mark.full
@pytest.mark.parametrize(("category", "level"), EVERY_KIND)
@pytest.mark.parametrize("multiple_choice", [False, True])
@pytest.mark.parametrize("error", ERRORS)
def test_each_mistake_gives_a_wrong_answer_from_its_own_step_on(category, level, multiple_choice, error):
    for seed in range(50):
        problem = make_problem(category, seed, level=level, multiple_choice=multiple_choice)
        right, wrong = solve(problem), solve(problem, error=error)
        assert wrong.answer != problem.answer
        facts, labels = len(problem.facts), [step in right.steps for step in wrong.steps]
        assert len(labels) == facts + 2
        if error == "misread":
            # exactly one reading differs, and the working and the answer that use it are wrong too
            assert labels[:facts].count(False) == 1
            assert labels[facts:] == [False, False]
        else:
            assert labels.index(False) == (facts if error == "slip" else facts + 1)
        if multiple_choice:
            assert problem.choices[wrong.answer] == wrong.result


@pytest.mark.parametrize("error", ERRORS)
def test_mistakes_are_repeatable_and_differ_between_problems(error):
    problems = [make_problem("table", seed, level=3) for seed in range(40)]
    by_how_much = [int(solve(p, error=error).answer) - int(p.answer) for p in problems]
    assert by_how_much == [int(solve(p, error=error).answer) - int(p.answer) for p in problems]
    expected = {"misread": set(range(-9, 10)) - {0}, "slip": {2, -2, 3, -3}, "off_by_one": {1, -1}}[error]
    assert set(by_how_much) <= expected
    assert len(set(by_how_much)) > 1


def test_wrong_results_move_by_the_unit_of_their_kind():
    assert wrong_results("adding", "1", (2, -2, 3, -3), ()) == ["3", "4"]  # no negative sums
    assert wrong_results("clock", "12", (1, -1), ()) == ["1", "11"]
    assert wrong_results("clock", "12:55", (1, -1), ()) == ["1:55", "11:55"]
    assert wrong_results("clock", "12:55", (2, -3), ()) == ["12:05", "12:40"]
    assert wrong_results("lengths", "red", (1, 2), ("blue", "red")) == ["blue"]


def test_two_bars_misread_never_look_equally_long():
    for stream in map(str, range(100)):
        as_read = attempt("lengths", 1, {"red": 5, "blue": 3}, "", error="misread", stream=stream).facts
        # red falls below 3, or blue rises above 5
        assert (as_read["blue"] == 3 and as_read["red"] < 3) or (as_read["red"] == 5 and as_read["blue"] > 5)


@pytest.mark.parametrize(
    ("category", "level", "facts", "asked", "expected"),
    [
        ("adding", 1, {"first": 3, "second": 4}, "", "3+4=7"),
        ("adding", 3, {"first": 3, "second": 4, "third": 9}, "", "3+4+9=16"),
        ("counting", 1, {"circles": 2, "squares": 0, "triangles": 1}, "red", "2+0+1=3"),
        ("bar_chart", 1, {"A": 3, "C": 8}, "C", "C=8"),
        ("bar_chart", 2, {"A": 3, "C": 8}, "A and C", "8-3=5"),
        ("lengths", 1, {"red": 5, "blue": 3}, "", "red 5, blue 3: red"),
        ("lengths", 2, {"red": 5, "blue": 3, "green": 8}, "", "max(5,3,8)=8"),
        ("lengths", 3, {"red": 5, "blue": 3, "green": 8}, "", "8-3=5"),
        ("triangle", 1, {"first": 60, "second": 70}, "", "180-60-70=50"),
        ("clock", 1, {"hour": 3, "minute": 5}, "", "hour=3"),
        ("clock", 2, {"hour": 3, "minute": 5}, "", "3h5m=3:05"),
        ("table", 1, {"row 2, column 1": 4, "row 2, column 2": 9}, "row 2, column 2", "row 2, column 2=9"),
        ("table", 2, {"row 2, column 1": 4, "row 2, column 2": 9}, "row 2", "4+9=13"),
    ],
)
def test_working_is_written_as_a_person_would(category, level, facts, asked, expected):
    tried = attempt(category, level, facts, asked)
    assert tried.lead + tried.worked == expected
    assert tried.stated == tried.worked


def test_plain_answers_are_the_shortest_ones():
    assert PROBLEM.facts == {"first": 8, "second": 1}
    assert plain(solve(PROBLEM)) == r"8+1=\boxed{9}"
    assert tagged(solve(PROBLEM)) == "<think>8+1=9</think> <answer>9</answer>"
    assert boxed_thoughts(solve(PROBLEM)) == r"<think>8+1=9</think>\boxed{9}"
    chosen = make_problem("adding", 4, multiple_choice=True)
    assert boxed_thoughts(solve(chosen)) == rf"<think>8+1=9</think>\boxed{{{chosen.answer}}}"
    assert plain(solve(chosen)) == rf"8+1=9: \boxed{{{chosen.answer}}}"


@pytest.mark.parametrize(
    ("working", "answer", "expected"),
    [
        ("8+1=9", "9", None),
        ("I see 8 + 1 = 9, so", " 9 ", None),
        ("7+1=8", "8", "The first digit is 8."),
        ("8+4=12", "12", "The second digit is 1."),
        ("5+4=9", "9", "The first digit is 8."),  # right by chance, and read wrongly all the same
        ("7+1=9", "9", "The first digit is 8."),  # read wrongly, and added wrongly too
        ("8+1=10", "10", "8+1=9"),
        ("18+1=19", "19", "8+1=9"),  # no two digits give this
        ("8+1=91", "91", "8+1=9"),
        ("", "9", "8+1=9"),
        ("8+1=9", "8", "So the answer is 9."),
        ("9", " 9", None),  # at a glance
        ("8", "8", "8+1=9"),
    ],
)
def test_the_first_mistake_is_told_from_what_was_written(working, answer, expected):
    assert first_mistake(PROBLEM, working, answer) == expected


def test_the_first_mistake_of_a_choice_at_a_glance_is_its_result():
    problem = make_problem("adding", 4, multiple_choice=True)
    right, slip = solve(problem), solve(problem, error="slip")
    assert first_mistake(problem, right.result, right.answer) is None
    assert first_mistake(problem, slip.result, slip.answer) == "8+1=9"


@pytest.mark.full
@pytest.mark.parametrize(("category", "level"), EVERY_KIND)
@pytest.mark.parametrize("multiple_choice", [False, True])
def test_the_first_mistake_of_a_solver_is_found_in_every_category(category, level, multiple_choice):
    found = []
    for seed in range(10):
        problem = make_problem(category, seed, level=level, multiple_choice=multiple_choice)
        right, misread = solve(problem), solve(problem, error="misread")
        assert first_mistake(problem, right.lead + right.result, right.answer) is None
        found.append(first_mistake(problem, misread.lead + misread.result, misread.answer))
        assert found[-1] in [step.thought for step in problem.steps[:-1]]
    # most workings show which number was misread; of two bars' difference either may have been
    assert any(thought.startswith(("The ", "Bar ", "In ", "Number ")) for thought in found)


def test_chain_of_steps_is_written_in_the_special_tokens():
    def step(name, thought, look_back):
        return (
            "<|reasoning_step_start|>"
            f"<|reasoning_step_name_start|>{name}<|reasoning_step_name_end|>"
            f"<|reasoning_step_thought_start|>{thought}<|reasoning_step_thought_end|>"
            f"<|reasoning_step_reflection_start|>{look_back}<|reasoning_step_reflection_end|>"
            "<|reasoning_step_end|>"
        )

    assert chain_of_steps(solve(PROBLEM)) == (
        "<|reasoning_start|>"
        + step("Read first", "The first digit is 8.", "I looked twice.")
        + "<|reasoning_proceed|>"
        + step("Read second", "The second digit is 1.", "I looked twice.")
        + "<|reasoning_proceed|>"
        + step("Work it out", "8+1=9", "I did it twice.")
        + "<|reasoning_proceed|>"
        + step("Answer", "So the answer is 9.", "This is what was asked.")
        + "<|reasoning_end|><|answer_start|>9<|answer_end|>"
    )


def test_unknown_errors_are_refused():
    with pytest.raises(ValueError, match="error='typo'; expected None or one of misread, slip, off_by_one"):
        solve(PROBLEM, error="typo")
