"""Weights of a policy with adapters as those of a plain model, for vLLM, computed beside the policy.

TRL merges the adapters into the base in place, sends the result, and subtracts them again. In low precision that does
not give the base back: in bfloat16 the frozen weights drift with each rollout, and the saved adapter no longer belongs
to them (huggingface/trl#6688). Here each layer is merged in a copy, which is dropped when it has been sent. Nothing is
written into the policy, and the copy takes the memory of one layer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from peft.utils.integrations import dequantize_bnb_weight
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn

from .sharding import whole


def merged_parameters(model: Any, *, merge: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of each weight that the model would have with its active adapters merged, tied ones once.

    Weights in 4 bit are dequantised. A collective operation if weights are sharded.

    Args:
        model: a `PeftModel`.
        merge: whether adapters are merged; otherwise the weights are those of the base.
    """
    wrapper = ""
    seen: set[int] = set()
    for path, module in model.get_base_model().named_modules():
        if wrapper and path.startswith(wrapper):
            continue  # a part of what was yielded
        layer = module.token_adapter if isinstance(module, TrainableTokensWrapper) else module
        if wraps := isinstance(layer, BaseTunerLayer | ModulesToSaveWrapper):
            wrapper = f"{path}."
        weights = {name: weight for name, weight in _plain_weights(layer, wraps) if id(weight) not in seen}
        seen.update(map(id, weights.values()))
        if merge and weights and isinstance(layer, BaseTunerLayer):
            merged = dict(_plain_weights(_merged_copy(layer), wraps))
            weights = {name: merged[name] for name in weights}
        for name, weight in weights.items():
            with _whole(weight) as value:
                yield f"{path}.{name}" if path else name, value


def _plain_weights(layer: Any, wraps: bool) -> Iterator[tuple[str, nn.Parameter]]:
    """A module's own weights, or those of the module that a wrapper stands for."""
    if isinstance(layer, BaseTunerLayer):
        layer = layer.get_base_layer()
    elif isinstance(layer, ModulesToSaveWrapper):
        layer = layer.modules_to_save[layer.active_adapters[0]] if layer.active_adapters else layer.original_module
    return layer.named_parameters(recurse=wraps)


def _merged_copy(layer: BaseTunerLayer) -> Any:
    # The class for 4 bit would round the merged weight to 4 bit again; in the copy the weight is whole.
    quantised = any(map(_is_4bit, layer.parameters()))  # type: ignore[attr-defined]  # it is a module
    merged = _copy(layer)
    for part in merged.modules():
        if isinstance(part, BaseTunerLayer):
            lora.Linear.merge(part) if quantised else part.merge()
    return merged


def _copy(module: Any) -> Any:
    """Copy a module with whole weights; `deepcopy` would trip over sharded ones and over the hooks of engines."""
    made = copy.copy(module)
    for name, value in vars(module).items():
        if type(value) in (list, dict):  # such as the names of merged adapters
            setattr(made, name, copy.copy(value))
    made._parameters = dict(module._parameters)
    for name, weight in module._parameters.items():
        if weight is not None:
            with _whole(weight) as value:
                made._parameters[name] = nn.Parameter(value.detach().clone(), requires_grad=False)
    made._modules = {name: part and _copy(part) for name, part in module._modules.items()}
    return made


@contextmanager
def _whole(weight: nn.Parameter) -> Iterator[Tensor]:
    if _is_4bit(weight):
        yield dequantize_bnb_weight(weight)
    else:
        with whole(weight) as value:
            yield value


def _is_4bit(weight: nn.Parameter) -> bool:
    return type(weight).__name__ == "Params4bit"
