"""Estimate the memory that a stage of training takes on each GPU, and say whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from peft import get_peft_model
from torch import nn
from trl import ModelConfig

from ...compat.model_parts import freeze_vision_encoder, train_only
from ...generation.model_loading import auto_class_of
from ...scripts.single_stage import adapter_config
from . import Finding, one_line
from .layer_bytes import Precision, image_tokens
from .passes import Passes, Workload, cache_bytes, pass_bytes, rollout_bytes

GIB = 2**30
WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "auto": 2.0}
_PROMPT_TOKENS = 1024  # assumed where a configuration does not bound prompts
_IMAGE_FRAC = 0.75  # of a prompt, assumed where a configuration does not bound images
_MANY = 8  # GPUs of the papers, for a machine that has none or one
_BUCKET_BYTES = 5e8 * 2
"""DeepSpeed's default of `reduce_bucket_size`, in 16 bit: gradients that are sent together."""
_LIVE_PARAMETERS = 1e9
"""DeepSpeed's default of `stage3_max_live_parameters`: weights of other GPUs that ZeRO-3 holds at a time."""
_STATES = {"sgd": 0, "adafactor": 0, "adagrad": 1, "lion": 1, "rmsprop": 1}
"""Moments of each weight that optimizers keep whose names begin so; others keep Adam's two."""
CONTEXT_BYTES = 0.6 * GIB
"""What CUDA's context and its libraries take of a GPU beside tensors."""
MARGIN = 1.15
"""Times the estimate that most published figures are at most; what an allocator holds unused is among the reasons."""


class Memory(NamedTuple):
    """Bytes on each GPU.

    Attributes:
        weights: of policy and reference.
        optimizer: its states.
        buffers: of an engine that shares the weights out, and images of a rollout.
        gradients: of the trained weights.
        activations: most during an update, beside gradients.
        rollout: most while the policy samples, or while vLLM gets its weights; there are no gradients then.
    """

    weights: float
    optimizer: float
    buffers: float
    gradients: float
    activations: float
    rollout: float

    @property
    def resting(self) -> float:
        """What stays between updates and rollouts."""
        return self.weights + self.optimizer + self.buffers

    @property
    def total(self) -> float:
        return self.resting + max(self.gradients + self.activations, self.rollout)


def training_memory(
    weights: float,
    trained: float,
    passes: Passes,
    *,
    trained_bytes: float,
    optimizer_bytes: float,
    accumulates: bool = True,
    step_bytes: float = 0.0,
    zero_stage: int = 0,
    processes: int = 1,
) -> Memory:
    """Estimate the bytes of a stage, sharded by ZeRO (arXiv:1910.02054, sections 3 and 5).

        weights w·Ψ,   gradients g·Ψ_t,   optimizer s·Ψ_t;   the paper's mixed precision: w = g = 2, s = 12

    ZeRO-2 divides gradients and optimizer by the processes, ZeRO-3 the weights too. s = 12 is a copy of the weights in
    float32 and Adam's two moments; without such a copy s = 2·g, and s = 2 with 8-bit states (arXiv:2110.02861). Both
    stages send gradients in buckets, and ZeRO-3 gathers weights.

    Args:
        weights: w·Ψ in bytes, of all models in memory.
        trained: Ψ_t, the weights that are trained.
        passes: bytes of an update and of a rollout, which processes do not share.
        trained_bytes, optimizer_bytes: g and s, bytes per weight.
        accumulates: whether gradients add up over several passes: all of them are there in the last one.
        step_bytes: bytes per trained weight that the optimizer's step takes for itself.
        zero_stage: 0 (one GPU, DDP), 2 or 3 (also FSDP).
        processes: GPUs.
    """
    own = trained / (processes if zero_stage >= 2 else 1)
    gradients, at_head = own * trained_bytes, passes.at_head
    if not accumulates and zero_stage < 2:
        at_head -= gradients  # which are not there yet
    activations = max(at_head, passes.at_end, own * step_bytes)
    live = min(_LIVE_PARAMETERS * 2, weights) if zero_stage == 3 else 0.0
    buffers = passes.inputs + live + (min(_BUCKET_BYTES, trained * 2) if zero_stage >= 2 else 0.0)
    shared = weights / (processes if zero_stage == 3 else 1)
    return Memory(shared, own * optimizer_bytes, buffers, gradients, activations, passes.rollout)


