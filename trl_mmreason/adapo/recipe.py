"""AdaPO's recipe: its paper, its curves, and lessons for a miniature policy that answers twice."""

from __future__ import annotations

from ..evaluation.curves import Panel
from ..evaluation.methods import Method, cite
from ..miniature.lessons import Lessons
from ..miniature.solutions import plain, quick

PAPER = cite(
    "inproceedings{wang2026adapo",
    "A Rolling Stone Gathers No Moss: Adaptive Policy Optimization for Stable Self-Evaluation in Large Multimodal "
    "Models",
    arxiv="2508.09155",
    author="Wenkai Wang and Hongcan Guo and Zheqi Lv and Shengyu Zhang",
    year="2026",
    booktitle="Proceedings of the AAAI Conference on Artificial Intelligence",
    volume="40",
    number="40",
    doi="10.1609/aaai.v40i40.40656",
)
METHOD = Method(
    panels=(
        Panel("KL to the reference", "nats per token", {"kl_t1": "first turn", "kl_t2": "second turn"}),
        Panel("KL coefficient β", "coefficient", {"beta_1": "β1, first turn", "beta_2": "β2, second turn"}),
        Panel("Length", "tokens", {"length_t1": "first turn", "length_t2": "second turn"}),
        Panel(
            "Dropped by the filters",
            "share",
            {"dropped_truncated": "truncated", "dropped_zero_advantage": "zero advantage"},
            is_share=True,
        ),
    )
)


def two_answers(followup: str) -> Lessons:
    r"""Lessons in answering `3+4=\boxed{7}`, and in answering again after the user's `followup`."""
    return Lessons(plain, answer_tokens=16, followup=followup)


def quick_then_worked(followup: str) -> Lessons:
    r"""Lessons in answering `\boxed{7}` at once, and, as often, `3+4=\boxed{7}` after the user's `followup`."""
    return Lessons(quick, answer_tokens=16, followup=followup, write_again=plain, again_every=1)
