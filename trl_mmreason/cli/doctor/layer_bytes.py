"""Measure the memory of a pass through one layer of a model, on tensors that have shapes and no data.

A layer of the real widths is run forwards and backwards on fake tensors of a CPU, as `torch.compile` runs it: every
operation says what it would allocate, and autograd keeps what it would keep. sdpa has a kernel there that keeps no
attention scores, like those of GPUs. A layer takes milliseconds and no memory, whatever its size.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ...compat.model_parts import without_adapters
from ...compat.replaced import replaced
from ...compat.vision_passes import vision_weights

_FAILURES = (AttributeError, AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What a layer may raise that is called as another family's is."""
_KEPT, _MOST = 34, 46
"""Values per token and channel that a layer keeps, and that it holds at most, where it cannot be run: those of a layer
of Qwen2.5-VL-7B with a mask."""


class LiveBytes(TorchDispatchMode):
    """Count the bytes of all tensors that are alive, and the most there were at once.

    A storage counts once, from the operation that returns it until neither Python nor autograd holds it. Tensors that
    were made before count if `hold` is told of them; what a kernel needs for itself is not seen.

    Attributes:
        live: bytes now.
        peak: most bytes so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def hold(self, tensors: Iterable[Any]) -> None:
        """Count the storages of these tensors; others than tensors are passed over."""
        for tensor in tensors:
            if not isinstance(tensor, Tensor) or (storage := tensor.untyped_storage()) in self._known:
                continue
            self._known[storage] = size = storage.nbytes()
            weakref.finalize(storage, self._free, size)
            self.live += size
        self.peak = max(self.peak, self.live)

    def _free(self, size: int) -> None:
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        self.hold(tree_leaves(outputs))
        return outputs


class LayerBytes(NamedTuple):
    """Bytes of a pass through a layer, without its weights, their gradients and its input.

    Attributes:
        output: what it hands on.
        kept: what stays after a forward pass for the backward pass, the output included.
        reading: most during a forward pass without gradients.
        training: most during a forward pass and a backward pass.
    """

    output: float
    kept: float
    reading: float
    training: float


class Precision(NamedTuple):
    """Dtypes of a training run.

    Attributes:
        weights: of the model.
        adapter: of its adapter.
        computing: that of autocast; `None` without it.
    """

    weights: torch.dtype
    adapter: torch.dtype
    computing: torch.dtype | None


Inputs = tuple[Tensor, dict[str, Any]]
"""Input of a layer, and its other arguments."""


def measure_layer(layer: nn.Module, inputs_of: Callable[[torch.dtype], Inputs], precision: Precision) -> LayerBytes:
    """Measure the bytes of a layer.

    Args:
        layer: on the meta device or any other; the gradients of its trained weights are there already.
        inputs_of: makes the input, of which the backward pass computes the gradient, and the other arguments.

    Raises:
        RuntimeError, TypeError and others: the layer cannot be called so, or decides by the values of its input.
    """
    computing = precision.computing or torch.bfloat16
    quietly = replaced(logging.getLogger(FakeTensorMode.__module__), disabled=True)  # it tells of every failure
    with quietly, FakeTensorMode(), torch.autocast("cpu", computing, enabled=precision.computing is not None):
        weights = {}
        for name, weight in [*layer.named_parameters(), *layer.named_buffers()]:
            dtype = precision.adapter if "lora_" in name else precision.weights
            dtype = dtype if weight.is_floating_point() else weight.dtype
            weights[name] = torch.empty(weight.shape, dtype=dtype, requires_grad=weight.requires_grad)
            weights[name].grad = torch.empty_like(weights[name]) if weight.requires_grad else None
        hidden, arguments = inputs_of(precision.weights)

        def call() -> Tensor:
            outputs = functional_call(layer, weights, (hidden,), arguments)
            return outputs[0] if isinstance(outputs, tuple) else outputs

        with LiveBytes() as memory:
            memory.hold(tree_leaves([weights, [weight.grad for weight in weights.values()], hidden, arguments]))
            before = memory.peak = memory.live
            with torch.no_grad():
                output = call()
            sizes = [output.untyped_storage().nbytes(), memory.peak - before]
            del output
            memory.peak = memory.live
            output = call()
            kept = memory.live - before
            output.backward(torch.empty_like(output))
            return LayerBytes(sizes[0], kept, sizes[1], memory.peak - before)


def longest_list(module: nn.Module) -> nn.ModuleList:
    """The layers of an encoder or a decoder."""
    return max((part for part in module.modules() if isinstance(part, nn.ModuleList)), key=len)


def language_layer(
    model: Any, rows: int, tokens: int, precision: Precision, *, masked: bool
) -> tuple[LayerBytes, bool]:
    """Measure a layer of the language model.

    Args:
        rows, tokens: of a pass, with padding.
        masked: whether attention is given a mask, as sdpa is for rows of different lengths.

    Returns:
        Its bytes, and whether they were measured; else they are the stated factors.
    """
    text = model.config.get_text_config()
    axes = [3] if "mrope_section" in (getattr(text, "rope_parameters", None) or {}) else []

    def inputs_of(dtype: torch.dtype) -> Inputs:
        hidden = torch.empty(rows, tokens, text.hidden_size, dtype=dtype, requires_grad=True)
        positions = torch.empty(*axes, rows, tokens, dtype=torch.long)
        rotary = decoder.rotary_emb
        buffers = {name: torch.empty(buffer.shape, dtype=buffer.dtype) for name, buffer in rotary.named_buffers()}
        with torch.no_grad():
            angles = functional_call(rotary, buffers, (hidden, positions))
        mask = torch.empty(rows, 1, tokens, tokens, dtype=torch.bool) if masked else None
        return hidden, {"attention_mask": mask, "position_embeddings": angles, "position_ids": positions}

    try:
        decoder = without_adapters(model).get_decoder()
        return measure_layer(longest_list(decoder)[-1], inputs_of, precision), True
    except _FAILURES:
        return _stated(rows * tokens * text.hidden_size, precision), False


class Images(NamedTuple):
    """What the vision encoder reads of some images.

    Attributes:
        positions: its patches, of all tiles together.
        tiles: images or parts of them that are encoded for themselves; 1 where patches of all images form a sequence.
        pixels: values of the images.
    """

    positions: int
    tiles: int
    pixels: int


def images_of(model: Any, tokens: int, number: int = 1) -> Images:
    """What the encoder reads of so many images, each of which the language model reads as so many tokens.

    Encoders of tiles are known by `image_seq_length`; others are taken to make a token of 2 × 2 patches, unless they
    say how many they merge.
    """
    config, (size, patch, merged, of_tile) = model.config.vision_config, _sizes(model)
    if of_tile:
        tiles = number * max(1, round(tokens / of_tile))
        return Images(tiles * ((size // patch) ** 2 + 1), tiles, tiles * 3 * size**2)
    patches = number * tokens * merged**2
    return Images(patches, 1, patches * 3 * patch**2 * getattr(config, "temporal_patch_size", 1))


def image_tokens(model: Any, pixels: int) -> int:
    """Tokens as which the language model reads an image of so many pixels."""
    size, patch, merged, of_tile = _sizes(model)
    return max(1, pixels // size**2) * of_tile if of_tile else pixels // (patch * merged) ** 2


def _sizes(model: Any) -> tuple[int, int, int, int]:
    """Sides of a tile and of a patch in pixels and of what becomes a token in patches, and a tile's tokens or 0."""
    config = model.config.vision_config
    sizes = [getattr(config, name, None) for name in ("image_size", "patch_size", "spatial_merge_size")]
    tile, patch, merged = (size[0] if isinstance(size, list | tuple) else size for size in sizes)
    is_tiled = bool(tile and patch and merged is None)
    return tile or 0, patch or 14, merged or 2, getattr(model.config, "image_seq_length", 0) if is_tiled else 0


