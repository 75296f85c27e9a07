"""Multiple choice: find the choices that an answer names."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping

from .listings import Same, entries
from .notation import Refused, normalise
from .words import same_words

_LEAD = re.compile(
    r"(?:the )?(?:correct )?(?:options?|choices?|answers?)(?: is| are)?\s*:?\s*(?=[(\[A-Za-z\d\"])"
    r"|both\s+(?=\(?[A-J]\b)|故?应?选择?项?[:为]?\s*",
    re.IGNORECASE,
)
_TAIL = re.compile(r"(?<=[A-Z\d)])\s*(?:选?项|is (?:the )?(?:correct|right|true|answer|correct answer))$")
_LABELLED = [
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"[(\[]\s*(?P<label>[^\W_])\s*[)\]]\s*[.:,]?\s*(?P<rest>.*)",
        r"(?P<label>[A-Z])\s*[(\"](?P<rest>.+)[)\"]",
        # `A cat` names no choice, `A 36` does
        r"(?P<label>[^\W\d_])\s*(?:$|[):=.,;]\s*|\s-\s|\s(?=\d|(?i:because|since|as)\b)|(?=因为|由于|即))(?P<rest>.*)",
        r"(?P<label>\d)\s*(?:$|[):]\s*|[.,](?:\s|$))(?P<rest>.*)",
        r"(?P<rest>.*\S)\s*[(\[](?:(?i:option|choice|answer)\s|选项)?(?P<label>[^\W_])[)\]]",
        r"(?P<rest>.*\S)[\s,](?P<label>[A-Z])",
    )
]
_THAT_IS = re.compile(r"(?:i\.e\.?,?|that is,?|namely,?|即)\s*")
_REASON = re.compile(r"\s*(?:(?:because|since|as|so|which|due to|by)\b|因为|由于|所以|理由)", re.IGNORECASE)
OR = re.compile(r"\bor\b|或|(?<=[A-J])\s*/", re.I)  # A or C is not both
_JOINT = re.compile(r"\s*(?:[,;&/+和与及]|\band\b|\bor\b)\s*|\s+", re.IGNORECASE)
# Beside a letter whose text is not known: another letter, or what takes the choice back.
_HEDGED = re.compile(
    r"(?:^|[\s,;(/]|\b(?:or|and)\s)\(?[A-J]\)?[.)]*$|^(?:or\b|或)|\b(?:not|wrong|maybe|incorrect)\b", re.I
)
_IMPLIED = re.compile(r"\(?([A-J])\)?[.:)]\s*(\S.*)|\(([A-J])\)|([A-J])", re.DOTALL)


def chosen(answer: str, choices: Mapping[str, str], same: Same) -> frozenset[str] | None:
    """Find the labels that an answer names: by letter first, then by the one choice with its text or value.

    The set is empty where letter and text disagree, and None where no choice is named. An empty text is not known.
    """
    text = re.sub(r"^\{(.*)\}$", r"\1", normalise(answer))
    text = _TAIL.sub("", text.strip().rstrip(".!"))
    if len(text) > 1 and (verbatim := _verbatim(text, choices)):
        return verbatim
    if lead := _LEAD.match(text):
        text = text[lead.end() :].strip('"')
    if (several := _letters(text, choices)) is not None:
        return several
    for label, rest in _readings(text, choices):
        rest = _THAT_IS.sub("", rest, count=1).strip()
        known = choices[label]
        agrees = not rest or _REASON.match(rest) or (same(rest, known) if known else not _HEDGED.search(rest))
        return frozenset(label) if agrees else frozenset()
    texts = [answer, *entries(text, bare=True)]  # or several of them
    whole, *parts = ({label for label, known in choices.items() if known and same(one, known)} for one in texts)
    matched = [whole] if whole else parts
    labels = frozenset[str]().union(*matched)
    return labels if labels and all(matched) and len(labels) == len(matched) == sum(map(len, matched)) else None


def _verbatim(text: str, choices: Mapping[str, str]) -> frozenset[str] | None:
    """The one choice with exactly this text, else the one that differs only in case and punctuation."""
    for alike in (operator.eq, lambda one, other: one.casefold() == other.casefold(), same_words):
        matching = frozenset(label for label, value in choices.items() if value and alike(normalise(value), text))
        if matching:
            return matching if len(matching) == 1 else None
    return None


def _readings(text: str, choices: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(label, other text) for a label at the start or end of the answer that is not part of a choice's text."""
    if any("=" in value for value in choices.values()) and text[1:].lstrip().startswith("="):
        return  # `A = 5` is a choice's text
    endings = {value[-1:] for value in choices.values()}
    for match in filter(None, (pattern.fullmatch(text) for pattern in _LABELLED)):
        at_the_end = match.start("rest") < match.start("label")
        unsure = at_the_end and (text[-1] in endings or "" in endings)  # `5 A`, and choices that are not known
        if match["label"].upper() in choices and not unsure:
            yield match["label"].upper(), match["rest"]


def _letters(text: str, choices: Mapping[str, str]) -> frozenset[str] | None:
    r"""Several letters: `A, C`, `ABD`, `A and C`, `(A)(C)`, `\{A, C\}`; None for anything else.

    Side by side they stand in the order of the alphabet where no choice is known: ABDC may be a figure.
    """
    if len(text) > 80:
        return None
    parts = [part for part in _JOINT.split(re.sub(r"[\\{}()\[\]]", " ", text)) if part]
    if len(parts) == 1 and parts[0].isupper():
        parts = list(parts[0])
        if len(parts) > 2 and parts != sorted(parts) and not any(choices.values()):
            return None
    labels = frozenset(part.upper() for part in parts)
    return labels if 1 < len(parts) == len(labels) and labels <= choices.keys() else None


def implied_choices(gold: str) -> dict[str, str]:
    """Choices implied by a gold answer when none are given: `C`, `(C)`, `C. 24 cm`, `A, C`, `ABD`."""
    text = gold.strip()
    if match := _IMPLIED.fullmatch(text):
        return {match[1] or match[3] or match[4]: (match[2] or "").strip()}
    letters = re.fullmatch(r"[A-H](?:\s*,\s*[A-H])+|[A-H]{2,6}", text) and re.findall("[A-H]", text)
    return dict.fromkeys(letters, "") if letters and letters == sorted(set(letters)) else {}


def names_a_choice(gold: str, choices: Mapping[str, str], same: Same) -> bool:
    """Whether a gold answer names choices (not one or another) or equals one; true also where it is too large."""
    try:
        if labels := chosen(gold, choices, same):
            return len(labels) == 1 or not OR.search(gold)
        return any(same(text, gold) for text in choices.values())
    except Refused:
        return True


def without_labels(choices: Mapping[str, str]) -> dict[str, str]:
    """Choices that are stored with their letters, `A. red`, without them."""
    texts = {label: re.match(rf"\s*\(?{re.escape(label)}\s*[).:]\s*(?=\S)", text) for label, text in choices.items()}
    return {
        label: choices[label][match.end() :] if match and all(texts.values()) else choices[label]
        for label, match in texts.items()
    }
