"""Preference pairs of a policy's own paths (arXiv:2509.19003, section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from datasets import Dataset, Features, Value

from ..data.images import PICTURE_COLUMNS
from ..data.rows import MESSAGES
from ..jobs.source_rows import join_source_columns
from .objective import select_pairs
from .paths import Path, mean

PAIR_FEATURES = Features(
    {
        "id": Value("string"),
        "prompt": MESSAGES,
        "chosen": MESSAGES,
        "rejected": MESSAGES,
        "chosen_score": Value("float64"),
        "rejected_score": Value("float64"),
    }
)
"""Columns of a data set of pairs, next to `images`."""


class Pair(NamedTuple):
    """One preference.

    Attributes:
        question: position of its row.
        chosen, rejected: the two completions.
        chosen_score, rejected_score: their scores in [0, 1].
    """

    question: int
    chosen: str
    rejected: str
    chosen_score: float
    rejected_score: float


def make_pairs(
    questions: Dataset,
    paths: Mapping[str, Sequence[Path]],
    scores: Mapping[str, Sequence[float]],
    *,
    threshold: float = 0.2,
    pairing: str = "best_worst",
    max_pairs: int | None = None,
) -> Dataset:
    """Make the pairs of all questions, for TRL's `DPOTrainer`.

    Args:
        questions: rows with id, prompt and optionally images or image.
        paths: row id → paths.
        scores: row id → their scores in [0, 1]; a question without them gives no pair.
        threshold, pairing, max_pairs: see `select_pairs`.

    Returns:
        Rows with the columns of `PAIR_FEATURES` and the questions' pictures, or `images` without any, in the order of
        the questions.
    """
    pairs = []
    for position, id_ in enumerate(questions["id"]):
        totals = scores.get(id_, ())
        for positive, negative in select_pairs(totals, threshold, pairing, max_pairs=max_pairs):
            chosen, rejected = paths[id_][positive].text, paths[id_][negative].text
            pairs.append(Pair(position, chosen, rejected, totals[positive], totals[negative]))
    return pairs_dataset(questions, pairs)


def pair_accuracies(pairs: Dataset, paths: Mapping[str, Sequence[Path]]) -> dict[str, float]:
    """Shares of chosen and of rejected completions whose answer is right; NaN where none can be graded.

    Few right ones among the chosen say that the scorer misleads, before training on them lowers accuracy.

    Args:
        pairs, paths: result and argument of `make_pairs`.
    """
    right = {(id_, path.text): path.correct for id_, question_paths in paths.items() for path in question_paths}
    completions = {role: zip(pairs["id"], pairs[role], strict=True) for role in ("chosen", "rejected")}
    graded = {
        role: [right[id_, message["content"]] for id_, [message] in messages] for role, messages in completions.items()
    }
    return {
        f"{role}_accuracy": mean([each for each in verdicts if each is not None]) for role, verdicts in graded.items()
    }


def pairs_dataset(questions: Dataset, pairs: Sequence[Pair]) -> Dataset:
    """Join pairs with their questions, for TRL's `DPOTrainer`.

    Args:
        questions: rows with id, prompt and optionally images or image.
        pairs: pairs in the order of the result.

    Returns:
        Rows with the columns of `PAIR_FEATURES` and the questions' pictures, or `images` without any.
    """
    positions = [pair.question for pair in pairs]
    ids, prompts = questions["id"][:], questions["prompt"][:]
    columns = {
        "id": [ids[position] for position in positions],
        "prompt": [prompts[position] for position in positions],
        "chosen": [_as_completion(pair.chosen) for pair in pairs],
        "rejected": [_as_completion(pair.rejected) for pair in pairs],
        "chosen_score": [pair.chosen_score for pair in pairs],
        "rejected_score": [pair.rejected_score for pair in pairs],
    }
    dataset = Dataset.from_dict(columns, features=PAIR_FEATURES)
    if not set(PICTURE_COLUMNS) & set(questions.column_names):
        return dataset.add_column("images", [[] for _ in pairs])
    return join_source_columns(dataset, questions, positions, (*PAIR_FEATURES, *PICTURE_COLUMNS))


def _as_completion(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
