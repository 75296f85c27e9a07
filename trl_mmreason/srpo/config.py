"""Settings of SRPO's two stages."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..construction import parse_optional_text
from ..engines.config import RolloutConfig
from ..sft import CompletionSFTConfig
from .objective import brevity
from .prompts import REFLECTION_PROMPT


@dataclass
class SRPOConfig(RolloutConfig):
    """`GRPOConfig` with SRPO's reflection reward (arXiv:2506.01713).

    `num_generations` (8), `temperature` (1.0), `learning_rate` (1e-6) and `num_train_epochs` (3) are the paper's
    (section 4.1), as they are TRL's. `loss_type` is "grpo": Eq. 2 sums over the tokens of a response, and the GRPO that
    it cites averages over them.

    Attributes:
        reflection_prompt: system message put before every question, which asks for the format; `None` leaves prompts
            as they are.
        reflection_reward: pay for the reflection (Eq. 6); without it the reward is R_task alone, plain GRPO on the
            first solution.
        missing_second_is_wrong: count a second answer that is missing behind a well-formed reflection as a wrong one in
            I_eff (Eq. 8), −0.25 after a right first answer; off: I_eff is then 0.
        brevity_coef: α of Eq. 6.
        target_ratio: T_target of Eq. 7, as a multiple of the first solution's length.
        max_ratio: T_max of Eq. 7, likewise.
        target_response_tokens, max_response_tokens: T_target and T_max in tokens instead, both or neither.
        filter_min_accuracy, filter_max_accuracy: groups whose share of right first answers lies below the first or
            above the second train nothing (appendix B.2); a share equal to a bound is inside. 0 and 1 switch the filter
            off. Evaluation drops nothing.
        freeze_vision_encoder: leave the vision encoder's weights as they are; on, as in appendix B.2.
        max_completion_length: bound of a response in tokens: two solutions and a reflection; TRL's own default is 512.
        beta: KL coefficient. The paper gives the estimator (k3) and no number; 0.01 is the default of OpenRLHF, with
            which it trained. TRL's own default is 0.
        use_bias_correction_kl: off, as k3 is the plain estimator; TRL's own default is on.
    """

    reflection_prompt: str | None = field(
        default=REFLECTION_PROMPT, metadata={"help": "System message before every question; None for none."}
    )
    reflection_reward: bool = field(default=True, metadata={"help": "Pay for the reflection; off: plain GRPO."})
    missing_second_is_wrong: bool = field(
        default=True, metadata={"help": "I_eff: a missing second answer is a wrong one; off: it earns 0."}
    )
    brevity_coef: float = field(default=0.1, metadata={"help": "Weight of the reward for brevity."})
    target_ratio: float = field(default=2.0, metadata={"help": "Target length / length of the first solution."})
    max_ratio: float = field(default=2.5, metadata={"help": "Maximum length / length of the first solution."})
    target_response_tokens: int | None = field(
        default=None, metadata={"help": "Target length in tokens, instead of the ratio."}
    )
    max_response_tokens: int | None = field(
        default=None, metadata={"help": "Maximum length in tokens, instead of the ratio."}
    )
    filter_min_accuracy: float = field(
        default=0.1, metadata={"help": "Groups with fewer right first answers train nothing; 0: all train."}
    )
    filter_max_accuracy: float = field(
        default=0.9, metadata={"help": "Groups with more right first answers train nothing; 1: all train."}
    )
    freeze_vision_encoder: bool = field(default=True, metadata={"help": "Do not train the vision encoder."})
    max_completion_length: int | None = field(default=2048, metadata={"help": "Bound of a response in tokens."})
    beta: float = field(default=0.01, metadata={"help": "KL coefficient."})
    use_bias_correction_kl: bool = field(
        default=False, metadata={"help": "Multiply the KL by the importance ratio, as TRL does by default."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reflection_prompt = parse_optional_text("SRPOConfig: reflection_prompt", self.reflection_prompt)
        if not self.max_completion_length or self.max_completion_length < 1:
            raise ValueError(
                f"SRPOConfig: max_completion_length={self.max_completion_length}, expected the tokens that a response "
                "may have, 1 or more."
            )
        if not self.brevity_coef >= 0:
            raise ValueError(f"SRPOConfig: brevity_coef={self.brevity_coef} is out of range, expected 0 or more.")
        if not 0 <= self.filter_min_accuracy <= self.filter_max_accuracy <= 1:
            raise ValueError(
                f"SRPOConfig: filter_min_accuracy={self.filter_min_accuracy} and "
                f"filter_max_accuracy={self.filter_max_accuracy}, expected 0 <= filter_min_accuracy <= "
                "filter_max_accuracy <= 1; 0 and 1 switch the filter off."
            )
        if self.reflection_reward and self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"SRPOConfig: multi_objective_aggregation={self.multi_objective_aggregation!r} scales each part of the "
                "reward to the same deviation, after which failing first may pay. Leave it sum_then_normalize, or set "
                "reflection_reward=False."
            )
        if self.remove_unused_columns:
            raise ValueError("SRPOConfig: remove_unused_columns=True takes away the answers; leave it False.")
        if self.target_response_tokens is not None and (self.target_ratio, self.max_ratio) != (2.0, 2.5):
            raise ValueError(
                f"SRPOConfig: target_response_tokens={self.target_response_tokens} takes the place of the ratios, but "
                f"target_ratio={self.target_ratio} and max_ratio={self.max_ratio} were set too. Leave one of the two."
            )
        brevity(
            torch.ones(1),
            torch.ones(1),
            target_ratio=self.target_ratio,
            max_ratio=self.max_ratio,
            target_response_tokens=self.target_response_tokens,
            max_response_tokens=self.max_response_tokens,
        )


@dataclass
class ReflectionSFTConfig(CompletionSFTConfig):
    """`SFTConfig` for the cold start on reflections (section 3.1.2): 1 epoch "to avoid overfitting" (section 4.1)."""
