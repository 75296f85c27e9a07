"""Whether prompts and answers fit the context of the policy, or of the vLLM that samples from it."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers.utils import logging

from .prompt_length import prompt_lengths

logger = logging.get_logger(__name__)


def longest_prompt(trainer: Any) -> int | None:
    """The tokens of the longest prompt that can be answered; `None` where nothing is refused, as by transformers."""
    return trainer.vllm_generation.longest_prompt if trainer.use_vllm else None


def check_context(trainer: Any) -> None:
    """Before training, compare the limits of prompts and answers with the context, and prompts with what vLLM takes.

    Prompts are measured where that is not known: of an evaluation, and of training if `max_prompt_length` is too large.

    Raises:
        ValueError: vLLM would refuse a prompt that was measured.
    """
    name, args, longest = type(trainer).__name__, trainer.args, longest_prompt(trainer)
    most = getattr(args, "max_prompt_length", None)
    fix = ""
    if longest is not None:
        fix = f"raise {trainer.vllm_generation.context_setting}"
        if most is not None and most > longest:
            _check_prompts(trainer, "train_dataset", trainer.system_prompt, f"{fix}, or max_prompt_length={longest}.")
        if args.eval_strategy != "no":
            _check_prompts(trainer, "eval_dataset", trainer.eval_system_prompt, f"{fix}, or leave these rows out.")
    context = context_of(trainer)
    if most is None or context is None or not trainer.is_world_process_zero():
        return
    answers = trainer.max_turns
    followup = len(trainer._followup_ids) * (answers - 1) if answers > 1 else 0
    needed = most + answers * args.max_completion_length + followup
    if needed <= context:
        return
    if trainer.use_vllm:
        limit = f"vLLM's context holds {context} ({trainer.vllm_generation.context_setting}), which cuts answers off"
    else:
        limit = f"the policy was made for {context} (max_position_embeddings)"
    if trainer.use_vllm and followup:
        limit += "; a first answer that leaves no room gets no second one (no_room_t2)"
    logger.warning(
        f"{name}: a row may have {needed} tokens (max_prompt_length={most}, {answers} x max_completion_length="
        f"{args.max_completion_length}, {followup} between two answers), but {limit}. Fix: lower these limits"
        + (f", or {fix}." if trainer.use_vllm else ".")
    )


def context_of(trainer: Any) -> int | None:
    """The tokens that vLLM holds, or that the policy was made for; `None` if the latter is not known."""
    if trainer.use_vllm:
        return trainer.vllm_generation.context
    config = trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()
    return getattr(config, "max_position_embeddings", None)


def _check_prompts(trainer: Any, role: str, system_prompt: str | None, fix: str) -> None:
    """Refuse prompts that would end the run. To leave them out is for the user to decide."""
    datasets, longest = getattr(trainer, role), trainer.vllm_generation.longest_prompt
    prompting = {"system_prompt": system_prompt, "tools": trainer.tools or None, **trainer.chat_template_kwargs}
    for key, rows in datasets.items() if isinstance(datasets, dict) else [("", datasets)]:
        if not isinstance(rows, Dataset):
            continue
        lengths = prompt_lengths(rows, trainer.processing_class, **prompting)
        if max(lengths) > longest:
            overlong = sum(length > longest for length in lengths)
            raise ValueError(
                f"{type(trainer).__name__}: {overlong} of {len(rows)} prompts of {role}{key and f'[{key!r}]'} have "
                f"more tokens, their images' included, than vLLM takes ({longest}); the longest has {max(lengths)}. "
                f"Fix: {fix}"
            )
