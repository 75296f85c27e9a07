"""Worked solutions of the drawn problems, right or with a known mistake, in every method's format.

A solver reads the facts off the image, works out a result and states it as the answer. Each kind of mistake spoils
one of these three, and everything that follows from it:

- `misread`: one number is read wrongly, and the rest is done rightly with it;
- `slip`: the numbers are read rightly, and worked out to a result two or three units off (an angle: ten degrees; a time
  "h:mm": ten or fifteen minutes);
- `off_by_one`: the result is worked out rightly, and the answer stated is one unit off (a time: one hour).

Where the answer is one of several names, a unit is one place along the list of the names.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .tasks import Problem

ERRORS = ("misread", "slip", "off_by_one")

READING = {
    "adding": "The {name} digit is {value}.",
    "counting": "Number of {asked} {name}: {value}.",
    "bar_chart": "Bar {name} ends at {value}.",
    "lengths": "The {name} bar is {value} cells long.",
    "triangle": "The {name} angle is {value} degrees.",
    "clock": "The {name} hand shows {value}.",
    "table": "In {name} stands {value}.",
}


@dataclass(frozen=True)
class WorkedStep:
    """One step: a short name, an observation or computation, and a reflection on it."""

    name: str
    thought: str
    reflection: str


@dataclass(frozen=True)
class Attempt:
    """One attempt of a solver: the facts as read, the working up to its result ("3+4="), that result, the answer."""

    facts: dict[str, int]
    lead: str
    worked: str
    stated: str


class Working(NamedTuple):
    """A parsed working.

    Attributes:
        facts: as the writer read them; `None` if no reading explains the working.
        result: what follows from them, if that is what the writer worked out; `None` if the writer did not.
    """

    facts: dict[str, int] | None
    result: str | None


@dataclass(frozen=True)
class Solution:
    """A worked solution.

    Attributes:
        steps: One reading step a fact, then the working, then the answer.
        lead: What stands before the result, such as "3+4=".
        result: The result as stated.
        answer: The final answer: the result, or for multiple choice its letter.
    """

    steps: tuple[WorkedStep, ...]
    lead: str
    result: str
    answer: str


def solve(problem: Problem, *, error: str | None = None) -> Solution:
    """Solve `problem` with the mistake `error` (one of `ERRORS`), or without one.

    The same problem and error always give the same solution. With an error the answer is never the right one.

    Raises:
        ValueError: for an unknown `error`.
    """
    tried = attempt(problem.category, problem.level, problem.facts, problem.asked, error=error, stream=problem.id)
    return Solution(
        steps=worked_steps(problem.category, problem.asked, tried, problem.choices),
        lead=tried.lead,
        result=tried.stated,
        answer=tried.stated if problem.choices is None else letter_of(problem.choices, tried.stated),
    )


def attempt(
    category: str,
    level: int,
    facts: Mapping[str, int],
    asked: str,
    *,
    error: str | None = None,
    stream: str = "",
) -> Attempt:
    """Solve with these facts, and with the mistake `error`.

    Which number goes wrong, and how far, is drawn from a random stream of its own, which `stream` and `error` name.

    Raises:
        ValueError: for an unknown `error`.
    """
    lead, worked = _work(category, level, facts, asked)
    if error is None:
        return Attempt(dict(facts), lead, worked, worked)
    rng = random.Random(f"{stream}-{error}")
    names = tuple(facts)
    if error == "misread":
        as_read = rng.choice(_misread_facts(category, level, facts, asked, worked))
        lead, worked = _work(category, level, as_read, asked)
        return Attempt(as_read, lead, worked, worked)
    if error == "slip":
        units = (10, -10) if category == "triangle" else (2, -2, 3, -3)
        slipped = rng.choice(wrong_results(category, worked, units, names))
        return Attempt(dict(facts), lead, slipped, slipped)
    if error == "off_by_one":
        return Attempt(dict(facts), lead, worked, rng.choice(wrong_results(category, worked, (1, -1), names)))
    raise ValueError(f"solve() got error={error!r}; expected None or one of {', '.join(ERRORS)}.")


def worked_steps(
    category: str, asked: str, tried: Attempt, choices: Mapping[str, str] | None
) -> tuple[WorkedStep, ...]:
    """Write an attempt in steps: one for each fact, then the working, then the answer (its letter in `choices`)."""
    readings = [
        WorkedStep(
            f"Read {name}",
            READING[category].format(name=name, asked=asked, value=value),
            "I looked twice.",
        )
        for name, value in tried.facts.items()
    ]
    letter = "" if choices is None else f", choice {letter_of(choices, tried.stated)}"
    return (
        *readings,
        WorkedStep("Work it out", f"{tried.lead}{tried.worked}", "I did it twice."),
        WorkedStep("Answer", f"So the answer is {tried.stated}{letter}.", "This is what was asked."),
    )


def wrong_results(category: str, result: str, units: Sequence[int], names: Sequence[str]) -> list[str]:
    """Wrong results: `result` shifted by each of `units`, where possible and different.

    Args:
        category: The problem's category.
        result: A whole number, a time "h:mm", or one of `names`.
        units: How far to move: a number by itself, a name along `names`, an hour around the clock, and the minutes of
            a time by five each (one hour when the unit is 1 or -1).
        names: The names an answer can have.
    """
    moved = [_moved(category, result, unit, names) for unit in units]
    return [other for other in moved if other != result and not other.startswith("-")]


def plain(solution: Solution) -> str:
    r"""The shortest worked answer: `3+4=\boxed{7}`, or `3+4=7: \boxed{B}` where B is the choice."""
    if solution.answer == solution.result:
        return f"{solution.lead}\\boxed{{{solution.answer}}}"
    return f"{solution.lead}{solution.result}: \\boxed{{{solution.answer}}}"


def quick(solution: Solution) -> str:
    r"""An answer without its working: `\boxed{7}`."""
    return f"\\boxed{{{solution.answer}}}"


def tagged(solution: Solution) -> str:
    """The shortest worked answer in SRPO's tags: `<think>3+4=7</think> <answer>7</answer>`."""
    return f"<think>{solution.lead}{solution.result}</think> <answer>{solution.answer}</answer>"


