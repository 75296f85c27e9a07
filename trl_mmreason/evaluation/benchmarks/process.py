"""VisualProcessBench: solutions of several models, every step of which was labelled by people."""

from __future__ import annotations

import os

from datasets import Dataset

from ...data.row_loading import load_rows
from ...data.rows import DataError
from .adapter import BenchmarkError

SOURCE = "https://huggingface.co/datasets/OpenGVLab/VisualProcessBench"
SOLUTIONS, LABELS = 2866, 26_950
"""What its card states."""


def load_process_benchmark(
    source: str | os.PathLike, *, image_root: str | os.PathLike | None = None, max_rows: int | None = None
) -> Dataset:
    """Load VisualProcessBench whole, or raise.

    Args:
        source: its `test.jsonl`, with the images unpacked beside it.
        image_root: folder that paths of images start from; by default that of the file.
        max_rows: only the first so many solutions, for a trial.

    Returns:
        `prompt`, `images`, `steps`, `step_labels` (1, 0, or None for a neutral step), `id`, and `category`, the
        benchmark that the question is from.

    Raises:
        BenchmarkError: it is not there, or a row cannot be used.
    """
    columns = {"category": "data_source", "steps": "response"}
    try:
        return load_rows(
            source, kind="steps", columns=columns, image_root=image_root, max_rows=max_rows, on_error="raise"
        ).dataset
    except DataError as error:
        where = f"VisualProcessBench is published at {SOURCE}: fetch test.jsonl and the images, and unpack these there."
        raise BenchmarkError(f"{error}\n{where}", error.problems) from error
