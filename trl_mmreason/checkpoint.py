"""Put a checkpoint's weights back into a model, and refuse to go on when that did not happen.

`Trainer` reads a checkpoint with `load_state_dict(strict=False)`. Several vision-language families are saved under
the key names of their published checkpoints and not under those of the live module, so nothing matches, a warning is
printed, and training goes on from the base weights. `from_pretrained` knows the renaming.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from peft import PeftModel, get_peft_model_state_dict, load_peft_weights
from transformers import PreTrainedModel, Trainer


class CheckpointError(RuntimeError):
    """The weights of a checkpoint are not in the model."""


def restore_weights(model: PreTrainedModel, checkpoint: str | Path) -> None:
    """Load all weights of `checkpoint` into `model`, in place.

    Raises:
        CheckpointError: the checkpoint lacks a weight of the model, or holds one that the model does not have.
    """
    # Read as float32 whatever the model is: parts of it may be in float32 (a head, a trained half), and
    # `load_state_dict` casts each weight to the type that it has in the model.
    saved, report = type(model).from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    problems = {name: sorted(map(str, keys)) for name, keys in report.items() if keys}
    if problems:
        raise CheckpointError(
            f"The checkpoint {checkpoint} does not fit {type(model).__name__}: {problems}. Training would have gone on "
            "from other weights. Resume with the model and the library versions that wrote the checkpoint."
        )
    model.load_state_dict(saved.state_dict())


def check_adapter_restored(model: PeftModel, checkpoint: str | Path) -> None:
    """Compare the active adapter of `model` with the one in `checkpoint`.

    Raises:
        CheckpointError: a tensor of the checkpoint's adapter is not in the model, or differs.
    """
    live = get_peft_model_state_dict(model, adapter_name=model.active_adapters[0])
    saved = load_peft_weights(str(checkpoint), device="cpu")
    wrong = [
        name
        for name in saved.keys() | live.keys()
        if name not in live or name not in saved or not torch.equal(live[name].cpu(), saved[name].to(live[name].dtype))
    ]
    if wrong:
        raise CheckpointError(
            f"{len(wrong)} of {len(saved)} adapter tensors of {checkpoint} did not reach the model, the first of them "
            f"{sorted(wrong)[0]!r}. Training would have gone on from other weights. Resume with the `peft_config` and "
            "the library versions that wrote the checkpoint."
        )


def _cast_back(model: PeftModel, types: dict[str, torch.dtype]) -> None:
    """Give each weight the type it had: PEFT loads the bfloat16 adapter of a QLoRA as float32."""
    for name, weight in model.named_parameters():
        weight.data = weight.data.to(types[name])


class FaithfulCheckpoints(Trainer):
    """A trainer that goes on from the weights of its checkpoint, for every model family, and saves before it pushes."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        target = self.model if model is None else model
        if self.is_fsdp_enabled or not isinstance(target, PreTrainedModel):
            types = {name: weight.dtype for name, weight in target.named_parameters()}
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            if is_peft_model(target) and not self.is_fsdp_enabled:
                check_adapter_restored(target, resume_from_checkpoint)
                _cast_back(target, types)
        else:
            restore_weights(target, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if isinstance(self.model, PreTrainedModel) and not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            restore_weights(self.model, self.state.best_model_checkpoint)
        else:
            types = {name: weight.dtype for name, weight in self.model.named_parameters()}
            super()._load_best_model()
            if is_peft_model(self.model) and not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
                check_adapter_restored(self.model, self.state.best_model_checkpoint)
                _cast_back(self.model, types)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Push the model, which is on disk before the first request: a refused token must not cost the training."""
        if not self.args.push_to_hub:  # then `Trainer` creates the repository before it saves
            self.save_model(_internal_call=True)
        return super().push_to_hub(*args, **kwargs)
