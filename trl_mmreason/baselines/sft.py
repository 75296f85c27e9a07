"""Plain supervised training, on solutions as they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sft import CompletionSFTConfig, CompletionSFTTrainer


@dataclass
class PlainSFTConfig(CompletionSFTConfig):
    """`SFTConfig` for completions without a format, with the values of AdaPO's baselines (appendix B).

    Attributes:
        num_train_epochs: 2; TRL's own default is 3.
        warmup_steps: 0.1, a share of all steps; TRL's own default is 0.
    """

    num_train_epochs: float = field(default=2.0, metadata={"help": "Epochs."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps of the warm-up, or below 1 their share."})


class PlainSFTTrainer(CompletionSFTTrainer):
    """Trains a policy on completions in any form, such as solutions or STaR's revisions; see `CompletionSFTTrainer`."""

    _tag_names = ["trl", "trl-mmreason", "sft"]
    _name = "SFT"
    _config = PlainSFTConfig
    _format = "a text that says something"

    @staticmethod
    def problem_of(completion: str) -> str | None:
        return None if completion.strip() else "it is empty"
