"""Estimate the memory that a stage of training takes on each GPU, and say whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from peft import get_peft_model
from trl import ModelConfig

from ...compat.model_parts import freeze_vision_encoder, train_only
from ...generation.model_loading import auto_class_of
from ...scripts.single_stage import adapter_config
from . import Finding, one_line

GIB = 2**30
WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "auto": 2.0}
_PROMPT_TOKENS = 1024  # assumed where a configuration does not bound prompts
_MANY = 8  # GPUs of the papers, for a machine that has none or one


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
        weight_bytes, trained_bytes, optimizer_bytes: w, g and s, bytes per parameter.
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

        34·t·h per layer,   or with checkpointing 2·t·h per layer and 34·t·h once;   values have 2 bytes

    This is the paper's s·b·h·(34 + 5·a·s/h) without its second term, the attention scores, which sdpa and flash
    attention do not keep. The log-probabilities of TRL's fused head need no logits of all tokens.

    Args:
        tokens: t = s·b, of one micro-batch, images included.
        hidden, layers: h and the depth of the language model.
        checkpointing: whether layers are computed again in the backward pass.
    """
    factor = (2 * layers + 34) if checkpointing else 34 * layers
    return factor * tokens * hidden


def build_without_weights(config: Any) -> Any:
    """Build a model on the meta device, where it takes no memory, to count its parameters."""
    with torch.device("meta"):
        return auto_class_of(config).from_config(config)


