"""Multiple choice: which of the choices does an answer name?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .notation import normalise

Same = Callable[[str, str], bool]

_LEAD = re.compile(
    r"(?:the )?(?:correct )?(?:options?|choices?|answers?)(?: is| are)?\s*:?\s*(?=[(\[A-Za-z\d])"
    r"|故?应?选择?项?[:为]?\s*",
    re.IGNORECASE,
)
_TAIL = re.compile(r"(?<=[A-Z\d)])\s*(?:选?项|is (?:the )?(?:correct|right|true|answer|correct answer))$")
_BRACKETED = re.compile(r"[(\[]\s*([^\W_])\s*[)\]]\s*[.:,]?\s*(.*)", re.DOTALL)
_MARKED = re.compile(
    r"([^\W_])\s*(?:$|[):]\s*|[.,](?=\D)\s*|(?=\s(?i:because|since|as)\b)|(?=因为|由于))(.*)", re.DOTALL
)
_REASON = re.compile(r"\s*(?:(?:because|since|as|so|which|due to|by)\b|因为|由于|所以|理由)", re.IGNORECASE)
_JOINT = re.compile(r"\s*(?:[,;&/+和与及]|\band\b|\bor\b)\s*|\s+", re.IGNORECASE)


def chosen(answer: str, choices: Mapping[str, str], same: Same) -> frozenset[str] | None:
    """The labels that an answer names: by letter first, then by the one choice whose text or value it gives.

    Args:
        answer: as extracted.
        choices: label, in upper case, → text; an empty text is one that is not known.
        same: whether two texts are equal; may raise `NeedsAlgebra`.

    Returns:
        The labels; an empty set where letter and text disagree; None where no choice is named.
    """
    text = normalise(answer).strip().rstrip(".")
    text = _TAIL.sub("", text)
    written = any(text.casefold() == value.strip().casefold() for value in choices.values())
    if lead := _LEAD.match(text):
        text = text[lead.end() :]
    if not written and (several := _letters(text, choices)) is not None:
        return several
    match = _BRACKETED.fullmatch(text) or _MARKED.fullmatch(text)
    if match and match[1].upper() in choices:
        label, rest = match[1].upper(), match[2].strip()
        if not rest or not choices[label] or _REASON.match(rest) or same(rest, choices[label]):
            return frozenset(label)
        return _by_text(answer, choices, same) or frozenset()
    return _by_text(answer, choices, same)


def _by_text(answer: str, choices: Mapping[str, str], same: Same) -> frozenset[str] | None:
    matching = frozenset(label for label, text in choices.items() if text and same(answer, text))
    return matching if len(matching) == 1 else None


def _letters(text: str, choices: Mapping[str, str]) -> frozenset[str] | None:
    r"""Several letters: `A, C`, `ABD`, `A and C`, `(A)(C)`, `\{A, C\}`; None for anything else."""
    if len(text) > 80:
        return None
    parts = [part for part in _JOINT.split(re.sub(r"[\\{}()\[\]]", " ", text)) if part]
    if len(parts) == 1 and parts[0].isupper():
        parts = list(parts[0])
    labels = frozenset(part.upper() for part in parts)
    return labels if len(parts) > 1 and labels <= choices.keys() else None


_IMPLIED = re.compile(r"\(?([A-J])\)?[.:)]\s*(\S.*)|\(([A-J])\)|([A-J])", re.DOTALL)


def implied_choices(gold: str) -> dict[str, str]:
    """The choices that a gold answer speaks of when none are given: `C`, `(C)`, `C. 24 cm`, `A, C`, `ABD`."""
    text = gold.strip()
    if match := _IMPLIED.fullmatch(text):
        return {match[1] or match[3] or match[4]: (match[2] or "").strip()}
    letters = re.fullmatch(r"[A-H](?:\s*,\s*[A-H])+|[A-H]{2,6}", text) and re.findall("[A-H]", text)
    return dict.fromkeys(letters, "") if letters and letters == sorted(set(letters)) else {}