def tagged_quick(solution: Solution) -> str:
    """An answer without its working in SRPO's tags: `<think>7</think> <answer>7</answer>`."""
    return f"<think>{solution.result}</think> <answer>{solution.answer}</answer>"


def tagged_in_words(solution: Solution) -> str:
    """An answer in SRPO's tags that says what it reads: `<think>The first digit is 3. … 3+4=7</think> <answer>7…`."""
    *readings, _, _ = solution.steps
    said = " ".join(step.thought for step in readings)
    return f"<think>{said} {solution.lead}{solution.result}</think> <answer>{solution.answer}</answer>"


def boxed_thoughts(solution: Solution) -> str:
    r"""The shortest worked answer with its thoughts in tags: `<think>3+4=7</think>\boxed{7}`."""
    return f"<think>{solution.lead}{solution.result}</think>\\boxed{{{solution.answer}}}"


def remark(thought: str | None = None) -> str:
    """Write a reflection: the corrected wrong step, or that all was right."""
    return "I check it and find the same." if thought is None else f"Not so. {thought}"


def first_mistake(problem: Problem, working: str, answer: str) -> str | None:
    """The first step of the right solution that a written one contradicts, or `None`.

    What the writer read is told from the working: "4+1=5" can only come from a 4 and a 1. A working that no reading
    explains is wrong as such. Of an answer at a glance, which has no working, only the result can be wrong: the step
    that it should have worked out is named then.

    Args:
        problem: what was to be solved.
        working: whatever holds the working, in the form of `Solution.lead` and `Solution.result`.
        answer: the answer as stated.
    """
    *readings, work, stated = problem.steps
    answer = answer.strip()
    if working.strip() == (problem.choices or {}).get(answer, answer):
        return None if answer == problem.answer else work.thought
    as_read = read_working(problem, working).facts or problem.facts
    for step, (name, value) in zip(readings, problem.facts.items(), strict=True):
        if as_read[name] != value:
            return step.thought
    if spaced(work.thought) not in spaced(working):
        return work.thought
    return None if answer == problem.answer else stated.thought


