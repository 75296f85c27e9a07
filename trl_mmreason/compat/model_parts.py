"""The parts of a vision-language model, and training some of them alone."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from accelerate.utils import is_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor

logger = logging.getLogger(__name__)

_VISION_TOKENS = re.compile(r"(image|video|vision|visual)\w*_token_(ids?|index)")  # of a configuration

PARTS = ("vision", "projector", "language")


class ModelPart(NamedTuple):
    """One part of a model, and how much of it is trained.

    Attributes:
        modules: the largest modules, or single parameters, which lie in this part as a whole.
        trained: number of parameters that are trained.
        frozen: number of those that are not.
    """

    modules: list[str]
    trained: int
    frozen: int

    def __str__(self) -> str:
        return f"{self.trained:,} of {self.trained + self.frozen:,} parameters ({', '.join(self.modules)})"


def without_adapters(model: Any) -> Any:
    """The model that PEFT wrapped, whose layers keep their adapters; others as they are."""
    return model.get_base_model() if is_peft_model(model) else model


def placed(inputs: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Inputs on a model's device, and in its dtype unless they are whole numbers."""
    return {
        name: value.to(model.device, model.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }


def parts_of(model: Any) -> dict[str, str]:
    """Map parameter name → one of `PARTS`; an adapter's weights belong to the part they adapt.

    `vision` is the image encoder, `language` the decoder with its embeddings and head, `projector` what joins the two.
    A text-only model is `language` alone.
    """
    base = without_adapters(model)
    encoder, decoder = base.get_encoder(modality="image"), base.get_decoder()
    if encoder is base or encoder is base.base_model:
        return {name: "language" for name, _ in model.named_parameters()}
    language = _ids([decoder, base.get_output_embeddings()])
    vision = _ids([encoder]) - _merger_ids(encoder)

    def part(parameter: Any) -> str:
        return "vision" if id(parameter) in vision else "language" if id(parameter) in language else "projector"

    return {name: part(parameter) for name, parameter in model.named_parameters()}


def check_chosen(name: str, chosen: Sequence[str]) -> None:
    """Refuse `trainable_parts` that are not in `PARTS`."""
    if not chosen or not set(chosen) <= set(PARTS):
        raise ValueError(f"{name}: trainable_parts={chosen}, expected one or more of {PARTS}.")


def train_parts(trainer: Any, chosen: Sequence[str]) -> dict[str, ModelPart]:
    """Freeze all parts of a trainer's policy except the chosen ones, adapters included, and log what is trained.

    Returns:
        What is trained and frozen of every part.
    """
    policy = trainer.accelerator.unwrap_model(trainer.model)
    parts = train_only(policy, chosen)
    keep_adapters_frozen(policy)
    if trainer.accelerator.is_main_process:
        summary = "; ".join(f"{name}: {part}" for name, part in parts.items())
        logger.warning("%s trains of %s", type(trainer).__name__, summary)
    return parts


def train_only(model: Any, chosen: Sequence[str]) -> dict[str, ModelPart]:
    """Freeze all parts except the chosen ones; weights that were frozen before stay frozen.

    Returns:
        What is trained and frozen of every part.

    Raises:
        ValueError: an unknown part, one that the model does not have, or nothing is left to train.
    """
    check_chosen("train_only", chosen)
    place, parameters = parts_of(model), dict(model.named_parameters())
    missing = sorted(set(chosen) - set(place.values()))
    if missing:
        raise ValueError(f"trainable_parts: {type(model).__name__} has no {missing[0]}; leave it out.")
    for name, parameter in parameters.items():
        if place[name] not in chosen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError(
            f"trainable_parts: nothing in {list(chosen)} can be trained: all of it was frozen before, or the adapter "
            "has no weights there. Choose other parts, or give the adapter other target_modules."
        )
    parts = {}
    for part in PARTS:
        names = [name for name in parameters if place[name] == part]
        trained = sum(parameters[name].numel() for name in names if parameters[name].requires_grad)
        frozen = sum(parameters[name].numel() for name in names) - trained
        parts[part] = ModelPart(_roots(names, [name for name in parameters if place[name] != part]), trained, frozen)
    return parts


def freeze_vision_encoder(model: Any, *, merger: bool = True) -> None:
    """Freeze the vision encoder and any adapter in it.

    Args:
        merger: freeze also the projector of those families that keep it inside the encoder, as its merger (Qwen-VL).

    Raises:
        ValueError: the model has none, or see `keep_adapters_frozen`.
    """
    base = without_adapters(model)
    encoder = base.get_encoder(modality="image")
    if encoder is base or encoder is base.base_model:
        raise ValueError(f"freeze_vision_encoder: {type(base).__name__} has no vision encoder; set it to False.")
    trained = set() if merger else _merger_ids(encoder)
    for parameter in encoder.parameters():
        if id(parameter) not in trained:
            parameter.requires_grad_(False)
    keep_adapters_frozen(encoder)


def keep_adapters_frozen(model: Any) -> None:
    """Keep adapter layers frozen that are wholly frozen now.

    PEFT makes every weight of the active adapter trainable when it is switched on again, but for those that a layer
    names. TRL switches it off for each reference pass, and `Trainer` on when it resumes from a checkpoint with a second
    adapter.

    Raises:
        ValueError: a module of `modules_to_save` is frozen; such a module has no names to give.
    """
    for layer in model.modules():
        if not isinstance(layer, (BaseTunerLayer, ModulesToSaveWrapper)):
            continue
        if any(weight.requires_grad for weight in layer.parameters()):
            continue
        if isinstance(layer, ModulesToSaveWrapper):
            raise ValueError(
                f"The adapter's modules_to_save has a {type(layer.original_module).__name__} trained, in a part of the "
                "model that is to stay frozen. Take it out of modules_to_save, or let that part be trained."
            )
        layer.frozen_peft_weight_names = dict.fromkeys(layer.active_adapters, layer.adapter_layer_names)


def _merger_ids(encoder: Any) -> set[int]:
    return _ids(module for name, module in encoder.named_modules() if "merger" in name)


def _ids(modules: Iterable[Any]) -> set[int]:
    return {id(parameter) for module in modules for parameter in module.parameters()}


def _roots(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """The shortest dotted prefixes of `names` that no name in `others` has."""
    other_prefixes = {prefix for name in others for prefix in _prefixes(name)}
    return list(dict.fromkeys(next(p for p in _prefixes(name) if p not in other_prefixes) for name in names))


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def placeholder_ids(config: Any) -> list[int]:
    """Tokens of images and videos, their placeholders first, which must not be sampled in an answer.

    They are what a configuration names so: `image_token_id`, `video_token_index`, `visual_indicator_token_ids` …
    """
    named = [getattr(config, f"{kind}_token_id", None) for kind in ("image", "video")]
    named += [value for name, value in vars(config).items() if _VISION_TOKENS.fullmatch(name)]
    ids = [token for value in named for token in (value if isinstance(value, list | tuple) else [value])]
    return list(dict.fromkeys(token for token in ids if token is not None))