def build_without_weights(config: Any) -> Any:
    """Build a model on the meta device, where it takes no memory, to count its parameters."""
    with torch.device("meta"):
        return auto_class_of(config).from_config(config)


def count_parameters(model: Any, *, trained: bool = False) -> int:
    """Count a model's parameters, tied ones once; optionally only the trained ones."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad or not trained)


class MemoryEstimate(NamedTuple):
    """Counts of a stage of training, and the memory of each way to train it on GPUs.

    Attributes:
        parameters, trained: numbers of weights.
        batch: rows and tokens of one micro-batch, and what was assumed.
        trajectory: tokens of a trajectory.
        sampled: trajectories of a rollout on each GPU.
        needs: way to train → memory.
    """

    parameters: int
    trained: int
    batch: str
    trajectory: int
    sampled: int
    needs: dict[str, Memory]

    def __str__(self) -> str:
        totals = ", ".join(f"{name} {need.total / GIB:.1f}" for name, need in self.needs.items())
        need = {part: f"{part} {size / GIB:.1f}" for part, size in self.needs["one GPU"]._asdict().items()}
        update = f"{need['gradients']} and {need['activations']} in the update"
        rollout = f", or {need['rollout']}" if self.needs["one GPU"].rollout else ""
        return (
            f"{_count(self.parameters)} parameters, {_count(self.trained)} trained; GiB per GPU: {totals} "
            f"(one GPU: {need['weights']}, {need['optimizer']}, {need['buffers']}; with that {update}{rollout}; "
            f"{self.batch})."
        )


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


def workload_of(model: Any, settings: Mapping[str, Any], longest: int | None = None) -> Workload:
    """What the settings of a stage ask of the model in each process, with the tokens of its longest known prompt."""
    rows = settings["per_device_train_batch_size"]
    steps, several = settings["gradient_accumulation_steps"], settings.get("steps_per_generation")
    sampled = settings.get("generation_batch_size") or rows * (several or steps)
    prompt = settings.get("max_prompt_length") or longest or _PROMPT_TOKENS
    answers, answer = 2 if settings.get("evaluation_prompt") else 1, settings["max_completion_length"] or 0
    if bound := settings.get("max_tokens_per_micro_batch"):
        steps, rows = steps * rows, min(rows, max(1, bound // (prompt + answers * answer)))
    image = round(_IMAGE_FRAC * prompt) if hasattr(model.config, "vision_config") else 0
    if image and settings.get("max_pixels"):
        image = min(image, image_tokens(model, settings["max_pixels"]))
    is_dpo, is_supervised = "precompute_ref_log_probs" in settings, "packing" in settings
    return Workload(
        rows=rows * (2 if is_dpo else 1),  # pairs
        prompt=prompt,
        image=image,
        answers=answers,
        answer=answer,
        passes=steps,
        sampled=0 if is_dpo or is_supervised else sampled,
        questions=1 if is_dpo or is_supervised else -(-sampled // settings["num_generations"]),
        samples=not settings["use_vllm"],
        checkpointing=bool(settings["gradient_checkpointing"]),
        masked=not str(settings["attn_implementation"]).startswith("flash"),
        quantised=settings["load_in_4bit"] or settings["load_in_8bit"],
        on_cpu=bool(settings["use_cpu"]),
    )


def precision_of(settings: Mapping[str, Any]) -> Precision:
    """Dtypes of weights, adapter and autocast on one GPU: PEFT keeps an adapter in float32, TRL one of a QLoRA not."""
    bf16 = not settings["fp16"] if settings["bf16"] is None else settings["bf16"]  # as TRL's configurations read it
    computing = torch.bfloat16 if bf16 else torch.float16 if settings["fp16"] else None
    name = settings["dtype"] or "float32"
    weights = torch.bfloat16 if name == "auto" else getattr(torch, name)
    is_quantised = settings["load_in_4bit"] or settings["load_in_8bit"]
    return Precision(weights, torch.bfloat16 if is_quantised else torch.float32, computing)


def weight_bytes(model: Any, settings: Mapping[str, Any]) -> float:
    """Bytes of a model's weights, tied ones once. Loaded in 4 or 8 bit are its linear layers, but for the LM head.

    Beside 4 bits there is a scale in float32 for each 64 weights, or in 8 bits with one in float32 for each 256 of them
    (arXiv:2305.14314, section 3), and beside 8 bits one for each output.
    """
    size = WEIGHT_BYTES[settings["dtype"] or "float32"]
    if not (settings["load_in_4bit"] or settings["load_in_8bit"]):
        return size * count_parameters(model)
    head = model.get_output_embeddings()
    linear = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear) and layer is not head]
    scale = 1 / 64 + 4 / (64 * 256) if settings["use_bnb_nested_quant"] else 4 / 64
    low = [
        each.numel() * (0.5 + scale) if settings["load_in_4bit"] else each.numel() + 4 * len(each) for each in linear
    ]
    return size * (count_parameters(model) - sum(each.numel() for each in linear)) + sum(low)


def estimate_memory(
    model: Any, settings: Mapping[str, Any], processes: int, longest: int | None = None
) -> MemoryEstimate:
    """Estimate the memory of training on one GPU, and under ZeRO-2 and ZeRO-3 on so many processes.

    The model is on the meta device, or a small one; it gets an adapter if the settings ask for one. `longest` is the
    tokens of the longest prompt that is known, where the settings do not bound prompts.

    Raises:
        ValueError: the model has not the parts that are to be frozen or trained.
    """
    parameters, weights = count_parameters(model), weight_bytes(model, settings)
    model, has_adapter = _as_trained(model, settings)
    trained, of_adapter = count_parameters(model, trained=True), count_parameters(model) - parameters
    copies = 2 if settings["beta"] and not has_adapter else 1  # for a KL term; without its adapter a policy is its own
    work, alone = workload_of(model, settings, longest), precision_of(settings)
    engine = alone._replace(weights=alone.computing or alone.weights, adapter=alone.computing or alone.weights)
    size, shared = ((each.adapter if has_adapter else each.weights).itemsize for each in (alone, engine))
    passes, optim = pass_bytes(model, work, alone), settings["optim"]
    optim = str(getattr(optim, "value", optim)).removeprefix("paged_")
    needs = {
        "one GPU": training_memory(
            copies * weights + size * of_adapter,
            trained,
            passes,
            trained_bytes=size,
            optimizer_bytes=_state_bytes(optim, size),
            accumulates=work.passes > 1,
            # torch's AdamW takes the roots of all second moments at once on a GPU, unless it is fused
            step_bytes=size if optim == "adamw_torch" and not work.on_cpu else 0.0,
        )
    }
    in_engine = passes if engine == alone else pass_bytes(model, work, engine)
    sharded = in_engine._replace(rollout=rollout_bytes(model, work._replace(sharded=True), engine))
    whole = weights if work.quantised else parameters * engine.weights.itemsize
    for stage, name, of_stage in ((2, "ZeRO-2", in_engine), (3, "ZeRO-3 or FSDP2", sharded)):
        needs[f"{name} on {processes} GPUs"] = training_memory(
            copies * whole + shared * of_adapter,
            trained,
            of_stage,
            trained_bytes=shared,
            optimizer_bytes=4 + _state_bytes(optim, 4),  # the weights in float32
            step_bytes=4,  # of the gradient in float32
            zero_stage=stage,
            processes=processes,
        )
    reason = "of them in the longest of the first prompts" if longest else "of them assumed for a prompt"
    assumed = [] if settings.get("max_prompt_length") else [f"{work.prompt} {reason}"]
    assumed += [f"{work.image} for its image"] if work.image else []
    batch = ", ".join([f"{work.rows} row{'' if work.rows == 1 else 's'} of {work.tokens} tokens", *assumed])
    stated = "".join(f"; layers of {part} by a usual factor, as they cannot be run" for part in passes.stated)
    return MemoryEstimate(parameters, trained, f"{batch} at a time{stated}", work.tokens, work.sampled, needs)


def _state_bytes(optim: str, size: float) -> float:
    """Bytes of an optimizer's states for a weight, of whose gradient a value has so many; fewer by its name."""
    moments = next((number for name, number in _STATES.items() if optim.startswith(name)), 2)
    return moments * (1.0 if "8bit" in optim else 0.5 if "4bit" in optim else size)


