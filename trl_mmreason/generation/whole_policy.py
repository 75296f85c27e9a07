"""Copy a trainer's sharded policy whole into each process, so that each can sample alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast
from transformers import PreTrainedModel, Trainer
from trl.models import unwrap_model_for_generation

from ..compat.sharding import is_sharded
from .loading import load_model


@contextmanager
def whole_policy(trainer: Trainer, saved: str | Path | None = None) -> Iterator[PreTrainedModel]:
    """Yield the policy, whole and on this process's device; all processes have to ask for it.

    Under FSDP, whose processes run a sharded model together, it is read from where it is saved.

    Args:
        trainer: its model may be sharded, or wait on the CPU for training to begin, as under DeepSpeed and FSDP.
        saved: a folder that holds the policy; under FSDP it may be `None` only before training.
    """
    accelerator: Any = trainer.accelerator
    policy: Any = accelerator.unwrap_model(trainer.model)
    if trainer.is_fsdp_enabled and saved is not None:
        whole, _ = load_model(str(saved))
        whole.config._name_or_path = policy.config._name_or_path  # the folder may be moved
        yield whole
        return
    if policy.device.type != accelerator.device.type and not is_sharded(policy):
        policy.to(accelerator.device)
    if trainer.is_fsdp_enabled:
        for weight in [*policy.parameters(), *policy.buffers()]:  # the first process alone may have read them
            broadcast(weight.data, from_process=0)
    with unwrap_model_for_generation(trainer.model_wrapped, accelerator) as policy:
        yield policy
