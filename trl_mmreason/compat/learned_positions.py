"""Models with a vector for each position, as GPT-2: how many they learned, and rows that are padded on the left.

`generate` counts positions from a row's first token on. TRL's passes over padded rows leave that to the model, and
GPT-2 counts the padding, too.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

from torch import nn


def learned_positions(model: Any) -> float:
    """The tokens that a row may have where positions are learned, each as a row of a table; else infinity.

    Args:
        model: without adapters.
    """
    most: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if most is None:
        return math.inf
    tokens = table_of_tokens(model)
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding) and part is not tokens]
    # some have rows for padding, too
    return most if any(0 <= table.num_embeddings - most <= 2 for table in tables) else math.inf


def table_of_tokens(model: Any) -> Any:
    """The embeddings of tokens, out of PEFT's wrappers for them, some of which hide its size."""
    layer = model.get_input_embeddings()
    return next((part for part in layer.modules() if hasattr(part, "num_embeddings")), layer)


def count_positions_from_the_first_token(model: Any) -> None:
    """Let a text-only model whose positions are vectors count those of a padded row as `generate` does.

    Args:
        model: without adapters.
    """
    takes_positions = "position_ids" in inspect.signature(type(model).forward).parameters
    is_text_only = model.config.get_text_config() is model.config
    is_rotary = getattr(model.config, "rope_parameters", None) and learned_positions(model) == math.inf
    is_known = _with_positions in model._forward_pre_hooks.values()  # an earlier trainer has done it
    if takes_positions and is_text_only and not is_rotary and not is_known:
        model.register_forward_pre_hook(_with_positions, with_kwargs=True)


def _with_positions(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
    if kwargs.get("position_ids") is None and ids is not None and mask is not None and mask.shape == ids.shape:
        kwargs["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
    return args, kwargs
