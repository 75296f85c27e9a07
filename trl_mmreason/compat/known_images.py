"""Encode equal images once: in a pass, and in all passes while no weight that encodes them is trained.

The answers of a group have the same images. TRL lets the model encode them again for each answer, in the reference's
pass and in the policy's, and PEFT with gradient checkpointing computes gradients through the encoder
(`enable_input_require_grads`), although no weight of it is trained. Here the rows of a pass share the features of a
image, and its gradient is the sum of the rows' gradients. Where no weight of the encoder or projector is trained, the
language model is given the features that an earlier pass computed, without gradients.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor
from torch.nn.functional import pad

from .model_parts import without_adapters
from .sharding import is_sharded
from .vision_passes import vision_weights

KEPT = 2**30
"""Bytes of features that are kept in main memory, for each model: 256 images of 1,024 tokens and 2,048 channels."""

PIXELS = ("pixel_values", "image_grid_thw", "image_sizes")
"""Fields of images that can be told apart here; a family that reads others encodes as before."""
_OPTIONS = ("vision_feature_layer", "vision_feature_select_strategy", "output_hidden_states")
_OUTPUTS = {"last_hidden_state", "pooler_output", "hidden_states", "attentions", "deepstack_features"}
_FACTORS = torch.randint(1, 2**62, (4096,), generator=torch.Generator().manual_seed(0)) * 2 + 1  # odd

Features = list[Tensor]
"""Of one image: what joins the embeddings, and with DeepStack what is added after each of the first layers."""


def encode_images_once(model: Any, policy: Any = None) -> None:
    """Let a vision-language model, with or without adapters, encode equal images once; others stay as they are.

    It keeps the features for later passes unless a weight of the encoder or of the projector is trained, or they are
    sharded, as processes then have to encode together. With adapters on them, which may drop out or be switched off, it
    encodes as before.

    Args:
        policy: policy whose reference the model is. It keeps features only while the policy does: in a pass of the same
            rows both then round alike, and their divergence begins at 0 and not at 1e-7, which Adam would enlarge.
    """
    base = without_adapters(model)
    inner = base.base_model
    own = vars(inner).get("get_image_features")  # set by an earlier trainer or by the user
    if not hasattr(inner, "get_image_features") or not isinstance(own, KnownImages | None) or _drops_out(base):
        return
    if inspect.signature(inner.get_image_features).parameters.keys() <= {*PIXELS, *_OPTIONS, "kwargs"}:
        untrained = [without_adapters(each) for each in (model, policy) if each is not None]
        inner.get_image_features = KnownImages(base, untrained)


class KnownImages:
    """A model's `get_image_features` that encodes equal images once, and none whose features it knows.

    Args:
        untrained: models no weight of whose vision side may be trained.
    """

    def __init__(self, model: Any, untrained: Sequence[Any]) -> None:
        self._model = model
        self._untrained = untrained
        self._inner = model.base_model
        self._known: OrderedDict[str, Features] = OrderedDict()  # the longest unused first
        self._weights: list[tuple[int, int]] = []
        self._form: tuple[type, bool, bool]  # type of the output; tiles stacked; all images of a layer in one tensor
        self.__signature__ = inspect.signature(self._inner.get_image_features)  # `generate` reads the signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.__signature__.bind(*args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        inputs = {name: arguments.pop(name) for name in PIXELS if arguments.get(name) is not None}
        if not all(self._is_usual(*option) for option in arguments.items()) or _has_adapter(self._model):
            return self._encode(*args, **kwargs)
        features_of = self._known_features if self._weights_stay() else self._shared_features
        try:
            images = features_of(inputs.pop("pixel_values"), inputs)
        except _OtherOutputs:
            del self._inner.get_image_features
            return self._encode(*args, **kwargs)
        kind, stacked, flat = self._form
        pooled, *deeper = zip(*images, strict=True)
        outputs = kind(pooler_output=torch.stack(pooled) if stacked else pooled)
        if deeper:
            outputs.deepstack_features = [torch.cat(layer) if flat else layer for layer in deeper]
        return outputs

    def _is_usual(self, name: str, value: Any) -> bool:
        """Whether an option leaves features as they are, or says what the model's configuration says."""
        if value is None or name == "use_cache" or (name, value) == ("return_dict", True):
            return True
        return not isinstance(value, Tensor) and value == getattr(self._inner.config, name, None)

    def _encode(self, *args: Any, **kwargs: Any) -> Any:
        return type(self._inner).get_image_features(self._inner, *args, **kwargs)

    def _known_features(self, pixels: Tensor, sizes: dict[str, Tensor]) -> list[Features]:
        """Features of each image, or of each tile in a family that knows nothing of images."""
        images = _split(pixels, sizes)
        keys = _keys_of(images, sizes)
        new = {key: place for place, key in enumerate(keys) if key not in self._known}
        features = {key: self._known[key] for key in keys if key in self._known}
        for key, place in new.items():
            # By itself: with others it would be rounded otherwise, and differ after a resume.
            with torch.no_grad():
                (features[key],) = self._encode_these([place], images, sizes)
        self._keep(features)
        return [[level.to(pixels.device) for level in features[key]] for key in keys]

    def _shared_features(self, pixels: Tensor, sizes: dict[str, Tensor]) -> list[Features]:
        """The same, of weights that change: nothing is kept, and rows with one image have one gradient for it."""
        images = _split(pixels, sizes)
        keys = _keys_of(images, sizes)
        distinct = list(dict.fromkeys(keys))
        encoded = self._encode_these([keys.index(key) for key in distinct], images, sizes)
        features = dict(zip(distinct, encoded, strict=True))
        return [features[key] for key in keys]

    def _encode_these(self, places: list[int], images: Sequence[Tensor], sizes: dict[str, Tensor]) -> list[Features]:
        pixels = torch.cat([images[place] for place in places])
        outputs = self._encode(pixels, **{name: value[places] for name, value in sizes.items()}, return_dict=True)
        pooled = outputs.get("pooler_output")
        if not outputs.keys() <= _OUTPUTS or pooled is None or len(pooled) != len(places):
            raise _OtherOutputs
        layers = getattr(outputs, "deepstack_features", None) or []
        flat = any(isinstance(layer, Tensor) for layer in layers)  # up to transformers 5.17
        if flat:
            layers = [layer.split([len(image) for image in pooled]) for layer in layers]
        self._form = type(outputs), isinstance(pooled, Tensor), flat
        return [list(levels) for levels in zip(pooled, *layers, strict=True)]

    def _keep(self, features: dict[str, Features]) -> None:
        for key, image in features.items():
            if key not in self._known:
                self._known[key] = [level.to("cpu", copy=True) for level in image]
            self._known.move_to_end(key)
        held = sum(level.nbytes for image in self._known.values() for level in image)
        while held > KEPT:
            _, image = self._known.popitem(last=False)
            held -= sum(level.nbytes for level in image)

    def _weights_stay(self) -> bool:
        """Whether features stay what they are; those of other weights, from a checkpoint for example, are forgotten."""
        trained = any(weight.requires_grad for model in self._untrained for weight in vision_weights(model))
        if trained or is_sharded(self._model):
            return False
        weights = vision_weights(self._model)
        state = [(weight.data_ptr(), weight._version) for weight in weights]
        if state != self._weights:
            self._known.clear()
            self._weights = state
        return True


