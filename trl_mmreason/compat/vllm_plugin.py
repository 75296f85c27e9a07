"""vLLM's plugin of this package: `vllm.general_plugins` in pyproject.toml, which every process of vLLM loads.

transformers 5 has the weights of a CLIP or SigLIP tower directly below `vision_tower`, in the live model, whose names
TRL sends, and in checkpoints of models that were built from a config. vLLM 0.31 wants `vision_tower.vision_model`, as
in checkpoints of transformers 4, and refuses the others.

It also transposes the experts of Qwen3-VL-MoE, as its published checkpoints have them. transformers 5 has them the
other way round in the live model, and saves them so (huggingface/transformers#43201).

A server gets one more way to receive weights: `--weight-transfer-config '{"backend": "gloo"}'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any

_LEVEL = "vision_model"


def register() -> None:
    """Let vLLM's loaders take names without `vision_model` below a module that has nothing else, and live experts."""
    from vllm.model_executor.models.utils import AutoWeightsLoader

    load = AutoWeightsLoader._load_module
    if getattr(load, "adds_level", False):  # plugins may be loaded twice
        return

    def load_flat(self: Any, base_prefix: str, module: Any, weights: Iterable[tuple[str, Any]]) -> Iterable[str]:
        if [name for name, _ in module.named_children()] == [_LEVEL]:
            weights = with_level(weights)
        return load(self, base_prefix, module, weights)

    load_flat.adds_level = True  # type: ignore[attr-defined]
    AutoWeightsLoader._load_module = load_flat
    if find_spec("vllm.model_executor.layers.fused_moe.routed_experts"):  # an earlier vLLM has none
        _take_live_experts()
    if find_spec("vllm.distributed.weight_transfer.nccl_common"):  # likewise
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

        WeightTransferEngineFactory.register_engine("gloo", "trl_mmreason.compat.vllm_gloo", "GlooWeights")


def _take_live_experts() -> None:
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    load = RoutedExperts.load_weights

    def load_live(self: Any, weights: Iterable[tuple[str, Any]]) -> Iterable[str]:
        if getattr(self, "is_fused_checkpoint_transposed", False):  # an earlier one looks at shapes itself
            weights = as_published(weights, self.moe_config.hidden_dim_unpadded)
        return load(self, weights)

    RoutedExperts.load_weights = load_live


def with_level(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Names and weights below a vision tower, each name with the level `vision_model`."""
    for name, weight in weights:
        yield name if name.split(".")[0] == _LEVEL else f"{_LEVEL}.{name}", weight


def as_published(weights: Iterable[tuple[str, Any]], hidden_size: int) -> Iterator[tuple[str, Any]]:
    """Names and weights of experts, those of all experts at once in the layout of Qwen3-VL-MoE's published checkpoints.

    Args:
        weights: `gate_up_proj` as (E, H, 2I) or, live, (E, 2I, H), `down_proj` as (E, I, H) or (E, H, I), and others.
        hidden_size: H.
    """
    for name, weight in weights:
        hidden = {"gate_up_proj": -2, "down_proj": -1}.get(name, 0)  # where H is
        live = hidden and weight.dim() == 3 and weight.shape[hidden] != hidden_size
        yield name, weight.transpose(-1, -2) if live else weight
