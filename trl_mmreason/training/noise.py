"""What makes a model another in training than where it samples: dropout, stochastic depth, jitter of routers.

Most of it stands in attributes of modules, by known names. Some models read it from their configuration in each pass
(Falcon's dropout, DINOv3's shifted positions), and with some a number of that name counts in evaluation, too (the
routers of Phi-MoE). Whether there is noise at all is therefore also found by experiment, and what a name means.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_NAMES = re.compile(r"dropout|drop_path|drop_prob|layerdrop|pdrop|jitter")
_COUNTS_IN_EVALUATION = re.compile(r"jitter")  # maybe
_MOVED_POSITIONS = re.compile(r"pos_embed_(?:rescale|jitter|shift)")  # off with `None`


def noise_of(model: nn.Module) -> str:
    """The noise in attributes of modules, by name and strength, each kind once; "" without any."""
    found = dict.fromkeys(
        f"{'dropout' if name == 'p' else name} {_strength(getattr(module, name))}" for module, name in _places(model)
    )
    return ", ".join(found)


def _strength(value: Any) -> float:
    """How much noise an attribute says; PEFT keeps one for each adapter."""
    values = value.values() if isinstance(value, dict) else [value]
    return max((one for one in values if isinstance(one, float | int) and not isinstance(one, bool)), default=0.0)


def _off(value: Any) -> Any:
    return dict.fromkeys(value, 0.0) if isinstance(value, dict) else 0.0


def turn_off_noise(model: nn.Module) -> None:
    """Set it to 0 in attributes of modules; TRL's `disable_dropout` reaches layers of dropout alone."""
    for module, name in _places(model):
        if not _COUNTS_IN_EVALUATION.search(name):
            setattr(module, name, _off(getattr(module, name)))


def turn_off_hidden_noise(model: nn.Module, scores: Callable[[], Tensor]) -> None:
    """Turn off what `turn_off_noise` leaves: in configurations, and where it leaves evaluation as it is.

    Args:
        model: the whole.
        scores: runs a pass and returns what can be compared.
    """
    configs = {id(config): config for part in model.modules() if (config := getattr(part, "config", None)) is not None}
    places = [*_places(model)]
    for config in configs.values():
        known = (name for name in vars(config) if _NAMES.search(name) or _MOVED_POSITIONS.fullmatch(name))
        places += [(config, name) for name in known if isinstance(value := getattr(config, name), float) and value]
    expected = _scores_in(model, scores, training=False)
    for name in dict.fromkeys(name for _, name in places):
        values = [(owner, getattr(owner, name)) for owner, other in places if other == name]
        for owner, _ in values:
            setattr(owner, name, None if _MOVED_POSITIONS.fullmatch(name) else _off(getattr(owner, name)))
        if not torch.equal(_scores_in(model, scores, training=False), expected):
            for owner, value in values:
                setattr(owner, name, value)


def noise_found(model: nn.Module, scores: Callable[[], Tensor]) -> float:
    """How much the scores of a pass in training differ from those in evaluation, at most."""
    expected = _scores_in(model, scores, training=False)
    statistics = [(buffer, buffer.clone()) for part in batch_norms(model) for buffer in part.buffers()]
    found = (_scores_in(model, scores, training=True) - expected).abs().max().item()
    for buffer, before in statistics:
        buffer.copy_(before)
    return found


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The layers whose statistics a pass in training changes, and uses."""
    return [part for part in model.modules() if isinstance(part, _BatchNorm)]


def _scores_in(model: nn.Module, scores: Callable[[], Tensor], *, training: bool) -> Tensor:
    """The scores of a pass in one mode; nothing that draws random numbers afterwards notices it."""
    before = model.training
    model.train(training)
    try:
        with torch.no_grad(), torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of checkpointing, about inputs without gradients
            return scores()
    finally:
        model.train(before)


def _places(model: nn.Module) -> Iterator[tuple[Any, str]]:
    """Each module with noise, and the attribute that says how much."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            is_named = _NAMES.search(name) or (name == "p" and "Dropout" in type(module).__name__)
            if is_named and _strength(value) > 0:
                yield module, name