def read_working(problem: Problem, working: str) -> Working:
    """Read the facts that a working, or its beginning, was computed from; the right facts where several fit.

    Args:
        problem: what was to be solved.
        working: whatever holds the working, in the form of `Solution.lead` and `Solution.result`.
    """
    alternatives = [[value, *_misreadings(problem.category, name, value)] for name, value in problem.facts.items()]
    readings = [dict(zip(problem.facts, values, strict=True)) for values in product(*alternatives)]
    readings.sort(key=lambda facts: sum(facts[name] != value for name, value in problem.facts.items()))
    worked = [_work(problem.category, problem.level, facts, problem.asked) for facts in readings]
    written = spaced(working)
    for facts, (lead, result) in zip(readings, worked, strict=True):
        if spaced(lead + result) in written:
            return Working(facts, result)
    for facts, (lead, _) in zip(readings, worked, strict=True):
        if spaced(lead) in written:
            return Working(facts, None)
    return Working(None, None)


def spaced(text: str) -> str:
    """Separate numbers by spaces, so that "3+4=7" is not found in "13+4=71" and equals "3 + 4 = 7"."""
    return re.sub(r"\s*(\d+)\s*", r" \1 ", text)


def _work(category: str, level: int, facts: Mapping[str, int], asked: str) -> tuple[str, str]:
    """The working up to its result, and the result: ("3+4=", "7")."""
    values = list(facts.values())
    if category == "triangle":
        return f"180-{values[0]}-{values[1]}=", str(180 - sum(values))
    if category == "clock":
        hour, minute = values
        return ("hour=", str(hour)) if level == 1 else (f"{hour}h{minute}m=", f"{hour}:{minute:02d}")
    if category == "lengths" and level == 1:
        listed = ", ".join(f"{name} {value}" for name, value in facts.items())
        return f"{listed}: ", max(facts, key=lambda name: facts[name])
    if category == "lengths" and level == 2:
        return f"max({','.join(map(str, values))})=", str(max(values))
    if category in ("bar_chart", "table") and level == 1:
        return f"{asked}=", str(facts[asked])
    if category in ("bar_chart", "lengths"):
        return f"{max(values)}-{min(values)}=", str(max(values) - min(values))
    return f"{'+'.join(map(str, values))}=", str(sum(values))


def _misread_facts(category: str, level: int, facts: Mapping[str, int], asked: str, right: str) -> list[dict[str, int]]:
    """All facts with one misread number whose result differs from `right`."""
    misread = [
        {**facts, name: wrong}
        for name, value in facts.items()
        for wrong in _misreadings(category, name, value)
        # two bars that look equally long leave no single longest one
        if not (category == "lengths" and wrong in facts.values())
    ]
    return [as_read for as_read in misread if _work(category, level, as_read, asked)[1] != right]


def _misreadings(category: str, name: str, value: int) -> list[int]:
    """Values that `value` could be misread as."""
    if category == "triangle":
        candidates = [value - 10, value + 10]
    elif name == "hour":
        candidates = [value % 12 + 1, (value - 2) % 12 + 1]
    elif name == "minute":
        candidates = [(value + 5) % 60, (value - 5) % 60]
    elif category == "counting":
        candidates = list(range(value + 3))
    else:
        candidates = list(range(0 if category in ("adding", "table") else 1, 10))
    return [candidate for candidate in candidates if candidate != value]


def _moved(category: str, result: str, units: int, names: Sequence[str]) -> str:
    if result in names:
        return names[(names.index(result) + units) % len(names)]
    if category == "clock":
        hour, colon, minute = result.partition(":")
        if minute and abs(units) > 1:
            return f"{hour}:{(int(minute) + 5 * units) % 60:02d}"
        return f"{(int(hour) - 1 + units) % 12 + 1}{colon}{minute}"
    return str(int(result) + units)


def letter_of(choices: Mapping[str, str], text: str) -> str:
    """The letter of a choice."""
    return next(letter for letter, choice in choices.items() if choice == text)
