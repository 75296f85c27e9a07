"""A teacher and judge that knows the truth of the drawn problems.

It knows the methods' prompts by their wording, as it is in the papers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import PIL.Image

from ..generation.engine import Failure, Request, Sample, SamplingParams
from .solutions import WorkedStep, first_mistake, remark, solve
from .tasks import Problem
from .truth import true_labels

# The input of SRPO's prompt for teachers (arXiv:2506.01713, appendix B.3).
_REFLECTION_INPUT = re.compile(
    r"Question: (?P<question>.*?)\nOriginal Chain of Thought: (?P<cot>.*)"
    r"\nPredicted Answer \(Based on CoT\): (?P<answer>.*)\nCorrect Answer",
    re.DOTALL,
)
# Chain-of-Step's prompts (arXiv:2509.19003, Fig. 8 and 9), and what is said next to them.
_STEP_DATA = "develop a sequence of intermediate thinking steps"
_JUDGE = "evaluating process reward"
_STEP_INPUT = re.compile(
    r"Question: (?P<question>.*?)\nReference answer: .*?(?:\nIntermediate answer process:\n(?P<process>.*))?", re.DOTALL
)
_WRITTEN_STEP = re.compile(
    r"(?:\A|\n\n)### <Step \d+: (?P<name>.*?)>\n<Detailed Thinking>: (?P<thought>.*?)\n<Reflection>: ", re.DOTALL
)


class KnownTruthTeacher:
    """An `Engine` that knows drawn problems, and answers the methods' prompts for teachers and judges.

    - SRPO's cold start: the JSON `{"reflection": …, "think": …}`, with the first fact or step that the solution goes
      against, or that it goes against none, and the right working.
    - Chain-of-Step's step data: the steps of the right solution, in the text format of Fig. 8.
    - Chain-of-Step's judge: "### Step Label: [1,-1]", Good for the steps that `true_labels` finds right and Bad for the
      others; never Neutral.

    A reply does not depend on sampling parameters or the seed, nor on the answer that the request tells.

    Args:
        problems: those that it knows, by image and question.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._known = {_key(problem.image, problem.prompt[0]["content"]): problem for problem in problems}

    @property
    def settings(self) -> dict[str, Any]:
        """Fingerprint of the known problems."""
        keys = "".join(sorted(self._known))
        return {"kind": "known truth", "problems": hashlib.sha256(keys.encode()).hexdigest()[:16]}

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Reply to each request, n times; a `Failure` for an unknown prompt or problem."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> list[Sample] | Failure:
        instruction, message = request.messages[0]["content"], request.messages[-1]["content"]
        is_chain_of_step = _STEP_DATA in instruction or _JUDGE in instruction
        match = _STEP_INPUT.fullmatch(message) if is_chain_of_step else _REFLECTION_INPUT.search(message)
        if match is None:
            method = "Chain-of-Step" if is_chain_of_step else "SRPO"
            return Failure(f"the request does not have the form of {method}'s prompt for teachers")
        problem = self._known.get(_key(request.images[0], match["question"])) if request.images else None
        if problem is None:
            return Failure(f"the teacher does not know this image with the question {match['question'][:60]!r}")
        if _JUDGE in instruction:
            reply = _judgement(problem, match["process"] or "")
        elif _STEP_DATA in instruction:
            reply = _worked(problem)
        else:
            reply = _reflection(problem, match["cot"], match["answer"])
        return [Sample(reply, "stop")] * request.n


def _reflection(problem: Problem, cot: str, answer: str) -> str:
    right = solve(problem)
    mistake = first_mistake(problem, cot, answer)
    return json.dumps({"reflection": remark(mistake), "think": f"{right.lead}{right.result}"})


def _worked(problem: Problem) -> str:
    steps = "\n\n".join(
        f"### <Step {number}: {step.name}>\n<Detailed Thinking>: {step.thought}\n<Reflection>: {step.reflection}"
        for number, step in enumerate(problem.steps, start=1)
    )
    return f"{steps}\n\n### <Answer>\n{problem.answer}"


def _judgement(problem: Problem, process: str) -> str:
    steps = [WorkedStep(match["name"], match["thought"], "") for match in _WRITTEN_STEP.finditer(process)]
    ratings = ["1" if right else "-1" for right in true_labels(problem, steps)]
    return f"### Step Label: [{','.join(ratings)}]"


def _key(image: PIL.Image.Image, question: str) -> str:
    return hashlib.sha256(question.encode() + image.convert("RGB").tobytes()).hexdigest()
