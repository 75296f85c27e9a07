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
    """Before training, compare the limits of prompts and answers with the context, and measure evaluation's prompts.

    Args:
        trainer: a `GroupGRPOTrainer`.

    Raises:
        ValueError: vLLM would refuse prompts that `max_prompt_length` lets pass, or prompts of the evaluation.
    """
    name, args, longest = type(trainer).__name__, trainer.args, longest_prompt(trainer)
    most = getattr(args, "max_prompt_length", None)
    if longest is not None:
        fix = f"raise {trainer.vllm_generation.context_setting}"
        if most is not None and most > longest:
            raise ValueError(
                f"{name}: max_prompt_length={most}, but vLLM takes prompts of at most {longest} tokens, as its context "
                f"holds {trainer.vllm_generation.context}. Fix: {fix}, or max_prompt_length={longest}."
            )
        _check_evaluation(trainer, longest, fix)
    context = _context(trainer)
    if most is None or context is None or not trainer.is_world_process_zero():
        return
    answers, followup = (1, 0) if trainer.followup is None else (2, len(trainer._followup_ids))
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


def _context(trainer: Any) -> int | None:
    if trainer.use_vllm:
        return trainer.vllm_generation.context
    config = trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()
    return getattr(config, "max_position_embeddings", None)


def _check_evaluation(trainer: Any, longest: int, fix: str) -> None:
    """Refuse prompts of the evaluation that would end the run. To leave them out is for the user to decide."""
    if trainer.args.eval_strategy == "no":
        return
    datasets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
    prompting = {"system_prompt": trainer.eval_system_prompt, **trainer.chat_template_kwargs}
    for key, rows in datasets.items():
        if not isinstance(rows, Dataset):
            continue
        lengths = prompt_lengths(rows, trainer.processing_class, **prompting)
        if max(lengths) > longest:
            overlong = sum(length > longest for length in lengths)
            raise ValueError(
                f"{type(trainer).__name__}: {overlong} of {len(rows)} prompts of eval_dataset"
                f"{key and f'[{key!r}]'} have more tokens, their pictures' included, than vLLM takes ({longest}); the "
                f"longest has {max(lengths)}. Fix: {fix}, or leave these rows out."
            )
