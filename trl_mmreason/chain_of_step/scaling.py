"""Measure what more samples bring at inference: paths, scores and searches in a store, and their curves from it
(arXiv:2509.19003, sections 4.3.1 and 4.3.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from datasets import Dataset

from ..evaluation.samples import group_sizes
from ..evaluation.voting import votes_of
from ..grading import Grader, extract_answer
from ..rows import DataError
from ..sampling.difficulty import usable_questions
from ..sampling.engine import Decoding, Engine, Failure
from ..sampling.store import Store
from .paths import DECODING, Path, PathScore, ProcessReward, Row, path_score, read_path
from .sampling import sample_paths, score_sampled_paths, search_answers
from .scaling_curves import Scaling, ScoredQuestion, summarise
from .search import MAX_STEPS, part_decoding

PATHS, SCORES, BEAM = "scaling-paths", "scaling-scores", "scaling-beam-{n}"
"""Stages of the store."""

_BELOW_ALL = -1.0  # the score of a path that was not sampled: any that was is chosen before it
_QUESTION = ("id", "prompt", "answer", "choices")  # all of a row that grading looks at: no picture is decoded


def inference_scaling(
    rows: Dataset,
    engine: Engine,
    process_reward: ProcessReward,
    store: Store,
    *,
    n: int = 64,
    step_weight: float = 0.2,
    decoding: Decoding = DECODING,
    max_steps: int = MAX_STEPS,
    grader: Grader | None = None,
    seed: int = 0,
    batch_size: int = 32,
    **running: Any,
) -> Scaling:
    """Sample and score `n` paths a question, search for 1, 2, 4 … `n`, and compare.

    It goes on where a killed run stopped. Under several processes each takes its share; call it on all of them with the
    same store, and every process gets the whole result. Questions whose gold answer cannot be used are left out. A path
    or a search that failed, was cut or is malformed is a wrong answer.

    Args:
        rows: rows with id, prompt, answer, and optionally images (or image) and choices.
        engine: the policy.
        process_reward: scores paths and candidates.
        store: keeps paths, scores and searches.
        n: N.
        step_weight: w of the curves; another one samples and scores nothing anew.
        decoding: of paths and candidates; `max_new_tokens` bounds a path there and one part of it here.
        max_steps: of a search.
        grader: `Grader()` by default.
        seed: other seeds give other paths and searches.
        batch_size: paths, or candidates of one stage, that are asked for at once.
        **running: for `run`, such as `retry_failed`.

    Raises:
        ValueError: an argument is out of range.
        DataError: no gold answer can be used.
        RuntimeError: paths could not be scored.
        SettingsChanged: the store holds what was drawn or scored in another way.
    """
    grader = grader or Grader()
    part_decoding(decoding, n=n, max_steps=max_steps)  # refuses before anything is sampled
    if not 0 <= step_weight <= 1:
        raise ValueError(f"inference_scaling: step_weight is {step_weight}, expected 0 to 1.")
    usable = rows.select(usable_questions(rows, grader))
    if not len(usable):
        raise DataError(f"inference_scaling: none of the {len(rows)} gold answers can be used; mend the data.")
    drawing: dict[str, Any] = {"decoding": decoding, "grader": grader, "seed": seed, **running}
    searching = {"max_steps": max_steps, **drawing}
    paths = sample_paths(usable, engine, store, PATHS, n=n, batch_size=batch_size, **drawing)
    scores = score_sampled_paths(usable, paths, process_reward, store, SCORES, batch_size=batch_size, **running)
    searches = {
        k: search_answers(
            usable,
            engine,
            process_reward,
            store,
            n=k,
            stage=BEAM.format(n=k),
            batch_size=max(1, batch_size // k),
            **searching,
        )
        for k in group_sizes(n)
    }
    counts = Counter({"questions without a gold answer that can be used": len(rows) - len(usable)})
    questions = []
    for row in _texts(usable):
        found = {
            path.index: (path, score)
            for path, score in zip(paths.get(row["id"], ()), scores.get(row["id"], ()), strict=True)
        }
        by_n = {k: found_by[row["id"]] for k, found_by in searches.items()}
        questions.append(_scored_question(row, found, by_n, n, grader))
        counts += _problems(found, by_n, n)
    return summarise(questions, step_weight=step_weight, equal=grader.equivalent, counts=dict(counts))


def _texts(rows: Dataset) -> Dataset:
    return rows.select_columns([column for column in _QUESTION if column in rows.column_names])


def _scored_question(
    row: Row,
    found: Mapping[int, tuple[Path, PathScore]],
    searches: Mapping[int, Mapping[str, Any] | Failure],
    n: int,
    grader: Grader,
) -> ScoredQuestion:
    """The row of the table; `found` has the paths that were sampled by their numbers."""
    paths = [found.get(index) for index in range(n)]
    ends = [
        [_BELOW_ALL if pair is None else path_score(pair[1].steps, pair[1].answer, weight).total for pair in paths]
        for weight in (1.0, 0.0)
    ]
    tokens = [path.tokens for path, _ in found.values()]
    return ScoredQuestion(
        correct=[pair is not None and bool(pair[0].correct) for pair in paths],
        votes=votes_of(row, [None if pair is None else _said(pair[0]) for pair in paths], grader),
        step_means=ends[0],
        answer_scores=ends[1],
        path_tokens=float(np.mean([_or_nan(count) for count in tokens])) if tokens else np.nan,
        beam_correct={k: not isinstance(one, Failure) and bool(one["correct"]) for k, one in searches.items()},
        beam_tokens={k: _or_nan(None if isinstance(one, Failure) else one["tokens"]) for k, one in searches.items()},
    )


def _said(path: Path) -> str | None:
    """The answer read off the sentence that the chain answers with."""
    answer = read_path(path.text).answer
    return None if answer is None else extract_answer(answer)


def _or_nan(count: int | None) -> float:
    return np.nan if count is None else float(count)


def _problems(
    found: Mapping[int, tuple[Path, PathScore]], searches: Mapping[int, Mapping[str, Any] | Failure], n: int
) -> Counter[str]:
    """Why paths and searches of one question have no answer."""
    counts = Counter({"paths that could not be sampled": n - len(found)})
    counts.update(f"paths: {problem}" for path, _ in found.values() if (problem := read_path(path.text).problem))
    for k, search in searches.items():
        problem = "failed" if isinstance(search, Failure) else search["problem"]
        counts.update([f"step beam, n={k}: {problem}"] if problem else [])
    return counts
