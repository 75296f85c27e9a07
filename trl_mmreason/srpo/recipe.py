"""SRPO's recipe: its paper, its curves and pieces of completions, what a miniature learns from, and the arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evaluation.curves import Panel
from ..evaluation.logged_completions import answers_of
from ..evaluation.methods import Method, cite
from ..evaluation.metrics import Metric
from ..evaluation.trajectory import Piece
from ..generation.engine import Engine, SamplingParams
from ..jobs.store import Store
from ..miniature.captions import DESCRIBE
from ..miniature.lessons import Lessons
from ..miniature.solutions import tagged, tagged_in_words, tagged_quick
from ..miniature.tasks import Problem, problems_dataset
from ..miniature.teacher import KnownTruthTeacher
from ..scripts.sections import DataArguments
from ..scripts.system_prompts import parse_optional_text
from ..training.documented import documented
from .response import parse_reflection_response

if TYPE_CHECKING:
    from datasets import Dataset

PAPER = cite(
    "article{wan2025srpo",
    "SRPO: Enhancing Multimodal LLM Reasoning via Reflection-Aware Reinforcement Learning",
    arxiv="2506.01713",
    author="Zhongwei Wan and Zhihao Dou and Che Liu and Yu Zhang and Dongfei Cui and Qinjian Zhao and Hui Shen and "
    "Jing Xiong and Yi Xin and Yifan Jiang and Yangfan He and Mi Zhang and Shen Yan",
    year="2025",
)


def _pieces(completion: Mapping[str, Any]) -> list[Sequence[Piece]] | None:
    """Cut a response after its first answer."""
    texts = answers_of(completion)
    if len(texts) != 1 or "problem" not in completion or "second_correct" not in completion:
        return None
    end = parse_reflection_response(texts[0]).first_end
    halves = [texts[0]] if end is None else [texts[0][:end], texts[0][end:].strip()]
    return [[Piece(half)] for half in halves if half]


METHOD = Method(
    panels=(
        Panel("Effect of the reflection", "mean reward", {"rewards/effectiveness_reward/mean": "I_eff"}),
        Panel(
            "Form of the response",
            "share",
            {"response/complete": "full format", "reflected_share": "reflects and answers"},
            is_share=True,
        ),
        Panel("Length of the response", "tokens", {"length_first": "first solution", "length_response": "response"}),
        Panel(
            "Length by the first answer",
            "tokens",
            {"length_correct": "response, first right", "length_incorrect": "response, first wrong"},
        ),
        Panel(
            "Dropped by the accuracy filter",
            "share of groups",
            {"dropped_too_hard": "too hard", "dropped_too_easy": "too easy"},
            is_share=True,
        ),
    ),
    metrics={
        "effectiveness": Metric("I_eff", is_share=False),
        "reflection_tokens": Metric("tokens of a reflection", is_share=False, decimals=1),
    },
    pieces=_pieces,
)

TAGGED_ANSWERS = Lessons(tagged, answer_tokens=32)
"""To answer `<think>3+4=7</think> <answer>7</answer>`."""

QUICK_TAGGED_ANSWERS = Lessons(tagged_quick, answer_tokens=32, describe=DESCRIBE)
"""To answer `<think>7</think> <answer>7</answer>` at a glance, and to describe, which is how it learns to see."""

TAGGED_IN_WORDS = Lessons(tagged, answer_tokens=64, in_steps=True, or_write=tagged_in_words)
"""To answer as briefly every second time, and at others in words, so that lengths differ."""


def drawn_reflections(
    engine: Engine, problems: Sequence[Problem], replies: Path, *, max_new_tokens: int, right_share: float, seed: int
) -> Dataset:
    """Make reflections, by a teacher that knows the truth, on a policy's answers to drawn problems.

    Args:
        problems: are solved, and reflected on.
        replies: the file that keeps every reply.
        right_share: share of right first answers among the rows.

    Raises:
        ValueError: there is nothing to reflect on.
    """
    from .cold_start import ReflectionMaking, make_reflections  # imported late: reports do not need it

    # a miniature is asked as it was taught; long prompts are noise to it
    asked: dict[str, Any] = {"cot_prompt": None, "system_prompt": None, "second_thought": True, "seed": seed}
    making = ReflectionMaking(sampling_params=SamplingParams(max_new_tokens), right_share=right_share, **asked)
    rows, teacher = problems_dataset(problems), KnownTruthTeacher(problems)
    with Store(replies) as store:
        reflections = make_reflections(rows, engine, teacher, store, making, batch_size=250)
    if not len(reflections.rows):
        raise ValueError(
            f"There is nothing to reflect on: {reflections}. Teach the policy more, or give more problems."
        )
    return reflections.rows


@documented
@dataclass
class ReflectionArguments(DataArguments):
    """Questions, and the cold start on reflections.

    Attributes:
        reflection_dataset: rows for the cold start, as `mmreason reflect` makes them: a Hub id or a parquet file;
            "miniature" has them made on drawn problems, by the policy and a teacher of known truth; `None` leaves the
            cold start out, for a policy that had it or for the ablation.
        reflection_problems: for "miniature", how many problems the policy solves.
        reflection_right_share: for "miniature", share of right first answers among the rows.
        sft_complete_share: the cold start ends when this share of responses is in full format; they are sampled by
            the temperature, top-p and top-k of RL.
        sft_min_delta: the cold start also waits for these responses to have an acc@t2 - acc@t1 of at least this
            fraction: the form is learnt before what a reflection says. `None` does not look at it.
        sft_max_steps: the cold start ends after this many steps in any case.
        sft_learning_rate, sft_batch_size: learning rate of the cold start, and its batch size in each process.
    """

    reflection_dataset: str | None = None
    reflection_problems: int = 1000
    reflection_right_share: float = 0.3
    sft_complete_share: float = 0.95
    sft_min_delta: float | None = None
    sft_max_steps: int = 500
    sft_learning_rate: float = 1e-5
    sft_batch_size: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reflection_dataset = parse_optional_text("reflection_dataset", self.reflection_dataset)
        least = self.sft_min_delta
        known = 0 <= self.sft_complete_share <= 1 and (least is None or -1 <= least <= 1)
        if not known or self.sft_max_steps < 1:
            raise ValueError(
                f"ReflectionArguments: sft_complete_share={self.sft_complete_share}, sft_min_delta={least} and "
                f"sft_max_steps={self.sft_max_steps}, expected a share from 0 to 1, a delta from -1 to 1 and at least "
                "one step."
            )
