"""Select the rewarded trajectories in a store, and make their rows (arXiv:2507.16814, section 4.2).

The store may hold more text than memory: it is read once for who is right and how long each is, and then again for the
trajectories that are chosen, one at a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset, Features, List, Value

from ..data.rows import MESSAGES
from ..generation.engine import Failure, derive_seed
from ..jobs.answering import Answers
from ..jobs.source_rows import join_source_columns, no_rows
from ..jobs.store import Store
from .objective import caption_rewards, select_trajectories
from .prompts import opened, prompt_for

if TYPE_CHECKING:
    from .sampling import OffPolicySampling

CAPTIONS = "sophia-captions"
TRAJECTORIES = "sophia-trajectories"
HARD_TRAJECTORIES = "sophia-hard-trajectories"
"""Stages of the store; the last is the hard reasoner's, so that a question's trajectories come from one reasoner."""

Find = Callable[..., Mapping[str, Any]]
"""The payload of the trajectory at (question, k, n), or of the caption at (question, k)."""

_BY_LENGTH = ("sophia", "without_caption_reward")
_UNKNOWN = -1
_COLUMNS = ("id", "prompt", "images", "image", "completion", "reward", "caption_reward", "caption", "behavior_logps")
_FEATURES = {
    "id": Value("string"),
    "prompt": MESSAGES,
    "completion": Value("string"),
    "reward": Value("float64"),
    "caption_reward": Value("float64"),
    "caption": Value("string"),
}


class UnknownLengths(RuntimeError):
    """The selection needs lengths, but nothing reports the tokens of trajectories."""


class Sampled(NamedTuple):
    """Counts of captions or trajectories.

    Attributes:
        total: number of all trajectories.
        truncated: cut by the length limit.
        failed: could not be sampled.
    """

    total: int
    truncated: int
    failed: int

    def __str__(self) -> str:
        again = " (retry_failed=True asks again)" if self.failed else ""
        return f"{self.total}, {self.truncated} cut by the length limit, {self.failed} failed{again}"


@dataclass(frozen=True)
class Outcomes:
    """Results of the trajectories of Q questions.

    Attributes:
        correct: (Q, K, N) bool, R(y); False also for what was cut, failed, or never asked.
        whole: (Q, K, N) bool, True = ended by itself.
        lengths: (Q, K, N) in tokens, −1 where unknown.
        sampled: how many there are.
    """

    correct: np.ndarray
    whole: np.ndarray
    lengths: np.ndarray
    sampled: Sampled


def unit_id(id_: str, caption: int) -> str:
    """Id of a question's caption in the stages of trajectories."""
    return f"{id_}#{caption}"


def read_captions(store: Store, ids: Sequence[str], count: int) -> tuple[list[list[int]], Sampled]:
    """Read the numbers of each question's captions, up to `count`, and count them."""
    numbers: dict[str, list[int]] = {id_: [] for id_ in ids}
    truncated = failed = 0
    for record in store.records(CAPTIONS):
        if record.id not in numbers or record.index >= count:
            continue
        if record.status == "failed":
            failed += 1
        else:
            numbers[record.id].append(record.index)
            truncated += "length" in record.payload["finish_reasons"]
    done = sum(map(len, numbers.values()))
    return list(numbers.values()), Sampled(done + failed, truncated, failed)


def read_outcomes(
    reasoner_answers: Sequence[Answers], ids: Sequence[str], captions: int, trajectories: int
) -> Outcomes:
    """Read the results of the trajectories, one by one.

    Args:
        reasoner_answers: answers of each reasoner; their ids are those of `unit_id`.
    """
    shape = len(ids), captions, trajectories
    correct, whole = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    lengths = np.full(shape, _UNKNOWN, dtype=np.int32)
    positions = {id_: position for position, id_ in enumerate(ids)}
    total = truncated = failed = 0
    for answers in reasoner_answers:
        for unit, samples in answers.items():
            id_, _, caption = unit.rpartition("#")
            for n, sample in enumerate(samples):
                total += 1
                if isinstance(sample, Failure):
                    failed += 1
                    continue
                place = positions[id_], int(caption), n
                cut = "length" in sample["finish_reasons"]
                truncated += cut
                whole[place], correct[place] = not cut, bool(sample["turns"][0]["correct"])
                lengths[place] = sample.get("tokens", _UNKNOWN)
    return Outcomes(correct, whole, lengths, Sampled(total, truncated, failed))


