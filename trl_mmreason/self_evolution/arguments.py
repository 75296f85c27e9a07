"""Arguments of `examples/self_evolution.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..documented import documented
from ..sampling.engine import SamplingParams
from ..sections import StagedArguments
from .config import SelfEvolutionConfig


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
            *("dataset_name", "dataset_split", "columns", "image_root", "system_prompt"),
        )
    }
    SECTIONS = {"evolution": SelfEvolutionConfig, "evaluation": SamplingParams}

    output_dir: str = "runs/self_evolution"
    judge_server: str | None = None
    judge_model: str | None = None
    answers: int = 10
    measure_with_actor_prompt: bool = False
    evolution: dict = field(default_factory=dict)
    evaluation: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.judge_server is None) != (self.judge_model is None):
            raise ValueError(
                f"judge_server={self.judge_server!r} and judge_model={self.judge_model!r}: give both, or neither."
            )
