"""Protocols for SRPO's format: grade both answers of a generation, or only the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..compat.chat_template import generation_prefix
from ..generation.engine import Engine, Failure, Sample, SamplingParams, UnsuitableEngine
from ..generation.protocols import Answered, AnsweredTurn, RowSample, sample_units
from .objective import effectiveness
from .response import first_answer, in_answer_tags, parse_reflection_response
from .rewards import check_tags_survive, read_scores


@dataclass(frozen=True)
class Reflection:
    """Solve, reflect and solve again in one response (section 3.2); a missing answer counts as wrong.

    The system prompt that asks for it is the caller's: `srpo.prompts.REFLECTION_PROMPT` is the paper's.

    Attributes:
        missing_second_is_wrong: as in `ReflectionRewards`; of `measures`.

    Raises:
        UnsuitableEngine: the engine's tokenizer does not give SRPO's tags back.
    """

    missing_second_is_wrong: bool = True
    turns = 2
    metrics = (
        "acc_t1",
        "acc_t2",
        "kept_share",
        "correction_share",
        "failed_share",
        "misjudgment_share",
        "effectiveness",
        "tokens",
        "reflection_tokens",
    )
    settings = {"name": "reflection"}

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        writer = getattr(engine, "processing_class", None)
        if writer is not None:
            try:
                check_tags_survive(writer)
            except ValueError as error:  # every other unit would fail, too
                raise UnsuitableEngine(str(error)) from error
        opening = _opening(engine)
        return [
            sample if isinstance(sample, Failure) else _read(opening, sample, writer)
            for sample in sample_units(units, engine, sampling_params, seed)
        ]

    def measures(self, sample: Mapping[str, Any]) -> dict[str, float | None]:
        """I_eff (Eq. 8) of a graded response, and the length of its reflection; `None` without a reflection.

        An engine that does not give its tokens leaves the length out.
        """
        read = sample["extra"]
        lengths = {"reflection_tokens": read["reflection_tokens"] or None}
        verdicts = [turn["correct"] for turn in sample["turns"]]
        if None in verdicts:
            return lengths
        first, *others = verdicts
        counts = read["reflects"] if self.missing_second_is_wrong else read["solves_again"]
        return {"effectiveness": float(effectiveness(first, any(others), counts)), **lengths}


@dataclass(frozen=True)
class FirstSolution:
    """Grade the first answer of a response in SRPO's format, with or without a reflection."""

    turns = 1
    settings = {"name": "first-solution"}

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        opening, samples = _opening(engine), sample_units(units, engine, sampling_params, seed)
        return [sample if isinstance(sample, Failure) else _first(opening + sample.text, sample) for sample in samples]


def _opening(engine: Engine) -> str:
    """What the chat template writes before a response: part of it, as in training.

    A server writes it into the prompt itself, and what it leaves open is counted as a problem.
    """
    writer = getattr(engine, "processing_class", None)
    return "" if writer is None else generation_prefix(writer, **getattr(engine, "chat_template_kwargs", {}))


def _first(text: str, sample: Sample) -> Answered:
    return Answered([AnsweredTurn(text, first_answer(text))], [sample.finish_reason], sample.tokens)


def _read(opening: str, sample: Sample, writer: Any) -> Answered:
    text = opening + sample.text
    response = parse_reflection_response(text)
    cut = len(text) if response.first_end is None else response.first_end
    turns = [AnsweredTurn(text[:cut], in_answer_tags(response.first_answer))]
    if rest := text[cut:].strip():
        turns.append(AnsweredTurn(rest, in_answer_tags(response.second_answer)))
    ids = [] if writer is None or sample.token_ids is None else sample.token_ids
    score = read_scores(writer, ids, text, response, None, None, opening=opening)
    extra = {
        "reflects": response.has_reflection_format,
        "solves_again": score.solves_again,
        "reflection_tokens": score.reflection_tokens,
    }
    return Answered(turns, [sample.finish_reason], sample.tokens, response.problem, extra=extra)
