"""Label the steps of any chain about a drawn problem as right or wrong."""

from __future__ import annotations

from collections.abc import Sequence

from .solutions import WorkedStep, spaced
from .tasks import Problem


def true_labels(problem: Problem, steps: Sequence[WorkedStep]) -> tuple[bool, ...]:
    """Label steps: `true_labels(problem, solution.steps)` equals the labels of `solution = solve(problem, error=…)`.

    The name says what a step is to do, and the thought is right if it is that of the right solution, whatever the
    spacing. A step rests on others, which stand before it: the working on all readings, right or wrong, and the answer
    on the right working. So a reading is right if its number is the image's, whatever stands before it; a working is
    wrong if a number in it was never read; and a right number after a wrong working is no right answer. A step that
    the solution does not have, or a second one of the same name, is wrong.

    Args:
        problem: what the chain is about.
        steps: one or more, or none; their reflections are ignored.

    Returns:
        One a step, True = right.
    """
    *readings, working, stated = problem.steps
    names_of_readings = {reading.name for reading in readings}
    thoughts = {step.name: spaced(step.thought) for step in problem.steps}
    seen: set[str] = set()
    right: set[str] = set()
    labels = []
    for step in steps:
        name = step.name.strip()
        if name == stated.name:
            grounded = working.name in right
        elif name == working.name:
            grounded = names_of_readings <= seen
        else:
            grounded = name in names_of_readings
        labels.append(grounded and name not in seen and spaced(step.thought.strip()) == thoughts[name])
        seen.add(name)
        if labels[-1]:
            right.add(name)
    return tuple(labels)
