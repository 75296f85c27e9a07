"""Memory of an update and of a rollout: what layers keep and hold, the LM head, the cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from accelerate.utils import is_peft_model
from torch import nn

from ...compat.model_parts import without_adapters
from ...compat.vllm_buckets import BUCKET
from ...generation.live_rows import rows_a_pass
from .layer_bytes import (
    Images,
    LayerBytes,
    Precision,
    images_of,
    language_layer,
    longest_list,
    trains_vision,
    vision_layer,
    vision_layers,
)

_TILE = 4096, 32768
"""Tokens and words whose logits TRL's fused head computes at a time, in a buffer of this width for fewer words too."""
_TORCH_TILES = 29
"""Bytes beside each of these logits where the head's backward pass is not one Triton kernel."""


class Workload(NamedTuple):
    """What a stage of training asks of its model on each process.

    Attributes:
        rows: rows of a micro-batch.
        prompt: tokens of a prompt, those of its image included.
        image: tokens of an image, one in each prompt; 0 without.
        answers: answers of a trajectory.
        answer: tokens of each.
        passes: micro-batches of an update.
        sampled: trajectories of a rollout; 0 without one.
        questions: questions of a rollout.
        samples: whether the policy itself samples them.
        checkpointing: whether layers are computed again in the backward pass.
        masked: whether attention is given a mask, as sdpa is for rows of different lengths.
        quantised: whether layers are expanded from fewer bits in each pass.
        on_cpu: whether a CPU trains, on which TRL's head has no kernel of its own and scores prompts too.
        sharded: whether processes share the weights out, so that in a rollout each row reads its prompt, all at once.
    """

    rows: int
    prompt: int
    image: int
    answers: int
    answer: int
    passes: int = 1
    sampled: int = 0
    questions: int = 1
    samples: bool = False
    checkpointing: bool = False
    masked: bool = True
    quantised: bool = False
    on_cpu: bool = False
    sharded: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a trajectory."""
        return self.prompt + self.answers * self.answer


class Passes(NamedTuple):
    """Bytes beside weights and optimizer.

    Attributes:
        at_head: most of an update at the beginning of its backward pass.
        at_end: most at the end of its backward pass.
        rollout: most while the policy samples, or while vLLM gets its weights.
        inputs: what a rollout's images take between its passes.
        stated: what could not be measured.
    """

    at_head: float
    at_end: float
    rollout: float
    inputs: float
    stated: tuple[str, ...]


def head_bytes(tokens: int, hidden: int, words: int, precision: Precision, *, trained: bool, on_cpu: bool) -> float:
    """Bytes of the backward pass of TRL's fused LM head, whose gradients are first in float32.

    Args:
        tokens: tokens that are scored.
        hidden, words: columns and rows of its weight.
        precision: dtypes.
        trained: whether its weight is.
        on_cpu: see `Workload`.
    """
    size, computing = precision.weights.itemsize, (precision.computing or precision.weights).itemsize
    in_float32 = 4 + (size if size < 4 else 0)
    values = tokens * hidden + (words * hidden if trained else 0)
    rows, columns = min(tokens, _TILE[0]), min(words, _TILE[1])
    tile = rows * (_TILE[1] * computing + on_cpu * columns * _TORCH_TILES)
    cast = columns * hidden * computing if computing < size else 0
    return tokens * hidden * size + values * in_float32 + tile + cast


def cache_bytes(model: Any, size: float) -> float:
    """Bytes of the keys and values of a token, of so many bytes a value."""
    text = model.config.get_text_config()
    layers = text.per_layer_config if hasattr(text, "per_layer_config") else [text] * text.num_hidden_layers
    values = 0
    for layer in layers:
        heads = getattr(layer, "num_key_value_heads", None) or text.num_attention_heads
        values += heads * (getattr(layer, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    return 2 * values * size


class _Vision(NamedTuple):
    """The vision encoder in a pass: images, bytes of a layer, its layers, and whether these and others are trained."""

    images: Images
    layer: LayerBytes
    depth: int
    trains_layers: bool
    trains: bool


def _vision(model: Any, work: Workload, precision: Precision, number: int) -> tuple[_Vision | None, bool]:
    """The encoder, with so many images if it is trained; else each is encoded by itself (`compat/known_images.py`)."""
    base = without_adapters(model)
    if not work.image or not hasattr(model.config, "vision_config") or base.get_encoder(modality="image") is base:
        return None, True
    trains_layers, trains = trains_vision(model)
    images = images_of(model, work.image, number if trains else 1)
    layer, measured = vision_layer(model, images, precision)
    return _Vision(images, layer, len(vision_layers(model)), trains_layers, trains), measured


def pass_bytes(model: Any, work: Workload, precision: Precision) -> Passes:
    """Estimate what passes take beside weights, gradients and optimizer.

    Layers are all alike, of language and of vision; the projector counts as a layer of vision.

    Args:
        model: with its adapter, and with the weights frozen that are not trained.
    """
    text, size = model.config.get_text_config(), precision.weights.itemsize
    layer, in_language = language_layer(model, work.rows, work.tokens, precision, masked=work.masked)
    vision, in_vision = _vision(model, work, precision, work.rows)
    pixels = vision.images.pixels // (work.rows if vision.trains else 1) if vision else 0
    begun = work.rows * (work.tokens * text.hidden_size * size + work.masked * work.tokens**2 + 4 * pixels)
    again = work.quantised * 2.0 * max(weight.numel() for weight in _layers(model).parameters())
    again += layer.training if work.checkpointing else layer.training - layer.kept
    seen = first = 0.0
    if vision:
        held = vision.layer.output if work.checkpointing else vision.layer.kept
        seen = vision.trains_layers * vision.depth * held + vision.trains * vision.layer.kept
        first = vision.layer.training if vision.trains else vision.layer.reading
    scored = work.rows * (work.tokens if work.on_cpu else work.answers * work.answer)
    (trains_head, trains_words), of_words = _trained_words(model), text.vocab_size * text.hidden_size * size
    of_head = head_bytes(scored, text.hidden_size, text.vocab_size, precision, trained=trains_head, on_cpu=work.on_cpu)
    if trains_head and work.passes == 1:
        again += of_words  # the gradient of the head, which has been computed
    stored = text.num_hidden_layers * (layer.output if work.checkpointing else layer.kept)
    stored += max(of_head, again, _cast_bytes(model, precision) if work.checkpointing else 0)
    stated = [name for name, measured in (("language", in_language), ("vision", in_vision)) if not measured]
    return Passes(
        begun + seen + stored,
        begun + seen + max(layer.training, first, of_words * (trains_words and work.passes > 1)),
        rollout_bytes(model, work, precision),
        4.0 * work.questions * pixels,
        tuple(stated),
    )


def _trained_words(model: Any) -> Iterator[bool]:
    """Whether the LM head and the embeddings are trained."""
    for part in (model.get_output_embeddings(), model.get_input_embeddings()):
        yield any(weight.requires_grad for weight in part.parameters())


def rollout_bytes(model: Any, work: Workload, precision: Precision) -> float:
    """Estimate the most that a rollout takes beside weights and optimizer; 0 without one."""
    return max(_rollout(model, work, precision), default=0.0)


def _rollout(model: Any, work: Workload, precision: Precision) -> Iterator[float]:
    """Bytes at the moments of a rollout that can take most: each turn's prompts, and the end of the last one.

    With vLLM it is handed the weights: a bucket or one larger weight, gathered or merged with its adapter, twice.
    """
    if not work.sampled:
        return
    if not work.samples:
        yield 2.0 * max(BUCKET, precision.weights.itemsize * max(weight.numel() for weight in model.parameters()))
        return
    # accelerate's autocast is around the forward pass of what it prepared: with an adapter that is not what generates
    plain = precision._replace(computing=None) if is_peft_model(model) else precision
    text, cast = model.config.get_text_config(), _cast_bytes(model, plain)
    keys, values = precision.weights.itemsize, (plain.computing or plain.weights).itemsize  # rotated keys are not cast
    cache = cache_bytes(model, (keys + values) / 2)
    vision, _ = _vision(model, work, plain, work.questions)
    if vision:
        yield vision.layer.reading
    for turn in range(work.answers):
        rows = work.sampled if turn or work.sharded else work.questions
        tokens = work.prompt + turn * work.answer
        at_a_time = rows if work.sharded else min(rows, rows_a_pass(tokens))
        layer, _ = language_layer(model, at_a_time, tokens, plain, masked=work.masked)
        inputs = 2 * layer.output  # of the model and of the layer
        yield rows * tokens * cache + at_a_time * work.masked * tokens**2 + inputs + layer.reading + cast
    # A step adds a column to a layer's keys or values by a copy, and has few tensors of all words in float32.
    held = work.sampled * work.tokens * cache
    yield held * (1 + 1 / (2 * text.num_hidden_layers)) + 3 * 4 * work.sampled * text.vocab_size + cast


def _layers(model: Any) -> nn.ModuleList:
    return longest_list(without_adapters(model).get_decoder())


def _cast_bytes(model: Any, precision: Precision) -> float:
    """Bytes of the copies that autocast keeps of trained weights in float32 until a forward pass ends."""
    if precision.computing is None or precision.weights != torch.float32:
        return 0.0
    return 2.0 * sum(weight.numel() for weight in _layers(model).parameters() if weight.requires_grad)
