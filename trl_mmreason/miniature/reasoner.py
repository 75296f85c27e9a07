"""A text-only reasoner that follows a rule.

SOPHIA (arXiv:2507.16814) answers a question from a caption with such a reasoner. This one errs and rambles at known
rates, so that a pipeline has something to select from. `sophia/miniature.py` trains a language model on it.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..generation.engine import Failure, Request, Sample, SamplingParams, derive_seed
from .captions import question_of, write_trajectory
from .tasks import Problem

REASON = "Question: {question}\nVisual information:\n{caption}\n\nYour response:"
"""A question and a caption, in the words at the end of the prompt of Fig. A3."""

_ASKED = re.compile(
    r".*Question: (?P<question>.*?)\nVisual information:\n(?P<caption>.*)\n\nYour response:\s*", re.DOTALL
)


class RuleReasoner:
    """An `Engine` that reasons about captions by `write_trajectory`, with exactly known error rates.

    It reads the last question and caption of the last message, in the words of `REASON`, whatever stands before them.
    Of a problem it knows what the question says; the facts are those of the caption, right or wrong. What it writes
    depends on question, caption, the request's seed and the number of the sample, not on sampling parameters.

    Args:
        problems: those whose questions it understands.
        slip_rate: probability of a slip in the working.
        second_look_rate: probability of a second look at the image, whether it slips or not.
    """

    def __init__(self, problems: Iterable[Problem], *, slip_rate: float = 0.1, second_look_rate: float = 0.3) -> None:
        for name, rate in {"slip_rate": slip_rate, "second_look_rate": second_look_rate}.items():
            if not 0 <= rate <= 1:
                raise ValueError(f"RuleReasoner: got {name}={rate}, expected a probability from 0 to 1.")
        self._known = {problem.prompt[0]["content"]: question_of(problem) for problem in problems}
        self.slip_rate, self.second_look_rate = slip_rate, second_look_rate

    @property
    def settings(self) -> dict[str, Any]:
        """The reasoner's rates, and a fingerprint of its problems."""
        questions = hashlib.sha256(repr(sorted(self._known)).encode()).hexdigest()[:16]
        rates = {"slip_rate": self.slip_rate, "second_look_rate": self.second_look_rate}
        return {"kind": "rule reasoner", "questions": questions, **rates}

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Write n trajectories for each request, without tokens; a `Failure` for an unknown question."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> list[Sample] | Failure:
        match = _ASKED.fullmatch(request.messages[-1]["content"])
        if match is None:
            return Failure("the request does not end as SOPHIA's prompt for reasoners: question, caption, response")
        if match["question"] not in self._known:
            return Failure(f"the reasoner does not know the question {match['question'][:60]!r}")
        return [
            Sample(self._reason(match["question"], match["caption"], derive_seed(request.seed, k)), "stop")
            for k in range(request.n)
        ]

    def _reason(self, question: str, description: str, seed: int) -> str:
        rng = random.Random(repr((seed, question, description)))
        return write_trajectory(
            self._known[question],
            description,
            slip=rng.random() < self.slip_rate,
            second_look=rng.random() < self.second_look_rate,
            stream=str(rng.random()),
        )


def ask_miniature(question: str, caption: str) -> str:
    """Write a tiny reasoner's prompt; the paper's would be a hundred times as long as the question."""
    return REASON.format(question=question, caption=caption)
