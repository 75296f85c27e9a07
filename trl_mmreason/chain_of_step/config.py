"""Settings of Chain-of-Step's stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trl import SFTConfig

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
class ProcessRewardConfig(SFTConfig):
    """`SFTConfig` for a process reward model (arXiv:2509.19003, sections 3.2 and 4.1, Table 7).

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
