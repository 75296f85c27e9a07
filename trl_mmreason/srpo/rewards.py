"""The parts of SRPO's reward (Eq. 4–8) as TRL reward functions.

rewards = ReflectionRewards(processor)
GRPOTrainer(model, reward_funcs=rewards.functions, ...)    # or some of them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..compat.chat_template import generation_prefix, tokenizer_of
from ..grading import grader_or_rules
from ..grading.async_rewards import Ahead
from ..grading.reward import ended_items, grading_items, log_verdicts
from .objective import ACCURACY, FORMAT, REFLECTION, brevity, effectiveness
from .response import RESPONSE_PROBLEMS, ReflectionResponse, in_answer_tags, parse_reflection_response, tags_in


class ReflectionScores(NamedTuple):
    """A response with its verdicts and lengths.

    Attributes:
        response: the parsed response.
        first_correct, second_correct: the verdicts; a missing answer is not right; `None`: the gold is unusable.
        tokens: L, of the whole response as it was sampled, its end-of-turn token included.
        first_tokens: L1, up to and including the first answer's closing tag; 0 without one.
        reflection_tokens: tokens of the reflection, tags included; 0 without one.
    """

    response: ReflectionResponse
    first_correct: bool | None
    second_correct: bool | None
    tokens: int
    first_tokens: int
    reflection_tokens: int

    @property
    def graded(self) -> bool:
        """Whether there is a verdict; without one the gold answer is unusable."""
        return self.first_correct is not None and self.second_correct is not None

    @property
    def solves_again(self) -> bool:
        """Whether a well-formed reflection is followed by a second answer."""
        return self.response.has_reflection_format and self.response.second_answer is not None


class ReflectionRewards:
    """The parts of SRPO's reward, which parse and grade each batch once.

    They read the sampled token ids and not TRL's completions: a chat template may put thoughts into a field of their
    own there. The data set needs a column `answer`; `choices` and `id` are used if there. A row whose gold answer
    cannot be used gets `None` from every function.

    Args:
        processing_class: the policy's.
        grader: decides whether an answer is right; `Grader()` by default.
        brevity_coef: α of Eq. 6.
        missing_second_is_wrong: count a second answer that is missing after a well-formed reflection as a wrong one in
            I_eff, −0.25 after a right first answer; off: I_eff is then 0.
        chat_template_kwargs: what the policy's chat template is given.
        target_ratio, max_ratio, target_response_tokens, max_response_tokens: see `objective.brevity`.

    Raises:
        ValueError: the tokenizer does not give SRPO's tags back.
    """

    def __init__(
        self,
        processing_class: Any,
        grader: Any = None,
        *,
        brevity_coef: float = 0.1,
        missing_second_is_wrong: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        **lengths: float | None,
    ) -> None:
        check_tags_survive(processing_class)
        self.processing_class = processing_class
        self.opening = generation_prefix(processing_class, **(chat_template_kwargs or {}))
        self.grader = grader_or_rules(grader, "SRPOTrainer")
        self._graded = Ahead(self.grader.grade_batch, self.grader)
        self.brevity_coef = brevity_coef
        self.missing_second_is_wrong = missing_second_is_wrong
        self.lengths: dict[str, Any] = lengths
        self._seen: tuple[Sequence[Sequence[int]], Sequence[Any]] | None = None
        self._scores: list[ReflectionScores] = []

    @property
    def task_functions(self) -> list[Callable[..., list[float | None]]]:
        """The functions of R_task (Eq. 5), without the reflection's rewards."""
        return [self.format_reward, self.accuracy_reward]

    @property
    def functions(self) -> list[Callable[..., list[float | None]]]:
        """The functions of R_task + R_reflection (Eq. 4), whose sum is the reward."""
        return [*self.task_functions, self.reflection_format_reward, self.effectiveness_reward, self.brevity_reward]

    def format_reward(self, **batch: Any) -> list[float | None]:
        """R_format: 0.5 for `<think>…</think> <answer>…</answer>` at the beginning."""
        return self._rewards(batch, lambda score: FORMAT * score.response.has_solution_format)

    def accuracy_reward(self, **batch: Any) -> list[float | None]:
        """R_accuracy: 0.5 when the first answer is right."""
        return self._rewards(batch, lambda score: ACCURACY * bool(score.first_correct))

    def reflection_format_reward(self, **batch: Any) -> list[float | None]:
        """I_ref: 0.25 for exactly one `<reflection>…</reflection>` after the first answer."""
        return self._rewards(batch, lambda score: REFLECTION * score.response.has_reflection_format)

    def effectiveness_reward(self, **batch: Any) -> list[float | None]:
        """I_eff: the effect of the reflection on the first answer."""
        return self._rewards(batch, self.effect)

    def brevity_reward(self, **batch: Any) -> list[float | None]:
        """α · f_len: how close the response is to its target length."""

        def reward_of(score: ReflectionScores) -> float:
            tokens, first = torch.tensor(score.tokens), torch.tensor(score.first_tokens)
            return self.brevity_coef * float(brevity(tokens, first, **self.lengths))

        return self._rewards(batch, reward_of)

    def effect(self, score: ReflectionScores) -> float:
        """I_eff of one response (Eq. 8)."""
        counts = score.response.has_reflection_format if self.missing_second_is_wrong else score.solves_again
        return float(effectiveness(bool(score.first_correct), bool(score.second_correct), counts))

    def begin(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> None:
        """Start grading responses while others are sampled."""
        responses = [parse_reflection_response(self.opening + text) for text in texts]
        self._graded.begin(item for turn in _answers(responses) for item in ended_items(rows, turn))

    def _rewards(self, batch: dict[str, Any], reward_of: Callable[[ReflectionScores], float]) -> list[float | None]:
        return [reward_of(score) if score.graded else None for score in self.scores(**batch)]

    def scores(
        self,
        completion_ids: Sequence[Sequence[int]],
        answer: Sequence[Any],
        prompts: Sequence[Any] | None = None,
        choices: Sequence[Any] | None = None,
        id: Sequence[Any] | None = None,
        tolerance: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        **kwargs: Any,
    ) -> list[ReflectionScores]:
        """Parse and grade a batch, once for all functions, and log the metrics."""
        if self._seen is None or completion_ids is not self._seen[0] or answer is not self._seen[1]:
            self._scores, verdicts = self._score(completion_ids, answer, prompts, choices, id, tolerance)
            self._seen = completion_ids, answer  # kept, so that no later lists have the same identity
            if log_metric:
                log_verdicts(verdicts, log_metric)
                for score in self._scores:
                    for name, value in measures(score).items():
                        log_metric(name, value)
            if log_extra:
                log_extra("problem", [score.response.problem or "" for score in self._scores])
                log_extra("first_correct", [score.first_correct for score in self._scores])
                log_extra("second_correct", [score.second_correct for score in self._scores])
        return self._scores

    def _score(self, completion_ids: Sequence[Sequence[int]], *columns: Any) -> tuple[list[ReflectionScores], list]:
        written = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        texts = [self.opening + text for text in written]
        responses = [parse_reflection_response(text) for text in texts]
        verdicts = self._graded.finish(item for turn in _answers(responses) for item in grading_items(turn, *columns))
        correct = [verdict.correct for verdict in verdicts]
        first, second = correct[: len(texts)], correct[len(texts) :]
        scores = [
            read_scores(self.processing_class, ids, text, response, i, j, opening=self.opening)
            for ids, text, response, i, j in zip(completion_ids, texts, responses, first, second, strict=True)
        ]
        return scores, verdicts


def _answers(responses: Sequence[ReflectionResponse]) -> list[list[str]]:
    """The graded answers: all first ones, then all second ones."""
    return [
        [in_answer_tags(response.first_answer) for response in responses],
        [in_answer_tags(response.second_answer) for response in responses],
    ]


def read_scores(
    processing_class: Any,
    ids: Sequence[int],
    text: str,
    response: ReflectionResponse,
    first_correct: bool | None,
    second_correct: bool | None,
    *,
    opening: str,
) -> ReflectionScores:
    """Combine verdicts and lengths.

    Args:
        text: `opening`, which the chat template wrote, and what `ids` decode to.
        response: `text`, parsed.
    """

    def tokens(position: int) -> int:
        return tokens_until(processing_class, ids, text[len(opening) :], max(0, position - len(opening)))

    first, reflection = response.first_end, response.reflection_span
    edges = [0, 0] if reflection is None else [tokens(edge) for edge in reflection]
    return ReflectionScores(
        response,
        first_correct,
        second_correct,
        tokens=len(ids),
        first_tokens=0 if first is None else tokens(first),
        reflection_tokens=edges[1] - edges[0],
    )


def measures(score: ReflectionScores) -> dict[str, float]:
    """The available metrics of one response; means over the batch are logged."""
    kind = (score.response.problem or "").split(" ")[0]
    metrics: dict[str, float] = {
        "response/complete": not kind,
        **{f"response/{problem}": problem == kind for problem in RESPONSE_PROBLEMS},
        "length_response": score.tokens,
    }
    if score.first_tokens:
        metrics["length_first"] = score.first_tokens
    if score.reflection_tokens:
        metrics["length_reflection"] = score.reflection_tokens
    if score.graded:
        first, second = bool(score.first_correct), bool(score.second_correct)
        metrics |= {
            "reflected_share": score.solves_again,
            "acc_t1": first,
            "acc_t2": second,
            "kept_share": first and second,
            "correction_share": not first and second,
            "failed_share": not first and not second,
            "misjudgment_share": first and not second,
            "length_correct" if first else "length_incorrect": score.tokens,
        }
    return {name: float(value) for name, value in metrics.items()}


def tokens_until(processing_class: Any, ids: Sequence[int], text: str, position: int) -> int:
    """Count the sampled ids of `text[:position]`, by bisection.

    Args:
        ids: the sampled ids, which decode to `text` without special tokens.
    """
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if processing_class.decode(ids[:middle], skip_special_tokens=True).startswith(text[:position]):
            high = middle
        else:
            low = middle + 1
    return low


def check_tags_survive(processing_class: Any) -> None:
    """Refuse a tokenizer that does not preserve SRPO's tags."""
    tokenizer = tokenizer_of(processing_class)
    tags = "<think> </think> <answer> </answer> <reflection> </reflection>"
    given_back = tokenizer.decode(tokenizer(tags, add_special_tokens=False)["input_ids"], skip_special_tokens=True)
    if tags_in(given_back) != tags.split():
        raise ValueError(
            f"SRPO: the tokenizer reads {tags!r} as {given_back!r}, so no response could be parsed. Some of these "
            "tags are special tokens of it; add them as ordinary tokens (special=False) instead."
        )
