"""vLLM's plugin of this package: `vllm.general_plugins` in pyproject.toml, which every process of vLLM loads.

transformers 5 has the weights of a CLIP or SigLIP tower directly below `vision_tower`, in the live model, whose names
TRL sends, and in checkpoints of models that were built from a config. vLLM 0.31 wants `vision_tower.vision_model`, as
in checkpoints of transformers 4, and refuses the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_LEVEL = "vision_model"


def register() -> None:
    """Let vLLM's loader add the level `vision_model` to names that lack it, below a module that has nothing else."""
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


def with_level(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Names and weights below a vision tower, each name with the level `vision_model`."""
    for name, weight in weights:
        yield name if name.split(".")[0] == _LEVEL else f"{_LEVEL}.{name}", weight
