"""Settings of AdaPO."""

from __future__ import annotations

from dataclasses import dataclass

from ..scripts.system_prompts import read_optional_text
from ..training.documented import documented
from ..training.vllm_config import RolloutConfig
from .prompts import EVALUATION_PROMPT

ZERO_ADVANTAGE_CRITERIA = ("reward", "correctness")


@documented
@dataclass
class AdaPOConfig(RolloutConfig):
    """`GRPOConfig` with the adaptive reward model, the KL coefficient of each turn and the filters of AdaPO.

    Defaults are the paper's (Table 4), but for the signs of `k_01` and `k_11`, which its table prints the other way
    round than Eq. 4 and the text. `num_generations` (8), `temperature` (1.0) and `loss_type` ("grpo", A.3) are the
    paper's too.

    Attributes:
        evaluation_prompt: user message after the first answer; `None` trains one turn, whose answer then counts
            as both.
        base_correct: R_base+, reward of a right second answer before adaptation.
        base_incorrect: R_base−, reward of a wrong second answer before adaptation.
        k_01: K01 ≥ 0 of wrong → right (Eq. 4); correcting pays more where the group often errs.
        k_11: K11 ≤ 0 of right → right (Eq. 4); keeping a right answer pays more where the group seldom errs.
        k_10: K10 ≥ 0 of right → wrong (Eq. 5).
        k_00: K00 ≤ 0 of wrong → wrong (Eq. 5).
        threshold: θ, the error rate above which a question is in the correction state: correcting outweighs keeping.
        kl_scale: λ of Eq. 7–8, scale of the adaptive part of the KL coefficients; 0 gives both turns `beta`.
        beta: β_base of Eq. 7–8, base KL coefficient of both turns; TRL's own default is 0.
        use_bias_correction_kl: multiply the KL by the importance ratio; off, as the paper's "low variance KL" is plain
            k3; TRL's own default is on.
        epsilon: clip ratio, 0.25; TRL's own default is 0.2.
        top_p: top-p of sampling, 0.99; TRL's own default is 1.
        max_completion_length: token limit of each of the two answers, 5000; TRL's own default is 512.
        learning_rate: initial learning rate, 5e-7; TRL's own default is 1e-6.
        num_train_epochs: epochs, 2; TRL's own default is 3.
        filter_zero_advantage: drop groups whose kept trajectories all have the same reward: they take part in nothing
            (A.2).
        zero_advantage_criterion: what is the same in a group that is dropped: "reward", which makes the advantage, or
            "correctness", R(τ) = C(y2, y), as A.2 defines it there. Differs from the paper: under its ARM (Eq. 3) a
            group of 0→1 and 1→1 has one R(τ) and two rewards, so the letter of A.2 drops advantages that are not zero.
        filter_truncated: drop trajectories with an answer that hit the length limit: they take part in nothing (A.2).
    """

    evaluation_prompt: str | None = EVALUATION_PROMPT
    base_correct: float = 1.0
    base_incorrect: float = -1.0
    k_01: float = 1.0
    k_11: float = -1.0
    k_10: float = 0.5
    k_00: float = -0.5
    threshold: float = 0.6
    kl_scale: float = 0.01
    beta: float = 0.001
    use_bias_correction_kl: bool = False
    epsilon: float = 0.25
    top_p: float = 0.99
    max_completion_length: int | None = 5000
    learning_rate: float = 5e-7
    num_train_epochs: float = 2.0
    filter_zero_advantage: bool = True
    zero_advantage_criterion: str = "reward"
    filter_truncated: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.evaluation_prompt = read_optional_text("AdaPOConfig: evaluation_prompt", self.evaluation_prompt)
        if self.beta < 0:
            raise ValueError(f"AdaPOConfig: beta={self.beta} is out of range, expected beta >= 0.")
        self._check_zero_advantage()
        self._check_signs()
        self._check_ranges()
        if self.kl_scale > 0 and self.beta == 0:
            raise ValueError(
                f"AdaPOConfig: kl_scale={self.kl_scale} scales a KL term, but beta=0 leaves out the reference model "
                "that it needs. Set beta > 0, or kl_scale=0."
            )
        if self.mask_truncated_completions:
            raise ValueError(
                "AdaPOConfig: mask_truncated_completions=True looks at the end of the second answer only. Use "
                "filter_truncated=True, which looks at both."
            )

    def _check_zero_advantage(self) -> None:
        if self.zero_advantage_criterion not in ZERO_ADVANTAGE_CRITERIA:
            raise ValueError(
                f"AdaPOConfig: zero_advantage_criterion={self.zero_advantage_criterion!r}, expected one of "
                f"{ZERO_ADVANTAGE_CRITERIA}."
            )
        if not self.filter_zero_advantage and self.zero_advantage_criterion != "reward":
            raise ValueError(
                f"AdaPOConfig: zero_advantage_criterion={self.zero_advantage_criterion!r} says which groups "
                "filter_zero_advantage drops, but that is False. Set it to True, or leave the criterion out."
            )

    def _check_signs(self) -> None:
        for name, sign in (("k_01", 1), ("k_11", -1), ("k_10", 1), ("k_00", -1)):
            value = getattr(self, name)
            if value * sign < 0:
                bound = ">= 0" if sign > 0 else "<= 0"
                raise ValueError(
                    f"AdaPOConfig: {name}={value} is out of range, expected {name} {bound} (Eq. 4-5 of the paper; its "
                    "Table 4 prints the signs of k_01 and k_11 the wrong way round)."
                )

    def _check_ranges(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"AdaPOConfig: threshold={self.threshold} is out of range, expected 0 <= threshold <= 1.")
        if self.kl_scale < 0:
            raise ValueError(f"AdaPOConfig: kl_scale={self.kl_scale} is out of range, expected kl_scale >= 0.")
        # Each reward is linear in P, so its extremes over [0, 1] lie at the ends.
        ends = {
            "k_01": [self.base_correct + self.k_01 * (p - self.threshold) for p in (0, 1)],
            "k_11": [self.base_correct + self.k_11 * (p - self.threshold) for p in (0, 1)],
            "k_10": [self.base_incorrect + self.k_10 * p for p in (0, 1)],
            "k_00": [self.base_incorrect + self.k_00 * p for p in (0, 1)],
        }
        for name, (at_zero, at_one) in ends.items():
            positive = name.endswith("1")
            if not (min(at_zero, at_one) > 0 if positive else max(at_zero, at_one) < 0):
                base, sign = ("base_correct", "positive") if positive else ("base_incorrect", "negative")
                raise ValueError(
                    f"AdaPOConfig: {name}={getattr(self, name)} with {base}={getattr(self, base)} and "
                    f"threshold={self.threshold} gives rewards from {at_zero:g} (P = 0) to {at_one:g} (P = 1), "
                    f"expected {sign} ones for every P in [0, 1]. Bring {name} closer to 0 or {base} further from it."
                )
