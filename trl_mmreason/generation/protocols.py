"""Protocols: how a question is put to a policy, and which parts of its replies are graded.

`Direct` and `TwoTurn` are here; a method's own protocols live with it. A protocol of your own is anything that has what
`AnsweringProtocol` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..data.images import images_of
from .engine import Engine, Failure, Request, Sample, SamplingParams, derive_seed
from .turn_after_turn import sample_turns

RowSample = tuple[Mapping[str, Any], int]
"""A row, and which of its samples this is."""


class AnsweredTurn(NamedTuple):
    """One answer in the policy's own words.

    Attributes:
        text: what a reader sees.
        graded: what the grader reads the answer off; "" where there is none.
    """

    text: str
    graded: str


class Answered(NamedTuple):
    """One sample.

    Attributes:
        turns: answers, the last one final.
        finish_reasons: "stop" or "length" of each generation.
        tokens: number of sampled tokens; `None` if the engine does not say.
        problem: what is wrong with the form of the text, if the protocol wants one.
        step_ends: positions in the last turn's text at which its whole steps end.
        step_scores, answer_score: a scorer's opinion of these steps, and of the answer after them, in [0, 1].
        score: score of the sample, by which best-of-n chooses.
        logprobs: log-probabilities of the sampled tokens, in nats, if requested.
        extra: other values that the protocol keeps, as JSON.
    """

    turns: Sequence[AnsweredTurn]
    finish_reasons: Sequence[str]
    tokens: int | None
    problem: str | None = None
    step_ends: Sequence[int] | None = None
    step_scores: Sequence[float] | None = None
    answer_score: float | None = None
    score: float | None = None
    logprobs: Sequence[float] | None = None
    extra: Mapping[str, Any] | None = None


class AnsweringProtocol(Protocol):
    """Interface that `answer_questions` needs of a protocol.

    It may have a `scorer` of stored answers, so that another scorer samples nothing again, and then has
    `answer_settings`, the part of `settings` that determines the answers. A scorer has `settings`, `score(rows,
    samples)`, which returns JSON to store, and `fields(sample, scores)`, the fields of `Answered` that stored scores
    give.
    """

    @property
    def turns(self) -> int:
        """Number of answers in a whole sample."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """Everything in the protocol that determines the samples, as JSON, including `name`."""
        ...

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        """Sample once for each unit; sample k of a row depends on the row's id, k and the seed only."""
        ...


class ComparedProtocol(AnsweringProtocol, Protocol):
    """A protocol that can compare answers before and after training.

    It may have `measures(sample)`, the numbers of a graded sample by name, `None` where it has none. Their means are
    metrics, too.
    """

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the compared metrics, including `acc_t2`."""
        ...


@dataclass(frozen=True)
class Direct:
    """Ask the question, and take one answer.

    Attributes:
        grades_cut: whether what the length limit cut can be right; it may name an answer on its way to another.
    """

    grades_cut: bool = True
    turns = 1

    @property
    def settings(self) -> dict[str, Any]:
        return {"name": "direct"} if self.grades_cut else {"name": "direct", "grades_cut": False}

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        samples = sample_units(units, engine, sampling_params, seed)
        return [sample if isinstance(sample, Failure) else self._answered(sample) for sample in samples]

    def _answered(self, sample: Sample) -> Answered:
        answer = _answered([sample])._replace(logprobs=sample.logprobs)
        if self.grades_cut or sample.finish_reason == "stop":
            return answer
        return answer._replace(turns=[AnsweredTurn(sample.text, graded="")])


@dataclass(frozen=True)
class TwoTurn:
    """Sample several answers with a follow-up between them.

    An answer that hit the length limit is the last.

    Attributes:
        followup: user message, such as `adapo.prompts.EVALUATION_PROMPT`.
        turns: answers; with 3 the second is revised in the same way.
    """

    followup: str
    turns: int = 2
    metrics = (
        *("acc_t1", "acc_t2", "delta", "correction_rate", "misjudgment_rate"),
        *("correction_share", "misjudgment_share"),
    )

    @property
    def settings(self) -> dict[str, Any]:
        settings = {"name": "two-turn", "followup": self.followup}
        return settings if self.turns == 2 else {**settings, "turns": self.turns}

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        rows = [row for row, _ in units]
        said = {"role": "user", "content": self.followup}
        conversations = sample_turns(
            rows, engine, sampling_params, lambda *_: said, unit_seeds(units, seed), turns=self.turns
        )
        return [samples if isinstance(samples, Failure) else _answered(samples) for samples in conversations]


def sample_units(
    units: Sequence[RowSample],
    engine: Engine,
    sampling_params: SamplingParams,
    seed: int,
    *,
    prefix_column: str | None = None,
) -> list[Sample | Failure]:
    """Sample one answer for each unit.

    Args:
        prefix_column: column of the rows that holds the beginning of the answer.
    """
    requests = [
        Request(row["prompt"], images_of(row), prefix=row[prefix_column] if prefix_column else "", seed=each)
        for (row, _), each in zip(units, unit_seeds(units, seed), strict=True)
    ]
    drawn = engine.sample(requests, sampling_params)
    return [samples if isinstance(samples, Failure) else samples[0] for samples in drawn]


def unit_seeds(units: Sequence[RowSample], seed: int) -> list[int]:
    """One seed for each unit, which depends on row and sample only."""
    return [derive_seed(seed, row["id"], index) for row, index in units]


def last_verdict(sample: Mapping[str, Any], turns: int) -> bool | None:
    """Whether the last of `turns` answers of a graded sample is right; `None` if the gold answer is unusable.

    An answer that was never given is not right.
    """
    verdicts = [turn["correct"] for turn in sample["turns"]]
    return None if None in verdicts else len(verdicts) == turns and verdicts[-1]


def _answered(samples: Sequence[Sample]) -> Answered:
    counts = [answer.tokens for answer in samples]
    return Answered(
        [AnsweredTurn(answer.text, answer.text) for answer in samples],
        [answer.finish_reason for answer in samples],
        None if None in counts else sum(count for count in counts if count is not None),
    )
