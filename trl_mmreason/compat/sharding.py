"""Read and write sharded weights: those of ZeRO-3 and FSDP2."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import broadcast, fsdp_utils
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import Transpose
from transformers.integrations import deepspeed as deepspeed_integration

from .replaced import replaced

_FSDP_LOADING = "FSDP_CPU_RAM_EFFICIENT_LOADING"
_transpose = Transpose.convert
_load_parameters = fsdp_utils.fsdp2_load_full_state_dict


def is_sharded(model: nn.Module) -> bool:
    """Whether the model is sharded, so that all processes have to run its layers together."""
    return any(isinstance(weight, DTensor) or hasattr(weight, "ds_id") for weight in model.parameters())


@contextmanager
def whole(weight: Any, *, changed: bool = False) -> Iterator[Tensor]:
    """Gather a whole weight; a collective operation if it is sharded.

    Args:
        weight: a parameter or buffer, sharded or not.
        changed: keep what the first process writes into it; without shards, what this process writes.
    """
    if hasattr(weight, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([weight], modifier_rank=0 if changed else None):
            yield weight.data
    elif isinstance(weight, DTensor):
        there = weight.detach().to(weight.device_mesh.device_type)  # with CPU offloading the weight lies on the CPU
        full = there.full_tensor()  # type: ignore[attr-defined]
        yield full
        if changed:
            with torch.no_grad():
                weight.copy_(distribute_tensor(full, weight.device_mesh, weight.placements))
    else:
        yield weight.detach()  # not `data`: writing into that leaves the weight's version, by which known images go


def local_part(tensor: Any) -> Tensor:
    """This process's part of a weight or gradient of any engine."""
    if hasattr(tensor, "ds_tensor"):
        part = tensor.ds_tensor
        rank = torch.distributed.get_rank(getattr(tensor, "ds_process_group", None))
        return part.flatten()[: max(0, tensor.ds_numel - rank * part.numel())]  # without padding, which is not set
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and whole value of each parameter, one at a time; a collective operation if they are sharded."""
    for name, weight in model.named_parameters():
        with whole(weight) as full:
            yield name, full


def whole_buckets(model: nn.Module, most: int, use: Callable[[], None]) -> Iterator[tuple[str, Tensor]]:
    """Name and whole value of each parameter; those of ZeRO-3 are gathered in buckets, where TRL gathers one by one.

    A collective operation if they are sharded.

    Args:
        most: bytes of a bucket; a larger parameter is one of its own.
        use: is called before the values of a bucket are freed.
    """
    bucket: dict[str, nn.Parameter] = {}
    size = 0
    for name, weight in model.named_parameters():
        more = getattr(weight, "ds_numel", weight.numel()) * weight.element_size()
        if bucket and size + more > most:
            yield from _gathered(bucket)
            use()
            bucket, size = {}, 0
        bucket[name], size = weight, size + more
    yield from _gathered(bucket)
    use()


def _gathered(bucket: Mapping[str, nn.Parameter]) -> Iterator[tuple[str, Tensor]]:
    if any(hasattr(weight, "ds_id") for weight in bucket.values()):
        import deepspeed

        # ZeRO-3 keeps small parameters whole (`stage3_param_persistence_threshold`). After a `GatheredParameters` they
        # would be in pieces, without which its backward pass goes on.
        in_pieces = [weight for weight in bucket.values() if weight.numel() != getattr(weight, "ds_numel", 0)]
        with deepspeed.zero.GatheredParameters(in_pieces) if in_pieces else nullcontext():
            for name, weight in bucket.items():
                yield name, weight.data
        return
    for name, weight in bucket.items():
        with whole(weight) as value:
            yield name, value


def whole_state(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Gather weights on the CPU, one at a time; a collective operation.

    Args:
        tensors: name → weight, sharded or not.
        keep: whether this process keeps them; otherwise the result is empty. Tied weights stay one tensor, by which
            `save_pretrained` knows them.
    """
    state: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    for name, weight in tensors.items():
        first = names.setdefault(id(weight), name)
        if first != name:
            state |= {name: state[first]} if keep else {}
            continue
        with whole(weight) as full:
            if keep:
                state[name] = full.detach().to("cpu", copy=True)
    return state


