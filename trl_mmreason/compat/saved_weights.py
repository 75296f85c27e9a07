"""Weights of a live model by the names and in the layout of its checkpoints, as vLLM loads them.

TRL 1.16 hands vLLM live weights. transformers 5 renames modules and joins experts when it loads a checkpoint, and
reverts that when it saves; vLLM's loaders read what is saved, and only some of them live names, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from .model_parts import without_adapters

Saved = Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]
"""A live weight's name and values → those of a checkpoint."""


def saved_weights(model: Any) -> Saved:
    """How each weight of a model is saved; as it is, where a checkpoint makes one weight of several (Kimi, ERNIE).

    So are parameters whose place an adapter has taken (`target_parameters`).
    """
    base = without_adapters(model)

    def saved(name: str, weight: Tensor) -> Iterable[tuple[str, Tensor]]:
        try:
            return revert_weight_conversion(base, {name: weight}).items()
        except AttributeError:  # it looks for a parameter whose place an adapter has taken
            return [(name, weight)]

    # shapes alone; those of a weight that DeepSpeed has in pieces are in `ds_shape`
    live = {
        name: torch.empty(getattr(weight, "ds_shape", weight.shape), device="meta")
        for name, weight in base.named_parameters()
    }
    try:
        whole = {name: weight.shape for name, weight in revert_weight_conversion(base, dict(live)).items()}
        if whole == {name: weight.shape for item in live.items() for name, weight in saved(*item)}:
            return saved
    except ValueError:  # of transformers, as a part is missing
        pass
    return lambda name, weight: [(name, weight)]
