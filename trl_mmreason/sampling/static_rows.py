"""A static cache whose rows can become fewer, for a compiled model.

A CUDA graph replays a pass on tensors at the addresses that it was recorded with, and each shape has its own graph. So
buffers stay from one rollout to the next, a batch has one of a few sizes, and a smaller one is their first rows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, CompileConfig, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, StaticLayer
from transformers.integrations import sdpa_attention

from ..engines.replaced import replaced

_FEWEST = 8  # rows; a step of fewer takes as long, as it reads the same weights
_MULTIPLE = 128  # tokens that buffers hold, and that a pass reads at first
_BEHIND = 16  # tokens of a buffer that no pass reads, as torch would take equal lengths of view and buffer for one


class StaticRows:
    """Buffers of a policy's key-value cache and its compiled pass, kept from one rollout to the next."""

    def __init__(self) -> None:
        self._cache = Cache(layers=[])
        self._rows = self._tokens = 0  # of the buffers
        self._read = 0  # tokens of a row that a pass reads
        self._compiled: tuple[PreTrainedModel, CompileConfig, Callable[..., Any]] | None = None

    def compiled(self, model: PreTrainedModel, config: CompileConfig | None) -> Callable[..., Any]:
        """The model's pass over a token of each row, compiled when it is called."""
        config = config or CompileConfig()
        if self._compiled is None or self._compiled[:2] != (model, config):
            self._compiled = model, config, torch.compile(model.__call__, **config.to_dict())
        return partial(_run, self._compiled[2])

    def size(self, rows: int) -> int:
        """Rows of the smallest batch that holds so many: the largest one seen, halved."""
        size = max(self._rows, rows)
        while size // 2 >= max(rows, _FEWEST):
            size //= 2
        return size

    def padded(self, rows: Tensor) -> Tensor:
        """(N,) → (`size(N)`,), where the last row is there several times."""
        return torch.cat([rows, rows[-1:].expand(self.size(len(rows)) - len(rows))])

    def filled(self, prompts: DynamicCache, prompt_of: Tensor, tokens: int) -> Cache:
        """Copy the state of prompts into the buffers, which grow if they must.

        Args:
            prompts: of full attention in every layer; lost with this call, as layers are let go one by one.
            prompt_of: (`size(N)`,) the prompt that each row continues.
            tokens: most that a row will have.

        Returns:
            The cache of these rows. `batch_select_indices` makes them fewer.
        """
        layers = prompts.layers
        known = [layer.keys.dtype for layer in self._cache.layers] == [layer.keys.dtype for layer in layers]
        if not known or len(prompt_of) > self._rows or tokens > self._tokens:
            self._rows = max(self._rows, len(prompt_of))
            if tokens > self._tokens:  # by a quarter at least, as every growth makes graphs useless
                self._tokens = -(-max(tokens, self._tokens * 5 // 4) // _MULTIPLE) * _MULTIPLE
            self._cache = Cache(layers=[])
            gc.collect()  # after a compilation the former buffers are in reference cycles
            self._cache = Cache(layers=[_Layer(layer, self._rows, self._tokens) for layer in layers])
        self._read = 0
        self.reach(prompts.get_seq_length() + 1)
        for number, layer in enumerate(self._cache.layers):
            layer.fill(layers[number], prompt_of)
            layers[number] = DynamicLayer()
        return self._cache

    def reach(self, tokens: int) -> None:
        """Let passes read so many tokens of a row at least: twice as many as before, or more."""
        if tokens > self._read:
            self._read = self._read or _MULTIPLE
            while self._read < tokens:
                self._read *= 2
            self._read = min(self._read, self._tokens)
            for layer in self._cache.layers:
                layer.show(len(layer.keys), self._read)


def _run(compiled: Callable[..., Any], **inputs: Any) -> Any:
    """Run a compiled pass whose queries share keys and values, as they do where transformers does not compile.

    While it compiles, transformers copies keys and values for each of their queries instead (`sdpa_attention_forward`),
    which would move several times what the cache has, at every token.
    """
    inputs["attention_mask"] = _copied(inputs["attention_mask"])
    with replaced(sdpa_attention, is_torchdynamo_compiling=_not_compiling):
        return compiled(**inputs)


def _copied(mask: Any) -> Any:
    """A mask, or those of each kind of layer, that is no view: what is one sometimes is compiled for twice."""
    if isinstance(mask, dict):
        return {kind: _copied(each) for kind, each in mask.items()}
    return mask if mask is None else mask.clone()


def _not_compiling() -> bool:
    return False


class _Layer(StaticLayer):
    """The first rows and tokens of buffers that stay where they are."""

    def __init__(self, like: DynamicLayer, rows: int, tokens: int) -> None:
        super().__init__(max_cache_len=tokens + _BEHIND)
        self.lazy_initialization(like.keys[:1].expand(rows, -1, -1, -1), like.values[:1].expand(rows, -1, -1, -1))
        self._buffers: tuple[Tensor, Tensor] = (self.keys, self.values)

    def fill(self, prompts: DynamicLayer, prompt_of: Tensor) -> None:
        self.show(len(prompt_of), self.max_cache_len)
        tokens = prompts.keys.shape[2]
        for buffer, state in zip(self._buffers, (prompts.keys, prompts.values), strict=True):
            buffer[: len(prompt_of), :, :tokens] = state[prompt_of]
            buffer[: len(prompt_of), :, tokens:] = 0  # what is masked must be finite
        self.cumulative_length.fill_(tokens)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        # under autocast values come in 16 bit, rotated keys in 32; a dynamic cache holds both in 32
        return super().update(key_states.to(self.keys.dtype), value_states.to(self.values.dtype), *args, **kwargs)

    def batch_select_indices(self, indices: Tensor) -> None:
        keys, values = self.keys[indices], self.values[indices]
        self.show(len(indices), self.max_cache_len)
        self.keys.copy_(keys)
        self.values.copy_(values)

    def show(self, rows: int, tokens: int) -> None:
        self.max_cache_len = tokens
        self.keys, self.values = (buffer[:rows, :, :tokens] for buffer in self._buffers)
        torch._dynamo.mark_static_address(self.keys)
        torch._dynamo.mark_static_address(self.values)
