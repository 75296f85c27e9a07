"""Preference pairs of a policy's own paths (arXiv:2509.19003, section 3.4), or of its steps (appendix E).

Step-wise pairs are the best candidate and the worst at every step of a chain:

    p_0 = ∅,   c_1 … c_n ~ π(· | q, p_k),   (c₊, c₋) = (argmax, argmin) of the process reward,   p_(k+1) = p_k c₊

until the answer. This is step-level beam search whose losers are kept: each stage gives the pair (q, p_k; c₊, c₋).
The paper reports that they harm the policy (Table 9: 64.8 on M3CoT, against 67.4 before and 70.0 by outcome): the two
candidates behind a good step are alike, the policy learns to write neither, and the rewards of both are negative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from datasets import Dataset, Features, Value

from ..data.images import IMAGE_COLUMNS
from ..data.rows import MESSAGES
from ..jobs.source_rows import join_source_columns
from .chains import Path, mean, path_score
from .objective import last_part_mask, select_pairs
from .protocols import path_of

PAIR_FEATURES = Features(
    {
        "id": Value("string"),
        "prompt": MESSAGES,
        "chosen": MESSAGES,
        "rejected": MESSAGES,
        "chosen_score": Value("float64"),
        "rejected_score": Value("float64"),
    }
)
"""Columns of a data set of pairs, next to `images`."""


class Pair(NamedTuple):
    """One preference.

    Attributes:
        question: position of its row.
        chosen, rejected: the two completions.
        chosen_score, rejected_score: their scores in [0, 1].
    """

    question: int
    chosen: str
    rejected: str
    chosen_score: float
    rejected_score: float


def make_pairs(
    questions: Dataset,
    paths: Mapping[str, Sequence[Path]],
    scores: Mapping[str, Sequence[float]],
    *,
    threshold: float = 0.2,
    pairing: str = "best_worst",
    max_pairs: int | None = None,
) -> Dataset:
    """Make the pairs of all questions, for TRL's `DPOTrainer`.

    Args:
        questions: rows with id, prompt and optionally images or image.
        paths: row id → paths.
        scores: row id → their scores in [0, 1]; a question without them gives no pair.
        threshold, pairing, max_pairs: see `select_pairs`.

    Returns:
        Rows with the columns of `PAIR_FEATURES` and the questions' images, or `images` without any, in the order of
        the questions.
    """
    pairs = []
    for position, id_ in enumerate(questions["id"]):
        totals = scores.get(id_, ())
        for positive, negative in select_pairs(totals, threshold, pairing, max_pairs=max_pairs):
            chosen, rejected = paths[id_][positive].text, paths[id_][negative].text
            if chosen != rejected:  # of equal texts the scores may differ by rounding, in 16 bit by more than 0.001
                pairs.append(Pair(position, chosen, rejected, totals[positive], totals[negative]))
    return pairs_dataset(questions, pairs)


def pair_accuracies(pairs: Dataset, paths: Mapping[str, Sequence[Path]]) -> dict[str, float]:
    """Shares of chosen and of rejected completions whose answer is right; NaN where none can be graded.

    Few right ones among the chosen say that the scorer misleads, before training on them lowers accuracy.
    """
    right = {(id_, path.text): path.correct for id_, question_paths in paths.items() for path in question_paths}
    accuracies = {}
    for role in ("chosen", "rejected"):
        verdicts = [right[id_, message["content"]] for id_, [message] in zip(pairs["id"], pairs[role], strict=True)]
        accuracies[f"{role}_accuracy"] = mean([verdict for verdict in verdicts if verdict is not None])
    return accuracies


def pairs_dataset(questions: Dataset, pairs: Sequence[Pair]) -> Dataset:
    """Join pairs, in their order, with their questions; see `make_pairs`."""
    positions = [pair.question for pair in pairs]
    ids, prompts = questions["id"][:], questions["prompt"][:]
    columns = {
        "id": [ids[position] for position in positions],
        "prompt": [prompts[position] for position in positions],
        "chosen": [_as_completion(pair.chosen) for pair in pairs],
        "rejected": [_as_completion(pair.rejected) for pair in pairs],
        "chosen_score": [pair.chosen_score for pair in pairs],
        "rejected_score": [pair.rejected_score for pair in pairs],
    }
    dataset = Dataset.from_dict(columns, features=PAIR_FEATURES)
    if not set(IMAGE_COLUMNS) & set(questions.column_names):
        return dataset.add_column("images", [[] for _ in pairs])
    return join_source_columns(dataset, questions, positions, (*PAIR_FEATURES, *IMAGE_COLUMNS))


def make_step_pairs(
    questions: Dataset, searches: Mapping[str, Mapping[str, Any]], *, threshold: float = 0.2
) -> Dataset:
    """Make the preference pairs of every stage of every search, for TRL's `DPOTrainer`.

    A pair's two completions share what was kept before the stage; `with_last_parts` takes that out of the loss.

    Args:
        questions: rows with id, prompt and optionally images or image.
        searches: result of `search_answers`, without failures; a question without one gives no pair.
        threshold: t: the scores of the two parts differ by more than this.

    Returns:
        Rows as of `make_pairs`, in the order of the questions and of their stages.
    """
    pairs = []
    for position, id_ in enumerate(questions["id"]):
        search = searches.get(id_)
        if search is None or not search["extra"]["worst"]:
            continue
        text, scores, bounds = search["turns"][0]["text"], [*search["step_scores"]], [0, *search["step_ends"]]
        if (answer_score := search.get("answer_score")) is not None:
            scores, bounds = [*scores, answer_score], [*bounds, len(text)]
        stages = zip(bounds[:-1], bounds[1:], scores, search["extra"]["worst"], strict=True)
        for start, end, score, (worst, worst_score) in stages:
            if select_pairs((score, worst_score), threshold):
                pairs.append(Pair(position, text[:end], text[:start] + worst, score, worst_score))
    return pairs_dataset(questions, pairs)


def searched_paths(searches: Sequence[Mapping[str, Any]], step_weight: float = 0.2) -> list[Path]:
    """Return the chain that each search of `search_answers` kept, as a scored path."""
    scores = [path_score(search["step_scores"], search.get("answer_score"), step_weight) for search in searches]
    return [path_of(0, {**search, "score": score.total}) for search, score in zip(searches, scores, strict=True)]


def with_last_parts(
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]], end_ids: Collection[int]
) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """Wrap TRL's collator of pairs so that the loss is on the last part of each text alone.

    Args:
        collate: makes a batch with `input_ids` and `completion_mask`, chosen completions first.
        end_ids: the tokens that close a step or an answer.
    """

    def collate_pairs(rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = collate(rows)
        is_end = torch.isin(batch["input_ids"], torch.tensor(sorted(end_ids)))
        mask = batch["completion_mask"]
        return {**batch, "completion_mask": last_part_mask(is_end, mask.bool()).to(mask.dtype)}

    return collate_pairs


def _as_completion(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
