"""Let TRL's fused LM head compute the logits that the model itself computes.

`add_fused_lm_head` multiplies logits by what the text configuration says (`logit_scale`, `logits_scaling` …) and caps
them by its `final_logit_softcapping`. A vision-language model may have a language model that scales, and a forward pass
of its own that does not: every log-probability is then off by nats, with no warning, as sampling goes by the model's
own. What a model does is therefore measured, as vllm-project/vllm#52158 does it: the model's own forward pass is run
with a backbone and a head that hand on chosen numbers. No weight takes part, so that sharded, quantised and adapted
models are measured alike, in milliseconds.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

from .replaced import replaced

logger = logging.getLogger(__name__)

# Exact in every dtype. The first is so small that no cap bends it, the last so large that a cap is reached.
_HIDDEN = torch.tensor([2.0**-10, 1.0, 8.0, 64.0, 2.0**15])
_TOLERANCE = 0.01  # relative; a model may round to bfloat16


class HeadOutput(NamedTuple):
    """What becomes of the head's products: `scale · x`, softly capped.

    Attributes:
        scale: factor of the products.
        softcap: largest logit; `None` without a cap.
    """

    scale: float
    softcap: float | None

    def described(self) -> str:
        """Its two numbers in words."""
        return f"scaled by {self.scale:g}" + (f", capped at {self.softcap:g}" if self.softcap else "")

    def logits(self, products: Tensor) -> Tensor:
        """The logits that TRL's fused head makes of the head's products."""
        scaled = self.scale * products
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)


def use_own_head_output(model: Any, measured: HeadOutput | None = None) -> None:
    """Let the fused head of a model scale and cap logits as the model itself does; a model without one stays as it is.

    TRL has read the configuration into the fused pass's closure, where both numbers are replaced.

    Args:
        measured: that of a model of the same kind, such as the policy of a reference.

    Raises:
        ValueError: no scale and cap give the logits of the model.
    """
    cells = _cells_of(model)
    if cells is None:
        return
    said = HeadOutput(*(cell.cell_contents for cell in cells))
    own = measured or measured_head_output(model, said)
    if measured is None and own != said:  # said once, of the policy
        logger.warning(
            "%s: by its configuration TRL takes logits to be %s, but the model's own are %s, with which it is trained. "
            "An engine that goes by the configuration, such as vLLM, samples from another policy.",
            type(model).__name__,
            said.described(),
            own.described(),
        )
    for cell, value in zip(cells, own, strict=True):
        cell.cell_contents = value


def fused_head_output(model: Any) -> HeadOutput | None:
    """What the fused head of a model does now; `None` without one."""
    cells = _cells_of(model)
    return cells and HeadOutput(*(cell.cell_contents for cell in cells))


def measured_head_output(model: Any, expected: HeadOutput | None = None) -> HeadOutput:
    """Measure what a model does with the products of its LM head.

    Args:
        model: without adapters, or the model that PEFT wrapped; its weights may be anywhere.
        expected: preferred if it is right but for rounding.

    Raises:
        ValueError: it is no scale with a cap.
    """
    name = type(model).__name__
    try:
        logits = _own_logits(model)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{_wrong(name)} (its forward pass: {type(error).__name__}: {error}). {_FIX}") from error
    if logits is None:
        raise ValueError(f"{_wrong(name)}: between its base_model and its output embeddings lies more. {_FIX}")
    scale, largest = float(logits[0] / _HIDDEN[0]), float(logits[-1])
    capped = abs(largest - scale * float(_HIDDEN[-1])) > _TOLERANCE * abs(scale * float(_HIDDEN[-1]))
    for head in (expected, HeadOutput(scale, largest if capped else None)):
        if head is not None and torch.allclose(head.logits(_HIDDEN), logits, rtol=_TOLERANCE, atol=0.0):
            return head
    raise ValueError(f"{_wrong(name)}: it makes {logits.tolist()} of products {_HIDDEN.tolist()}. {_FIX}")


_FIX = "Fix: another model, or a report to TRL; its own trainers use the same head."


def _wrong(name: str) -> str:
    return f"{name}: TRL's fused LM head, by which trainers score, cannot compute this model's logits"


def _own_logits(model: Any) -> Tensor | None:
    """What the model's own forward pass makes of `_HIDDEN`; `None` if these do not come through as they are."""
    base, head = model.base_model, model.get_output_embeddings()
    if base is model or head is None:
        return None
    hidden = _HIDDEN.expand(1, 2, -1)
    outputs = _AnyOutputs(last_hidden_state=hidden)
    with ExitStack() as handing_on:
        for part in (base, *base.children()):  # OPT's forward pass calls its base_model's decoder
            handing_on.enter_context(replaced(part, forward=lambda *args, **kwargs: outputs))
        handing_on.enter_context(replaced(head, forward=lambda products: products))
        ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
        with torch.no_grad():
            logits = type(model).forward(model, input_ids=ids).logits
    return logits[0, -1].float().cpu() if logits.shape == hidden.shape else None


class _AnyOutputs(BaseModelOutputWithPast):
    """Outputs of any backbone, whose other fields are `None`."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _cells_of(model: Any) -> tuple[Any, Any] | None:
    """Where TRL's fused forward pass keeps scale and cap, also below what accelerate has put around it."""

    def is_fused(function: Callable[..., Any]) -> bool:
        return "logit_scale" in getattr(getattr(function, "__code__", None), "co_freevars", ())

    forward: Any = inspect.unwrap(model.forward, stop=is_fused)
    if not is_fused(forward):
        return None
    cells = dict(zip(forward.__code__.co_freevars, forward.__closure__, strict=True))
    return cells["logit_scale"], cells["final_logit_softcapping"]
