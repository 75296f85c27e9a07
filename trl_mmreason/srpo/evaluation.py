"""Let any policy solve, reflect and solve again in one answer, on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, ProcessorMixin

from ..evaluation.answers import Row, decode, encode_rows, for_all_rows, grading_columns, row_metadata
from ..evaluation.metrics import Change, Flags, compare, two_turn_metrics
from ..evaluation.trajectory import Trajectory
from ..evaluation.two_turn import TwoTurnTrajectory
from ..grading import Grader
from ..messages import with_system_message
from ..sampling.generation import generate
from .rewards import ReflectionRewards, ReflectionScores


@dataclass(frozen=True, kw_only=True)
class ReflectionTrajectory(TwoTurnTrajectory):
    """One response, cut in two behind the first answer.

    Attributes:
        effectiveness: I_eff (Eq. 8).
        response_tokens: L, of the whole response, its end-of-turn token included.
        reflection_tokens: of the reflection, tags included; 0 without one.
    """

    effectiveness: float
    response_tokens: int
    reflection_tokens: int

    def shown(self) -> Trajectory:
        """As the report shows it, with I_eff and the lengths."""
        numbers = {
            "I_eff": self.effectiveness,
            "response tokens": self.response_tokens,
            "reflection tokens": self.reflection_tokens,
        }
        return replace(super().shown(), rewards=numbers)


def evaluate_reflections(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    dataset: Dataset,
    *,
    stage: str,
    max_new_tokens: int,
    batch_size: int = 64,
    grader: Grader | None = None,
    system_prompt: str | None = None,
    missing_second_is_wrong: bool = True,
    chat_template_kwargs: dict[str, Any] | None = None,
    **generation: Any,
) -> list[ReflectionTrajectory]:
    """Answer every row and grade both answers in each response; under several processes each takes a share.

    Args:
        model: a policy that `generate` works on.
        processing_class: its processor.
        dataset: rows with prompt, images, answer, and optionally choices, id, category.
        stage: name of this evaluation, such as "before".
        max_new_tokens: bound of the response.
        batch_size: questions in one call of `generate`.
        grader: `Grader()` by default.
        system_prompt: system message put before every question; `None` leaves prompts as they are.
        missing_second_is_wrong: as in `ReflectionRewards`.
        chat_template_kwargs: handed to the chat template.
        **generation: for `generate`; greedy decoding without penalties by default.

    Returns:
        One trajectory a row, in the order of the rows, the same on every process. Rows whose gold answer cannot be
        used are left out. A missing answer is not right.

    Raises:
        ValueError: the tokenizer does not give SRPO's tags back.
    """
    template = chat_template_kwargs or {}
    reading = ReflectionRewards(
        processing_class, grader, missing_second_is_wrong=missing_second_is_wrong, chat_template_kwargs=template
    )

    def answer(rows: list[Row]) -> list[ReflectionTrajectory | None]:
        asked = [{**row, "prompt": with_system_message(row["prompt"], system_prompt)} for row in rows]
        prompts = encode_rows(processing_class, asked, **template)
        ids = generate(model, processing_class, prompts, max_new_tokens=max_new_tokens, **generation)
        scores = reading.scores(ids, **grading_columns(rows))
        texts = [reading.opening + text for text in decode(processing_class, ids)]
        return [
            _trajectory(row, text, score, stage, reading.effect)
            for row, text, score in zip(rows, texts, scores, strict=True)
        ]

    return for_all_rows(model, processing_class, dataset, answer, stage=stage, batch_size=batch_size)


def reflection_metrics(
    first_correct: Flags,
    second_correct: Flags,
    effectiveness: Sequence[float] | np.ndarray,
    response_tokens: Sequence[int] | np.ndarray,
    reflection_tokens: Sequence[int] | np.ndarray,
) -> dict[str, float]:
    """Accuracy of both answers, the shares of the four transitions, mean I_eff and mean lengths.

    Args:
        first_correct, second_correct: (N,) bools, one a response.
        effectiveness: (N,) I_eff.
        response_tokens, reflection_tokens: (N,) lengths; the second is averaged over the responses that reflect.

    Returns:
        acc_t1, acc_t2; of all responses kept_share (1→1), correction_share (0→1), failed_share (0→0) and
        misjudgment_share (1→0); effectiveness, response_tokens, reflection_tokens. NaN where there is nothing.
    """
    turns = two_turn_metrics(first_correct, second_correct)
    first, second, reflections = map(np.asarray, (first_correct, second_correct, reflection_tokens))
    return {
        "acc_t1": turns["acc_t1"],
        "acc_t2": turns["acc_t2"],
        "kept_share": _mean(first & second),
        "correction_share": turns["correction_share"],
        "failed_share": _mean(~first & ~second),
        "misjudgment_share": turns["misjudgment_share"],
        "effectiveness": _mean(effectiveness),
        "response_tokens": _mean(response_tokens),
        "reflection_tokens": _mean(reflections[reflections > 0]),
    }


def compare_reflections(
    before: Sequence[ReflectionTrajectory], after: Sequence[ReflectionTrajectory]
) -> dict[str, Change]:
    """`reflection_metrics` of the same questions before and after training, with their intervals."""
    return compare(_columns(before), _columns(after), reflection_metrics)


def _columns(trajectories: Sequence[ReflectionTrajectory]) -> list[list]:
    names = ("first_correct", "second_correct", "effectiveness", "response_tokens", "reflection_tokens")
    return [[getattr(trajectory, name) for trajectory in trajectories] for name in names]


def _trajectory(
    row: Row, text: str, score: ReflectionScores, stage: str, effect: Callable[[ReflectionScores], float]
) -> ReflectionTrajectory | None:
    """`None` where the gold answer cannot be used."""
    if score.first_correct is None or score.second_correct is None:
        return None
    cut = len(text) if score.response.first_end is None else score.response.first_end
    return ReflectionTrajectory(
        **row_metadata(row, stage),
        first=text[:cut],
        second=text[cut:].strip() or None,
        first_correct=score.first_correct,
        second_correct=score.second_correct,
        problem=score.response.problem,
        effectiveness=effect(score),
        response_tokens=score.tokens,
        reflection_tokens=score.reflection_tokens,
    )


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
