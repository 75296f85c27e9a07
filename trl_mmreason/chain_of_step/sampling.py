"""Reasoning paths of a policy: sampled and graded, resumably (arXiv:2509.19003, section 3.4).

Iterative DPO makes its pairs of them, and annotation its chains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from ..generation.engine import Engine, Failure, SamplingParams
from ..generation.protocols import AnsweringProtocol
from ..jobs.answering import Answers, answer_questions
from ..jobs.store import Store
from .paths import SAMPLING_PARAMS, Path, ProcessReward
from .protocols import Chains, StepBeam
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
        n: paths per question.
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
    return Path(index, turn["text"], sample.get("tokens"), turn["correct"], sample.get("score"))


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
        rows, engine, store: arguments of `sample_paths`.
        process_reward: scores the candidates.
        n, sampling_params: arguments of `step_beam_search`.
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
