"""What the shared rooms have to know of a method, which declares it in `<method>/declared.py` of its own folder.

    METHOD = Method(panels=(Panel("Reflection", "share", {"reflected_share": "reflects"}, is_share=True),))

`METHODS` in `trl_mmreason/__init__.py` names the folders. They are imported when a report is drawn, not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from . import METHODS

if TYPE_CHECKING:
    from .evaluation.curves import Panel
    from .evaluation.metrics import Metric
    from .evaluation.trajectory import Piece


class Method(NamedTuple):
    """A method's own part of shared tables, pictures and pages.

    Attributes:
        panels: curves of what its trainer logs.
        metrics: name → how a metric of its evaluation is shown.
        pieces: a logged completion → the pieces of each of its answers; `None` if it is not in the method's format.
        weighted_scores: an evaluated sample → its score for each weight that its parts may have; `None` without parts.
    """

    panels: Sequence[Panel] = ()
    metrics: Mapping[str, Metric] = {}
    pieces: Callable[[Mapping[str, Any]], list[Sequence[Piece]] | None] | None = None
    weighted_scores: Callable[[Mapping[str, Any]], Mapping[float, float] | None] | None = None


@cache
def declared() -> tuple[Method, ...]:
    """The declarations of all methods."""
    return tuple(importlib.import_module(f"{__package__}.{name}.declared").METHOD for name in METHODS)


def panels() -> Iterator[Panel]:
    """The panels of all methods."""
    return (panel for method in declared() for panel in method.panels)


def metric_named(name: str) -> Metric | None:
    """Find the label and form of a method's metric; `None` if no method has it."""
    return next((method.metrics[name] for method in declared() if name in method.metrics), None)


def weighted_scores(sample: Mapping[str, Any]) -> Mapping[float, float] | None:
    """The sample's score for each weight of its parts, by the first method that knows them."""
    known = (method.weighted_scores(sample) for method in declared() if method.weighted_scores is not None)
    return next((scores for scores in known if scores is not None), None)