def _as_trained(model: Any, settings: Mapping[str, Any]) -> tuple[Any, bool]:
    """The model with its adapter and with its frozen parts, and whether it has an adapter."""
    known = {each.name for each in fields(ModelConfig)}
    adapter = adapter_config(ModelConfig(**{key: value for key, value in settings.items() if key in known}))
    if adapter is not None:
        model = _adapted(model, adapter, settings["lora_target_modules"])
    if settings.get("trainable_parts"):
        train_only(model, settings["trainable_parts"])
    if settings.get("freeze_vision_encoder"):
        freeze_vision_encoder(model)
    return model, adapter is not None


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


def check_memory(model: Any, settings: Mapping[str, Any], where: str, longest: int | None = None) -> Iterator[Finding]:
    """Say what a stage takes by `estimate_memory`, with a colocated vLLM, and whether it fits the GPUs here."""
    gpus = torch.cuda.device_count()
    try:
        estimate = estimate_memory(model, settings, gpus if gpus > 1 else _MANY, longest)
    except ValueError as error:
        yield Finding("FAIL", f"{where}: {one_line(error)}")
        return
    whole = torch.cuda.get_device_properties(0).total_memory if gpus else None
    has_vllm = settings["use_vllm"] and settings["vllm_mode"] == "colocate"
    if has_vllm:
        yield _check_vllm(estimate, cache_bytes(model, 1.0), settings, where, whole)
    if whole is None:
        yield Finding("ok", f"{where}: {estimate}")
        return
    rest = whole - CONTEXT_BYTES
    beside = rest - (whole * settings["vllm_gpu_memory_utilization"] if has_vllm else 0)
    left = rest if has_vllm and settings["vllm_enable_sleep_mode"] else beside  # asleep it has given its share back
    fitting = [
        name
        for name, need in estimate.needs.items()
        if need.total < left and need.resting < beside and (gpus > 1 or name == "one GPU")
    ]
    if fitting and MARGIN * estimate.needs[fitting[0]].total < left:
        yield Finding("ok", f"{where}: {estimate} It fits: {fitting[0]}.")
    elif fitting:
        total = estimate.needs[fitting[0]].total
        text = f"It may fit: {fitting[0]} needs {total / GIB:.1f} of {left / GIB:.1f}, and runs take up to 15 % more."
        fix = "set PYTORCH_ALLOC_CONF=expandable_segments:True, or lower --per_device_train_batch_size."
        yield Finding("note", f"{where}: {estimate} {text}", fix)
    else:
        need = estimate.needs["one GPU"]
        fix = "train an adapter (--use_peft), lower --per_device_train_batch_size, or use more GPUs."
        if need.rollout > need.gradients + need.activations:
            fix = "sample fewer trajectories at a time (lower --steps_per_generation), or with vLLM (--use_vllm)."
        yield Finding("FAIL", f"{where}: {estimate} The GPU leaves {left / GIB:.1f}.", fix)


