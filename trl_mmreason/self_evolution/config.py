"""Settings of self-evolution."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..functional import TOKEN_SUMMED_LOSSES
from ..scripts.system_prompts import read_optional_text
from ..training.documented import documented
from ..training.vllm_config import RolloutConfig
from .prompts import ACTOR_PROMPT, JUDGE_PROMPT

_SIDES = [f"{side}_{what}" for side in ("high", "low") for what in ("weight", "threshold", "temperature")]
VOTES = ("self_consistency", "majority", "none")
ADVANTAGES = ("log_sum_exp", "grpo")


@documented
@dataclass
class SelfEvolutionConfig(RolloutConfig):
    """`GRPOConfig` without labels ("When Models Judge Themselves"; the values are the paper's where it gives them).

    `num_generations` (8), `learning_rate` (1e-6) and `max_grad_norm` (1.0) are the paper's too, as they are TRL's. The
    paper's batches (Table 5) are yours to set. In verl, with which it trained, they count questions, of 8 responses:
    the product of processes, `per_device_train_batch_size` and `steps_per_generation` is 4096 for its train batch of
    512, and with `gradient_accumulation_steps` in place of the last 1024 for its mini batch of 128.

    The rows of Tables 2 and 6: `vote` × `judge` × `advantages`. MM-UPT is `vote="majority", judge=False,
    advantages="grpo"`.

    Attributes:
        loss_type: "dr_grpo", the sum over the tokens of a response divided by a constant, `max_completion_length`, as
            Eq. 12–14 weigh a response as a whole. The log-sum-exp advantages are all below 0; with "grpo", the mean
            over its tokens, what they have in common would push towards longer responses. The default of other
            methods is "grpo".
        vote: what agreement pays: "self_consistency" its share of the group (Eq. 3), "majority" 1 for the winner
            (Eq. 5), "none" nothing: the judge's score is the reward.
        judge: let a frozen judge score each response, and modulate what agreement pays (Eq. 7).
        advantages: "log_sum_exp" (Eq. 9–11), or "grpo" for TRL's, which `scale_rewards` normalises.
        alpha: α of Eq. 9, inverse temperature of the log-sum-exp advantages.
        centre_advantages: take the group's mean off the log-sum-exp advantages. Ours; it cancels the log-sum-exp.
        format_penalty: λ_fmt of Eq. 8, what a violated format costs.
        high_weight, low_weight: λ₊ and λ₋ of Eq. 7, the most that the judge raises and lowers a reward by.
        high_threshold, low_threshold: t_h and t_l of Eq. 7: the further a score lies above t_h, the more it raises a
            reward, and the further below t_l, the more it lowers it.
        high_temperature, low_temperature: τ_h and τ_l of Eq. 7, smoothness of raising and of lowering.
        actor_prompt: system message put before every question in training, which asks for the format; `None` leaves
            prompts as they are.
        actor_prompt_in_evaluation: put it before the questions of an evaluation, too. Off, as in the paper: the policy
            is evaluated under its official prompt (appendix D), which is the question as its row has it, with the
            system message that the model's own chat template writes, if any.
        max_prompt_length: see `RolloutConfig`; 1024 (Table 5).
        judge_prompt: what the judge is asked, before the question and the response that it scores.
        judge_sampling_temperature, judge_top_p: temperature and top-p of the judge's replies.
        judge_max_tokens: token limit of a reply of the judge; ours.
        judge_batch_size: replies drawn at a time in each process, by the judge that comes from the policy; by default
            `per_device_train_batch_size`.
        beta: KL coefficient; TRL's own default is 0.
        weight_decay: weight decay, 0.01; TRL's own default is 0.
        num_train_epochs: epochs, 20; TRL's own default is 3.
        max_completion_length: token limit of a response, 2048 (Table 5); TRL's own default is 512.
        use_bias_correction_kl: multiply the KL by the importance ratio; off, as the paper's is the plain low-variance
            estimator; TRL's own default is on.
    """

    loss_type: str = "dr_grpo"
    vote: str = "self_consistency"
    judge: bool = True
    advantages: str = "log_sum_exp"
    alpha: float = 1.0
    centre_advantages: bool = False
    format_penalty: float = 0.5
    high_weight: float = 0.2
    low_weight: float = 0.2
    high_threshold: float = 0.95
    low_threshold: float = 0.40
    high_temperature: float = 1.0
    low_temperature: float = 1.0
    actor_prompt: str | None = ACTOR_PROMPT
    actor_prompt_in_evaluation: bool = False
    max_prompt_length: int | None = 1024
    judge_prompt: str = JUDGE_PROMPT
    judge_sampling_temperature: float = 1.0
    judge_top_p: float = 0.9
    judge_max_tokens: int = 1024
    judge_batch_size: int | None = None
    max_completion_length: int | None = 2048
    beta: float = 0.01
    weight_decay: float = 0.01
    num_train_epochs: float = 20.0
    use_bias_correction_kl: bool = False

    @property
    def pays_for_length(self) -> str | None:
        """What makes the expected gradient of an advantage that all responses have in common other than 0, if any."""
        if self.advantages == "grpo" or self.centre_advantages:
            return None
        if self.loss_type not in TOKEN_SUMMED_LOSSES:
            return f"loss_type={self.loss_type!r} divides by a number of tokens, which pays for longer responses"
        if self.mask_truncated_completions:
            return "mask_truncated_completions=True spares cut responses what all others lose, which pays for being cut"
        return None

    @property
    def modulation(self) -> dict[str, float]:
        """The arguments of `judge_modulation`."""
        return {name: getattr(self, name) for name in _SIDES}

    @property
    def eval_system_prompt(self) -> str | None:
        """System message in evaluation; `None` for the model's official prompt."""
        return self.actor_prompt if self.actor_prompt_in_evaluation else None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.actor_prompt = read_optional_text("SelfEvolutionConfig: actor_prompt", self.actor_prompt)
        if self.actor_prompt_in_evaluation and self.actor_prompt is None:
            raise ValueError(
                "SelfEvolutionConfig: actor_prompt_in_evaluation=True, but actor_prompt is None. Set the prompt, or "
                "leave the other False."
            )
        for name, known in (("vote", VOTES), ("advantages", ADVANTAGES)):
            if getattr(self, name) not in known:
                raise ValueError(f"SelfEvolutionConfig: {name}={getattr(self, name)!r}, expected one of {known}.")
        if self.vote == "none" and not self.judge:
            raise ValueError("SelfEvolutionConfig: vote='none' and judge=False leave no reward; set one of the two.")
        for name in ("alpha", "high_temperature", "low_temperature", "judge_max_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"SelfEvolutionConfig: {name}={getattr(self, name)}, expected a number above 0.")
        for name in ("format_penalty", "high_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"SelfEvolutionConfig: {name}={getattr(self, name)}, expected 0 or more.")
        for name in ("high_threshold", "low_threshold"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"SelfEvolutionConfig: {name}={getattr(self, name)}, expected a finite number.")
        if self.judge_batch_size is not None and self.judge_batch_size < 1:
            raise ValueError(f"SelfEvolutionConfig: judge_batch_size={self.judge_batch_size}, expected 1 or more.")
        judge_prompt = read_optional_text("SelfEvolutionConfig: judge_prompt", self.judge_prompt)
        if judge_prompt is None:
            raise ValueError("SelfEvolutionConfig: judge_prompt is None, expected a prompt.")
        self.judge_prompt = judge_prompt
        if (self.vote == "none" or not self.judge) and self.modulation != _DEFAULT_MODULATION:
            raise ValueError(
                f"SelfEvolutionConfig: with vote={self.vote!r} and judge={self.judge} nothing is modulated; leave the "
                f"settings of Eq. 7 as they are: {_DEFAULT_MODULATION}."
            )
        if self.advantages == "grpo" and self.alpha != 1.0:
            raise ValueError(f"SelfEvolutionConfig: alpha={self.alpha} is for advantages='log_sum_exp'; leave it 1.0.")
        if self.advantages == "log_sum_exp" and self.scale_rewards != "group":
            raise ValueError(
                f"SelfEvolutionConfig: scale_rewards={self.scale_rewards!r} is for advantages='grpo'; leave it 'group'."
            )
        if not 0 <= self.low_weight <= 1:
            raise ValueError(
                f"SelfEvolutionConfig: low_weight={self.low_weight}, expected 0 to 1: above 1, agreeing would lower "
                "the reward."
            )
        if self.centre_advantages and self.advantages != "log_sum_exp":
            raise ValueError(
                f"SelfEvolutionConfig: centre_advantages is for advantages='log_sum_exp', and they are "
                f"{self.advantages!r}, which are centred already."
            )
        if self.refill_attempts and self.advantages == "log_sum_exp" and not self.centre_advantages:
            raise ValueError(
                f"SelfEvolutionConfig: refill_attempts={self.refill_attempts}, but log-sum-exp advantages are never 0, "
                "and no group would give way to another one. Fix: refill_attempts=0, centre_advantages=True or "
                "advantages='grpo'."
            )
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"SelfEvolutionConfig: multi_objective_aggregation={self.multi_objective_aggregation!r} would scale "
                "agreement and format alike; leave it sum_then_normalize."
            )


_DEFAULT_MODULATION = {name: getattr(SelfEvolutionConfig, name) for name in _SIDES}
