"""Settings of SRPO's two stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..scripts.system_prompts import read_optional_text
from ..training.documented import documented
from ..training.sft import CompletionSFTConfig
from ..training.vllm_config import RolloutConfig
from .objective import brevity
from .prompts import REFLECTION_PROMPT


@documented
@dataclass
class SRPOConfig(RolloutConfig):
    """`GRPOConfig` with SRPO's reflection reward (arXiv:2506.01713).

    `num_generations` (8), `temperature` (1.0), `learning_rate` (1e-6) and `num_train_epochs` (3) are the paper's
    (section 4.1), as they are TRL's. `loss_type` is "grpo": Eq. 2 sums over the tokens of a response, and the GRPO that
    it cites averages over them.

    Attributes:
        reflection_prompt: system message put before every question, which asks for the format; by default the paper's
            (B.3), `None` leaves prompts as they are.
        reflection_reward: pay for the reflection (Eq. 6); without it the reward is R_task alone, plain GRPO on the
            first solution.
        missing_second_is_wrong: count a second answer that is missing after a well-formed reflection as a wrong one in
            I_eff (Eq. 8), −0.25 after a right first answer; off: I_eff is then 0.
        brevity_coef: α of Eq. 6, weight of the reward for brevity.
        target_ratio, max_ratio: T_target and T_max of Eq. 7, target and maximum length of a response, as multiples of
            the first solution's length.
        target_response_tokens, max_response_tokens: T_target and T_max in tokens, in place of the ratios; both or
            neither.
        filter_min_accuracy, filter_max_accuracy: groups whose share of right first answers lies below the minimum or
            above the maximum train nothing (appendix B.2); a share equal to a bound is inside; 0 and 1 drop none.
            Evaluation drops nothing.
        freeze_vision_encoder: leave the vision encoder's weights as they are; on, as in appendix B.2. That
            Qwen-VL's merger is frozen with it is our reading.
        max_completion_length: token limit of a response: two solutions and a reflection; TRL's own default is 512.
        beta: KL coefficient. The paper gives the estimator (k3) and no number; 0.01 is the default of OpenRLHF, with
            which it trained. TRL's own default is 0.
        use_bias_correction_kl: multiply the KL by the importance ratio; off, as k3 is the plain estimator; TRL's own
            default is on.
    """

    reflection_prompt: str | None = REFLECTION_PROMPT
    reflection_reward: bool = True
    missing_second_is_wrong: bool = True
    brevity_coef: float = 0.1
    target_ratio: float = 2.0
    max_ratio: float = 2.5
    target_response_tokens: int | None = None
    max_response_tokens: int | None = None
    filter_min_accuracy: float = 0.1
    filter_max_accuracy: float = 0.9
    freeze_vision_encoder: bool = True
    max_completion_length: int | None = 2048
    beta: float = 0.01
    use_bias_correction_kl: bool = False

    @property
    def lengths(self) -> dict[str, Any]:
        """The arguments of `brevity`."""
        names = ("target_ratio", "max_ratio", "target_response_tokens", "max_response_tokens")
        return {name: getattr(self, name) for name in names}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reflection_prompt = read_optional_text("SRPOConfig: reflection_prompt", self.reflection_prompt)
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
                "reward to the same deviation, which may reward failing first. Leave it sum_then_normalize, or set "
                "reflection_reward=False."
            )
        if self.target_response_tokens is not None and (self.target_ratio, self.max_ratio) != (2.0, 2.5):
            raise ValueError(
                f"SRPOConfig: target_response_tokens={self.target_response_tokens} takes the place of the ratios, but "
                f"target_ratio={self.target_ratio} and max_ratio={self.max_ratio} were set too. Leave one of the two."
            )
        brevity(torch.ones(1), torch.ones(1), **self.lengths)  # refuses what is out of range


@dataclass
class ReflectionSFTConfig(CompletionSFTConfig):
    """`SFTConfig` for the cold start on reflections (section 3.1.2): 1 epoch "to avoid overfitting" (section 4.1)."""
