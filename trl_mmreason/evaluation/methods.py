"""The methods, and what shared modules need to know of each: `METHOD` in its `recipe.py`.

    METHOD = Method(panels=(Panel("Reflection", "share", {"reflected_share": "reflects"}, is_share=True),))

A `recipe.py` is imported when a report is drawn or a system prompt is read, and does without TRL.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .curves import Panel
    from .metrics import Metric
    from .trajectory import Piece

METHODS = {
    "adapo": "answers, checks the answer and answers again",
    "srpo": "solves, reflects and solves again in one response",
    "chain_of_step": "reasons in steps that a process reward model scores",
    "sophia": "thinks, from trajectories of a reasoner that read its captions",
    "self_evolution": "agrees with itself and with a frozen judge, without labels",
}
"""Folder of a method → what its policy does."""


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
    return tuple(importlib.import_module(f"{__package__.partition('.')[0]}.{name}.recipe").METHOD for name in METHODS)


def weighted_scores(sample: Mapping[str, Any]) -> Mapping[float, float] | None:
    """A sample's score for each weight of the steps, by the first method that declares it."""
    known = (method.weighted_scores(sample) for method in declared() if method.weighted_scores is not None)
    return next((scores for scores in known if scores is not None), None)


def cite(entry: str, title: str, arxiv: str | None = None, **fields: str) -> dict[str, str]:
    """Describe a paper for TRL's model cards, with its citation in BibTeX.

    Args:
        entry: kind and key of the citation, such as "article{wan2025srpo".
        **fields: the citation's other fields.
    """
    fields = {"title": f"{{{title}}}", **fields, **({"eprint": f"arXiv:{arxiv}"} if arxiv else {})}
    lines = "".join(f"    {name:12} = {{{value}}},\n" for name, value in fields.items())
    return {"title": title, "citation": f"@{entry},\n{lines}}}", **({"id": arxiv} if arxiv else {})}
