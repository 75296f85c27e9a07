"""Protocols of reasoning in steps, and what is sampled by them into a store: paths, and step-level beam searches.

A protocol parses each chain when it is sampled; the sample keeps what was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from datasets import Dataset

from ..data.rows import Row
from ..generation.engine import Engine, Failure, Sample, SamplingParams
from ..generation.protocols import Answered, AnsweredTurn, AnsweringProtocol, RowSample, sample_units
from ..jobs.answering import Answers, answer_questions
from ..jobs.store import Store
from .chains import SAMPLING_PARAMS, Path, ProcessReward, path_score, read_path, score_paths, stored_path
from .search import MAX_STEPS, TOO_LONG, BeamSearched, part_sampling_params, step_beam_search


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
        scores = score_paths(self.process_reward.score, rows, [stored_path(sample) for sample in samples])
        return [{"steps": score.steps, "answer": score.answer} for score in scores]

    def fields(self, sample: Mapping[str, Any], scores: Mapping[str, Any]) -> dict[str, Any]:
        steps, answer, total = path_score(**scores, step_weight=self.step_weight)
        ends = stored_path(sample).step_ends
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
        samples = sample_units(units, engine, sampling_params, seed, prefix_column="prefix")
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
        bounds = {"candidates": self.n, "max_steps": self.max_steps}
        return {"name": "step-beam", "process_reward": self.process_reward.settings, **bounds}

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        rows = [{**row, "id": f"{row['id']}#{index}"} for row, index in units]  # for the candidates' seeds
        asking: dict[str, Any] = {"n": self.n, "max_steps": self.max_steps, "seed": seed}
        searches = step_beam_search(rows, engine, self.process_reward, sampling_params=sampling_params, **asking)
        return [search if isinstance(search, Failure) else _searched(search) for search in searches]


def _chain(sample: Sample) -> Answered:
    path = read_path(sample.text)
    turn = AnsweredTurn(sample.text, path.answer or "")
    return Answered([turn], [sample.finish_reason], sample.tokens, path.problem, step_ends=path.step_ends)


def _continued(prefix: str, sample: Sample) -> Answered:
    answer = read_path(prefix + sample.text).answer or ""
    return Answered([AnsweredTurn(sample.text, answer)], [sample.finish_reason], sample.tokens)


def _searched(search: BeamSearched) -> Answered:
    path = search.path
    return Answered(
        [AnsweredTurn(path.text, path.answer or "")],
        ["length" if search.problem == TOO_LONG else "stop"],
        search.tokens,
        search.problem,
        step_ends=path.step_ends,
        step_scores=search.scores[: path.steps],
        answer_score=None if path.answer is None else search.scores[-1],
        extra={"worst": search.worst},
    )


def sample_paths(
    rows: Dataset,
    engine: Engine,
    store: Store,
    stage: str,
    *,
    n: int,
    protocol: AnsweringProtocol | None = None,
    sampling_params: SamplingParams = SAMPLING_PARAMS,
    **asking: Any,
) -> dict[str, list[Path]]:
    """Let a policy answer each question `n` times, and grade the answers of the chains.

    It resumes, and several processes share the work, as `answer_questions` says.

    Args:
        rows, engine, store, stage: arguments of `answer_questions`.
        protocol: `Chains()` by default, with a process reward model if the paths are to be scored; `Direct()` for
            policies that write no chains.
        sampling_params: the paper's sampling by default; mind `max_new_tokens`.
        **asking: arguments of `answer_questions`, such as `grader`, `seed`, `batch_size` and `retry_failed`.

    Returns:
        As `paths_of`.

    Raises:
        SettingsChanged: the store holds paths that were drawn in another way.
    """
    asking = {"n": n, "sampling_params": sampling_params, "description": "sampling paths", **asking}
    return paths_of(answer_questions(rows, engine, store, protocol or Chains(), stage=stage, **asking))


def paths_of(answers: Answers) -> dict[str, list[Path]]:
    """Row id → its paths in order; those that failed are missing."""
    paths = {
        id_: [path_of(index, sample) for index, sample in enumerate(samples) if not isinstance(sample, Failure)]
        for id_, samples in answers.items()
    }
    return {id_: question_paths for id_, question_paths in paths.items() if question_paths}


def path_of(index: int, sample: Mapping[str, Any]) -> Path:
    """The path of a sample of `Answers`; `index` is which one of its question it is."""
    (turn,) = sample["turns"]
    return Path(index, stored_path(sample), sample.get("tokens"), turn["correct"], sample.get("score"))


def search_answers(
    rows: Dataset,
    engine: Engine,
    process_reward: ProcessReward,
    store: Store,
    *,
    n: int,
    stage: str,
    sampling_params: SamplingParams = SAMPLING_PARAMS,
    **asking: Any,
) -> dict[str, dict[str, Any] | Failure]:
    """Run and grade step-level beam search on every question, in a stage of the store.

    Args:
        rows, engine, store, stage: arguments of `answer_questions`.
        process_reward, n, sampling_params: arguments of `step_beam_search`.
        **asking: arguments of `answer_questions`; a batch is one of questions.

    Returns:
        Row id → its sample as in `Answers`, with one turn, `step_scores`, `answer_score` if there is an answer, and
        `worst` of `BeamSearched` in `extra`; or the `Failure` of the engine.

    Raises:
        ValueError: as `part_sampling_params`.
        SettingsChanged: the store holds searches that were made in another way.
    """
    part_sampling_params(sampling_params, n=n, max_steps=MAX_STEPS)  # refuses before anything is sampled
    protocol = StepBeam(process_reward, n)
    asking = {"sampling_params": sampling_params, "description": f"step beam search, n={n}", **asking}
    answers = answer_questions(rows, engine, store, protocol, stage=stage, **asking)
    return {id_: sample for id_, (sample,) in answers.items()}