class _OtherOutputs(Exception):
    """The model is of a family that reads more than features of each image, such as Ovis2, or has them otherwise."""


def _split(pixels: Tensor, sizes: dict[str, Tensor]) -> Sequence[Tensor]:
    """The pixels of each image, or of each tile in a family that knows nothing of images."""
    grids = sizes.get("image_grid_thw")
    return pixels.split([1] * len(pixels) if grids is None else grids.prod(dim=1).tolist())


def _keys_of(images: Sequence[Tensor], sizes: dict[str, Tensor]) -> list[str]:
    """Equal for images whose features are."""
    precision = torch.is_autocast_enabled(images[0].device.type), images[0].dtype
    described = zip(fingerprints(images), *(value.tolist() for value in sizes.values()), strict=True)
    return [str((precision, *values)) for values in described]


def fingerprints(images: Sequence[Tensor]) -> list[int]:
    """A number of 64 bits for the content of each image, computed where the images are; equal for equal pixels.

    Zeros at the end of the first dimension change nothing.

    Args:
        images: each (n, …), in a format of 4, 2 or 1 bytes.
    """
    return torch.stack([_fingerprint(image) for image in images]).tolist()


def _fingerprint(image: Tensor) -> Tensor:
    bits = image.contiguous().view({4: torch.int32, 2: torch.int16, 1: torch.int8}[image.element_size()])
    factors, numbers = _FACTORS.to(image.device), bits.flatten().long()
    while True:
        rows = pad(numbers, (0, -len(numbers) % len(factors))).view(-1, len(factors))
        mixed = (rows * factors).sum(dim=1)
        numbers = mixed ^ (mixed >> 32)  # or rows and columns could be exchanged, whose factors are the same
        if len(numbers) == 1:
            return numbers[0]


def _has_adapter(model: Any) -> bool:
    language = {id(module) for module in model.get_decoder().modules()} | {id(model.get_output_embeddings())}
    adapters = (module for module in model.modules() if isinstance(module, (BaseTunerLayer, ModulesToSaveWrapper)))
    return any(id(module) not in language for module in adapters)


def _drops_out(model: Any) -> bool:
    """Whether the encoder's features are random in training."""
    settings = model.get_encoder(modality="image").config.to_dict()
    return any("drop" in name and isinstance(value, float) and value > 0 for name, value in settings.items())
