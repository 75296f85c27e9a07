"""Captions of the drawn images, and trajectories of a reasoner that reads captions only.

SOPHIA (arXiv:2507.16814) has an image described without its question, and the question answered from the description.
A caption here is the reading steps of the right solution; a trajectory is in the style of DeepSeek-R1 (Fig. A1 b).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from .draw import SHAPES
from .solutions import READING, attempt, worked_steps
from .tasks import Problem

DESCRIBE = "Describe the picture."
"""Asks for a caption; it says nothing of any question."""

SECOND_LOOK = "Wait, let me look at the image again."
NOT_SHOWN = "<think>The image does not show enough.</think> I cannot tell."
"""A trajectory without an answer: the caption does not hold the facts."""

_NAME = r"(?P<name>row \d+, column \d+|\w+)"
_VALUE = r"(?P<value>\d{1,3})"


class UnseenProblem(NamedTuple):
    """A problem without the image's content; fields as in `Problem`."""

    category: str
    level: int
    asked: str
    choices: Mapping[str, str] | None


def question_of(problem: Problem) -> UnseenProblem:
    """The problem without the content of its image."""
    return UnseenProblem(problem.category, problem.level, problem.asked, problem.choices)


def readings(problem: Problem) -> list[str]:
    """The facts in the image, one sentence each."""
    return [step.thought for step in problem.steps[:-2]]  # after them stand the working and the answer


def caption(problem: Problem) -> str:
    """Write a right caption: "The first digit is 3. The second digit is 4."

    A problem keeps the facts that its answer needs and no others. So the whole image is described for `adding`,
    `lengths`, `triangle` and `clock`, and for `counting` and `bar_chart` at level 1. Otherwise the caption tells of
    one colour, two bars or one row alone: those that the question is about.
    """
    return " ".join(readings(problem))


def write_trajectory(
    question: UnseenProblem, description: str, *, slip: bool = False, second_look: bool = False, stream: str = ""
) -> str:
    r"""Reason from a caption's facts, right or wrong.

    `<think>The first digit is 3. The second digit is 4. 3+4=7</think> \boxed{7}`

    Args:
        question: what is asked.
        description: of the image, whoever wrote it; sentences that are not as in `caption` are not understood.
        slip: whether it is worked out wrongly, as by `attempt`. The answer is then never that of the facts described.
        second_look: whether the thoughts continue with another look at the image, which finds the same.
        stream: names the random stream that a slip is drawn from.

    Returns:
        The trajectory; `NOT_SHOWN` without the facts. A result that is none of the choices is not boxed.
    """
    facts = facts_in(description, question)
    if facts is None:
        return NOT_SHOWN
    error = "slip" if slip else None
    tried = attempt(question.category, question.level, facts, question.asked, error=error, stream=stream)
    *thoughts, _ = (step.thought for step in worked_steps(question.category, question.asked, tried, None))
    if second_look:
        thoughts += [SECOND_LOOK, thoughts[-1]]
    return f"<think>{' '.join(thoughts)}</think> {_answer(tried.stated, question.choices)}"


def facts_in(description: str, question: UnseenProblem) -> dict[str, int] | None:
    """Parse the facts that the question needs from a caption: name → number.

    Returns:
        `None` if one is missing, is alone where several are worked with, or is told twice and differently; and if no
        triangle has such angles.
    """
    sentence = READING[question.category].format(name="NAME", asked=question.asked, value="VALUE")
    pattern = re.escape(sentence).replace("NAME", _NAME).replace("VALUE", _VALUE)
    pairs = [(match["name"], int(match["value"])) for match in re.finditer(pattern, description)]
    stated = dict(pairs)
    names = _needed(question, stated)
    if len(stated) < len(set(pairs)) or not stated.keys() >= set(names):
        return None
    facts = {name: stated[name] for name in names}
    if question.category == "triangle" and not 0 < sum(facts.values()) < 180:
        return None
    is_looked_up = question.category in ("bar_chart", "table") and question.level == 1
    return facts if is_looked_up or len(facts) > 1 else None


def _needed(question: UnseenProblem, stated: Collection[str]) -> Collection[str]:
    """Names of the facts that the question needs; all in the caption if it does not name any."""
    if question.category == "counting":
        return SHAPES
    if question.category == "triangle":
        return ("first", "second")
    if question.category == "clock":
        return ("hour", "minute")
    if question.category == "bar_chart":
        return question.asked.split(" and ")
    if question.category == "table":
        return [question.asked] if question.level == 1 else [n for n in stated if n.startswith(f"{question.asked},")]
    return stated


def _answer(result: str, choices: Mapping[str, str] | None) -> str:
    if choices is None:
        return f"\\boxed{{{result}}}"
    letters = [letter for letter, text in choices.items() if text == result]
    return f"\\boxed{{{letters[0]}}}" if letters else "It is none of the choices."
