"""Preference pairs of a policy's own paths (arXiv:2509.19003, section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset, Features, List, Value, concatenate_datasets

from .objective import select_pairs
from .paths import Path

_MESSAGES = List({"role": Value("string"), "content": Value("string")})
PAIR_FEATURES = Features(
    {
        "id": Value("string"),
        "prompt": _MESSAGES,
        "chosen": _MESSAGES,
        "rejected": _MESSAGES,
        "chosen_score": Value("float64"),
        "rejected_score": Value("float64"),
    }
)
"""Columns of a data set of pairs, next to `images`."""

_PICTURES_A_BATCH = 64  # rows that are in memory at once when pictures are copied; one may hold megabytes


def make_pairs(
    questions: Dataset,
    paths: Mapping[str, Sequence[Path]],
    scores: Mapping[str, Sequence[float]],
    *,
    threshold: float = 0.2,
    pairing: str = "best_worst",
    max_pairs: int | None = None,
) -> Dataset:
    """The pairs of every question that has any, as TRL's `DPOTrainer` takes them.

    Args:
        questions: rows with id, prompt and optionally images or image.
        paths: row id → paths.
        scores: row id → their scores in [0, 1]; a question without them gives no pair.
        threshold, pairing, max_pairs: see `select_pairs`.

    Returns:
        Rows with the columns of `PAIR_FEATURES` and the questions' pictures, or `images` without any, in the order of
        the questions.
    """
    rows: list[dict[str, Any]] = []
    positions = []
    for position, (id_, prompt) in enumerate(zip(questions["id"], questions["prompt"], strict=True)):
        totals = scores.get(id_, ())
        for positive, negative in select_pairs(totals, threshold, pairing, max_pairs=max_pairs):
            positions.append(position)
            rows.append(
                {
                    "id": id_,
                    "prompt": prompt,
                    "chosen": _said(paths[id_][positive]),
                    "rejected": _said(paths[id_][negative]),
                    "chosen_score": totals[positive],
                    "rejected_score": totals[negative],
                }
            )
    made = Dataset.from_dict({name: [row[name] for row in rows] for name in PAIR_FEATURES}, features=PAIR_FEATURES)
    columns = [name for name in ("images", "image") if name in questions.column_names]
    if not (rows and columns):
        return made.add_column("images", [[] for _ in rows])
    pictures = questions.select(positions).select_columns(columns)
    return concatenate_datasets([made, pictures.flatten_indices(writer_batch_size=_PICTURES_A_BATCH)], axis=1)


def _said(path: Path) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": path.text}]
