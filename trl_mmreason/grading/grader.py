"""The package's grader, used by rewards, filters, sampling pipelines and evaluation."""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from .choices import without_labels
from .decide import decide, gold_problem
from .declarations import without_dressing
from .equivalence import without_rounding
from .extraction import extract_answer, prose_answer, read_gold, without_thinking
from .notation import MAX_CHARACTERS, Refused
from .numeric import MAX_BITS
from .tolerance import second_look, tolerance_of
from .verdict import Verdict
from .words import same_words

logger = logging.getLogger(__name__)

Gold = str | int | float | Sequence[str | int | float]

CACHE_SIZE = 100_000
_SHOWN = 80
_QUESTION_CHARACTERS = 2000  # its end, where it asks
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_reported: set[Hashable] = set()


@dataclass(frozen=True)
class Grader:
    """Decides whether an answer is right.

    Most answers are settled in microseconds; the work for each is bounded, and what exceeds that is wrong. Nothing of
    an answer is ever run as code. Any thread and process may use it.

    Args:
        tolerance: "strict": numbers may differ by 1e-6 of the gold; "lenient": by 1e-2 where the gold is a decimal, a
            fraction or irrational; whole numbers must agree exactly. A number, such as 0.05 for charts: all numbers,
            whole ones too, may differ by that share of the gold, but for choices.
        prose: where an answer is not declared, it is what the last sentence with a value states (`prose.py`): for
            benchmarks whose authors extract answers, never for rewards.
    """

    tolerance: Literal["strict", "lenient"] | float = "strict"
    prose: bool = False

    def __post_init__(self) -> None:
        known = self.tolerance in ("strict", "lenient") or isinstance(self.tolerance, float) and 0 < self.tolerance < 1
        if not known:
            named = '"strict", "lenient" or a share such as 0.05'
            raise ValueError(f"Grader: tolerance is {self.tolerance!r}, expected {named}.")

    def grade(
        self,
        completion: str,
        gold: Gold | None,
        *,
        choices: Mapping[str, str] | None = None,
        question: str | None = None,
        hint: str | None = None,
        tolerance: float | Mapping[str, Any] | None = None,
        id: Any = None,
    ) -> Verdict:
        """Grade one completion.

        Args:
            completion: what the model wrote; its answer is read off it.
            gold: the right answer, or several of which any one is right. A string such as "2, 3" means all of them.
            choices: label → text of a multiple-choice question.
            question: a unit or a percentage it asks for decides about numbers written without.
            hint: what was said besides the question; the rules do without, a `JudgeGrader` shows it to the judge.
            tolerance: the row's own, a share of the gold number or a `Tolerance`'s fields; by default the grader's.
            id: names the row in the warning about a gold that cannot be used.

        Examples:
            >>> Grader().grade("The answer is 0.5 m", "50", question="How long is it in cm?").correct
            True
            >>> Grader().grade("(B)", "A", choices={"A": "red", "B": "blue"}).reason
            "differs from the gold answer 'A'"
            >>> Grader().grade("7", "1/0").correct is None  # the gold answer cannot be used
            True
        """
        fields = {"choices": choices, "question": question, "hint": hint, "tolerance": tolerance, "id": id}
        if self._grades_itself:
            return self._grade_one(completion, gold, **fields)
        return self.grade_batch([{"completion": completion, "gold": gold, **fields}])[0]

    def grade_batch(self, items: Iterable[Mapping[str, Any]]) -> list[Verdict]:
        """Grade many items, each the arguments of `grade` by name, which a subclass may override."""
        return [self.grade(**item) if self._grades_itself else self._grade_one(**item) for item in items]

    @property
    def works_elsewhere(self) -> bool:
        """Whether answers may be graded in a thread while others are sampled; a subclass of its own may say so."""
        return not self._grades_itself and type(self).grade_batch is Grader.grade_batch

    @property
    def _grades_itself(self) -> bool:
        return type(self).grade is not Grader.grade

    def _grade_one(
        self, completion: str, gold: Any, *, hint: Any = None, tolerance: Any = None, **asked: Any
    ) -> Verdict:
        allowed = tolerance_of(tolerance or (None if isinstance(self.tolerance, str) else self.tolerance))
        if not allowed or asked.get("choices"):
            return self._by_rules(completion, gold, **asked)
        question = asked.get("question")
        if isinstance(question, str) and (allowed.relative or allowed.absolute):
            asked["question"] = without_rounding(question)  # the tolerance alone says how far a number may be off
        return second_look(self._by_rules(completion, gold, **asked), gold, completion, allowed, question)

    def equivalent(self, first: str, second: str) -> bool:
        """Whether two answers are equivalent; symmetric, as neither is the gold answer."""
        lenient = self.tolerance == "lenient"
        return any(_decided(a, (b,), (), None, lenient).correct for a, b in ((first, second), (second, first)))

    def _by_rules(
        self, completion: str, gold: Any, choices: Any = None, question: str | None = None, id: Any = None
    ) -> Verdict:
        _check(completion, choices, question)
        question = question and question[-_QUESTION_CHARACTERS:]
        gold = gold.tolist() if hasattr(gold, "tolist") else gold  # of numpy
        # rows of a dataset with different choices have all letters, with None for those that are not theirs
        own = {str(label).upper(): str(text) for label, text in (choices or {}).items() if text is not None}
        known = without_labels(own)
        golds, problem = _usable(gold, known)
        if not golds:
            _report(gold, id, problem)
            return Verdict(None, None, f"the gold answer cannot be used: {problem}")
        parts = any(re.search(r"[,;]|\([b2]\)|\b(?:or|and)\b|或", one) for one in golds)
        extracted = (
            prose_answer(completion, golds, known, question)
            if self.prose
            else extract_answer(completion, parts=parts, choices=known)
        )
        if extracted is None:  # a choice's text is an answer, however long
            extracted = without_dressing(without_thinking(completion) or "")
            if not any(text and same_words(extracted, text) for text in known.values()):
                return Verdict(False, None, "no answer found")
        if len(extracted) > MAX_CHARACTERS:
            reason = f"refused: {len(extracted)} characters long, more than {MAX_CHARACTERS} are not compared"
            return Verdict(False, f"{extracted[:_SHOWN]}…", reason, "size")
        return _decided(extracted, golds, tuple(known.items()), question, self.tolerance == "lenient")


