"""Evaluation of reasoning in steps: chains, the best of n by a process reward model, and step-level beam search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..data.rows import Row
from ..generation.engine import Engine, Failure, Sample, SamplingParams
from ..generation.protocols import Answered, AnsweredTurn, RowSample, sample_units
from .paths import ProcessReward, path_score, read_path, score_paths
from .search import MAX_STEPS, TOO_LONG, BeamSearched, step_beam_search
from .template import scored_ends


@dataclass(frozen=True)
class Chains:
    """A chain of steps whose answer is graded, and scored if a process reward model is given (section 4.3.1).

    Attributes:
        process_reward: scores every chain, so that the best of n can be chosen.
        step_weight: w of the trajectory score.
    """

    process_reward: ProcessReward | None = None
    step_weight: float = 0.2
    turns = 1
    answer_settings = {"name": "chain-of-step"}

    @property
    def settings(self) -> dict[str, Any]:
        if self.scorer is None:
            return self.answer_settings
        return {"name": "best-of-n", **self.scorer.settings, "step_weight": self.step_weight}

    @property
    def scorer(self) -> ChainScorer | None:
        """Scores the chains that were sampled."""
        return None if self.process_reward is None else ChainScorer(self.process_reward, self.step_weight)

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        samples = sample_units(units, engine, sampling_params, seed)
        return [sample if isinstance(sample, Failure) else _chain(sample) for sample in samples]


class ChainScorer(NamedTuple):
    """Scores chains; another `step_weight` scores nothing anew. Attributes as in `Chains`."""

    process_reward: ProcessReward
    step_weight: float

    @property
    def settings(self) -> dict[str, Any]:
        return {"process_reward": self.process_reward.settings}

    def score(self, rows: Sequence[Row], samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        scores = score_paths(self.process_reward.score, rows, [sample["turns"][0]["text"] for sample in samples])
        return [{"steps": score.steps, "answer": score.answer} for score in scores]

    def fields(self, sample: Mapping[str, Any], scores: Mapping[str, Any]) -> dict[str, Any]:
        steps, answer, total = path_score(**scores, step_weight=self.step_weight)
        ends = scored_ends(read_path(sample["turns"][0]["text"]).scorable).steps
        fields = {"step_ends": ends, "step_scores": steps, "answer_score": answer, "score": total}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class Continuation:
    """Let a policy continue the row's `prefix`, the beginning of a chain, and grade its answer."""

    turns = 1
    settings = {"name": "continuation"}

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        samples = sample_units(units, engine, sampling_params, seed)
        return [
            sample if isinstance(sample, Failure) else _continued(row["prefix"], sample)
            for (row, _), sample in zip(units, samples, strict=True)
        ]


@dataclass(frozen=True)
class StepBeam:
    """One chain a question, found by step-level beam search (section 4.3.2).

    Attributes:
        process_reward: scores the candidates.
        n: candidates per step.
        max_steps: steps a chain may have.
    """

    process_reward: ProcessReward
    n: int = 4
    max_steps: int = MAX_STEPS
    turns = 1

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "name": "step-beam",
            "process_reward": self.process_reward.settings,
            "candidates": self.n,
            "max_steps": self.max_steps,
        }

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        searches = step_beam_search(
            [{**row, "id": f"{row['id']}#{index}"} for row, index in units],  # the candidates' seeds follow from the id
            engine,
            self.process_reward,
            n=self.n,
            sampling_params=sampling_params,
            max_steps=self.max_steps,
            seed=seed,
        )
        return [search if isinstance(search, Failure) else _searched(search) for search in searches]


def _chain(sample: Sample) -> Answered:
    path = read_path(sample.text)
    return Answered([AnsweredTurn(sample.text, path.answer or "")], [sample.finish_reason], sample.tokens, path.problem)


def _continued(prefix: str, sample: Sample) -> Answered:
    answer = read_path(prefix + sample.text).answer or ""
    return Answered([AnsweredTurn(sample.text, answer)], [sample.finish_reason], sample.tokens)


def _searched(search: BeamSearched) -> Answered:
    has_answer = search.answer is not None
    return Answered(
        [AnsweredTurn(search.text, search.answer or "")],
        ["length" if search.problem == TOO_LONG else "stop"],
        search.tokens,
        search.problem,
        step_ends=scored_ends(search.text).steps,
        step_scores=search.scores[: search.steps],
        answer_score=search.scores[-1] if has_answer else None,
        extra={"worst": search.worst},
    )