def _check_vllm(
    estimate: MemoryEstimate, cache: float, settings: Mapping[str, Any], where: str, gpu: int | None
) -> Finding:
    """Whether a colocated vLLM fits its share of a GPU of so many bytes, and the trajectories that its cache holds.

    Args:
        cache: keys and values of a token.
        gpu: bytes of a GPU; `None` without one.
    """
    dtype = "bfloat16" if settings["bf16"] else "float16" if settings["fp16"] else settings["dtype"] or "float32"
    size, parts = WEIGHT_BYTES[settings.get("vllm_dtype") or dtype], settings["vllm_tensor_parallel_size"]
    weights, share = estimate.parameters * size / parts, settings["vllm_gpu_memory_utilization"]
    each, asked = cache * size * estimate.trajectory / parts, estimate.sampled * parts
    text = (
        f"{where}: a colocated vLLM holds {weights / GIB:.1f} GiB of weights on each GPU, of which it has {share:.0%} "
        "(vllm_gpu_memory_utilization)"
    )
    if gpu is None:
        least = f"each GPU needs well over {weights / share / GIB:.0f} GiB"
        caches = f"as a trajectory of {estimate.trajectory} tokens takes {each / 2**20:.0f} MiB of cache"
        return Finding("ok", f"{text}; {least}, {caches}, and {asked} are sampled at a time.")
    if weights < share * gpu:
        left = share * gpu - weights
        holds = f"{int(left / each)} trajectories of {estimate.trajectory} tokens; {asked} are sampled at a time"
        return Finding("ok", f"{text}, which leaves {left / GIB:.1f} GiB for its caches: {holds} (max_num_seqs).")
    fix = "raise --vllm_tensor_parallel_size, which shares the weights out over so many GPUs, or its share of each."
    return Finding("FAIL", f"{text}: {share * gpu / GIB:.1f} GiB.", fix)
