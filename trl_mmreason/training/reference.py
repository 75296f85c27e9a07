"""Frozen copies of the initial policy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from transformers import PreTrainedModel, TrainingArguments
from trl import GRPOConfig
from trl.models import prepare_deepspeed
from trl.trainer import dpo_trainer, grpo_trainer
from trl.trainer.utils import create_model_from_path

from ..compat.precision import keep_training_layout
from ..compat.replaced import replaced
from ..compat.sharding import exact_rotary_frequencies, is_sharded, references_agree, shard_reference, whole_state


@contextmanager
def reference_from_policy(model: Any, args: GRPOConfig | None, peft_config: Any) -> Iterator[None]:
    """Let TRL build its KL reference from the policy that was passed, on every process.

    TRL loads the reference from the path in the policy's config. A policy that was changed in memory, or never saved,
    is therefore written to `<output_dir>/_reference` first (`push_to_hub` leaves such names out), and its config
    points there in the meantime.
    """
    in_memory = isinstance(model, PreTrainedModel) and not is_peft_model(model)
    with references_agree(), references_attend_alike(model):
        if not in_memory or peft_config is not None or args is None or args.beta == 0.0:
            yield
            return
        name, model.config._name_or_path = model.config._name_or_path, write_policy(model, args)
        try:
            yield
        finally:
            model.config._name_or_path = name


@contextmanager
def references_attend_alike(model: Any) -> Iterator[None]:
    """Let each part of TRL's reference have the attention of that part of the policy.

    TRL asks for the composite model's in all parts, and some language models refuse what their vision encoder takes.

    Args:
        model: path or id of the policy's checkpoint, or the policy.
    """
    policies = [] if isinstance(model, str) else [model]

    def create(path: str, **settings: Any) -> Any:
        if policies and isinstance(settings.get("attn_implementation"), str):
            settings["attn_implementation"] = _attention_of(policies[0].config)
        policies.append(create_model_from_path(path, **settings))
        return policies[-1]

    with replaced(grpo_trainer, create_model_from_path=create), replaced(dpo_trainer, create_model_from_path=create):
        yield


def _attention_of(config: Any) -> dict[str, Any]:
    """The attention of a configuration and of its parts, as `from_pretrained` takes it."""
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    own = {name: _attention_of(part) for name, part in parts.items() if part is not None}
    return {"": config._attn_implementation, **own}


def write_policy(model: PreTrainedModel, args: TrainingArguments) -> str:
    """Save an in-memory policy, sharded or not, to `<output_dir>/_reference`; return that folder."""
    folder = Path(args.output_dir) / "_reference"
    state = whole_state(model.state_dict(keep_vars=True), keep=args.should_save) if is_sharded(model) else None
    if args.should_save:
        model.save_pretrained(folder, state_dict=state)
    args.distributed_state.wait_for_everyone()
    return str(folder)


def initial_policy(model: Any, args: TrainingArguments, quantization_config: Any = None) -> Any:
    """Make a frozen copy of a trainer's initial policy, before the trainer changes it.

    Args:
        model: path or id of a checkpoint, which is read anew and just as TRL reads the policy, or a model, which is
            copied; under ZeRO-3, where it may be in pieces, by way of `<output_dir>/_reference`.
    """
    if not isinstance(model, str):
        if not is_sharded(model):
            return copy.deepcopy(model).eval().requires_grad_(False)
        if is_peft_model(model):
            raise ValueError(
                "A model that has an adapter and was loaded under ZeRO-3 cannot be copied. Pass the path of its base "
                "model and a peft_config, or set beta=0."
            )
        model = write_policy(model, args)
    settings: dict[str, Any] = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}
    if quantization_config is not None:
        settings["quantization_config"] = quantization_config
    if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        settings["device_map"] = None  # each process has the whole of it
    return create_model_from_path(model, **settings).eval().requires_grad_(False)


def prepare_reference(reference: Any, trainer: Any) -> Any:
    """Put the frozen copy on the policy's devices, wrapped for the same engine."""
    keep_training_layout(reference)
    exact_rotary_frequencies(reference)
    if trainer.is_deepspeed_enabled:
        return prepare_deepspeed(reference, trainer.accelerator)
    if trainer.is_fsdp_enabled:
        return shard_reference(reference, trainer.accelerator)
    return trainer.accelerator.prepare_model(reference, evaluation_mode=True)
