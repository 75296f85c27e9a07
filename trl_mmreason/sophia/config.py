"""Settings of the off-policy update, and of the following GRPO."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..compat.model_parts import check_chosen
from ..training.documented import documented
from ..training.sft import CompletionSFTConfig
from ..training.vllm_config import RolloutConfig
from .objective import IMPORTANCE_SAMPLING, SEQUENCE_REDUCTIONS

# Of TRL's settings for supervised training, those that this loss has no place for.
_UNUSED: dict[str, Any] = {
    "packing": False,
    "eval_packing": None,
    "padding_free": False,
    "assistant_only_loss": False,
    "loss_type": "nll",
    "label_smoothing_factor": 0.0,
    "freeze_vision_encoder": False,
    "remove_unused_columns": False,
    "prediction_loss_only": True,
}
_INSTEAD = {"freeze_vision_encoder": "say it with trainable_parts"}


@documented
@dataclass
class OffPolicyRewardConfig(CompletionSFTConfig):
    """`SFTConfig` for completions with rewards, from any source (arXiv:2507.16814, section 4.3).

    `learning_rate` (2e-5) is the paper's (appendix B.1), as it is TRL's. The paper's batch has 512 trajectories: the
    product of processes, `per_device_train_batch_size` and `gradient_accumulation_steps`. It gives no number of epochs
    for its single round: `num_train_epochs` is 1.

    Attributes:
        importance_sampling: weights π/μ of Eq. 7: "none" leaves them out (Lemma A.3), "sequence" has one per
            completion, "token" one per token. The last two need `behavior_logps` in the rows.
        importance_clip_low, importance_clip_high: bounds that importance weights are truncated to; ours.
        sequence_reduction: "sum" over the tokens of a completion and the mean over completions, as in Eq. 7; "mean"
            over all tokens of the batch, as in supervised training, where too `eval_loss` is a mean over batches and
            depends a little on their size.
        beta: coefficient of a KL term (k3) against the policy that training began with; 0, as in appendix B.1, needs no
            reference.
        weight_decay: weight decay, 0.05 (appendix B.1); TRL's own default is 0.
        lr_scheduler_type: schedule of the learning rate: a cosine down to `min_lr_rate` of it, by default 1/4 (appendix
            B.1); TRL's own default is linear.
        trainable_parts: which of vision, projector and language to train; the language model alone, as in appendix B.1.
        remove_unused_columns: must be False: rewards are columns.
        prediction_loss_only: must be True: there are no logits.
    """

    importance_sampling: str = "none"
    importance_clip_low: float = 0.0
    importance_clip_high: float = 2.0
    sequence_reduction: str = "sum"
    beta: float = 0.0
    weight_decay: float = 0.05
    lr_scheduler_type: str = "cosine_with_min_lr"
    trainable_parts: list[str] = field(default_factory=lambda: ["language"])
    remove_unused_columns: bool | None = False
    prediction_loss_only: bool = True

    @property
    def importance_clip(self) -> tuple[float, float]:
        """Both bounds of the importance weights."""
        return self.importance_clip_low, self.importance_clip_high

    def __post_init__(self) -> None:
        _decay_to_a_quarter(self)
        super().__post_init__()
        for name, known in (("importance_sampling", IMPORTANCE_SAMPLING), ("sequence_reduction", SEQUENCE_REDUCTIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"OffPolicyRewardConfig: {name}={getattr(self, name)!r}, expected one of {known}.")
        if not 0 <= self.importance_clip_low <= 1 <= self.importance_clip_high < float("inf"):
            raise ValueError(
                f"OffPolicyRewardConfig: importance_clip_low={self.importance_clip_low} and "
                f"importance_clip_high={self.importance_clip_high}, expected 0 ≤ low ≤ 1 ≤ high < ∞: on the policy "
                "a weight is 1, and that of a long completion may be any number."
            )
        usual = OffPolicyRewardConfig.importance_clip_low, OffPolicyRewardConfig.importance_clip_high
        if self.importance_sampling == "none" and self.importance_clip != usual:
            raise ValueError(
                f"OffPolicyRewardConfig: importance_clip_low={self.importance_clip_low} and "
                f"importance_clip_high={self.importance_clip_high} are for importance_sampling='sequence' or 'token'; "
                "leave them out."
            )
        check_chosen("OffPolicyRewardConfig", self.trainable_parts)
        for name, required in _UNUSED.items():
            if getattr(self, name) != required:
                raise ValueError(
                    f"OffPolicyRewardConfig: {name}={getattr(self, name)!r} is not supported; "
                    f"{_INSTEAD.get(name, f'leave it {required!r}')}."
                )


@documented
@dataclass
class MixedGroupsGRPOConfig(RolloutConfig):
    """`GRPOConfig` with the values of appendix B.2, completed by those of B.1.

    `num_generations` (8) is the paper's too, as it is TRL's. The paper's batch has 64 questions of 8 rollouts: the
    product of processes, `per_device_train_batch_size` and `gradient_accumulation_steps` is then 512. `loss_type` is
    "grpo", a mean over the tokens of a trajectory and then over trajectories, as in the GRPO that the paper cites.

    Attributes:
        max_completion_length: bound of an answer in tokens, 16384 (appendix B.2); TRL's own default is 512.
        learning_rate: initial learning rate, 5e-7 (appendix B.2); TRL's own default is 1e-6.
        weight_decay: weight decay, 0.05 (appendix B.1); TRL's own default is 0.
        lr_scheduler_type: schedule of the learning rate: a cosine down to `min_lr_rate` of it, by default 1/4 (appendix
            B.1); TRL's own default is linear.
        trainable_parts: which of vision, projector and language to train; the language model alone, as in appendix B.1.
    """

    max_completion_length: int | None = 16384
    learning_rate: float = 5e-7
    weight_decay: float = 0.05
    lr_scheduler_type: str = "cosine_with_min_lr"
    trainable_parts: list[str] = field(default_factory=lambda: ["language"])

    def __post_init__(self) -> None:
        _decay_to_a_quarter(self)
        super().__post_init__()
        check_chosen("MixedGroupsGRPOConfig", self.trainable_parts)


def _decay_to_a_quarter(config: Any) -> None:
    """Let the cosine end at 1/4 of the learning rate unless configured otherwise (appendix B.1)."""
    if config.lr_scheduler_type == "cosine_with_min_lr" and not config.lr_scheduler_kwargs:
        config.lr_scheduler_kwargs = {"min_lr_rate": 0.25}