def load_whole_state(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Write whole values into weights, cast to each weight's dtype; a collective operation if they are sharded.

    Args:
        tensors: name → weight.
        state: name → value; of sharded weights the first process alone needs them.
    """
    for name, weight in tensors.items():
        with torch.no_grad(), whole(weight, changed=True) as full:
            if name in state:
                full.copy_(state[name])


@contextmanager
def loading_whole() -> Iterator[None]:
    """Let `from_pretrained` load the whole model in every calling process, under any engine.

    Under ZeRO-3 it would keep a share of it, and under FSDP2 with `cpu_ram_efficient_loading` only the first process
    would read the weights.
    """
    config = deepspeed_integration._hf_deepspeed_config_weak_ref
    efficient = os.environ.get(_FSDP_LOADING)
    deepspeed_integration.unset_hf_deepspeed_config()
    os.environ[_FSDP_LOADING] = "false"
    try:
        yield
    finally:
        deepspeed_integration._hf_deepspeed_config_weak_ref = config
        os.environ.pop(_FSDP_LOADING)
        if efficient is not None:
            os.environ[_FSDP_LOADING] = efficient


def shard_reference(reference: nn.Module, accelerator: Any) -> Any:
    """Shard a frozen model under FSDP, as TRL does, with the first process's weights.

    With `cpu_ram_efficient_loading` the other processes have read nothing. accelerate sends them the weights of the
    policy, but TRL's `prepare_fsdp` shares out what each process holds, so that all but the first piece of a reference
    would be zeros (the KL of the first step is then not 0).
    """
    from trl.models import prepare_fsdp  # imported late: TRL takes seconds to load

    for weight in [*reference.parameters(), *reference.buffers()]:
        there = weight.data.to(accelerator.device)
        broadcast(there, from_process=0)
        weight.data.copy_(there)
    return prepare_fsdp(reference, accelerator)


@contextmanager
def references_agree() -> Iterator[None]:
    """Let TRL's constructors shard their references by `shard_reference`."""
    from trl.trainer import dpo_trainer, grpo_trainer

    with replaced(grpo_trainer, prepare_fsdp=shard_reference), replaced(dpo_trainer, prepare_fsdp=shard_reference):
        yield


@contextmanager
def buffers_are_sent() -> Iterator[None]:
    """Let accelerate shard a model under FSDP2 that saves buffers, as those of DeepSeek-V3's mixtures of experts.

    With `cpu_ram_efficient_loading` it takes each entry of a model's state for a shard, and stops at a buffer
    (huggingface/accelerate#3898). Here the first process sends it to all, before accelerate sends the shards.
    """
    with replaced(fsdp_utils, fsdp2_load_full_state_dict=_load_with_buffers):
        yield


def _load_with_buffers(
    accelerator: Any, model: nn.Module, full_sd: dict[str, Tensor], *args: Any, **kwargs: Any
) -> Any:
    set_aside = []
    for path, module in model.named_modules():
        for name, empty in module._buffers.items():  # in one order in all processes
            if empty is None or name in module._non_persistent_buffers_set:
                continue
            place = f"{path}.{name}".lstrip(".").replace("_checkpoint_wrapped_module.", "")
            value = full_sd[place] if accelerator.is_main_process else torch.empty_like(empty, device="cpu")
            sent = value.to(accelerator.device)
            broadcast(sent, from_process=0)
            module._buffers[name] = sent
            module._non_persistent_buffers_set.add(name)  # for accelerate, which leaves those alone
            set_aside.append((module, name))
    model = _load_parameters(accelerator, model, full_sd, *args, **kwargs)
    for module, name in set_aside:
        module._non_persistent_buffers_set.discard(name)
    return model


def import_model_classes(config: PreTrainedConfig) -> None:
    """Import the classes of a model's parts before ZeRO-3 constructs it.

    transformers imports a part's module when it constructs the part, which is then within `zero.Init`. That remembers
    the constructors of classes as they are made, before their decorators, and puts them back afterwards (of the same
    code: deepspeedai/DeepSpeed#5921). `use_experts_implementation` is one, so that the next model of the process, such
    as the reference, would have experts without a configuration.
    """
    if type(config) in MODEL_MAPPING:
        MODEL_MAPPING[type(config)]
    for name in config.sub_configs:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            import_model_classes(part)


def _convert_by_whole_shape(
    self: Transpose, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
) -> dict[str, Tensor]:
    """Transpose a checkpoint's experts only if their shape is not the model's, also under ZeRO-3.

    transformers compares with the shape of the model's weight, which is (0,) in pieces. So the experts of a
    Qwen3-VL-MoE that `save_pretrained` wrote would be transposed: loading fails, or square ones are wrong.
    """
    (value,) = input_dict.values()
    tensor = value[0] if isinstance(value, list) else value
    if self.check_dims and tensor.shape == getattr(
        kwargs["model"].get_parameter(kwargs["full_layer_name"]), "ds_shape", None
    ):
        return {self.get_target_pattern(input_dict, source_patterns, target_patterns): tensor}
    return _transpose(self, input_dict, source_patterns, target_patterns, **kwargs)


Transpose.convert = _convert_by_whole_shape  # type: ignore[method-assign]


def exact_rotary_frequencies(model: nn.Module) -> None:
    """Compute rotary frequencies anew in float32, where ZeRO-3 has rounded them to the dtype of training.

    deepspeedai/DeepSpeed#4932: within `zero.Init` every floating tensor that a constructor makes gets that dtype. In
    bfloat16 a frequency is off by up to 0.4 %, so that positions which are some hundred tokens apart get angles that
    differ by radians from those of the saved model and of vLLM.
    """
    if not deepspeed_integration.is_deepspeed_zero3_enabled():
        return
    rounded = set()
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name.endswith("inv_freq") and buffer.dtype != torch.float32:
                module.register_buffer(name, buffer.float(), persistent=False)
                rounded.add(module)
    for part in model.modules():
        if isinstance(part, PreTrainedModel):  # computes its own modules' buffers; the innermost comes last
            for module in rounded.intersection(part.modules()):
                part._init_weights(module)


def name_own_layers(model: Any) -> None:
    """Let FSDP look only for layers that the model has.

    accelerate refuses a model of which it cannot find a class in `_no_split_modules`. For LLaVA-NeXT transformers lists
    classes of CLIP's text encoder there.
    """
    own = {type(module).__name__ for module in model.modules()}
    model._no_split_modules = [name for name in model._no_split_modules or [] if name in own]


def use_whole_head(model: Any) -> None:
    """Gather the LM head's weight for passes in which TRL's fused head reads it without calling the head.

    FSDP2: accelerate makes the head of a vision-language model a unit of its own. `full_tensor()`, which TRL takes
    instead, has a gradient of this process's rows alone, and with gradient accumulation the backward pass fails (verl
    #7427). A gathered head is a plain tensor whose gradient FSDP2 reduces with all others.

    ZeRO-3: DeepSpeed learns of the weight only if it is in pieces when it is read. Where it is whole, as after vLLM got
    the weights, the backward pass ends at "The size of tensor a (0) must match": the weight is in pieces again when its
    gradient is stored.
    """

    def gather(module: Any, args: Any) -> None:
        head = module.get_output_embeddings()
        if isinstance(head, FSDPModule):
            head.unshard()  # until the next backward pass: an earlier pass may wait for its own with this weight
        for weight in head.parameters() if head is not None else ():
            if hasattr(weight, "ds_id"):
                import deepspeed

                deepspeed.zero.register_external_parameter(module, weight)

    model.register_forward_pre_hook(gather)
