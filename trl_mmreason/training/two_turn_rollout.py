"""Two-turn rollouts through TRL's generation, on any backend, as a `rollout_func`."""

from __future__ import annotations

import math
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from transformers.utils import logging
from trl.extras.profiling import profiling_context

from .construction import refuse_plain_prompt
from .context_length import longest_prompt

logger = logging.get_logger(__name__)

SampledTurns = tuple[list[list[int]], list[list[int]], Any]
"""Of each row: ids of both answers and the follow-up between them, 1 where a token was sampled, log-probabilities."""


def roll_out_two_turns(prompts: list, trainer: Any) -> dict[str, Any]:
    """Sample an answer, add the follow-up, and sample a second answer.

    A first answer that was cut gets no second turn, nor does one that leaves no room for it in vLLM's context. With a
    colocated vLLM a second turn begins as soon as its own first answer has ended, otherwise when all have.

    Args:
        prompts: conversations, already repeated for every generation.
        trainer: a `GroupGRPOTrainer` with a follow-up.
    """
    refuse_plain_prompt(type(trainer).__name__, prompts[0])
    prompt_ids, images, grouped = trainer._tokenize_prompts(prompts)
    if trainer.use_vllm and trainer.vllm_mode == "colocate":
        completion_ids, env_mask, logprobs = _without_barrier(trainer, prompt_ids, images)
    else:
        completion_ids, env_mask, logprobs = turn_after_turn(trainer, prompt_ids, images, grouped)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": env_mask,
        "_messages": [_messages(trainer, *row) for row in zip(completion_ids, env_mask, strict=True)],
        "_images": images or [None] * len(prompts),
    }


def _messages(trainer: Any, ids: list[int], env_mask: list[int]) -> list[dict[str, str]]:
    """The messages after the prompt."""
    runs = groupby(zip(ids, env_mask, strict=True), key=itemgetter(1))
    answers = [[token for token, _ in run] for sampled, run in runs if sampled]
    first, *second = trainer.processing_class.batch_decode(answers, skip_special_tokens=True)
    messages = [{"role": "assistant", "content": first}]
    for text in second:
        messages += [{"role": "user", "content": trainer.followup}, {"role": "assistant", "content": text}]
    return messages


def _without_barrier(trainer: Any, prompt_ids: list, images: Any) -> SampledTurns:
    """Sample both turns with a colocated vLLM, request by request."""
    *sampled, read, cached = trainer.vllm_generation.generate_two_turns(
        prompt_ids,
        images,
        trainer._followup_ids,
        trainer.eos_token_ids,
        trainer._tell_ended,
        profiler=profiling_context(trainer, "vLLM.generate"),
    )
    tokens = torch.tensor([[read, cached]], device=trainer.accelerator.device)
    read, cached = trainer.accelerator.gather(tokens).sum(dim=0).tolist()
    if read:
        metrics = trainer._metrics[trainer._mode]
        metrics["prefix_cache_hit_rate_t2"].append(cached / read)
    return tuple(sampled)


def log_turns(trainer: Any, completion_ids: list[list[int]], env_mask: list[list[int]]) -> None:
    """Log the mean length of each turn, and the share of rows whose first answer left no room for a second one.

    Args:
        trainer: as for `roll_out_two_turns`.
        completion_ids, env_mask: of each row, as that returns them.
    """
    turns = []
    for ids, mask in zip(completion_ids, env_mask, strict=True):
        first = mask.index(0) if 0 in mask else len(mask)
        turns.append([first, sum(mask) - first, 0 not in mask and ids[-1] in trainer.eos_token_ids])
    first, second, no_room = trainer.accelerator.gather(
        torch.tensor(turns, device=trainer.accelerator.device)
    ).T.float()
    metrics = trainer._metrics[trainer._mode]
    metrics["length_t1"].append(first.mean().item())
    if (second > 0).any():
        metrics["length_t2"].append(second[second > 0].mean().item())
    metrics["no_room_t2"].append(no_room.mean().item())
    if no_room.any():
        logger.warning_once(
            f"{type(trainer).__name__}: {int(no_room.sum())} of {len(no_room)} first answers of a batch left no room "
            f"for a second one in vLLM's context of {trainer.vllm_generation.context} tokens, and got none "
            f"(no_room_t2). Fix: raise {trainer.vllm_generation.context_setting}, or lower max_prompt_length or "
            "max_completion_length."
        )


def turn_after_turn(trainer: Any, prompt_ids: list, images: Any, grouped: Any) -> SampledTurns:
    """Sample all first answers, then all second answers.

    Args:
        trainer: as for `roll_out_two_turns`.
        prompt_ids, images, grouped: what its `_tokenize_prompts` makes of the prompts.
    """
    generations = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    first_ids, logprobs = trainer._generate_single_turn(prompt_ids, images, grouped, generations)
    most = longest_prompt(trainer) or math.inf
    between = len(trainer._followup_ids)
    ended = [
        row
        for row, ids in enumerate(first_ids)
        if ids[-1] in trainer.eos_token_ids and len(prompt_ids[row]) + len(ids) + between <= most
    ]
    second_ids, second_logprobs = _second_answers(trainer, prompt_ids, first_ids, ended, grouped)

    completion_ids = [list(ids) for ids in first_ids]
    env_mask = [[1] * len(ids) for ids in first_ids]
    for position, row in enumerate(ended):
        followup, answer = trainer._followup_ids, second_ids[position]
        completion_ids[row] += [*followup, *answer]
        env_mask[row] += [0] * len(followup) + [1] * len(answer)
        if logprobs is not None:
            logprobs[row] = [*logprobs[row], *[0.0] * len(followup), *second_logprobs[position]]
    return completion_ids, env_mask, logprobs


def _second_answers(
    trainer: Any, prompt_ids: list, first_ids: list, ended: list[int], grouped: Any
) -> tuple[list, Any]:
    """Sample y2 for the rows whose y1 ended.

    Every process continues equally many rows, the most that any has; the spare ones repeat a prompt and are thrown
    away. Sharded models need every process in `generate`, and vLLM's server mode hands the results back in slices
    of equal length.
    """
    counts = trainer.accelerator.gather(torch.tensor([len(ended)], device=trainer.accelerator.device))
    most = int(counts.max())
    if most == 0:
        return [], []
    spare = most - len(ended)
    rows = [*ended, *[0] * spare]
    longer = [[*prompt_ids[row], *first_ids[row], *trainer._followup_ids] for row in ended] + [prompt_ids[0]] * spare
    _, images, fields = grouped.rows(rows)
    fields = {
        # Fields with one value a token (token types) are lists of lists; what was appended is all text, type 0.
        name: [[*row, *[0] * (len(ids) - len(row))] for row, ids in zip(value, longer, strict=True)]
        if isinstance(value, list) and isinstance(value[0], list)
        else value
        for name, value in fields.items()
    }
    trainer._sampled = [(place, row) for place, row in trainer._sampled if place in ended]
    ids, logprobs = trainer._generate_single_turn(longer, images, fields, num_generations=1)
    return ids[: len(ended)], logprobs and logprobs[: len(ended)]
