"""Sample several answers with a follow-up between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..data.images import pictures_of
from .engine import Engine, Failure, Request, Sample, SamplingParams, derive_seed


def sample_turns(
    rows: Sequence[Mapping[str, Any]],
    engine: Engine,
    sampling_params: SamplingParams,
    followup: str,
    seeds: Sequence[int],
    *,
    turns: int = 2,
) -> list[list[Sample] | Failure]:
    """Sample all answers to each row; an answer that hit the length limit is the last.

    An engine that knows its tokens is asked with the very tokens that a two-turn rollout of training would have.

    Args:
        rows: with prompt, and optionally images (or image).
        engine: what answers.
        sampling_params: sampling parameters of each answer.
        followup: user message after every answer but the last.
        seeds: one per row.
        turns: answers a row.
    """
    answers: list[list[Sample]] = [[] for _ in rows]
    results: list[list[Sample] | Failure] = list(answers)
    messages = [list(row["prompt"]) for row in rows]
    sampled: list[list[list[int]]] = [[] for _ in rows]
    seeds = list(seeds)
    open_rows = list(range(len(rows)))
    for _ in range(turns):
        requests = [
            Request(list(messages[k]), pictures_of(rows[k]), seed=seeds[k], answer_ids=tuple(sampled[k]))
            for k in open_rows
        ]
        drawn = engine.sample(requests, sampling_params) if requests else []
        ended = []
        for k, samples in zip(open_rows, drawn, strict=True):
            if isinstance(samples, Failure):
                results[k] = samples
                continue
            answers[k].append(samples[0])
            if samples[0].finish_reason == "stop":
                messages[k] += [
                    {"role": "assistant", "content": samples[0].text},
                    {"role": "user", "content": followup},
                ]
                if samples[0].token_ids is not None and not sampling_params.stop:  # a stop text ends no turn
                    sampled[k].append(samples[0].token_ids)
                seeds[k] = derive_seed(seeds[k], "second turn")
                ended.append(k)
        open_rows = ended
    return results
