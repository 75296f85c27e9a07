"""Settings of GRPO with Chain-of-Step's rewards."""

from __future__ import annotations

from dataclasses import dataclass

from ..documented import documented
from ..engines.config import RolloutConfig
from .objective import trajectory_score


@documented
@dataclass
class ChainOfStepGRPOConfig(RolloutConfig):
    """`GRPOConfig` with the settings of arXiv:2509.19003, section 4.5.

    The paper's batch is 128. In verl, whose names it uses, that counts questions: the product of processes,
    `per_device_train_batch_size` and `gradient_accumulation_steps` is then 640. The paper gives no `beta`, which stays
    TRL's 0. Its top-p of 0.95 is for sampled data; `temperature` and `top_p` stay 1, so that the policy which samples
    is the one that is trained.

    Attributes:
        step_weight: w, weight of the steps in a path's score (sections 3.4 and 4.3.1); leave it out without a process
            reward model.
        freeze_vision_encoder: leave the vision encoder's weights as they are.
        num_generations: rollouts a question, 5; TRL's own default is 8.
        per_device_train_batch_size, per_device_eval_batch_size: rollouts a process and forward pass, in training and in
            evaluation, 5, one question; TRL's own default is 8.
        learning_rate: initial learning rate, 1e-5; TRL's own default is 1e-6.
        max_steps: optimizer steps, 100; TRL's own default is -1: as many as `num_train_epochs` says, three epochs.
        max_completion_length: bound of a chain in tokens; ours. TRL's own default is 512.
    """

    step_weight: float = 0.2
    freeze_vision_encoder: bool = False
    num_generations: int | None = 5
    per_device_train_batch_size: int = 5
    per_device_eval_batch_size: int = 5
    learning_rate: float = 1e-5
    max_steps: int = 100
    max_completion_length: int | None = 1024

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
