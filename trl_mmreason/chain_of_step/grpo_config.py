"""Settings of GRPO with Chain-of-Step's rewards."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engines.config import RolloutConfig
from .objective import trajectory_score


@dataclass
class ChainOfStepGRPOConfig(RolloutConfig):
    """`GRPOConfig` with the settings of arXiv:2509.19003, section 4.5.

    The paper's batch is 128. In verl, whose names it uses, that counts questions: the product of processes,
    `per_device_train_batch_size` and `gradient_accumulation_steps` is then 640. The paper gives no `beta`, which stays
    TRL's 0. Its top-p of 0.95 is for sampled data; `temperature` and `top_p` stay 1, so that the policy which samples
    is the one that is trained.

    Attributes:
        step_weight: w of the trajectory score (sections 3.4 and 4.3.1); without a process reward model nothing.
        freeze_vision_encoder: leave the vision encoder's weights as they are.
        num_generations: 5; TRL's own default is 8.
        per_device_train_batch_size: 5, one question; TRL's own default is 8.
        per_device_eval_batch_size: likewise.
        learning_rate: 1e-5; TRL's own default is 1e-6.
        max_steps: 100; TRL's own default is -1, three epochs.
        max_completion_length: bound of a chain in tokens; ours. TRL's own default is 512.
    """

    step_weight: float = field(default=0.2, metadata={"help": "Weight of the steps in a path's score."})
    freeze_vision_encoder: bool = field(default=False, metadata={"help": "Do not train the vision encoder."})
    num_generations: int | None = field(default=5, metadata={"help": "Rollouts a question."})
    per_device_train_batch_size: int = field(default=5, metadata={"help": "Rollouts a process and forward pass."})
    per_device_eval_batch_size: int = field(default=5, metadata={"help": "Likewise, in evaluation."})
    learning_rate: float = field(default=1e-5, metadata={"help": "Initial learning rate."})
    max_steps: int = field(default=100, metadata={"help": "Optimizer steps; -1: as num_train_epochs says."})
    max_completion_length: int | None = field(default=1024, metadata={"help": "Bound of a chain in tokens."})

    def __post_init__(self) -> None:
        super().__post_init__()
        trajectory_score((), 0.0, self.step_weight)  # refuses a weight that is out of range
        if not self.max_completion_length or self.max_completion_length < 1:
            raise ValueError(
                f"ChainOfStepGRPOConfig: max_completion_length={self.max_completion_length}, expected the tokens that "
                "a chain may have, 1 or more."
            )
        if self.remove_unused_columns:
            raise ValueError("ChainOfStepGRPOConfig: remove_unused_columns=True takes away pictures; leave it False.")