def select(
    outcomes: Outcomes,
    ids: Sequence[str],
    sampling: OffPolicySampling,
    find: Find,
    count_tokens: Any,
) -> np.ndarray:
    """Select the rewarded trajectories (Eq. 6).

    A truncated one never is, by no rule: it has no end, and whoever learns from it learns to stop in mid-sentence.

    Args:
        find: the payload at (question, k, n).
        count_tokens: counts the tokens of a string, where the engine did not; or `None`.

    Returns:
        (Q, K, N) bool.

    Raises:
        UnknownLengths: a shortest one is to be found, and neither the engine nor `count_tokens` tells their lengths.
    """
    selected = np.zeros_like(outcomes.whole)
    for question, id_ in enumerate(ids):
        correct, whole, tokens = (
            torch.from_numpy(array[question]) for array in (outcomes.correct, outcomes.whole, outcomes.lengths)
        )
        choose = partial(
            select_trajectories,
            correct,
            threshold=sampling.threshold,
            rule=sampling.rule,
            whole=whole,
            seed=derive_seed(sampling.seed, "selection", id_),
        )
        if sampling.rule in _BY_LENGTH and (whole & (tokens == _UNKNOWN)).any():
            candidates = choose(tokens, keep=tokens.numel())
            if len(candidates) > sampling.keep and any(tokens[place] == _UNKNOWN for place in candidates):
                if count_tokens is None:
                    raise UnknownLengths(
                        f"Cannot select the shortest trajectories of question {id_!r}: the engine reports no token "
                        "counts. Fix: pass count_tokens, as in lambda text: len(tokenizer(text).input_ids) (the "
                        "command: --tokenizer), or a rule without lengths. The samples are in the store; nothing is "
                        "asked again."
                    )
                tokens = tokens.clone()
                for place in candidates:  # all of the question, by one measure
                    tokens[place] = count_tokens(find(question, *place)["turns"][0]["text"])
        for place in choose(tokens, keep=sampling.keep):
            selected[question][place] = True
    return selected


def unrewarded(outcomes: Outcomes, selected: np.ndarray, rule: str) -> Counter[str]:
    """Number of questions without a rewarded trajectory, by reason."""
    reasons: Counter[str] = Counter()
    for correct, whole, chosen in zip(outcomes.correct, outcomes.whole, selected, strict=True):
        if chosen.any():
            continue
        if rule == "random" or not whole.any():
            reasons["no trajectory that was sampled to its end"] += 1
        else:
            reasons["no caption above the threshold" if correct.any() else "no right trajectory"] += 1
    return reasons


def make_rows(
    rows: Dataset,
    prompts: Sequence[Any],
    outcomes: Outcomes,
    selected: np.ndarray,
    sampling: OffPolicySampling,
    find: Find,
) -> Dataset:
    """Make the rows of the trajectories, written to a file one by one, with their questions' images as stored.

    Args:
        rows: the questions.
        prompts: prompts of the questions, as messages with string contents.
        outcomes: outcomes of their trajectories.
        selected: (Q, K, N) bool, which are rewarded.
        sampling: says which of the others become rows too, and what the rows have.
        find: the payload at (question, k, n), and of the caption at (question, k).
    """
    logprobs = sampling.sampling_params.logprobs
    features = Features({**_FEATURES, **({"behavior_logps": List(Value("float32"))} if logprobs else {})})
    places = np.argwhere(outcomes.whole if sampling.unselected else selected)
    if not len(places):
        return join_source_columns(no_rows(features), rows, [], _COLUMNS)
    ids = rows["id"][:]

    def examples() -> Iterator[dict[str, Any]]:
        for question, k, n in places.tolist():
            payload, caption = find(question, k, n), find(question, k)
            text = payload["turns"][0]["text"]
            text = text if logprobs else opened(text)  # log-probabilities belong to the text as it was sampled
            yield {
                "id": f"{unit_id(ids[question], k)}.{n}",
                "prompt": prompt_for(prompts[question], text, sampling.thinking_prompt),
                "completion": text,
                "reward": float(selected[question, k, n]),
                "caption_reward": caption_rewards(torch.from_numpy(outcomes.correct[question]))[k].item(),
                "caption": None if "length" in caption["finish_reasons"] else caption["turns"][0]["text"],
                **({"behavior_logps": payload.get("logprobs")} if logprobs else {}),
            }

    # Fingerprint of the contents: equal rows are written once, different ones never share a file.
    digest = hashlib.sha256()
    for example in examples():
        digest.update(repr(example).encode())
    dataset = Dataset.from_generator(examples, features=features, fingerprint=digest.hexdigest()[:32])
    return join_source_columns(dataset, rows, places[:, 0].tolist(), _COLUMNS)
