"""We-Math's own scores, from the verdicts on a problem and its steps (arXiv:2407.01284, section 3).

Every problem of two or three steps comes with a question for each step and one for the whole. With all steps right
and the whole wrong, the model generalises inadequately (IG). With a step wrong and the whole wrong, it lacks knowledge
(IK). With the whole right, it has mastered the problem (CM) or learnt it by rote (RM): strictly, one wrong step is
rote; loosely, only all of them are. Over N problems

    score = (N − 0.5·IG − IK − RM) / N = (CM + 0.5·IG) / N.

The evaluation that the authors published (evaluation/four_dimensional_metrics.py) divides by 525, which is N.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

WHOLE = "multi"
_CATEGORIES = {2: "two steps", 3: "three steps"}


def category(problem: str, step: str) -> str:
    """The paper's S1, S2, S3: questions of one step, and whole problems of two and three."""
    return _CATEGORIES[_steps(problem)] if step == WHOLE else "one step"


def scores(rows: Sequence[Mapping[str, Any]], correct: Sequence[bool | None]) -> dict[str, float]:
    """Compute the strict and the loose score, and the shares behind them.

    Args:
        rows: with `group`, the problem ("2steps_17"), and `id`, the problem and the step ("2steps_17/1", …/multi").
        correct: whether each is right; None if it could not be graded.

    Returns:
        Shares by name, of the problems that have a verdict on every step and on the whole; empty without any. The share
        of rote learning is one of the problems that were solved as a whole, and not there if none was.
    """
    verdicts: dict[str, dict[str, bool]] = defaultdict(dict)
    for row, right in zip(rows, correct, strict=True):
        if right is not None:
            verdicts[row["group"]][row["id"].rpartition("/")[2]] = right
    complete = [by_step for problem, by_step in verdicts.items() if len(by_step) == _steps(problem) + 1]
    if not complete:
        return {}
    counts = Counter(_outcome(by_step) for by_step in complete)
    n, some_wrong, all_wrong = len(complete), counts["some steps wrong"], counts["all steps wrong"]
    mastered, general = counts["mastered"], counts["inadequate generalisation"]
    result = {
        "insufficient_knowledge": counts["insufficient knowledge"] / n,
        "inadequate_generalisation": general / n,
    }
    for name, mastery, rote in (
        ("strict", mastered, some_wrong + all_wrong),
        ("loose", mastered + some_wrong, all_wrong),
    ):
        result[f"score_{name}"] = (mastery + 0.5 * general) / n
        result[f"complete_mastery_{name}"] = mastery / n
        if mastery + rote:
            result[f"rote_memorisation_{name}"] = rote / (mastery + rote)
    return result


def _outcome(by_step: Mapping[str, bool]) -> str:
    steps = [right for step, right in by_step.items() if step != WHOLE]
    if not by_step[WHOLE]:
        return "inadequate generalisation" if all(steps) else "insufficient knowledge"
    if all(steps):
        return "mastered"
    return "some steps wrong" if any(steps) else "all steps wrong"


def _steps(problem: str) -> int:
    """Number of steps in an id: 2 for "2steps_17"."""
    return int(problem[0])
