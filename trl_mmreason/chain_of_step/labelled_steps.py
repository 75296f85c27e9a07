"""Labelled steps of other data sets, such as VisualPRM400K, as the chains that `ProcessRewardTrainer` reads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from datasets import Dataset, Features, Value

from ..data.row_loading import load_rows
from ..data.row_sources import read_completions, read_source
from ..jobs.source_rows import ROWS_A_BATCH
from .template import Chain, Step, has_token, render_chain

logger = logging.getLogger(__name__)


def read_labelled_chains(source: str, split: str = "train", **reading: Any) -> Dataset:
    """Read labelled chains as `mmreason annotate` writes them, or steps that `load_rows` reads as kind "steps".

    Args:
        **reading: arguments of `load_rows` for steps, such as `image_root`.

    Raises:
        DataError: it holds neither.
    """
    table = read_source(source, split)
    if not table.is_json and {"completion", "step_labels"} <= set(table.dataset.column_names):
        return read_completions(source, split)
    return chains_of_steps(load_rows(source, split=split, kind="steps", **reading).dataset)


def chains_of_steps(rows: Dataset) -> Dataset:
    """Make a chain of the steps of each row, without an answer; its step's text is the thought.

    The paper's steps have a name and a reflection, too; these are "Step 1", … and empty. Rows with a token of the
    template in a step are left out, with a warning.

    Returns:
        The rows with `completion` in the place of `steps`, and `answer_label`, which is None.
    """
    usable = [place for place, steps in enumerate(rows["steps"]) if not any(map(has_token, steps))]
    if len(usable) < len(rows):
        logger.warning(
            "%d of %d rows were left out: a step has a token of the chain's template.",
            len(rows) - len(usable),
            len(rows),
        )
        rows = rows.select(usable)
    features = {name: feature for name, feature in rows.features.items() if name != "steps"}
    features |= {"completion": Value("string"), "answer_label": Value("float64")}
    return rows.map(
        _chain,
        input_columns=["steps"],
        remove_columns=["steps"],
        features=Features(features),
        writer_batch_size=ROWS_A_BATCH,
        desc="Writing chains",
    )


def _chain(steps: list[str]) -> Mapping[str, Any]:
    written = [Step(name=f"Step {number}", thought=text, reflection="") for number, text in enumerate(steps, start=1)]
    return {"completion": render_chain(Chain(written)), "answer_label": None}
