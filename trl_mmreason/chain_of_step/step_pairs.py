"""Step-wise preference pairs (arXiv:2509.19003, appendix E): at every step of a chain the best candidate and the worst.

    p_0 = ∅,   c_1 … c_n ~ π(· | q, p_k),   (c₊, c₋) = (argmax, argmin) of the process reward,   p_(k+1) = p_k c₊

until the answer. This is step-level beam search whose losers are kept: each stage gives the pair (q, p_k; c₊, c₋).

The paper reports that this harms the policy (Table 9: 64.8 on M3CoT, against 67.4 before and 70.0 by outcome). Its
explanation: what follows a good step is probably good too, so the two candidates are alike, and the policy learns to
write neither; the rewards of both are negative (-1.39 and -3.86). It is here to be measured, not recommended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset

from .objective import last_part_mask, select_pairs
from .pairs import Pair, pairs_dataset
from .paths import Path, path_score
from .sampling import path_of
from .template import chain_ends


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
        text, answer_score = search["turns"][0]["text"], search.get("answer_score")
        scores = [*search["step_scores"], *([] if answer_score is None else [answer_score])]
        ends = chain_ends(text)
        bounds = [0, *ends.steps, *([] if ends.answer is None else [ends.answer])]
        stages = zip(bounds[:-1], bounds[1:], scores, search["extra"]["worst"], strict=True)
        for start, end, score, (worst, worst_score) in stages:
            if select_pairs((score, worst_score), threshold):
                pairs.append(Pair(position, text[:end], text[:start] + worst, score, worst_score))
    return pairs_dataset(questions, pairs)


def searched_paths(searches: Sequence[Mapping[str, Any]], step_weight: float = 0.2) -> list[Path]:
    """Return each search's kept chain, as a scored path.

    Args:
        searches: values of the result of `search_answers`, without failures.
        step_weight: w of the trajectory score.
    """
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