def vision_layer(model: Any, images: Images, precision: Precision) -> tuple[LayerBytes, bool]:
    """Measure a layer of the vision encoder, as `language_layer` does for the language model."""
    config = model.config.vision_config
    width = getattr(config, "embed_dim", None) or getattr(
        config, "hidden_size", model.config.get_text_config().hidden_size
    )
    layer: Any = vision_layers(model)[-1]
    parameters = inspect.signature(layer.forward).parameters

    def inputs_of(dtype: torch.dtype) -> Inputs:
        if "cu_seqlens" not in parameters:
            hidden = torch.empty(images.tiles, images.positions // images.tiles, width, dtype=dtype, requires_grad=True)
            return hidden, {"attention_mask": None} if "attention_mask" in parameters else {}
        hidden = torch.empty(images.positions, width, dtype=dtype, requires_grad=True)
        angles = torch.empty(2, images.positions, layer.attn.head_dim).unbind()
        return hidden, {"cu_seqlens": np.array([0, images.positions]), "position_embeddings": angles}

    try:
        return measure_layer(layer, inputs_of, precision), True
    except _FAILURES:
        return _stated(images.positions * width, precision), False


def vision_layers(model: Any) -> nn.ModuleList:
    """The layers of the vision encoder."""
    return longest_list(without_adapters(model).get_encoder(modality="image"))


def trains_vision(model: Any) -> tuple[bool, bool]:
    """Whether weights of the vision encoder's layers are trained, and any between pixels and the language model."""
    in_layers = any(weight.requires_grad for weight in vision_layers(model).parameters())
    return in_layers, any(weight.requires_grad for weight in vision_weights(without_adapters(model)))


def _stated(values: int, precision: Precision) -> LayerBytes:
    size = values * (precision.computing or precision.weights).itemsize
    return LayerBytes(size, _KEPT * size, (_MOST - _KEPT) * size, _MOST * size)
