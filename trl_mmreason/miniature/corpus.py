"""Training text of the miniature's tokenizers."""

from __future__ import annotations

from collections.abc import Iterator

from . import solutions
from .judging import JUDGE, verdict
from .tasks import CATEGORIES, make_problem

# What users and templates say to the model in the examples; without it these words would cost a token a letter.
_SPOKEN = (
    "You are a helpful assistant.",
    "There might be an error in the solution, please evaluate the previous solution and provide a final answer.",
    "user\n",
    "assistant\n",
    "system\n",
)


# What self-evolution puts around a question and the response to be judged.
_JUDGING = (JUDGE, "Question:\n", "Candidate solution:\n")


def corpus(*, in_steps: bool = False, judging: bool = False) -> Iterator[str]:
    """Questions and worked solutions of every category and level, and the phrases around them.

    Args:
        in_steps: solutions in steps too; they take more than half as many tokens again without.
        judging: a judge's requests and replies too; a reply takes more than twice as many tokens without.
    """
    for _ in range(30):
        yield from _SPOKEN
    for category in CATEGORIES:
        for level in (1, 2, 3):
            for seed in range(4):
                problem = make_problem(category, seed, level=level, multiple_choice=seed % 2 == 1)
                solution = solutions.solve(problem)
                yield problem.prompt[0]["content"]
                yield solutions.plain(solution)
                tagged = solutions.tagged(solution)
                yield f"{tagged} <reflection>{solutions.remark()}</reflection> {tagged}"
                if in_steps:
                    for step in solution.steps:
                        yield from (step.name, step.thought, step.reflection)
                if judging:
                    response = solutions.boxed_thoughts(solution)
                    yield from (*_JUDGING, response, verdict(problem, response))
