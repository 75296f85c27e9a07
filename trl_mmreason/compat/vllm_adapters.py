"""An adapter beside its base in a colocated vLLM, instead of merged weights (`vllm_lora`).

TRL 1.16 sends all weights with the adapter merged (huggingface/trl#5975). Merged weights in bfloat16 are rounded anew,
so that vLLM samples from a policy a little off the one that is trained. Here vLLM gets the base once, and at each
update the adapter's tensors, in a folder, as its interface takes no others (vllm-project/vllm#4068). This module
imports without vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.utils import is_peft_model
from peft import PeftType
from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import save_file
from torch import Tensor, nn

from .model_parts import parts_of
from .saved_weights import Saved
from .sharding import whole

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `max_lora_rank`."""

_PREFIX = "base_model.model."  # of names in an adapter's file
_MERGE = "Fix: vllm_lora=False, which sends merged weights."


class AdapterInVLLM:
    """The adapter of a policy in a colocated vLLM, which answers every request with it.

    Args:
        llm: the `vllm.LLM`, built with `engine_settings`.
        saved: the names of the base's weights in checkpoints, which vLLM reads.

    Attributes:
        base_sent: whether vLLM has the policy's base.

    Raises:
        ValueError: vLLM has no place for some of the adapted layers.
    """

    def __init__(self, llm: Any, model: Any, saved: Saved) -> None:
        from vllm.lora.request import LoRARequest

        self.llm, self.saved, self.base_sent = llm, saved, False
        self._check_places(model)
        self._folder = TemporaryDirectory(prefix="mmreason_adapter_")
        self._request = partial(LoRARequest, "policy", 1, self._folder.name)
        for name in ("generate", "enqueue"):
            setattr(llm, name, partial(getattr(llm, name), lora_request=self._request()))

    def send(self, model: Any) -> None:
        """Replace vLLM's adapter by the policy's; a collective operation if weights are sharded."""
        rank = highest_rank(model)
        # factors are scaled already, as layers may have different scales: vLLM has one for all, which is 1 here
        config = {"r": rank, "lora_alpha": rank, "target_modules": [], "peft_type": "LORA"}
        (Path(self._folder.name) / "adapter_config.json").write_text(json.dumps(config))
        save_file(adapter_tensors(model, self.saved), Path(self._folder.name) / "adapter_model.safetensors")
        self.llm.llm_engine.add_lora(self._request(load_inplace=True))

    def _check_places(self, model: Any) -> None:
        from vllm.lora.utils import parse_fine_tuned_lora_name

        # vLLM passes over layers that it does not adapt, as those of most vision towers, or names them by their class
        manager = _runner(self.llm).lora_manager._adapter_manager
        there = {*manager.modules, *(name for parts in manager.packed_modules.values() for name in parts)}
        mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
        mapper = mapper and mapper.get_rename_mapper()

        def place(path: str, layer: Any) -> str:
            name = f"{_PREFIX}{_saved_name(path, layer, self.saved)}.lora_A.weight"
            return parse_fine_tuned_lora_name(name, mapper)[0]

        if lost := [path for path, layer in adapted_layers(model) if place(path, layer) not in there]:
            raise ValueError(
                f"vllm_lora=True: this vLLM cannot adapt {len(lost)} of the layers that the adapter changes, the first "
                f"of them {lost[0]!r}. Fix: leave them out of the LoRA (target_modules, exclude_modules), or "
                "vllm_lora=False, which sends merged weights."
            )

    @contextmanager
    def loading_base(self) -> Iterator[None]:
        """Within the block vLLM's model loads weights as one without adapters; afterwards it has the base."""
        from vllm.lora.layers.base import BaseLayerWithLoRA

        places = [
            (module, name, child)
            for module in _runner(self.llm).model.modules()
            for name, child in module.named_children()
            if isinstance(child, BaseLayerWithLoRA) and isinstance(getattr(child, "base_layer", None), nn.Module)
        ]
        for module, name, child in places:
            module._modules[name] = child.base_layer
        try:
            yield
        finally:
            for module, name, child in places:
                module._modules[name] = child
        self.base_sent = True


