"""The offline filter of AdaPO (appendix A.2): drop questions that are all too easy or all too hard for the policy.

N two-turn trajectories of each question are sampled from the initial policy. A question whose trajectories are all
1→1, or all 0→0, has nothing to teach and is dropped; every other one is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from datasets import Dataset

from ..grading import Grader
from ..grading.grader import grader_settings
from ..sampling.difficulty import Filtered, items_of, keep_rows, wait_for_all
from ..sampling.engine import Decoding, Engine, Failure, Sample, derive_seed
from ..sampling.run import remember_questions, run
from ..sampling.store import Store
from ..sampling.turns import sample_turns
from .config import EVALUATION_PROMPT

STAGE = "adapo-prefilter"


def prefilter(
    rows: Dataset,
    engine: Engine,
    store: Store,
    *,
    n: int = 8,
    evaluation_prompt: str = EVALUATION_PROMPT,
    decoding: Decoding | None = None,
    grader: Grader | None = None,
    seed: int = 0,
    **running: Any,
) -> Filtered:
    """Sample `n` two-turn trajectories of each question and keep it unless all are 1→1 or all are 0→0.

    It goes on where a killed run stopped. Under several processes each samples its share of the trajectories; call it
    on all of them with the same store, and every process gets the whole result. A first answer that hit the length
    limit gets no second turn, and a second answer that was never given is not right.

    Args:
        rows: rows with id, prompt, answer, and optionally images and choices.
        engine: the initial policy.
        store: keeps every trajectory with its verdicts.
        n: trajectories a question.
        evaluation_prompt: what the user says between the two answers.
        decoding: how answers are drawn; by default as `Decoding()` says.
        grader: `Grader()` by default.
        seed: other seeds give other trajectories.
        **running: for `run`, such as `batch_size`.

    Raises:
        SettingsChanged: the store holds trajectories drawn in another way.
    """
    decoding, grader = decoding or Decoding(), grader or Grader()

    def two_turns(units: Sequence[tuple[Mapping[str, Any], int]]) -> list[dict[str, Any] | Failure]:
        rows = [row for row, _ in units]
        seeds = [derive_seed(seed, row["id"], index) for row, index in units]
        return _graded(grader, rows, sample_turns(rows, engine, decoding, evaluation_prompt, seeds))

    settings = {
        "engine": engine.settings,
        "decoding": asdict(decoding),
        "evaluation_prompt": evaluation_prompt,
        "seed": seed,
        "grader": grader_settings(grader),
    }
    remember_questions(store, STAGE, rows)
    run(store, STAGE, rows, two_turns, settings=settings, n=n, description="two turns", **running)
    wait_for_all()
    types = defaultdict(list)
    for record in store.records(STAGE):
        if record.status == "done":
            types[record.id].append((record.payload["first_correct"], record.payload["second_correct"]))
    return keep_rows(rows, {row_id: _reason(types[row_id]) for row_id in rows["id"]})


_NOT_GRADED = "not graded: sampling failed, or the gold answer cannot be used"
_HOMOGENEOUS: dict[frozenset[tuple[bool | None, bool | None]], str] = {
    frozenset(): _NOT_GRADED,
    frozenset({(True, True)}): "too easy: all 1→1",
    frozenset({(False, False)}): "too hard: all 0→0",
}


def _reason(types: Sequence[tuple[bool | None, bool | None]]) -> str:
    """Why a question with trajectories of these types is dropped; empty if it is kept."""
    if any(None in kind for kind in types):
        return _NOT_GRADED
    return _HOMOGENEOUS.get(frozenset(types), "")


def _graded(
    grader: Grader, rows: Sequence[Mapping[str, Any]], found: Sequence[list[Sample] | Failure]
) -> list[dict[str, Any] | Failure]:
    texts = [["", ""] if isinstance(given, Failure) else [sample.text for sample in given] for given in found]
    turns = [[text[0] for text in texts], [text[1] if len(text) > 1 else "" for text in texts]]
    verdicts = grader.grade_batch(items_of([*rows, *rows], [*turns[0], *turns[1]]))
    results: list[dict[str, Any] | Failure] = []
    for k, given in enumerate(found):
        if isinstance(given, Failure):
            results.append(given)
            continue
        right, still_right = verdicts[k].correct, verdicts[len(rows) + k].correct
        has_second = len(given) > 1
        trajectory = {
            "first": given[0].text,
            "second": given[1].text if has_second else None,
            "finish_reasons": [sample.finish_reason for sample in given],
            "first_correct": right,
            "second_correct": still_right if has_second or still_right is None else False,
        }
        results.append(trajectory)
    return results
