"""Plain supervised training on unchanged solutions."""

from __future__ import annotations

from dataclasses import dataclass

from ..training.documented import documented
from ..training.sft import CompletionSFTConfig, CompletionSFTTrainer


@documented
@dataclass
class PlainSFTConfig(CompletionSFTConfig):
    """`SFTConfig` for completions without a format, with the values of AdaPO's baselines (appendix B).

    The paper's batch has 32 rows: the product of processes, `per_device_train_batch_size` and
    `gradient_accumulation_steps`. Its learning rate (2e-5) and its linear schedule are TRL's too.

    Attributes:
        num_train_epochs: epochs, 2; TRL's own default is 3.
        warmup_steps: steps of warm-up, or below 1 their share of all, 0.1; TRL's own default is 0.
    """

    num_train_epochs: float = 2.0
    warmup_steps: float = 0.1


class PlainSFTTrainer(CompletionSFTTrainer):
    """Trains a policy on completions in any form, such as solutions or STaR's revisions; see `CompletionSFTTrainer`."""

    _tag_names = ["trl", "trl-mmreason", "sft"]
    _name = "SFT"
    _config = PlainSFTConfig
    _format = "a completion that says something"

    @staticmethod
    def problem_of(completion: str) -> str | None:
        return None if completion.strip() else "it is empty"
