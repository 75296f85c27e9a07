"""What makes a model another in training than where it samples: dropout, stochastic depth, jitter of routers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

_NAMES = re.compile(r"dropout|drop_path|drop_prob|layerdrop|jitter")


def noise_of(model: nn.Module) -> str:
    """The noise that is on in training, by name and strength, each kind once; "" without any."""
    found = dict.fromkeys(
        f"{'dropout' if name == 'p' else name} {getattr(module, name)}" for module, name in _places(model)
    )
    return ", ".join(found)


def turn_off_noise(model: nn.Module) -> None:
    """Set all of it to 0; TRL's `disable_dropout` reaches layers of dropout alone."""
    for module, name in _places(model):
        setattr(module, name, 0.0)


def _places(model: nn.Module) -> Iterator[tuple[Any, str]]:
    """Each module with noise, and the attribute that says how much."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            is_named = _NAMES.search(name) or (name == "p" and isinstance(module, nn.modules.dropout._DropoutNd))
            if is_named and isinstance(value, float | int) and not isinstance(value, bool) and value > 0:
                yield module, name