def count_parameters(model: Any, *, trained: bool = False) -> int:
    """Count a model's parameters, tied ones once; optionally only the trained ones."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad or not trained)


class MemoryEstimate(NamedTuple):
    """Counts of a stage of training, and the memory of each way to train it on GPUs."""

    parameters: int
    trained: int
    batch: str  # rows and tokens of one micro-batch
    needs: dict[str, Memory]

    def __str__(self) -> str:
        totals = ", ".join(f"{name} {need.total / GIB:.1f}" for name, need in self.needs.items())
        parts = ", ".join(f"{part} {size / GIB:.1f}" for part, size in self.needs["one GPU"]._asdict().items())
        return (
            f"{_count(self.parameters)} parameters, {_count(self.trained)} trained; GiB per GPU, roughly: {totals} "
            f"(one GPU: {parts}; {self.batch} at a time)."
        )


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


def estimate_memory(model: Any, settings: Mapping[str, Any], processes: int) -> MemoryEstimate:
    """Estimate the memory of training on one GPU, and under ZeRO-2 and ZeRO-3 on so many processes.

    The model is on the meta device, or a small one; it gets an adapter if the settings ask for one.

    Raises:
        ValueError: the model has not the parts that are to be frozen or trained.
    """
    parameters = count_parameters(model)
    known = {each.name for each in fields(ModelConfig)}
    adapter = adapter_config(ModelConfig(**{key: value for key, value in settings.items() if key in known}))
    copies = 2 if settings["beta"] and adapter is None else 1  # for a KL term; without its adapter a policy is its own
    if adapter is not None:
        model = _adapted(model, adapter, settings["lora_target_modules"])
    if settings.get("trainable_parts"):
        train_only(model, settings["trainable_parts"])
    if settings.get("freeze_vision_encoder"):
        freeze_vision_encoder(model)
    trained = count_parameters(model, trained=True)
    rows = settings["per_device_train_batch_size"] * (2 if "precompute_ref_log_probs" in settings else 1)  # DPO's pairs
    prompt = settings.get("max_prompt_length")
    answers = 2 if settings.get("evaluation_prompt") else 1
    tokens = (prompt or _PROMPT_TOKENS) + answers * (settings["max_completion_length"] or 0)
    text, checkpointing = model.config.get_text_config(), bool(settings["gradient_checkpointing"])
    activations = activation_memory(
        rows * tokens, text.hidden_size, text.num_hidden_layers, checkpointing=checkpointing
    )
    weight_bytes = WEIGHT_BYTES[settings["dtype"] or "float32"]
    trained_bytes = 4.0 if adapter is not None else weight_bytes  # PEFT keeps adapters in float32
    if settings["load_in_4bit"] or settings["load_in_8bit"]:
        weight_bytes = 0.5 if settings["load_in_4bit"] else 1.0
    sizes: dict[str, Any] = {"weight_bytes": weight_bytes, "trained_bytes": trained_bytes}
    states = 2.0 if "8bit" in str(settings["optim"]) else 2 * trained_bytes
    sharded = {"optimizer_bytes": 12.0, "processes": processes}
    plans: dict[str, dict[str, Any]] = {
        "one GPU": {"optimizer_bytes": states},
        f"ZeRO-2 on {processes} GPUs": {"zero_stage": 2, **sharded},
        f"ZeRO-3 or FSDP2 on {processes} GPUs": {"zero_stage": 3, **sharded},
    }
    needs = {
        name: training_memory(parameters * copies, trained, activations, **sizes, **plan)
        for name, plan in plans.items()
    }
    assumed = "" if prompt else f", {_PROMPT_TOKENS} of them assumed for a prompt,"
    of_rows = f"{rows} row{'' if rows == 1 else 's'} of {tokens} tokens{assumed}"
    return MemoryEstimate(parameters, trained, of_rows, needs)


def _adapted(model: Any, adapter: Any, targets: Any) -> Any:
    """Add the adapter; refuse a list of targets if one of them is no layer, where PEFT asks for any."""
    layers = [f".{name}" for name, _ in model.named_modules()]
    try:
        model = get_peft_model(model, adapter)
    except ValueError as error:
        raise ValueError(f"the adapter (lora_target_modules: {targets}): {error}") from error
    for target in targets if isinstance(targets, list) else ():
        if not any(layer.endswith(f".{target}") for layer in layers):
            raise ValueError(f"lora_target_modules: the model has no layer {target}")
    return model


def check_memory(model: Any, settings: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Say what a stage takes by `estimate_memory`, with a colocated vLLM, and whether it fits the GPUs here."""
    gpus = torch.cuda.device_count()
    try:
        estimate = estimate_memory(model, settings, gpus if gpus > 1 else _MANY)
    except ValueError as error:
        yield Finding("FAIL", f"{where}: {one_line(error)}")
        return
    whole = torch.cuda.get_device_properties(0).total_memory if gpus else None
    has_vllm = settings["use_vllm"] and settings["vllm_mode"] == "colocate"
    if has_vllm:
        yield _check_vllm(estimate.parameters, settings, where, whole)
    if whole is None:
        yield Finding("ok", f"{where}: {estimate}")
        return
    held = whole * (1 - (settings["vllm_gpu_memory_utilization"] if has_vllm else 0))
    fitting = [name for name, need in estimate.needs.items() if need.total < held and (gpus > 1 or name == "one GPU")]
    if fitting:
        yield Finding("ok", f"{where}: {estimate} It fits: {fitting[0]}.")
    else:
        fix = "train an adapter (--use_peft), lower --per_device_train_batch_size, or use more GPUs."
        yield Finding("FAIL", f"{where}: {estimate} The GPU leaves {held / GIB:.1f}.", fix)


def _check_vllm(parameters: int, settings: Mapping[str, Any], where: str, gpu: int | None) -> Finding:
    """Whether the weights of a colocated vLLM fit in its share of a GPU of so many bytes."""
    dtype = "bfloat16" if settings["bf16"] else "float16" if settings["fp16"] else settings["dtype"] or "float32"
    weights = parameters * WEIGHT_BYTES[settings.get("vllm_dtype") or dtype] / settings["vllm_tensor_parallel_size"]
    share = settings["vllm_gpu_memory_utilization"]
    text = (
        f"{where}: a colocated vLLM holds {weights / GIB:.1f} GiB of weights on each GPU, of which it has {share:.0%} "
        "(vllm_gpu_memory_utilization)"
    )
    if gpu is None:
        least = f"each GPU needs well over {weights / share / GIB:.0f} GiB, as caches come on top."
        return Finding("ok", f"{text}; {least}")
    if weights < share * gpu:
        return Finding("ok", f"{text}, which leaves {share * gpu / GIB - weights / GIB:.1f} GiB for its caches.")
    fix = "raise --vllm_tensor_parallel_size, which shares the weights out over so many GPUs, or its share of each."
    return Finding("FAIL", f"{text}: {share * gpu / GIB:.1f} GiB.", fix)
