"""Settings of Chain-of-Step's stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from transformers.trainer_utils import IntervalStrategy
from trl import DPOConfig, SFTConfig

from ..compat.precision import settle_on_cpu
from ..generation.engine import SamplingParams
from ..training.config_values import refuse_impossible
from ..training.documented import documented
from ..training.early_stopping import EarlyStoppingArguments
from ..training.sft import CompletionSFTConfig
from ..training.vllm_config import RolloutConfig
from .objective import PAIRINGS, select_pairs, trajectory_score

STEP_WISE = "step_wise"
"""The pairing of appendix E: a pair at every step, of the best candidate and the worst."""

# Settings of TRL's for the likelihood of tokens, and how its collators cut and pack them: none has a part in this.
_UNUSED: dict[str, Any] = {
    "packing": False,
    "eval_packing": None,
    "padding_free": False,
    "pad_to_multiple_of": None,
    "completion_only_loss": None,
    "assistant_only_loss": False,
    "loss_type": "nll",
    "label_smoothing_factor": 0.0,
    "router_aux_loss_coef": None,
    "dataset_text_field": "text",
    "shuffle_dataset": False,
    "truncation_mode": "keep_start",
    "batch_eval_metrics": False,
}


@documented
@dataclass
class ChainOfStepSFTConfig(CompletionSFTConfig):
    """`SFTConfig` for chains of steps (arXiv:2509.19003, section 4.1, Table 7).

    The paper's batch has 128 chains: the product of processes, `per_device_train_batch_size` and
    `gradient_accumulation_steps`. Its drop path of 0.1 acts in the vision encoder, which is frozen, and is left out.

    Attributes:
        freeze_vision_encoder: leave the vision encoder's weights as they are; on: the paper trains projector, which in
            Qwen-VL is the merger, and LLM.
        learning_rate: initial learning rate, 5e-6; TRL's own default is 2e-5.
        warmup_steps: steps of warm-up, or below 1 their share of all, 0.03; TRL's own default is 0.
        weight_decay: weight decay, 0.05; TRL's own default is 0.
    """

    freezes_merger: ClassVar[bool] = False

    freeze_vision_encoder: bool = True
    learning_rate: float = 5e-6
    warmup_steps: float = 0.03
    weight_decay: float = 0.05


@documented
@dataclass
class ProcessRewardConfig(EarlyStoppingArguments, SFTConfig):
    """`SFTConfig` for a process reward model (arXiv:2509.19003, section 3.4, Eq. 1; section 4.1, Table 7).

    The paper's batch has 128 chains: the product of processes, `per_device_train_batch_size` and
    `gradient_accumulation_steps`. Its drop path of 0.4 acts in the vision encoder, which is frozen, and is left out.

    Attributes:
        right_token, wrong_token: tokens for right and for wrong, whose logits are compared; `None` for those that the
            model was made with, or else "+" and "-".
        freeze_vision_encoder: leave the vision encoder's weights as they are; on: the paper trains projector, which in
            Qwen-VL is the merger, and LLM.
        learning_rate: initial learning rate, 1e-6; TRL's own default is 2e-5.
        num_train_epochs: epochs, 2; TRL's own default is 3.
        warmup_steps: steps of warm-up, or below 1 their share of all, 0.03; TRL's own default is 0.
        weight_decay: weight decay, 0.05; TRL's own default is 0.
        max_length: must be `None`, as a cut row would lose steps or, worse, part of an image.
        remove_unused_columns: must be False: labels are columns.
    """

    right_token: str | None = None
    wrong_token: str | None = None
    freeze_vision_encoder: bool = True
    learning_rate: float = 1e-6
    num_train_epochs: float = 2.0
    warmup_steps: float = 0.03
    weight_decay: float = 0.05
    max_length: int | None = None
    remove_unused_columns: bool | None = False

    def __post_init__(self) -> None:
        settle_on_cpu(self)
        refuse_impossible(type(self).__name__, vars(self))
        super().__post_init__()
        for name, required in {**_UNUSED, "max_length": None, "remove_unused_columns": False}.items():
            if getattr(self, name) != required:
                raise ValueError(
                    f"ProcessRewardConfig: {name}={getattr(self, name)!r} has no meaning for a process reward model, "
                    f"whose rows are scored whole and one by one; leave it {required!r}."
                )
        # Rows are encoded when they are put into a batch, as SFTTrainer does by itself where there are images.
        self.dataset_kwargs = {"skip_prepare_dataset": True}


@documented
@dataclass
class IterativeDPOConfig(DPOConfig):
    """`DPOConfig` for rounds of sampling, scoring, pairing and DPO (arXiv:2509.19003, section 3.4, Table 7).

    The paper's batch has 256 pairs: the product of processes, `per_device_train_batch_size` and
    `gradient_accumulation_steps`. `beta` (0.1) and `learning_rate` (1e-6) are the paper's too, as they are TRL's.
    `num_train_epochs`, `max_steps`, the schedule and the checkpoints are those of one round. Its drop path of 0.1 in
    the vision encoder is left out.

    Attributes:
        rounds: rounds of sampling, scoring, pairing and DPO; 3.
        chains: whether paths are chains of steps. False for a policy of another reasoning pattern (section 4.4), whose
            whole answer is graded, and whose pairs are by outcome.
        num_paths: paths per question and round; 16.
        step_weight: w, weight of the steps in a path's score; 0 counts the answer alone ("Answer (PRM)" of Table 2).
        pair_threshold: t, which the scores of a pair have to differ by more than. The paper gives no number.
        pairing: which pairs of a question are taken: "best_worst", "ranked" or "all" (see `objective.select_pairs`), or
            "step_wise", the attempt of appendix E, which the paper advises against: `num_paths` candidates for each
            step in turn, a pair of the best and the worst, and the next step after the best (see `pairs`).
        max_pairs: for "ranked" and "all": take no more pairs of a question, those with the widest margins.
        max_completion_length: token limit of a path, for `step_wise` of a step; ours.
        temperature, top_p: temperature and top-p of sampling (appendix C).
        sampling_batch_size: paths, or candidates of steps, sampled at a time in each process.
        scoring_batch_size: paths, or candidates of steps, scored at a time in each process.
        freeze_vision_encoder: leave the vision encoder's weights as they are, but not the projector's; off: the paper
            trains it in this stage.
        num_train_epochs: epochs of a round, 1; TRL's own default is 3.
        warmup_steps: steps of warm-up, or below 1 their share of all, 0.03; TRL's own default is 0.
        weight_decay: weight decay, 0.05; TRL's own default is 0.
        max_length: must be `None`, as a cut row would lose its answer or, worse, part of an image.
        ddp_timeout: seconds that a process waits for another; a week, as shares of sampling end far apart.
    """

    rounds: int = 3
    chains: bool = True
    num_paths: int = 16
    step_weight: float = 0.2
    pair_threshold: float = 0.2
    pairing: str = "best_worst"
    max_pairs: int | None = None
    max_completion_length: int = 1024
    temperature: float = 1.0
    top_p: float = 0.95
    sampling_batch_size: int = 32
    scoring_batch_size: int = 32
    freeze_vision_encoder: bool = False
    num_train_epochs: float = 1.0
    warmup_steps: float = 0.03
    weight_decay: float = 0.05
    max_length: int | None = None
    ddp_timeout: int = 604_800

    @property
    def sampling_params(self) -> SamplingParams:
        """Sampling parameters of paths."""
        return SamplingParams(self.max_completion_length, self.temperature, self.top_p)

    def __post_init__(self) -> None:
        settle_on_cpu(self)
        if not self.temperature:
            raise ValueError("IterativeDPOConfig: temperature=0 draws the same path each time, so there is no pair.")
        refuse_impossible(type(self).__name__, vars(self))
        super().__post_init__()
        counts = ("rounds", "sampling_batch_size", "scoring_batch_size")
        for name, least in {**dict.fromkeys(counts, 1), "num_paths": 2}.items():
            if getattr(self, name) < least:
                raise ValueError(f"IterativeDPOConfig: {name}={getattr(self, name)}, expected {least} or more.")
        self._check_pairing()
        trajectory_score((), 0.0, self.step_weight)
        _ = self.sampling_params  # refuses what is out of range
        if self.eval_strategy != "no" or self.eval_on_start:
            raise ValueError(
                f"IterativeDPOConfig: got eval_strategy={IntervalStrategy(self.eval_strategy).value!r} and "
                f"eval_on_start={self.eval_on_start}, expected 'no' and False: other questions are answered before the "
                "first and after each round. Fix: leave both out, and pass these questions as eval_dataset."
            )
        if self.save_strategy == "best":
            raise ValueError(
                "IterativeDPOConfig: save_strategy='best' is not supported: no evaluation chooses a checkpoint of a "
                "round. Leave it 'steps', or 'epoch' or 'no'."
            )
        for name, why in {
            "precompute_ref_log_probs": "the pairs are made during training",
            "sync_ref_model": "the reference is the SFT model in all rounds",
            "max_length": "a cut row would lose its answer or part of an image",
            **dict.fromkeys(
                ("load_best_model_at_end", "metric_for_best_model"), "the last round's policy is the result"
            ),
        }.items():
            if getattr(self, name):
                raise ValueError(f"IterativeDPOConfig: {name}={getattr(self, name)!r} is not supported: {why}.")

    def _check_pairing(self) -> None:
        if self.pairing not in (*PAIRINGS, STEP_WISE):
            raise ValueError(
                f"IterativeDPOConfig: unknown pairing {self.pairing!r}; expected one of "
                f"{', '.join((*PAIRINGS, STEP_WISE))}."
            )
        if self.pairing != STEP_WISE:
            select_pairs((), self.pair_threshold, self.pairing, max_pairs=self.max_pairs)
            return
        select_pairs((), self.pair_threshold)
        if self.max_pairs is not None or self.step_weight != IterativeDPOConfig.step_weight or not self.chains:
            raise ValueError(
                f"IterativeDPOConfig: pairing='step_wise' came with max_pairs={self.max_pairs}, step_weight="
                f"{self.step_weight} and chains={self.chains}. It pairs single steps of chains, one pair a step: leave "
                "these out."
            )

    def check_process_reward(self, process_reward: Any) -> None:
        """Refuse settings that need a process reward model if there is none, or exclude one if there is one."""
        if process_reward is None and self.step_weight != IterativeDPOConfig.step_weight:
            raise ValueError(
                f"IterativeDPOTrainer: step_weight={self.step_weight} weighs the scores of a process reward model, and "
                "there is none. Pass one, or leave step_weight out."
            )
        if process_reward is None and self.pairing == STEP_WISE:
            raise ValueError(
                "IterativeDPOTrainer: pairing='step_wise' compares single steps, and there is no process reward model "
                "to score them. Pass one, or choose another pairing."
            )
        if process_reward is not None and not self.chains:
            raise ValueError(
                "IterativeDPOTrainer: chains=False came with a process reward model, which scores nothing but chains "
                "of steps. Pass None, for pairs by outcome."
            )


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
        step_credit: give the score of a step to its own tokens, compared with the group's other steps, and the answer's
            to its tokens; ours, the paper's reward is the trajectory's. What stands outside whole steps gets none.
        freeze_vision_encoder: leave the vision encoder's weights as they are, but not the projector's.
        num_generations: rollouts per question, 5; TRL's own default is 8.
        per_device_train_batch_size, per_device_eval_batch_size: rollouts per process and forward pass, in training and
            in evaluation, 5, one question; TRL's own default is 8.
        learning_rate: initial learning rate, 1e-5; TRL's own default is 1e-6.
        max_steps: optimizer steps, 100; TRL's own default is -1: as many as `num_train_epochs` says, three epochs.
        max_completion_length: token limit of a chain; ours. TRL's own default is 512.
    """

    step_weight: float = 0.2
    step_credit: bool = False
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
        if (
            self.num_train_epochs != RolloutConfig.num_train_epochs
            and self.max_steps == ChainOfStepGRPOConfig.max_steps
        ):
            raise ValueError(
                f"ChainOfStepGRPOConfig: num_train_epochs={self.num_train_epochs} has no effect beside max_steps="
                f"{self.max_steps}, the default here. Leave it out, or set max_steps=-1."
            )
