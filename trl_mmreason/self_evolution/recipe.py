"""Self-evolution's recipe: its paper, its curves, lessons for a miniature policy, and the example's arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..evaluation.curves import Panel
from ..evaluation.methods import Method, cite
from ..generation.engine import SamplingParams
from ..miniature.captions import DESCRIBE
from ..miniature.lessons import Lessons
from ..miniature.solutions import boxed_thoughts
from ..scripts.sections import StagedArguments
from ..training.documented import documented

PAPER = cite(
    "misc{judgethemselves",
    "When Models Judge Themselves: Unsupervised Self-Evolution for Multimodal Reasoning",
    howpublished="Anonymous ACL submission",
)
METHOD = Method(
    panels=(
        Panel("Score of the judge", "mean score", {"judge/score": "score"}, is_share=True),
        Panel("Replies without a score", "share of replies", {"judge/neutral": "neutral"}, is_share=True),
        Panel("Majority is the judge's best", "share of groups", {"agreement": "agreement"}, is_share=True),
        Panel("Distinct answers", "answers a question", {"distinct_answers": "distinct answers"}),
    )
)


def judged_answers(judge: Callable[[str, str], str], *, answers_every: int = 8) -> Lessons:
    r"""Lessons in answering `<think>3+4=7</think>\boxed{7}`, judging such answers one by one, and describing.

    The judge reads an image in the words of a description. It learns to see from descriptions, as a response gives
    most digits away.

    Args:
        judge: question, response → what the user says to have it judged.
        answers_every: one problem of so many is answered. Every eighth is enough for one category, but not for two
            (docs/study.md).
    """
    return Lessons(boxed_thoughts, answer_tokens=32, describe=DESCRIBE, judge=judge, answers_every=answers_every)


@documented
@dataclass
class EvolutionArguments(StagedArguments):
    """Questions, judge, training and evaluation of self-evolution's example.

    Attributes:
        output_dir: output folder.
        judge_server, judge_model: address of a server with OpenAI's API, and the model's name there, that judges in the
            place of the policy as it came.
        answers: sampled to each question when accuracy is measured: pass@1, pass@n, and the vote of n.
        measure_with_actor_prompt: measure under the prompt of training instead of the model's own (appendix D), into
            `evaluation-actor-prompt`; nothing is trained again.
        evolution: fields of `SelfEvolutionConfig`.
        evaluation: fields of `SamplingParams`, when accuracy is measured.
    """

    STAGES = {"evolve": "evolve/model"}
    READS = {
        "evolve": (
            *("evolution", "judge_server", "judge_model", "cold_start_accuracy", "train_rows"),
            *("dataset_name", "dataset_split", "columns", "image_root", "video_frames", "system_prompt"),
            *("min_pixels", "max_pixels"),
        )
    }
    SECTIONS = {"evolution": "SelfEvolutionConfig", "evaluation": SamplingParams}

    output_dir: str = "runs/self_evolution"
    judge_server: str | None = None
    judge_model: str | None = None
    answers: int = 10
    measure_with_actor_prompt: bool = False
    evolution: dict = field(default_factory=dict)
    evaluation: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.judge_server is None) != (self.judge_model is None):
            raise ValueError(
                f"judge_server={self.judge_server!r} and judge_model={self.judge_model!r}: give both, or neither."
            )
        super().__post_init__()
