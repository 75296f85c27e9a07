"""Refuse values of reward functions that are no rewards, by the function's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from trl.trainer.utils import is_async_callable


def checked_rewards(function: Any, name: str) -> Any:
    """The reward function, with an error that names it where it returns anything but numbers and `None`."""
    if isinstance(function, nn.Module):
        return function
    call: Callable[..., Any]
    if is_async_callable(function):

        async def call(**inputs: Any) -> list[Any]:
            return _numbers(await function(**inputs), name)

    else:

        def call(**inputs: Any) -> list[Any]:
            return _numbers(function(**inputs), name)

    return call


def _numbers(values: Any, name: str) -> list[Any]:
    """Rewards as a list of numbers and `None`."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable) or not getattr(values, "ndim", 1):
        raise TypeError(
            f"The reward function {name!r} returned {values!r:.60}, expected a list with a number or None for "
            "each answer."
        )
    listed = list(values)
    for place, value in enumerate(listed):
        try:
            valid = value is None or not isinstance(value, str) and isinstance(float(value), float)
        except (TypeError, ValueError, OverflowError):  # an int may have any size
            valid = False
        if not valid:
            raise TypeError(
                f"The reward function {name!r} returned {value!r:.60} for answer {place}, expected a number, or None "
                "where there is no reward."
            )
    return listed


def refuse_infinite(rewards: Tensor, names: Sequence[str]) -> None:
    """Refuse infinite rewards, which turn a whole group's advantages into NaN.

    Args:
        rewards: (N, K) gathered, so that every process raises.
        names: of the K reward functions.
    """
    if not rewards.isinf().any():
        return
    infinite = [name for name, column in zip(names, rewards.T, strict=True) if column.isinf().any()]
    raise ValueError(
        f"The reward function {', '.join(map(repr, infinite))} returned infinity, or a number beyond float32, expected "
        "finite numbers, or None where there is no reward."
    )
