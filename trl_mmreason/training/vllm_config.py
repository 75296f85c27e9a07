"""Rollout settings that `GRPOConfig` lacks or defaults differently from the papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trl import GRPOConfig

from ..compat.precision import settle_on_cpu
from ..functional import SEQUENCE_NORMALISED_LOSSES, TOKEN_NORMALISED_LOSSES
from .config_values import refuse_impossible
from .documented import documented
from .early_stopping import EarlyStoppingArguments

DTYPES = ("float32", "bfloat16", "float16")
_CHOICES: dict[str, set[Any]] = {  # which TRL looks at in the first step
    "loss_type": {*SEQUENCE_NORMALISED_LOSSES, *TOKEN_NORMALISED_LOSSES, "bnpo"},
    "scale_rewards": {"group", "batch", "none", True, False},
    "importance_sampling_level": {"token", "sequence"},
}


@documented
@dataclass
class RolloutConfig(EarlyStoppingArguments, GRPOConfig):
    """`GRPOConfig` with defaults from the papers' equations, a bound of prompts, and the dtype of a colocated vLLM.

    Attributes:
        loss_type: how the loss of tokens is averaged (see `GRPOConfig`): "grpo", the mean over trajectories of the mean
            over their tokens, for advantages that are centred within their group; TRL's own default is "dapo", the mean
            over all tokens, in which a long trajectory weighs more.
        vllm_importance_sampling_mode: see `GRPOConfig`; by default "token_truncate" where `top_p`, `top_k` or `min_p`
            cut off unlikely tokens, and otherwise TRL's "sequence_mask". With a cut vLLM's log-probability of a token
            is that among the tokens that are left, the trainer's that among all, and their ratio is below 1 for every
            token (huggingface/trl#6789): 0.99 at the least with `top_p=0.99`, but the product over a sequence of 1,000
            tokens comes down to e^-10, and such a sequence would train nothing.
        max_prompt_length: rows of `train_dataset` with longer prompts are left out, in tokens, those of images and of
            the trainer's system message included; `None` keeps all. vLLM ends a run at a prompt that leaves no room in
            `vllm_max_model_length`.
        max_tokens_per_micro_batch: tokens, with padding, that a pass through the model may hold; a longer row stands
            alone. Each micro-batch is split into as many passes as it takes, and the update stays the same. Set
            `per_device_train_batch_size` to the rows of an update and `gradient_accumulation_steps=1`, so that as many
            rows as fit share a pass. `None` makes one pass of each micro-batch.
        refill_attempts: how often other questions are asked in the place of those whose answers teach nothing, as all
            are right, or wrong, or filtered out, before the update goes on without them. 0 asks no others. The
            questions are drawn from `train_dataset` by seed and update.
        oversampling: share of further questions that are in flight, with vLLM. A rollout ends when as many groups are
            complete as an update needs; the others go on in the next, and each token keeps the log-probability of the
            weights that sampled it. 1.0 asks twice the questions of an update; 0 waits for all answers of a rollout.
        oversampling_max_age: rollouts after which a question that is in flight is waited for. It is trained on in the
            order of questions, so that it may be older by as many rollouts as `oversampling` is, rounded up.
        generate_ahead: whether a vLLM server samples the next rollout while this one is trained on, by the weights
            before. Importance sampling corrects for the difference.
        sampled_as_old: whether the log-probabilities that vLLM gave what it sampled serve as the old ones of the
            policy ratio, so that no pass scores them again, and importance sampling has nothing to correct. What a run
            says at its end shows how far the two differ (`sampled / trained policy`).
        vllm_lora: whether a colocated vLLM gets a LoRA as it is, and not merged: the base is sent once, and at each
            update the adapter alone. In bfloat16 what vLLM samples from is then closer to what is trained.
        vllm_dtype: dtype of a colocated vLLM: "float32", "bfloat16" or "float16"; by default that in which the policy
            is trained (`engine_dtype`). A server has a dtype of its own: start it with `--dtype`.
    """

    loss_type: str = "grpo"
    vllm_importance_sampling_mode: str | None = None
    max_prompt_length: int | None = None
    max_tokens_per_micro_batch: int | None = None
    refill_attempts: int = 0
    oversampling: float = 0.0
    oversampling_max_age: int = 3
    generate_ahead: bool = False
    sampled_as_old: bool = False
    vllm_lora: bool = False
    vllm_dtype: str | None = None

    def __post_init__(self) -> None:
        settle_on_cpu(self)
        refuse_impossible(type(self).__name__, vars(self), _CHOICES)
        try:
            super().__post_init__()
        except ValueError as error:
            if "global eval batch size" not in str(error):
                raise
            number = self.num_generations_eval or self.num_generations
            raise ValueError(  # TRL's names no setting
                f"{type(self).__name__}: per_device_eval_batch_size={self.per_device_eval_batch_size} on "
                f"{self.world_size} processes, expected whole groups of num_generations_eval={number} over all of them."
            ) from error
        name = type(self).__name__
        if not self.max_completion_length or self.max_completion_length < 1:
            raise ValueError(
                f"{name}: max_completion_length={self.max_completion_length}, expected the token limit of an answer, "
                "an integer ≥ 1."
            )
        if self.remove_unused_columns:
            raise ValueError(f"{name}: remove_unused_columns=True removes images and answers; leave it False.")
        if self.use_vllm and not 0.01 <= self.temperature <= 2:
            raise ValueError(
                f"{name}: temperature={self.temperature} with use_vllm, expected 0.01 to 2: vLLM refuses a higher one, "
                "and samples with 0.01 for a lower one."
            )
        if self.vllm_importance_sampling_mode is None:
            cut = self.top_p < 1 or self.top_k > 0 or bool(self.min_p)
            self.vllm_importance_sampling_mode = "token_truncate" if cut else "sequence_mask"
        if self.sampled_as_old:
            cut = self.top_p < 1 or self.top_k > 0 or self.min_p or self.repetition_penalty != 1
            if cut or not (self.use_vllm and self.vllm_importance_sampling_correction):
                raise ValueError(
                    f"{name}: sampled_as_old=True is for use_vllm=True with vllm_importance_sampling_correction=True, "
                    "and without top_p, top_k, min_p and repetition_penalty, with which vLLM's log-probabilities are "
                    "those among what is left. Fix: sampled_as_old=False."
                )
        if self.vllm_lora and not (self.use_vllm and self.vllm_mode == "colocate"):
            raise ValueError(
                f"{name}: vllm_lora=True is for use_vllm=True with vllm_mode='colocate'. Fix: vllm_lora=False; a "
                "server gets merged weights."
            )
        if self.vllm_dtype is None:
            return
        if self.vllm_dtype not in DTYPES:
            raise ValueError(f"{name}: vllm_dtype={self.vllm_dtype!r}, expected one of {', '.join(DTYPES)}.")
        if not self.use_vllm or self.vllm_mode != "colocate":
            raise ValueError(
                f"{name}: vllm_dtype={self.vllm_dtype!r} is for use_vllm=True with vllm_mode='colocate'. Fix: leave it "
                "out; a vLLM server is given its dtype with --dtype."
            )
