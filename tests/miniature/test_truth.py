"""Which steps of a chain are right, whoever wrote it."""

import pytest

from trl_mmreason.miniature.solutions import ERRORS, WorkedStep, solve
from trl_mmreason.miniature.tasks import CATEGORIES, LEVELS, make_problem
from trl_mmreason.miniature.truth import true_labels

PROBLEM = make_problem("adding", 4)  # 8+1
FIRST, SECOND, WORK, ANSWER = PROBLEM.steps


def labels(*steps):
    return true_labels(PROBLEM, steps)


def thinking(step, thought):
    return WorkedStep(step.name, thought, step.reflection)


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("multiple_choice", [False, True])
def test_every_solver_is_labelled_as_the_solver_says(category, level, multiple_choice):
    for seed in range(30):
        problem = make_problem(category, seed, level=level, multiple_choice=multiple_choice)
        for error in (None, *ERRORS):
            solution = solve(problem, error=error)
            assert true_labels(problem, solution.steps) == tuple(step in problem.steps for step in solution.steps)


def test_the_names_of_a_problem_s_steps_are_told_apart():
    for category in CATEGORIES:
        for level in LEVELS:
            names = [step.name for step in make_problem(category, 0, level=level).steps]
            assert len(set(names)) == len(names)


def test_a_reading_is_right_by_itself():
    misread = thinking(FIRST, "The first digit is 7.")
    assert labels(misread, SECOND) == (False, True)
    assert labels(SECOND, FIRST) == (True, True)
    assert labels(thinking(FIRST, SECOND.thought)) == (False,)  # the name says another digit
    # It read a 7 and worked with the 8: the working is right, and the reading is not.
    assert labels(misread, SECOND, WORK, ANSWER) == (False, True, True, True)


def test_a_working_rests_on_all_readings_and_an_answer_on_the_right_working():
    assert labels(FIRST, WORK) == (True, False)
    assert labels(WORK, FIRST, SECOND, ANSWER) == (False, True, True, False)
    assert labels(ANSWER, FIRST, SECOND, WORK) == (False, True, True, True)
    assert labels(FIRST, SECOND, thinking(WORK, "8+1=10"), ANSWER) == (True, True, False, False)
    assert labels(FIRST, SECOND, thinking(WORK, "7+2=9"), ANSWER) == (True, True, False, False)
    assert labels(FIRST, SECOND, WORK, thinking(ANSWER, "So the answer is 8.")) == (True, True, True, False)
    assert labels(FIRST, SECOND, thinking(WORK, "18+1=91")) == (True, True, False)


def test_unknown_and_repeated_steps_are_wrong():
    assert labels(WorkedStep("Think", FIRST.thought, "."), FIRST) == (False, True)
    assert labels(FIRST, FIRST, SECOND, WORK, WORK) == (True, False, True, True, False)
    assert labels(thinking(FIRST, "It is 7."), FIRST) == (False, False)
    assert labels() == ()


def test_spaces_do_not_matter():
    assert labels(FIRST, SECOND, WorkedStep(" Work it out\n", " 8 + 1 = 9", "")) == (True, True, True)
