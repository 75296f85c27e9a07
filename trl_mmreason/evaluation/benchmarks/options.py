"""Parse choices inside the text of a question.

They are read only where nothing else could be meant: labels in order from A without a gap, each at the beginning of a
line, or all of them after "Choices:" or "Options:", or in one line with which the question ends. What does not read
that way stays in the text, and only the letters are known.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_LINE = re.compile(r"[ \t]*(?:\(([A-Z])\)|([A-Z])[.:)．：、])[ \t]*(.*)")
_IN_BRACKETS = re.compile(r"\(([A-Z])\)")
_MARKER = re.compile(r"\b(?:choices?|options?)[ \t]*(?:[:：]\s*|\n\s*)(?=\(A\)|A:)", re.IGNORECASE)
_IN_LIST = re.compile(r"(?:\A|,\s*)([A-Z]):(?:\s|\Z)")  # MMStar: "Options: A: one, B: two"
_AFTER_SEMICOLON = re.compile(r"(?:\A|;)\s*([A-H])[.．:：]\s*")
_LEAD = re.compile(
    r"(?:\A|\n|(?<=[.?!。？)\]]))\s*(?:choices?|options?)\s*[:：]\s*\Z|(?:\A|\n)\s*(?:choices?|options?)\s*\Z",
    re.IGNORECASE,
)
_LETTERS = re.compile(r"[A-Z](?:\s*(?:,|and)?\s*[A-Z])*")
# In the midst of a sentence there are no choices.
_ENDED = re.compile(r"[.?!:_)\]}>…。？！：）][ \t]*\Z|\n\s*\Z")
_CONJUNCTION = re.compile(r"\b(?:or|and|versus|vs)\b", re.IGNORECASE)
_GOES_ON = re.compile(r"(?:\A|\s)(?:or|and|versus|vs)\b[\s.,;]*\Z", re.IGNORECASE)
_FURTHER_SENTENCE = re.compile(r"[.!。！]\s+\w|[?？]|\b(?:answer|please|select|choose)\b", re.IGNORECASE)


def read_options(question: str, answer: str) -> tuple[str, dict[str, str] | None]:
    """Split a question from its choices; return the whole question and `None` where there are none.

    Args:
        question: with its choices: a line each, "Choices: (A) one (B) two", "Options: A: one, B: two", or "(A) one
            (B) two" with nothing after it. A line after the last choice leaves it open where that ends.
        answer: the gold answer. Where that is no letter of a choice, the text is left alone.
    """
    letters = set(re.findall("[A-Z]", answer)) if _LETTERS.fullmatch(answer) else set()
    for style in (_by_line, _behind_marker, _in_one_line):
        stem, choices = style(question)
        stem = _LEAD.sub("", stem.rstrip()).rstrip()
        if choices and letters and letters <= choices.keys() and stem.strip():
            return stem, choices
    return question, None


def split_semicolons(options: str) -> dict[str, str] | None:
    """The choices of "A. one; B. two;C. three" (We-Math)."""
    return _cut(options.strip(), list(_AFTER_SEMICOLON.finditer(options.strip())))[1]


def _by_line(question: str) -> tuple[str, dict[str, str] | None]:
    """Choices on one line each, or on the lines below their labels."""
    lines = question.split("\n")
    marks = [(number, match) for number, line in enumerate(lines) if (match := _LINE.fullmatch(line))]
    if not _in_order([match[1] or match[2] for _, match in marks]):
        return question, None
    choices, beside = {}, set()
    ends = [number for number, _ in marks[1:]] + [len(lines)]
    for (number, match), end in zip(marks, ends, strict=True):
        texts = [line.strip() for line in (match[3], *lines[number + 1 : end]) if line.strip()]
        if len(texts) != 1:
            return question, None
        choices[match[1] or match[2]] = texts[0]
        beside.add(bool(match[3].strip()))
    return "\n".join(lines[: marks[0][0]]), choices if len(beside) == 1 else None


def _behind_marker(question: str) -> tuple[str, dict[str, str] | None]:
    start = _MARKER.search(question)
    if start is None:
        return question, None
    listed = question[start.end() :]
    choices = _cut(listed, list((_IN_BRACKETS if listed.startswith("(") else _IN_LIST).finditer(listed)))[1]
    if choices is None or any("\n" in text or _GOES_ON.search(text) for text in choices.values()):
        return question, None
    return question[: start.end()], choices


def _in_one_line(question: str) -> tuple[str, dict[str, str] | None]:
    """Choices in brackets up to the end of the text, but not in a sentence such as "Is (A) or (B) larger?"."""
    stem, choices = _cut(question, list(_IN_BRACKETS.finditer(question)))
    if choices is None or "\n" in question[len(stem) :].strip() or not _ENDED.search(stem):
        return question, None
    if any(_CONJUNCTION.search(text) or _FURTHER_SENTENCE.search(text) for text in choices.values()):
        return question, None
    return stem, choices


def _cut(text: str, marks: Sequence[re.Match[str]]) -> tuple[str, dict[str, str] | None]:
    """The text before the first label, and letter → text after it."""
    if not _in_order([mark[1] for mark in marks]):
        return text, None
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    choices = {mark[1]: text[mark.end() : end].strip(" \t\n;,") for mark, end in zip(marks, ends, strict=True)}
    return text[: marks[0].start()], choices if all(choices.values()) else None


def _in_order(letters: Sequence[str]) -> bool:
    return len(letters) > 1 and list(letters) == list(string.ascii_uppercase[: len(letters)])
