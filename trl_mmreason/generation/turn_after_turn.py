"""Sample several answers with a message of the user between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..data.images import images_of, stored_images, with_plain_images
from ..messages import PLACEHOLDER, checked_message
from .engine import Engine, Failure, Request, Sample, SamplingParams, derive_seed

NextMessage = Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, Any] | None]
"""`next_message(row, answers)`: what the user says after these answers; `None` ends the conversation."""


def sample_turns(
    rows: Sequence[Mapping[str, Any]],
    engine: Engine,
    sampling_params: SamplingParams,
    next_message: NextMessage,
    seeds: Sequence[int],
    *,
    turns: int = 2,
    hidden_columns: Collection[str] = frozenset(),
) -> list[list[Sample] | Failure]:
    """Sample all answers to each row; an answer that hit the length limit is the last.

    An engine that knows its tokens is asked with the very tokens that a rollout of training would have.

    Args:
        rows: with prompt, and optionally images (or image).
        next_message: as `GroupGRPOTrainer.next_message`.
        turns: answers per row, at most.
        hidden_columns: columns that `next_message` does not get to see, such as a trainer's `hidden_columns`.
    """
    answers: list[list[Sample]] = [[] for _ in rows]
    results: list[list[Sample] | Failure] = list(answers)
    messages = [list(row["prompt"]) for row in rows]
    sampled: list[list[list[int]]] = [[] for _ in rows]
    seeds = list(seeds)
    open_rows = list(range(len(rows)))
    for turn in range(turns):
        requests = [
            Request(list(messages[k]), images_of(rows[k]), seed=seeds[k], answer_ids=tuple(sampled[k]))
            for k in open_rows
        ]
        drawn = engine.sample(requests, sampling_params) if requests else []
        asked, open_rows = open_rows, []
        for k, samples in zip(asked, drawn, strict=True):
            if isinstance(samples, Failure):
                results[k] = samples
                continue
            (answer, *_) = samples
            answers[k].append(answer)
            if answer.finish_reason != "stop" or turn == turns - 1:
                continue
            shown = {name: value for name, value in rows[k].items() if name not in hidden_columns}
            message = next_message(with_plain_images(shown), [each.text for each in answers[k]])
            if message is None:
                continue
            said = checked_message(message)
            if stored_images(rows[k]) and isinstance(said["content"], str) and PLACEHOLDER in said["content"]:
                said["content"] = [{"type": "text", "text": said["content"]}]  # it is quoted, and no image's place
            messages[k] += [{"role": "assistant", "content": answer.text}, said]
            if answer.token_ids is not None and not sampling_params.stop:  # a stop text ends no turn
                sampled[k].append(answer.token_ids)
            seeds[k] = derive_seed(seeds[k], "second turn")
            open_rows.append(k)
    return results
