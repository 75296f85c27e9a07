"""Whether a model can be trained exactly: what is scored must be what the model itself says of each token.

`check_model` runs once, when a trainer is made, and scores a handful of tokens. Each check returns one sentence, or
`None` if all is well; `mmreason doctor` prints the same. `compat/fused_head.py` has that of the LM head's scale, which
needs no weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from datasets import Dataset
from PIL import Image
from torch import Tensor
from transformers import ProcessorMixin
from trl.data_utils import prepare_multimodal_messages

from ..compat.chat_template import tokenizer_of
from ..compat.fused_head import fused_head_output
from ..compat.model_parts import without_adapters
from ..data.images import IMAGE_COLUMNS, stored_images
from ..generation.model_loading import ENCODING_ERRORS

_TEXT = "What is 12 + 30? Let me think: 12 + 30 = 42, so the answer is 42."
_CHANGED = 6  # tokens behind those whose log-probabilities are compared
_MOST_TOKENS = 24
_TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")  # 0 for text, as every trainer says of an answer
_EXACT, _ROUNDED_ALIKE, _ROUNDED = 0.01, 0.02, 0.2  # nats: in float32 (also TF32); same head; another head


def check_model(trainer: Any) -> None:
    """Refuse a policy whose training would not be exact, or would stop in its first step.

    Args:
        trainer: after TRL's constructor; one without TRL's fused head scores in a way of its own.

    Raises:
        ValueError: says in one sentence what is wrong, and what to do.
    """
    model = without_adapters(trainer.accelerator.unwrap_model(trainer.model))
    if fused_head_output(model) is None:
        return
    problem = processor_problem(trainer.processing_class)
    for role in ("train_dataset", "eval_dataset"):
        problem = problem or rows_problem(trainer.processing_class, getattr(trainer, role), role)
    if trainer.aux_loss_enabled:
        problem = problem or experts_problem(model.config)
    # DeepSpeed and FSDP keep the model on the CPU until training begins, in pieces or, in all processes but the first,
    # without its weights, so that no pass can be run.
    if not (problem or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
        ids = some_ids(trainer.processing_class, model)
        problem = router_problem(model, ids) if trainer.aux_loss_enabled else None
        problem = problem or scoring_problem(model, ids, temperature=getattr(trainer, "temperature", 1.0))
    if problem:
        raise ValueError(f"{type(trainer).__name__}: {problem}")


# ------------------------------------------------------------------------------------------- mixtures of experts


def experts_problem(config: Any) -> str | None:
    """Whether TRL finds in a configuration what its auxiliary loss of a mixture of experts needs."""
    text = config.get_text_config()
    missing = [name for name in ("num_experts", "num_experts_per_tok") if not hasattr(text, name)]
    return _no_auxiliary_loss(f"{type(text).__name__} has no {missing[0]}") if missing else None


def router_problem(model: Any, ids: Tensor) -> str | None:
    """Whether a model's backbone returns the routers' logits, of which TRL makes its auxiliary loss.

    Args:
        model: without adapters, or the model that PEFT wrapped.
        ids: (1, T) tokens.
    """
    try:
        with _evaluating(model):
            outputs = model.base_model(input_ids=ids, output_router_logits=True, use_cache=False)
    except TypeError:  # composite models of transformers 5.24 whose outputs have no place for them
        outputs = None
    if getattr(outputs, "router_logits", None):
        return None
    return _no_auxiliary_loss(f"{type(model).__name__} returns no router_logits")


def _no_auxiliary_loss(reason: str) -> str:
    return (
        f"TRL cannot compute the auxiliary loss of this mixture of experts, as {reason}. Fix: router_aux_loss_coef=0.0."
    )


# ----------------------------------------------------------------------------------------------------------- scoring


def some_ids(processing_class: Any, model: Any) -> Tensor:
    """(1, T) tokens of a short text, on the model's device."""
    return torch.tensor([tokenizer_of(processing_class)(_TEXT)["input_ids"][:_MOST_TOKENS]], device=model.device)