def engine_settings(model: Any) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for a policy's adapter.

    Raises:
        ValueError: the policy has none, or one that vLLM cannot hold.
    """
    if problem := unsupported(model):
        raise ValueError(f"vllm_lora=True: {problem} {_MERGE}")
    rank, parts = highest_rank(model), parts_of(model)
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": min(most for most in RANKS if most >= rank),
        "enable_tower_connector_lora": any("lora_" in name for name, part in parts.items() if part != "language"),
    }


def unsupported(model: Any) -> str | None:
    """What of a policy's adapter vLLM cannot hold, in one sentence; `None` if it can, as far as layers are known."""
    if not is_peft_model(model):
        return "the policy has no adapter (peft_config)."
    config = model.active_peft_config
    if config.peft_type != PeftType.LORA:
        return f"the adapter is of type {config.peft_type.value}, and vLLM adapts with LoRA alone."
    for path, module in model.get_base_model().named_modules():
        if isinstance(module, AuxiliaryTrainingWrapper):
            what = "trainable_token_indices" if hasattr(module, "token_adapter") else "modules_to_save"
            return f"the adapter trains all or part of {path!r} itself ({what}), which vLLM does not take."
        if not isinstance(module, BaseTunerLayer):
            continue
        adapter = module.active_adapters[0]
        if not _is_plain(module):
            return f"vLLM does not adapt {path!r} as {type(module).__name__} of PEFT does."
        if adapter in module.lora_variant:
            return f"vLLM has no {type(module.lora_variant[adapter]).__name__.removesuffix('Variant')} ({path!r})."
        if module.lora_bias.get(adapter) or config.bias != "none":
            return "the adapter trains biases (bias, lora_bias), which vLLM does not take."
    if (rank := highest_rank(model)) > RANKS[-1]:
        return f"the adapter has rank {rank}, and vLLM takes {RANKS[-1]} at most."
    return None


def adapted_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Path in the base model, and layer, of each that has a LoRA."""
    for path, module in model.get_base_model().named_modules():
        if isinstance(module, lora.LoraLayer):
            yield path, module


def adapter_tensors(model: Any, saved: Saved) -> dict[str, Tensor]:
    """An adapter's factors, the second ones scaled, on the CPU by the names of checkpoints; a collective operation."""
    return {
        f"{_PREFIX}{name}": tensor.to("cpu", copy=True).contiguous()
        for path, layer in adapted_layers(model)
        for name, tensor in _factors(_saved_name(path, layer, saved), layer)
    }


def highest_rank(model: Any) -> int:
    """The highest rank among an adapter's layers."""
    return max(layer.r[layer.active_adapters[0]] for _, layer in adapted_layers(model))


def _is_plain(layer: Any) -> bool:
    """Whether a layer is a linear one, of any precision, or an embedding."""
    adapter = layer.active_adapters[0]
    if isinstance(layer, lora.layer.ParamWrapper):
        return False
    linear = adapter in layer.lora_A and type(layer.lora_A[adapter]) is nn.Linear
    return linear or isinstance(layer, lora.Embedding)


def _saved_name(path: str, layer: Any, saved: Saved) -> str:
    """A layer's name in checkpoints."""
    weight = torch.empty(layer.out_features, layer.in_features, device="meta")
    found = list(saved(f"{path}.weight", weight))
    if len(found) != 1 or found[0][1].shape != weight.shape:
        raise ValueError(f"vllm_lora=True: checkpoints have the adapted layer {path!r} in other parts. {_MERGE}")
    return found[0][0].removesuffix(".weight")


def _factors(name: str, layer: Any) -> Iterator[tuple[str, Tensor]]:
    """Names in checkpoints, and values, of both factors, the second scaled."""
    adapter = layer.active_adapters[0]
    if adapter in layer.lora_A:
        factors = {f"{name}.lora_{key}.weight": getattr(layer, f"lora_{key}")[adapter].weight for key in "AB"}
    else:
        factors = {f"{name}.lora_embedding_{key}": getattr(layer, f"lora_embedding_{key}")[adapter] for key in "AB"}
    for (key, factor), scale in zip(factors.items(), (1.0, layer.scaling[adapter]), strict=True):
        with whole(factor) as value:
            yield key, value if scale == 1.0 else value.float() * scale


def _runner(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.model_runner
