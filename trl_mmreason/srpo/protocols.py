"""Responses in SRPO's format: both answers of one generation are graded, or the first alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..sampling.engine import Decoding, Engine, Failure, Sample
from ..sampling.protocols import Answered, AnsweredTurn, Unit, sample_units
from ..turns import generation_prefix
from .response import first_answer, parse_reflection_response, tagged


@dataclass(frozen=True)
class Reflection:
    """Solve, reflect and solve again in one response (section 3.2); a missing answer is not right.

    The system prompt that asks for it is the runner's: `srpo.prompts.REFLECTION_PROMPT` is the paper's.

    Attributes:
        chat_template_kwargs: what the engine's chat template is given.
    """

    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    turns = 2

    @property
    def settings(self) -> dict[str, Any]:
        return {"name": "reflection"}

    def answer(
        self, units: Sequence[Unit], engine: Engine, decoding: Decoding, seed: int
    ) -> Sequence[Answered | Failure]:
        # a server writes the opening into the prompt itself, and what it leaves open is counted as a problem
        writer = getattr(engine, "processing_class", None)
        opening = "" if writer is None else generation_prefix(writer, **self.chat_template_kwargs)
        return [
            sample if isinstance(sample, Failure) else _read(opening, sample)
            for sample in sample_units(units, engine, decoding, seed)
        ]


@dataclass(frozen=True)
class FirstSolution:
    """A response in SRPO's format, or one that only solves, of which the first answer is graded."""

    turns = 1
    settings = {"name": "first-solution"}

    def answer(
        self, units: Sequence[Unit], engine: Engine, decoding: Decoding, seed: int
    ) -> Sequence[Answered | Failure]:
        return [
            sample
            if isinstance(sample, Failure)
            else Answered([AnsweredTurn(sample.text, first_answer(sample.text))], [sample.finish_reason], sample.tokens)
            for sample in sample_units(units, engine, decoding, seed)
        ]


def _read(opening: str, sample: Sample) -> Answered:
    text = opening + sample.text
    response = parse_reflection_response(text)
    cut = len(text) if response.first_end is None else response.first_end
    turns = [AnsweredTurn(text[:cut], tagged(response.first_answer))]
    if rest := text[cut:].strip():
        turns.append(AnsweredTurn(rest, tagged(response.second_answer)))
    return Answered(turns, [sample.finish_reason], sample.tokens, response.problem)
