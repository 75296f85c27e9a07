"""Settings of Chain-of-Step's stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers.trainer_utils import IntervalStrategy
from trl import DPOConfig, SFTConfig

from ..sampling.engine import Decoding
from ..sft import CompletionSFTConfig
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


@dataclass
class ChainOfStepSFTConfig(CompletionSFTConfig):
    """`SFTConfig` for chains of steps (arXiv:2509.19003, section 4.1, Table 7).

    The paper's batch has 128 chains: the product of processes, `per_device_train_batch_size` and
    `gradient_accumulation_steps`. Its drop path of 0.1 acts in the vision encoder, which is frozen, and is left out.

    Attributes:
        freeze_vision_encoder: on, as the paper trains projector and LLM.
        learning_rate: 5e-6; TRL's own default is 2e-5.
        warmup_steps: 0.03 of all steps; TRL's own default is 0.
        weight_decay: 0.05; TRL's own default is 0.
    """

    freeze_vision_encoder: bool = field(default=True, metadata={"help": "Do not train the vision encoder."})
    learning_rate: float = field(default=5e-6, metadata={"help": "Initial learning rate."})
    warmup_steps: float = field(default=0.03, metadata={"help": "Steps of warm-up, or below 1 their share of all."})
    weight_decay: float = field(default=0.05, metadata={"help": "Weight decay."})


@dataclass
class ProcessRewardConfig(SFTConfig):
    """`SFTConfig` for a process reward model (arXiv:2509.19003, section 3.4, Eq. 1; section 4.1, Table 7).

    The paper's batch has 128 chains: the product of processes, `per_device_train_batch_size` and
    `gradient_accumulation_steps`. Its drop path of 0.4 acts in the vision encoder, which is frozen, and is left out.

    Attributes:
        right_token, wrong_token: the two tokens whose logits are compared; `None` for those that the model was made
            with, or else "+" and "-".
        freeze_vision_encoder: leave the vision encoder's weights as they are; the paper trains projector and LLM.
        learning_rate: 1e-6; TRL's own default is 2e-5.
        num_train_epochs: 2; TRL's own default is 3.
        warmup_steps: 0.03 of all steps; TRL's own default is 0.
        weight_decay: 0.05; TRL's own default is 0.
        max_length: `None`, as a cut row would lose steps or, worse, part of a picture.
    """

    right_token: str | None = field(default=None, metadata={"help": "Token for right; None: the model's, or '+'."})
    wrong_token: str | None = field(default=None, metadata={"help": "Token for wrong; None: the model's, or '-'."})
    freeze_vision_encoder: bool = field(default=True, metadata={"help": "Do not train the vision encoder."})
    learning_rate: float = field(default=1e-6, metadata={"help": "Initial learning rate."})
    num_train_epochs: float = field(default=2.0, metadata={"help": "Epochs."})
    warmup_steps: float = field(default=0.03, metadata={"help": "Steps of warm-up, or below 1 their share of all."})
    weight_decay: float = field(default=0.05, metadata={"help": "Weight decay."})
    max_length: int | None = field(default=None, metadata={"help": "Has to be None: rows are never cut."})
    remove_unused_columns: bool | None = field(default=False, metadata={"help": "Has to be False: labels are columns."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, wanted in {**_UNUSED, "max_length": None, "remove_unused_columns": False}.items():
            if getattr(self, name) != wanted:
                raise ValueError(
                    f"ProcessRewardConfig: {name}={getattr(self, name)!r} has no meaning for a process reward model, "
                    f"whose rows are scored whole and one by one; leave it {wanted!r}."
                )
        # Rows are encoded when they are put into a batch, as SFTTrainer does by itself where there are pictures.
        self.dataset_kwargs = {"skip_prepare_dataset": True}


@dataclass
class IterativeDPOConfig(DPOConfig):
    """`DPOConfig` for rounds of sampling, scoring, pairing and DPO (arXiv:2509.19003, section 3.4, Table 7).

    The paper's batch has 256 pairs: the product of processes, `per_device_train_batch_size` and
    `gradient_accumulation_steps`. `num_train_epochs`, `max_steps`, the schedule and the checkpoints are those of one
    round. Its drop path of 0.1 in the vision encoder is left out.

    Attributes:
        rounds: 3.
        chains: whether paths are chains of steps. False for a policy of another reasoning pattern (section 4.4), whose
            whole answer is graded, and whose pairs are by outcome.
        num_paths: paths a question and round; 16.
        step_weight: w of the trajectory score; 0 counts the answer alone ("Answer (PRM)" of Table 2).
        pair_threshold: t, which the scores of a pair have to differ by more than. The paper gives no number.
        pairing, max_pairs: which pairs of a question are taken; see `objective.select_pairs`. `step_wise` is the
            attempt of appendix E, which the paper advises against: `num_paths` candidates for each step in turn, a pair
            of the best and the worst, and the next step behind the best (see `step_pairs`).
        max_completion_length: bound of a path in tokens, for `step_wise` of a step; ours.
        temperature, top_p: of sampling (appendix C).
        sampling_batch_size: paths, or candidates of steps, sampled at a time in each process.
        scoring_batch_size: paths, or candidates of steps, scored at a time in each process.
        freeze_vision_encoder: off, as the paper trains it in this stage.
        beta: 0.1, as TRL's own default.
        learning_rate: 1e-6, as TRL's own default.
        num_train_epochs: 1; TRL's own default is 3.
        warmup_steps: 0.03 of all steps; TRL's own default is 0.
        weight_decay: 0.05; TRL's own default is 0.
        max_length: `None`, as a cut row would lose its answer or, worse, part of a picture.
    """

    rounds: int = field(default=3, metadata={"help": "Rounds of sampling, scoring, pairing and DPO."})
    chains: bool = field(default=True, metadata={"help": "Paths are chains; false: whole answers are graded."})
    num_paths: int = field(default=16, metadata={"help": "Paths a question and round."})
    step_weight: float = field(default=0.2, metadata={"help": "Weight of the steps in a path's score."})
    pair_threshold: float = field(default=0.2, metadata={"help": "The scores of a pair differ by more than this."})
    pairing: str = field(default="best_worst", metadata={"help": "best_worst, ranked, all or step_wise."})
    max_pairs: int | None = field(default=None, metadata={"help": "For ranked and all: no more pairs a question."})
    max_completion_length: int = field(default=1024, metadata={"help": "Bound of a path in tokens."})
    temperature: float = field(default=1.0, metadata={"help": "Of sampling."})
    top_p: float = field(default=0.95, metadata={"help": "Of sampling."})
    sampling_batch_size: int = field(default=32, metadata={"help": "Paths sampled at a time, in each process."})
    scoring_batch_size: int = field(default=32, metadata={"help": "Paths scored at a time, in each process."})
    freeze_vision_encoder: bool = field(default=False, metadata={"help": "Do not train the vision encoder."})
    num_train_epochs: float = field(default=1.0, metadata={"help": "Epochs of a round."})
    warmup_steps: float = field(default=0.03, metadata={"help": "Steps of warm-up, or below 1 their share of all."})
    weight_decay: float = field(default=0.05, metadata={"help": "Weight decay."})
    max_length: int | None = field(default=None, metadata={"help": "Has to be None: pairs are never cut."})

    @property
    def decoding(self) -> Decoding:
        """How paths are drawn."""
        return Decoding(self.max_completion_length, self.temperature, self.top_p)

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("rounds", "sampling_batch_size", "scoring_batch_size")
        for name, least in {**dict.fromkeys(counts, 1), "num_paths": 2}.items():
            if getattr(self, name) < least:
                raise ValueError(f"IterativeDPOConfig: {name}={getattr(self, name)}, expected {least} or more.")
        if not self.temperature:
            raise ValueError("IterativeDPOConfig: temperature=0 draws the same path each time, so there is no pair.")
        self._check_pairing()
        trajectory_score((), 0.0, self.step_weight)
        _ = self.decoding  # refuses what is out of range
        if self.eval_strategy != "no":
            raise ValueError(
                f"IterativeDPOConfig: eval_strategy={IntervalStrategy(self.eval_strategy).value!r} is not supported: "
                "other questions are answered before the first and after each round. Leave it 'no', and pass them as "
                "eval_dataset."
            )
        for name, why in {
            "precompute_ref_log_probs": "the pairs are made during training",
            "sync_ref_model": "the reference is the SFT model in all rounds",
            "max_length": "a cut row would lose its answer or part of a picture",
            "load_best_model_at_end": "the last round's policy is the result",
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
        """Refuse settings that do not fit where pairs come from.

        Args:
            process_reward: of the trainer; `None` for pairs by outcome.
        """
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
