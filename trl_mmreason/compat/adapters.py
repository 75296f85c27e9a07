"""The weights of an adapter, whether those of a checkpoint have reached the model, and the LM head that it wraps."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict, load_peft_weights
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from peft.utils.other import AuxiliaryTrainingWrapper, TrainableTokensWrapper
from torch import nn
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from .replaced import replaced
from .sharding import whole_state

_SCALING = re.compile(r"alpha|rslora|scaling|seed|prng_key|alora_invocation|token_indices|init_lora|cayley")
"""Settings by which the same tensors are another adapter: factors, tokens, what places or directions were drawn by, and
beginnings such as PiSSA's, which are taken out of the base model."""


class CheckpointError(RuntimeError):
    """A checkpoint's weights did not reach the model, or a checkpoint could not be written."""


def adapter_tensors(model: PeftModel, tensors: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """The active adapter's weights (not copies), under the names in its checkpoint.

    Args:
        model: sharded or not.
        tensors: its `state_dict(keep_vars=True)`, if that is at hand.
    """
    tensors = tensors or model.state_dict(keep_vars=True)
    return get_peft_model_state_dict(model, state_dict=tensors, adapter_name=model.active_adapters[0])


def check_adapter_restored(model: PeftModel, checkpoint: str | Path) -> None:
    """Compare the active adapter of `model` with the one in `checkpoint`.

    Raises:
        CheckpointError: a tensor of the checkpoint's adapter is not in the model, or differs.
    """
    live, saved = adapter_tensors(model), load_peft_weights(str(checkpoint), device="cpu")
    live = whole_state(live, keep=True)
    same = {name for name in saved if name in live and torch.equal(live[name], saved[name].to(live[name].dtype))}
    check_names(live.keys(), same, checkpoint)
    check_names(saved.keys(), same, checkpoint)


def check_names(live: Collection[str], saved: Collection[str], checkpoint: str | Path) -> None:
    """Compare the names of the adapter in a model with those in its checkpoint.

    Raises:
        CheckpointError: they differ.
    """
    if wrong := sorted(set(live) ^ set(saved)):
        raise CheckpointError(
            f"{len(wrong)} of {max(len(live), len(saved))} adapter tensors of {checkpoint} did not reach the model, "
            f"the first of them {wrong[0]!r}. Training would have continued from other weights. Resume with the "
            "`peft_config` and the library versions that wrote the checkpoint."
        )


def check_scaling(model: PeftModel, checkpoint: str | Path) -> None:
    """Compare the settings that say what the active adapter's tensors mean with those in `checkpoint`.

    Raises:
        CheckpointError: one differs, so that the same tensors would be another model.
    """
    if not (Path(checkpoint) / "adapter_config.json").is_file():
        return
    then, now = PeftConfig.from_pretrained(str(checkpoint)), model.peft_config[model.active_adapters[0]]
    for name in filter(_SCALING.search, vars(now)):
        before, after = getattr(then, name, None), getattr(now, name)
        if before != after:
            raise CheckpointError(
                f"The adapter of {checkpoint} has {name}={before!r}, and that of this run {name}={after!r}: training "
                "would have continued from another model. Resume with the `peft_config` that wrote the checkpoint."
            )


@contextmanager
def new_adapters_leave_the_base(model: Any) -> Iterator[None]:
    """Let adapters that are added within the block, as TRL's "ref", begin plainly.

    PiSSA, OLoRA and others take from the base model's weights what their own begin with.
    """
    config = model.peft_config.get("default") if isinstance(model, PeftModel) else None
    with replaced(config, init_lora_weights=True) if config is not None else nullcontext():
        yield


def fill_reference_adapter(model: Any) -> None:
    """Copy all of a trained adapter into the "ref" adapter that TRL has made of it.

    TRL copies the weights whose names have `.default.` within, so that those that end with it keep the values of a new
    adapter: those of embeddings and of single tokens, IA3, VeRA, OFT's relatives … (huggingface/trl#6975).
    """
    if "ref" not in getattr(model, "peft_config", {}):
        return
    for module in model.modules():
        for held in (*vars(module).values(), *module.children()):
            if not hasattr(held, "keys") or not {"default", "ref"} <= set(held.keys()):
                continue
            own, reference = held["default"], held["ref"]
            if isinstance(own, nn.Module):  # its weights TRL has copied, before it rounds those of a quantised policy
                buffers = dict(reference.named_buffers())
                for name, value in own.named_buffers():
                    buffers[name].copy_(value)
            elif isinstance(own, torch.Tensor) and reference is not own:
                reference.data.copy_(own.data)


def merged(model: PeftModel) -> Any:
    """The base model with its adapter merged; embeddings and LM head part where the adapter changes one of them.

    PEFT merges an adapter of either into the weight that both share, so that the other changes, too, and says at most
    that it may. What `ensure_weight_tying` or a list of `trainable_token_indices` changes alike stays shared.
    """
    embeddings, head = (_innermost(each) for each in _ends(model.get_base_model()))
    shared = head is not None and head.weight is embeddings.weight
    if shared:
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    whole = model.merge_and_unload(safe_merge=True)
    embeddings, head = _ends(whole)
    if shared:
        if stays := torch.equal(head.weight, embeddings.weight):
            head.weight = embeddings.weight
        whole.config.tie_word_embeddings = whole.config.get_text_config().tie_word_embeddings = stays
    return whole


def parts_shared_weight(model: Any) -> bool:
    """Whether an adapter changes one of embeddings and LM head, or each otherwise, that share their base's weight."""
    if not isinstance(model, PeftModel):
        return False
    layers = _ends(model.get_base_model())
    if layers[1] is None or _innermost(layers[0]).weight is not _innermost(layers[1]).weight:
        return False
    alike = all(isinstance(each, TrainableTokensWrapper) for each in layers)
    changed = any(isinstance(each, BaseTunerLayer | AuxiliaryTrainingWrapper) for each in layers)
    return changed and not alike and not getattr(model.active_peft_config, "ensure_weight_tying", False)


def _ends(model: Any) -> tuple[Any, Any]:
    return model.get_input_embeddings(), model.get_output_embeddings()


def _innermost(layer: Any) -> Any:
    """A layer without what an adapter wraps around it."""
    if isinstance(layer, TrainableTokensWrapper):
        layer = layer.token_adapter
    if isinstance(layer, ModulesToSaveWrapper):
        return layer.original_module
    return layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer


def prepare_head(model: Any) -> None:
    """Let an adapter with `trainable_token_indices`, tied or not, be trained: PEFT then wraps the LM head.

    TRL's fused head asks it for a bias, an attribute that the wrapper lacks.

    Raises:
        ValueError: the wrapped head would be sharded by ZeRO-3.
    """
    head = model.get_output_embeddings()
    if is_deepspeed_zero3_enabled() and isinstance(head, TrainableTokensWrapper):
        raise ValueError(
            "An adapter with trainable_token_indices cannot be trained under ZeRO-3: the weight of its LM head, which "
            "TRL reads, would be sharded. Use ZeRO-2 or FSDP2, or train the whole model."
        )
    if not hasattr(head, "bias"):
        head.bias = None
