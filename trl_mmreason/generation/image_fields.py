"""The fields in which a model is given its images, of one row or several: how they are joined, found by experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import ProcessorMixin

from ..compat.chat_template import ProcessingClass
from .model_loading import ENCODING_ERRORS

_AXES: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()


def image_axes(processing_class: ProcessingClass) -> dict[str, int]:
    """The fields of images of which not the first dimension is longer for two rows than for one, and which it is.

    Found by an experiment, once for each processor; MiniCPM-V lays images side by side in one.
    """
    if processing_class not in _AXES:
        _AXES[processing_class] = _tried_axes(processing_class)
    return _AXES[processing_class]


def _tried_axes(processing_class: ProcessingClass) -> dict[str, int]:
    if not isinstance(processing_class, ProcessorMixin):
        return {}
    row = [{"role": "user", "content": [{"type": "image", "image": PIL.Image.new("RGB", (64, 64))}]}]
    settings = {"tokenize": True, "return_dict": True, "add_generation_prompt": True, "return_tensors": "pt"}
    try:
        one, two = (processing_class.apply_chat_template(rows, **settings) for rows in ([row], [row, row]))
    except ENCODING_ERRORS:
        return {}  # it is refused where rows of the user are encoded
    shapes = {name: (as_tensor(value).shape, as_tensor(two[name]).shape) for name, value in one.items()}
    longer = {
        name: [axis for axis, (few, many) in enumerate(zip(*pair, strict=True)) if few != many]
        for name, pair in shapes.items()
    }
    return {name: axes[0] for name, axes in longer.items() if axes and axes[0] != 0}


def as_tensor(value: Any) -> Tensor:
    """A field as processors return it, also as a list of tensors or of arrays."""
    if isinstance(value, list) and isinstance(value[0], Tensor):
        return torch.stack(value)
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def joined_fields(rows: Sequence[Mapping[str, Tensor]], axes: Mapping[str, int]) -> dict[str, Tensor]:
    """Concatenate the fields of images by name, in order; a row without images may lack them."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: concatenate([row[name] for row in rows if name in row], axis=axes.get(name, 0)) for name in names}


def concatenate(parts: Sequence[Tensor], padding: float = 0, axis: int = 0) -> Tensor:
    """Concatenate along a dimension, with padding behind the others, as images may differ in tiles."""
    largest = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]

    def fill(part: Tensor) -> Tensor:
        missing = [large - size for large, size in zip(largest, part.shape, strict=True)]
        missing[axis] = 0
        amounts = [amount for lack in reversed(missing) for amount in (0, lack)]
        return pad(part, amounts, value=padding) if any(missing) else part

    return torch.cat([fill(part) for part in parts], dim=axis)
