"""Methods' entries for shared modules, declared in `<method>/declared.py`.

    METHOD = Method(panels=(Panel("Reflection", "share", {"reflected_share": "reflects"}, is_share=True),))

`METHODS` in `trl_mmreason/__init__.py` names the folders. They are imported when a report is drawn or a system prompt
is read, not before.
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
    """A method's entries in shared tables, plots and reports.

    Attributes:
        panels: curves of what its trainer logs.
        metrics: name → how a metric of its evaluation is shown.
        pieces: a logged completion → the pieces of each of its answers; `None` if it is not in the method's format.
        weighted_scores: an evaluated sample → its score for each weight that its parts may have; `None` without parts.
        system_prompts: name → the text that `--system-prompt NAME` and `--system_prompt NAME` mean.
    """

    panels: Sequence[Panel] = ()
    metrics: Mapping[str, Metric] = {}
    pieces: Callable[[Mapping[str, Any]], list[Sequence[Piece]] | None] | None = None
    weighted_scores: Callable[[Mapping[str, Any]], Mapping[float, float] | None] | None = None
    system_prompts: Mapping[str, str] = {}


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


def system_prompt_named(name: str) -> str | None:
    """Find a method's system prompt; `None` if no method has one of that name."""
    return next((method.system_prompts[name] for method in declared() if name in method.system_prompts), None)


def system_prompt_names() -> list[str]:
    """The names of all methods' system prompts."""
    return [name for method in declared() for name in method.system_prompts]


def weighted_scores(sample: Mapping[str, Any]) -> Mapping[float, float] | None:
    """A sample's score for each weight of the steps, by the first method that declares it."""
    known = (method.weighted_scores(sample) for method in declared() if method.weighted_scores is not None)
    return next((scores for scores in known if scores is not None), None)
