"""Replies of a judge that knows the truth, to responses to drawn problems, in self-evolution's format.

"When Models Judge Themselves" has the initial policy judge its own responses, so a miniature policy has to learn
this too. A judge here first reads the image and works it out by itself.
"""

from __future__ import annotations

from ..grading import extract_answer
from .solutions import read_working
from .tasks import Problem

JUDGE = "Judge the solution."
"""Asks for a verdict; the paper's prompt would be ten times as long as the response."""

# The paper's appendix D: what is scored, and what it counts.
_WEIGHTS = {"answer_correctness": 0.5, "reasoning_quality": 0.3, "visual_grounding": 0.2}


def verdict(problem: Problem, response: str) -> str:
    """Write the judge's reply: the working, "Right." or "Wrong.", and four scores.

    The answer is right or wrong. The reasoning is good if it keeps to what was read, whether that was read rightly or
    not, and if the answer states its result. The grounding is the share of the facts that were read rightly, as far as
    the working tells. A response without an answer gets 0 in all.

    Args:
        problem: what was to be solved.
        response: in the form of `boxed_thoughts`; anything else is judged as far as it is understood.
    """
    scores = _scores(problem, response)
    scores["overall_score"] = sum(_WEIGHTS[name] * score for name, score in scores.items())
    # "1" for 1.0, and no spaces: each character would be a token to generate
    written = ",".join(f'"{name}":{score:.2g}' for name, score in scores.items())
    thoughts = [step.thought for step in problem.steps[:-1]]  # the last one only repeats the result
    # Said right after the judge's own result, where it is easiest to compare; the scores then only repeat it.
    thoughts.append("Right." if scores["answer_correctness"] else "Wrong.")
    return f"[BEGIN THOUGHT]{' '.join(thoughts)}[END THOUGHT][BEGIN SCORES]{{{written}}}[END SCORES]"


def _scores(problem: Problem, response: str) -> dict[str, float]:
    answer = extract_answer(response)
    if answer is None:
        return dict.fromkeys(_WEIGHTS, 0.0)
    facts, result = read_working(problem, response)
    stated = answer if problem.choices is None else problem.choices.get(answer)
    read_rightly = [facts is not None and facts[name] == value for name, value in problem.facts.items()]
    return {
        "answer_correctness": float(answer == problem.answer),
        "reasoning_quality": float(result is not None and stated == result),
        "visual_grounding": sum(read_rightly) / len(read_rightly),
    }
