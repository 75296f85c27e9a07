"""Run the vision encoder in every forward pass, even if no row has an image.

Otherwise its weights have a gradient on some processes and none on others. ZeRO and FSDP2 then wait for each other for
ever or mix up what they gather (ms-swift #3213, DeepSpeed #7170), and DDP has to search for unused weights in every
step. A small image is encoded instead, and its features are added to the embeddings times zero: losses stay as they
are, and the gradient of the vision encoder is zero where it would be missing.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import Cache, ProcessorMixin

from .model_parts import placed, without_adapters
from .sharding import is_sharded

_SIDE = 64  # pixels; of 32 Mistral 3 makes one token, which its projector takes for none


def ensure_image_pass(model: Any, processing_class: Any) -> ImageHooks | None:
    """Register the hooks on a vision-language model, with or without adapters; others stay as they are.

    Args:
        model: not wrapped yet.
    """
    base = without_adapters(model)
    if isinstance(processing_class, ProcessorMixin) and hasattr(base.base_model, "get_image_features"):
        return ImageHooks(base, processing_class)
    return None


def weights_behind(outputs: Sequence[Tensor]) -> set[int]:
    """The ids of the weights that tensors depend on, by their graph; no gradient is computed."""
    nodes, seen, found = [output.grad_fn for output in outputs], set(), set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        nodes += [previous for previous, _ in node.next_functions]
    return found


def vision_weights(model: Any) -> list[Tensor]:
    """All weights of a model that belong neither to its decoder nor to its head."""
    language = [model.get_decoder(), model.get_output_embeddings()]
    others = {id(weight) for part in language for weight in part.parameters()}
    return [weight for weight in model.parameters() if id(weight) not in others]


class ImageHooks:
    """Hook on a model that, in a pass without images, adds one to its input embeddings.

    Families embed the text first and encode images then, before the decoder begins. The small image is encoded at
    the same place, as engines gather weights in the order of the forward pass: after the embeddings' other hooks, to
    which engines add hooks of their own when training begins, and before the decoder's.
    """

    def __init__(self, model: Any, processor: ProcessorMixin) -> None:
        self._model, self._processor = model, processor
        self._image = self._inputs_of(1)
        self._encode = (model if hasattr(model, "get_image_features") else model.base_model).get_image_features
        model.register_forward_pre_hook(self._before_model, with_kwargs=True)

    def layers_called_per_image(self) -> list[str]:
        """Names of the layers that are called more often for three images than for one.

        All processes have to call this together if the model is sharded.
        """
        layers = {name: layer for name, layer in self._model.named_modules() if layer._parameters}
        one, three = (self._calls(layers, images) for images in (1, 3))
        return [name for name in layers if one[name] != three[name]]

    def _calls(self, layers: Mapping[str, nn.Module], images: int) -> Counter[str]:
        calls: Counter[str] = Counter()

        def count(name: str, *_: Any) -> None:
            calls[name] += 1

        hooks = [layer.register_forward_hook(partial(count, name)) for name, layer in layers.items()]
        inner = self._model.base_model
        try:
            with torch.no_grad(), _in_forward(inner):  # by the class: what `encode_images_once` set may know an image
                type(inner).get_image_features(inner, **placed(self._inputs_of(images), self._model), return_dict=True)
        finally:
            for hook in hooks:
                hook.remove()
        return calls

    def _inputs_of(self, images: int) -> dict[str, Tensor]:
        """What the model encodes so many small images from."""
        small = [Image.new("RGB", (_SIDE, _SIDE), (number, 0, 0)) for number in range(images)]
        inputs, names = self._processor.image_processor(images=small, return_tensors="pt"), image_fields(self._model)
        return {name: torch.as_tensor(value) for name, value in inputs.items() if name in names}

    def weights_of_an_image(self) -> set[int]:
        """The ids of the trained weights to which an image gives a gradient; the model must not be sharded."""
        training = self._model.training
        self._model.eval()
        found = weights_behind([self._zero()])
        self._model.train(training)
        return found

    def _before_model(self, model: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        pixels = kwargs.get("pixel_values")
        if pixels is not None and len(pixels) == 0:  # a text-only micro-batch out of a batch with images
            kwargs, pixels = {name: value for name, value in kwargs.items() if name not in self._image}, None
        # Images come with a prompt, before an answer. Asking a static cache for its length would wait for the device.
        ids, caches = kwargs.get("input_ids"), [value for value in kwargs.values() if isinstance(value, Cache)]
        begun = bool(caches) and ids is not None and ids.shape[1] == 1
        if pixels is None and not begun and (is_sharded(model) or self._is_trained()):

            def join(embeddings: nn.Module, inputs: Any, embedded: Tensor) -> Tensor:
                hook.remove()
                return embedded + self._zero().to(embedded)

            hook = model.get_input_embeddings().register_forward_hook(join)
        return args, kwargs

    def _is_trained(self) -> bool:
        return torch.is_grad_enabled() and any(weight.requires_grad for weight in vision_weights(self._model))

    def _zero(self) -> Tensor:
        """A zero that depends on every weight an image uses."""
        model = self._model
        used = self._encode(**placed(self._image, model), return_dict=True)
        if used.get("pooler_output") is not None:  # what else there is may be of layers that no image uses
            used = [used.pooler_output, getattr(used, "deepstack_features", None)]
        # what joins the pieces of an image belongs to no layer: LLaVA-NeXT's image_newline
        loose = [weight for part in (model, model.base_model) for weight in part.parameters(recurse=False)]
        return sum((0 * part.sum() for part in _tensors([used, loose])), torch.zeros((), device=model.device))


@contextmanager
def _in_forward(model: nn.Module) -> Iterator[None]:
    """Let ZeRO-3 gather weights that a layer reads without calling whose they are, as DeepSpeed's engine does."""
    parameters: list[Any] = [each._parameters for each in model.modules() if hasattr(each._parameters, "_in_forward")]
    for each in parameters:
        each._in_forward = True
    try:
        yield
    finally:
        for each in parameters:
            each._in_forward = False


def image_fields(model: Any) -> set[str]:
    """Names of the processor's fields that a model encodes images from."""
    return set(inspect.signature(model.base_model.get_image_features).parameters)


def _tensors(nested: Any) -> list[Tensor]:
    """All tensors of floating-point numbers in an output of a model, whatever its form."""
    if isinstance(nested, Tensor):
        return [nested] if nested.is_floating_point() else []
    parts = nested.values() if isinstance(nested, Mapping) else nested if isinstance(nested, (list, tuple)) else ()
    return [part for one in parts for part in _tensors(one)]
