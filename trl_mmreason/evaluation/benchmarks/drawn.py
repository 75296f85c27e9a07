"""The miniature's categories as benchmarks, drawn on demand.

The default split has the contents of training in new images, as the examples compare on: a tiny model that learnt
some sums does not know the others, which the split "heldout" asks for.
"""

from __future__ import annotations

from functools import partial

from datasets import Dataset

from ...data.rows import Row
from ...messages import question_text
from ...miniature.tasks import CATEGORIES, make_dataset
from .adapter import Benchmark, Question, image, text

ROWS = 200
_SEED = 0  # the same questions in every evaluation; other images than in training, whatever its seed


def _draw(split: str, rows: int, *, category: str) -> Dataset:
    return make_dataset([category], rows, split=split, seed=_SEED)


def _miniature(row: Row) -> Question:
    return Question(
        text(row, "id"),
        question_text(row["prompt"]) or "",
        image(row, "images"),
        text(row, "answer"),
        category=text(row, "category"),
    )


BENCHMARKS = tuple(
    Benchmark(
        name=f"miniature/{category}",
        title=f"Miniature, {category.replace('_', ' ')}",
        hub="",
        source="drawn by this package",
        split="new_pictures",
        rows=ROWS,
        columns=("id", "prompt", "images", "answer", "category"),
        read=_miniature,
        instruction="",  # the miniature's policies were trained without an instruction
        draw=partial(_draw, category=category),
    )
    for category in CATEGORIES
)
