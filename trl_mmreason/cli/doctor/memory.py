"""Estimate the memory of training on each GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import AutoModelForImageTextToText

GIB = 2**30


class Memory(NamedTuple):
    """Bytes on each GPU."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        return sum(self)


def training_memory(
    parameters: float,
    trained: float,
    activations: float,
    *,
    weight_bytes: float,
    trained_bytes: float,
    optimizer_bytes: float,
    zero_stage: int = 0,
    processes: int = 1,
) -> Memory:
    """Estimate the bytes of weights, gradients and optimizer, sharded by ZeRO (arXiv:1910.02054, sections 3 and 5).

        weights w·Ψ,   gradients g·Ψ_t,   optimizer s·Ψ_t;   the paper's mixed precision: w = g = 2, s = 12

    ZeRO-2 divides gradients and optimizer by the processes, ZeRO-3 the weights too. s = 12 is a copy of the weights in
    float32 and Adam's two moments; without such a copy s = 2·g, and s = 2 with 8-bit states (arXiv:2110.02861).

    Args:
        parameters: Ψ, of all models in memory.
        trained: Ψ_t, those that are trained.
        activations: memory of activations in bytes, which processes do not share.
        weight_bytes, trained_bytes, optimizer_bytes: w, g and s, bytes a parameter.
        zero_stage: 0 (one GPU, DDP), 2 or 3 (also FSDP).
        processes: GPUs.
    """
    shared = processes if zero_stage >= 2 else 1
    return Memory(
        parameters * weight_bytes / (processes if zero_stage == 3 else 1),
        trained * trained_bytes / shared,
        trained * optimizer_bytes / shared,
        activations,
    )


def activation_memory(tokens: int, hidden: int, layers: int, *, checkpointing: bool) -> float:
    """Estimate the bytes of a language model's activations (arXiv:2205.05198, sections 4 and 5).

        34·t·h a layer,   or with checkpointing 2·t·h a layer and 34·t·h once;   values have 2 bytes

    This is the paper's s·b·h·(34 + 5·a·s/h) without its second term, the attention scores, which sdpa and flash
    attention do not keep. The log-probabilities of TRL's fused head need no logits of all tokens.

    Args:
        tokens: t = s·b, of one micro-batch, pictures included.
        hidden, layers: h and the depth of the language model.
        checkpointing: whether layers are computed again in the backward pass.
    """
    factor = (2 * layers + 34) if checkpointing else 34 * layers
    return factor * tokens * hidden


def build_without_weights(config: Any) -> Any:
    """Build a vision-language model on the meta device, where it takes no memory, to count its parameters."""
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


def count_parameters(model: Any, *, trained: bool = False) -> int:
    """Count a model's parameters, tied ones once; optionally only the trained ones."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad or not trained)
