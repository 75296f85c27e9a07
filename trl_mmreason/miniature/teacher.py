"""A teacher of known truth: it knows the drawn problems, so what it says about a solution can be relied on."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import PIL.Image

from ..sampling.engine import Decoding, Failure, Request, Sample
from .solutions import first_mistake, remark, solve
from .tasks import Problem

# The input of SRPO's prompt for teachers (arXiv:2506.01713, appendix B.3).
_INPUT = re.compile(
    r"Question: (?P<question>.*?)\nOriginal Chain of Thought: (?P<cot>.*)"
    r"\nPredicted Answer \(Based on CoT\): (?P<answer>.*)\nCorrect Answer",
    re.DOTALL,
)


class KnownTruthTeacher:
    """An `Engine` that reflects on solutions of drawn problems, as SRPO's cold start asks a teacher to.

    The reply is the JSON `{"reflection": …, "think": …}`: the first fact or step that the solution goes against, or
    that it goes against none, and the right working. It does not depend on the decoding or the seed.

    Args:
        problems: those that it knows, by picture and question.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._known = {_key(problem.image, problem.prompt[0]["content"]): problem for problem in problems}

    @property
    def settings(self) -> dict[str, Any]:
        """What it knows, as a fingerprint."""
        keys = "".join(sorted(self._known))
        return {"kind": "known truth", "problems": hashlib.sha256(keys.encode()).hexdigest()[:16]}

    def sample(self, requests: Sequence[Request], decoding: Decoding) -> list[list[Sample] | Failure]:
        """The reply to each request, n times; a `Failure` for what is no such request or about no known problem."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> list[Sample] | Failure:
        asked = _INPUT.search(request.messages[-1]["content"])
        if asked is None:
            return Failure("the request does not have the form of SRPO's prompt for teachers")
        problem = self._known.get(_key(request.images[0], asked["question"])) if request.images else None
        if problem is None:
            return Failure(f"the teacher does not know this picture with the question {asked['question'][:60]!r}")
        right = solve(problem)
        reply = {
            "reflection": remark(first_mistake(problem, asked["cot"], asked["answer"])),
            "think": f"{right.lead}{right.result}",
        }
        return [Sample(json.dumps(reply), "stop")] * request.n


def _key(image: PIL.Image.Image, question: str) -> str:
    return hashlib.sha256(question.encode() + image.convert("RGB").tobytes()).hexdigest()
