"""Reasoning paths of a policy: sampled, graded and scored, resumably (arXiv:2509.19003, section 3.4).

Iterative DPO makes its pairs of them, and annotation its chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset

from ..rows import Row
from ..sampling.answering import answer_questions
from ..sampling.engine import Engine, Failure, SamplingParams
from ..sampling.protocols import AnsweringProtocol
from ..sampling.run import run, wait_for_all
from ..sampling.store import Store
from .paths import SAMPLING_PARAMS, Path, PathScore, ProcessReward, path_score
from .protocols import Chains, ChainScorer, StepBeam
from .search import MAX_STEPS, part_sampling_params


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
        rows: rows with id, prompt, answer, and optionally images (or image) and choices.
        engine: the policy.
        store: keeps every path and every verdict.
        stage: stage of the store.
        n: paths a question.
        protocol: `Chains()` by default; `Direct()` for policies that write no chains.
        sampling_params: the paper's sampling by default; mind `max_new_tokens`.
        **asking: arguments of `answer_questions`, such as `grader`, `seed`, `batch_size` and `retry_failed`.

    Returns:
        Row id → its paths in order; those whose sampling failed are missing.

    Raises:
        SettingsChanged: the store holds paths that were drawn in another way.
    """
    asking = {"n": n, "sampling_params": sampling_params, "description": "sampling paths", **asking}
    answers = answer_questions(rows, engine, store, protocol or Chains(), stage=stage, **asking)
    paths = {
        id_: [path_of(index, sample) for index, sample in enumerate(samples) if not isinstance(sample, Failure)]
        for id_, samples in answers.items()
    }
    return {id_: found for id_, found in paths.items() if found}


def path_of(index: int, sample: Mapping[str, Any]) -> Path:
    """The path of a sample of `Answers`; `index` is which one of its question it is."""
    (turn,) = sample["turns"]
    return Path(index, turn["text"], sample.get("tokens"), turn["correct"])


def score_sampled_paths(
    rows: Dataset,
    paths: Mapping[str, Sequence[Path]],
    process_reward: ProcessReward,
    store: Store,
    stage: str,
    *,
    step_weight: float = 0.2,
    **running: Any,
) -> dict[str, list[PathScore]]:
    """Score sampled paths, stored and resumed as by `sample_paths`.

    Args:
        rows: the questions.
        paths: result of `sample_paths`.
        process_reward: scores them.
        store: keeps the scores.
        stage: stage of the store; one for the paths of one stage.
        step_weight: w of the trajectory score; another one scores nothing anew.
        **running: arguments of `run`.

    Returns:
        Row id → the scores of its paths, in their order.

    Raises:
        RuntimeError: paths could not be scored.
        SettingsChanged: the store holds scores of another process reward model.
    """
    scorer = ChainScorer(process_reward, step_weight)
    positions = {id_: position for position, id_ in enumerate(rows["id"])}
    units: list[dict[str, Any]] = [
        {"id": f"{id_}#{path.index}", "position": positions[id_], "turns": [{"text": path.text}]}
        for id_, found in paths.items()
        for path in found
    ]

    def work(asked: Sequence[tuple[Row, int]]) -> list[dict[str, Any]]:
        questions = {unit["position"]: rows[unit["position"]] for unit, _ in asked}
        return scorer.score([questions[unit["position"]] for unit, _ in asked], [unit for unit, _ in asked])

    run(store, stage, units, work, settings=scorer.settings, **{"description": "scoring paths", **running})
    wait_for_all()
    found = {record.id: record for record in store.records(stage)}
    failed = [found[unit["id"]].reason for unit in units if found[unit["id"]].status == "failed"]
    if failed:
        raise RuntimeError(
            f"score_sampled_paths: {len(failed)} of {len(units)} paths could not be scored, the first because: "
            f"{failed[0]}. Fix the cause and run again with retry_failed=True."
        )
    return {
        id_: [path_score(**found[f"{id_}#{path.index}"].payload, step_weight=step_weight) for path in sampled]
        for id_, sampled in paths.items()
    }


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
        rows, engine, store: as for `sample_paths`.
        process_reward: scores the candidates.
        n, sampling_params: as for `step_beam_search`.
        stage: stage of the store.
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
