"""Summarise training logs for claims: means of the first and the last quarter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from trl_mmreason.evaluation.question_table import QuestionTable

from .claims import ArmTables

History = Sequence[Mapping[str, Any]]


def with_logged(outcomes: ArmTables, histories: Mapping[str, Sequence[History]], names: Sequence[str]) -> ArmTables:
    """Add `first_NAME` and `last_NAME` of each logged name to the tables of trained arms.

    A logged number belongs to no question. Every question of its arm gets it, so that it is the arm's mean.

    Args:
        outcomes: seed → arm → table.
        histories: arm → the log history of every seed, in the order of the seeds; an arm may be absent.
        names: names of logged values. An arm that did not log one has NaN.
    """
    return {
        seed: {
            arm: _extended(table, histories[arm][place], names) if arm in histories else table
            for arm, table in arms.items()
        }
        for place, (seed, arms) in enumerate(outcomes.items())
    }


def quarters(history: History, name: str) -> tuple[float, float]:
    """Means of a logged value over the first and the last quarter of its entries, at least one each; NaN if none.

    Args:
        history: the entries in the order of the steps.
        name: name of the value.
    """
    values = [entry[name] for entry in history if entry.get(name) is not None]
    if not values:
        return math.nan, math.nan
    size = max(1, len(values) // 4)
    return fmean(values[:size]), fmean(values[-size:])


def _extended(table: QuestionTable, history: History, names: Sequence[str]) -> QuestionTable:
    found = [value for name in names for value in quarters(history, name)]
    added = np.tile(found, (len(table.numerator), 1)).reshape(len(table.numerator), len(found))
    return QuestionTable(
        (*table.names, *(f"{when}_{name}" for name in names for when in ("first", "last"))),
        np.hstack([table.numerator, np.nan_to_num(added)]),
        np.hstack([table.denominator, (~np.isnan(added)).astype(float)]),
    )