def scoring_problem(model: Any, ids: Tensor, *, temperature: float = 1.0) -> str | None:
    """Compare the fused head's log-probabilities with the model's own, and these with themselves if the end changes.

    Both are of passes of one shape, which round alike.

    Args:
        model: with TRL's fused head; without adapters, or the model that PEFT wrapped.
        ids: (1, T) tokens of text.
        temperature: of the fused head.
    """
    name, kept = type(model).__name__, ids.shape[1] - _CHANGED
    pair = torch.cat([ids, torch.cat([ids[:, :kept], ids[:, :_CHANGED]], dim=1)])  # (2, T)
    taken = inspect.signature(type(model).forward).parameters
    inputs = {field: torch.zeros_like(pair) for field in _TOKEN_TYPES if field in taken}
    inputs |= {"input_ids": pair, "attention_mask": torch.ones_like(pair)}
    with _evaluating(model):
        logits = model(**inputs, use_cache=False).logits[:, :kept].float() / temperature
        labels = ids[:, 1 : kept + 1].expand(2, -1).to(logits.device)
        own, changed = logits.log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2)
        fused = model(**inputs, labels=pair, fused_lm_head=True).log_probs[0, :kept].to(own)
    if difference := _difference(model, own, changed, _ROUNDED_ALIKE):
        return (
            f"{name} is not causal over an answer: its log-probabilities change by {difference:.2g} nats when later "
            "tokens change, so that they are not those that an answer is sampled with. Fix: another model."
        )
    if difference := _difference(model, fused, own, _ROUNDED):
        return (
            f"TRL's fused LM head gives log-probabilities that differ by {difference:.2g} nats from those of {name} "
            "itself. Fix: another model, or a report to TRL; its own trainers use the same head."
        )
    return None


def _difference(model: Any, first: Tensor, second: Tensor, rounded: float) -> float:
    """By how many nats log-probabilities differ, of any token in float32 and of the median one otherwise.

    Returns:
        0.0 if rounding explains it: less than `rounded` in other dtypes, where it sends some tokens to other experts.
    """
    differences = (first - second).abs()
    exact = {weight.dtype for weight in model.parameters()} == {torch.float32}
    difference = (differences.max() if exact else differences.median()).item()
    return difference if difference > (_EXACT if exact else rounded) else 0.0


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Run a model without dropout and gradients, and leave it as it was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


# -------------------------------------------------------------------------------------------------------- processors


def processor_problem(processing_class: Any) -> str | None:
    """Whether a processor says of an image with which token of the prompt it belongs: answers would need the same."""
    short, long = (_shapes(processing_class, text, image=True) for text in ("?", _TEXT))
    if short is None or long is None:
        return None
    by_token = (short["input_ids"], long["input_ids"])
    for name, shape in short.items():
        if shape != long.get(name) and (shape, long.get(name)) != by_token:
            return (
                f"{type(processing_class).__name__} returns {name} with an entry for each token of the prompt "
                f"({shape}), which trainers cannot continue over an answer. Fix: another model."
            )
    return None


def rows_problem(processing_class: Any, rows: Any, role: str) -> str | None:
    """Whether rows without images meet a processor that demands one.

    Args:
        processing_class: the policy's processor or tokenizer.
        rows: a `Dataset`; others are not looked at.
        role: what the trainer calls them.
    """
    if not isinstance(rows, Dataset) or _shapes(processing_class, "?", image=False) is not None:
        return None
    if _shapes(processing_class, "?", image=True) is None:
        return None  # it cannot write a plain question at all
    columns = [name for name in IMAGE_COLUMNS if name in rows.column_names]
    stored: Iterable[Mapping[str, Any]] = [{}]
    if columns:
        stored = (table.to_pylist()[0] for table in rows.select_columns(columns).with_format("arrow"))  # undecoded
    for number, row in enumerate(stored):
        if not stored_images(row):
            return (
                f"row {number} of {role} has no image, and {type(processing_class).__name__} takes no text without "
                "one. Fix: leave such rows out, or train another model."
            )
    return None


def _shapes(processing_class: Any, text: str, *, image: bool) -> dict[str, tuple[int, ...]] | None:
    """The shape of each field of a question; `None` if the processor does not take it, or is a tokenizer."""
    if not isinstance(processing_class, ProcessorMixin):
        return None
    images = [Image.new("RGB", (64, 64))] if image else []
    conversation = prepare_multimodal_messages([{"role": "user", "content": text}], images=images)
    try:
        fields = processing_class.apply_chat_template(
            [conversation], tokenize=True, return_dict=True, add_generation_prompt=True, return_tensors="pt"
        )
    except ENCODING_ERRORS:
        return None
    return {name: tuple(value.shape) for name, value in fields.items() if isinstance(value, Tensor)}