def grader_or_rules(grader: Any, name: str) -> Any:
    """Return the given grader, or `Grader()` for `None`; a TypeError of the caller `name` if it cannot grade."""
    if grader is None:
        return Grader()
    if isinstance(grader, type) or not callable(getattr(grader, "grade_batch", None)):
        came = f"the class {grader.__name__}" if isinstance(grader, type) else f"a {type(grader).__name__}"
        raise TypeError(
            f"{name}: grader is {came}, expected an object with grade_batch, such as Grader(). Fix: subclass Grader "
            "and override grade(completion, gold, **given), which returns a Verdict."
        )
    return grader


def grader_settings(grader: Any) -> str:
    """Describe the grader for a store's settings by its repr, without addresses, equal in other processes."""
    return _ADDRESS.sub("", repr(grader))


def equivalent(first: str, second: str) -> bool:
    """Whether two answers are equivalent: `equivalent("1/2", "0.5")`. See `Grader.equivalent`.

    Examples:
        >>> equivalent("1/2", "50%"), equivalent("(1, 2)", "(2, 1)")
        (True, False)
    """
    return Grader().equivalent(first, second)


@lru_cache(CACHE_SIZE)
def _decided(
    answer: str, golds: tuple[str, ...], choices: tuple[tuple[str, str], ...], question: str | None, lenient: bool
) -> Verdict:
    """Decide once about what is equal."""
    if answer in golds:
        return Verdict(True, answer, "equals the gold answer as written")
    try:
        correct = decide(answer, golds, choices=dict(choices), question=question, lenient=lenient)
    except (Refused, RecursionError) as error:
        return Verdict(False, answer, f"refused: {error}", "size")
    reason = f"{'equals' if correct else 'differs from'} the gold answer {' or '.join(golds)[:_SHOWN]!r}"
    return Verdict(correct, answer, reason)


def _usable(gold: Gold | None, choices: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """The usable golds, and why the last of the others is unusable."""
    usable, problem = [], "it is empty"
    for one in gold if isinstance(gold, list | tuple | set) else [gold]:
        text = read_gold(one) if isinstance(one, str) else one
        reason = "it is empty" if text is None else gold_problem(text, choices)
        if reason is None:
            usable.append(str(text))
        else:
            problem = reason
    return tuple(usable), problem


def _check(completion: Any, choices: Any, question: Any) -> None:
    for name, value, kind, form in (
        ("completion", completion, str, "a string"),
        ("choices", choices, Mapping | None, "a mapping of label to text, or None"),
        ("question", question, str | None, "a string, or None"),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"Grader: {name} is {value!r:.80} of type {type(value).__name__}, expected {form}.")


def _report(gold: Any, id: Any, problem: str) -> None:
    """Warn about an unusable gold, once a row."""
    shown = "a huge number" if isinstance(gold, int) and gold.bit_length() > MAX_BITS else repr(gold)[:_SHOWN]
    row = shown if id is None else repr(id)
    if row not in _reported:
        _reported.add(row)
        logger.warning(
            "The gold answer %s of %s cannot be used: %s. Answers to it get no verdict and train nothing; fix or "
            "drop the row.",
            shown,
            "a row without id" if id is None else f"row {id}",
            problem,
        )
