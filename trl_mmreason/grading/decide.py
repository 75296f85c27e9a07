"""Combine the rules: decide whether an answer equals one of the gold answers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from .choices import OR, chosen, implied_choices, names_a_choice
from .equivalence import chemical, same_answer, truth
from .notation import Refused, Undefined, Unreadable, balanced, normalise
from .numeric import MAX_BITS, limited_steps, value_of

_NOT_GIVEN = frozenset(("nan", "NaN", "NAN", "null", "NULL", "n/a", "N/A", "NA", "?", "??", "???"))
_EMPTY_ARGUMENT = re.compile(
    r"\\(?:frac|sqrt)\s*(?:\[[^\[\]]*\]\s*)?(?:\{\s*\}|$|[,;)}])|\\frac\s*\{[^{}]*\}\s*(?:\{\s*\}|$|[,;)}])"
)
_NO_BRACE = re.compile(r"\\.|[^{}]", re.DOTALL)
_LONGEST_ANSWER = 60
_SENTENCES = re.compile(r"[A-Za-z)\d][.!?]\s+[A-Z]")
_THREE = re.compile(
    r"(?!(?i:yes|no|true|false)\b|[是否对错不])(?:(?:.*?[a-z]{2}(?: [A-Z])?[.!?]\s+(?=[A-Z])){2}|(?:[^。]{4,}。){3})",
    re.S,
)
_DANGLING = re.compile(r".*[\w)}]\s*[+\-*/^=<>]", re.DOTALL)


def decide(
    answer: str,
    golds: Sequence[str],
    *,
    choices: Mapping[str, str] | None = None,
    question: str | None = None,
    lenient: bool = False,
) -> bool:
    """Whether `answer`, of `extract_answer`, equals one of `golds`, of `read_gold`; `Refused` if it is too large.

    The choices are by label, in upper case; the question may name a unit, or speak of percent.
    """
    with limited_steps():
        return any(_matches(answer, gold, choices or {}, question, lenient) for gold in golds)


def _matches(answer: str, gold: str, choices: Mapping[str, str], question: str | None, lenient: bool) -> bool:
    same = partial(same_answer, question=question)  # a choice is met exactly
    known = choices or implied_choices(gold)
    if known and (gold_labels := chosen(gold, known, same)):
        named = chosen(answer, known, same)
        if named is not None:
            undecided = len(named) > 1 and OR.search(answer) and not OR.search(gold)
            return named == gold_labels and not undecided
        if choices:
            return False
    elif choices and (named := chosen(answer, choices, same)) and len(named) == 1:
        return same(choices[next(iter(named))], gold)
    return same(answer, gold, lenient=lenient)


def gold_problem(gold: object, choices: Mapping[str, str] | None = None) -> str | None:
    """Why a gold answer is unusable, or `None`; it depends on the gold answer only."""
    if isinstance(gold, float) and gold != gold:
        return "it is not a number"
    if not isinstance(gold, str | int | float):
        return f"it is of type {type(gold).__name__}, expected a string or a list of strings"
    if isinstance(gold, int) and gold.bit_length() > MAX_BITS:
        return "it has more than a thousand digits"
    text = str(gold).strip()
    if not text or text in _NOT_GIVEN:
        return "it is empty" if not text else f"it is {text!r}"
    if truth(text):
        return None
    if not balanced(_NO_BRACE.sub("", text)):
        return "its braces are not balanced"
    try:
        canonical = normalise(text)
        if not any(
            character.isalnum() or unicodedata.category(character) in ("Sm", "So", "Pd") or character in "*/"
            for character in canonical
        ):
            return "there is nothing in it but punctuation"
        if _EMPTY_ARGUMENT.search(canonical) or (_DANGLING.fullmatch(canonical) and not chemical(text)):
            return "it is not complete"
        value_of(canonical)
    except (Undefined, Refused) as error:
        return str(error)
    except Unreadable:
        pass  # words, lists, equations and whatever else has no single value
    with_digits = any(map(str.isdigit, text))
    if (len(text) > _LONGEST_ANSWER and _SENTENCES.search(text)) if with_digits else _THREE.match(text):
        return "it is a text of several sentences that declare no answer"
    if choices and all(choices.values()) and not _is_a_choice(text, tuple(choices.items())):
        return f"it is none of the choices {', '.join(choices)}"
    return None


@lru_cache(maxsize=4096)
def _is_a_choice(gold: str, choices: tuple[tuple[str, str], ...]) -> bool:
    return names_a_choice(gold, dict(choices), same_answer)
