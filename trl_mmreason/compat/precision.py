"""Support for low precision: bf16 and 4-bit weights on CPUs, warnings about updates that are rounded away."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import parse_flag_from_env
from torch import Tensor
from transformers import Trainer

from .sharding import exact_rotary_frequencies

if TYPE_CHECKING:
    from trl import DPOConfig, GRPOConfig, SFTConfig

logger = logging.getLogger(__name__)

_SAMPLES = 1000  # entries per weight that are read to estimate their size
_LOW = (torch.bfloat16, torch.float16)


def is_grouped_on_cpu() -> bool:
    """Whether this is one of several processes, and the machine has no accelerator whose processes can form a group.

    accelerate forms none there unless it is told `cpu=True` (huggingface/accelerate#2741): each process would believe
    that it is alone, do the whole work, and write into the others' files.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is None or accelerator.type == "mps"


def settle_on_cpu(config: DPOConfig | GRPOConfig | SFTConfig) -> None:
    """Adapt a GPU recipe's settings to a CPU, before a configuration's own `__post_init__`.

    TRL's default, `bf16=True`, is none where a CPU trains. Where accelerate alone was told to use one (by
    `configs/accelerate/cpu.yaml`, or `--cpu`), bf16 and vLLM are switched off with a warning; with `use_cpu=True`
    beside them they are meant, as both exist for CPUs.

    Raises:
        ValueError: several processes on a machine without accelerators, which would train each for itself.
    """
    by_launcher = not config.use_cpu and parse_flag_from_env("ACCELERATE_USE_CPU")
    if not (config.use_cpu or by_launcher):
        if is_grouped_on_cpu():
            raise ValueError(
                f"{type(config).__name__}: this is one of {os.environ['WORLD_SIZE']} processes, and there is no "
                "accelerator on which they could train together: each would train a model of its own. Fix: "
                "use_cpu=True (--use_cpu true)."
            )
        return
    config.use_cpu = True
    config.bf16 = bool(config.bf16)
    if not by_launcher:
        return
    for setting in ("bf16", "use_vllm"):
        if getattr(config, setting, False):
            setattr(config, setting, False)
            logger.warning(
                "%s: %s=True is switched off, as accelerate was told to train on a CPU. To keep it there, add "
                "use_cpu=True (--use_cpu true).",
                type(config).__name__,
                setting,
            )


def check_precision(trainer: Trainer) -> None:
    """Warn about harmful precision, keep rotary frequencies exact, and 4-bit weights trainable on CPUs.

    Every trainer calls it once its model is complete.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    keep_training_layout(model)
    exact_rotary_frequencies(model)
    name = type(trainer).__name__
    if any(key.endswith("inv_freq") and buffer.dtype in _LOW for key, buffer in model.named_buffers()):
        logger.warning(
            "%s: the model in memory was cast with .bfloat16(), .half() or .to(dtype), which rounds the frequencies of "
            "its rotary embeddings too. Its checkpoint computes with exact ones, and so does a KL reference, which is "
            "read from one. Fix: from_pretrained(..., dtype=...) rounds the weights alone.",
            name,
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return  # both update weights in float32, whatever the model computes in
    if "stochastic_round=True" in str(trainer.args.optim_args).replace(" ", ""):
        return
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    share = lost_updates(trained, trainer.args.learning_rate)
    if share > 0.5:
        logger.warning(
            "%s: about %d %% of the trained weights cannot change at learning_rate=%g: they are in %s, which rounds an "
            "update away that is small beside the weight. Fix: load the model in float32 (with bf16=True it computes "
            "in bfloat16 all the same), train an adapter, or use DeepSpeed ZeRO or FSDP2, which update weights in "
            "float32.",
            name,
            100 * share,
            trainer.args.learning_rate,
            " and ".join(sorted({str(weight.dtype).removeprefix("torch.") for weight in trained} - {"float32"})),
        )


def lost_updates(weights: Iterable[Tensor], step: float) -> float:
    """Share of entries that adding `step`, the largest update, does not change; about 1,000 entries a weight.

    An entry w with 2^(k−1) ≤ |w| < 2^k lies 2^(k−1)·ε from its neighbours, ε = 2⁻⁷ in bfloat16, and an update of less
    than half of that is rounded away. Adam's update of an entry is about the learning rate.

    Args:
        weights: weights of any type; entries of float32 and wider ones count as never lost.
        step: the largest update of an entry.
    """
    lost = total = 0.0
    for weight in weights:
        if not weight.numel():
            continue
        total += weight.numel()
        if weight.dtype in _LOW:
            entries = weight.detach().flatten()[:: max(1, weight.numel() // _SAMPLES)].float()
            _, exponent = torch.frexp(entries)
            half_gap = torch.finfo(weight.dtype).eps / 4 * torch.exp2(exponent.float())
            lost += weight.numel() * ((half_gap > step) & (entries != 0)).float().mean().item()
    return lost / total if total else 0.0


def keep_training_layout(model: Any) -> None:
    """Keep a model's 4-bit layers in the layout that supports gradients.

    On CPUs with AVX512-BF16, bitsandbytes 0.50 repacks a 4-bit weight in the first forward pass of evaluation and
    leaves it so: training then stops ("a view of a leaf Variable that requires grad is being used in an in-place
    operation"), or continues without gradients where the layer has no bias (`bitsandbytes.autograd._functions
    .matmul_4bit`). It also rounds the weight's scales, and refuses widths that 64 does not divide.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
