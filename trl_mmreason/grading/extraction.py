"""Extract a completion's answer, ignoring its thinking: boxes and tags first, then declarations, then a bare line.

Model text is hostile, so every scan here is linear in its length: token patterns whose quantifiers never overlap, one
stack for braces, and slices that are taken of disjoint parts only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .declarations import bare_answer, declared_answer, without_dressing, without_math_delimiters

_THINK = re.compile(r"<(/?)think>", re.I | re.A)

# A doubled backslash is how JSON-minded models write a single one. Other escapes are eaten whole: `\{` is no brace.
_TOKEN = re.compile(
    r"(?P<box>\\{1,2}(?:boxed|fbox)\s*\{)|(?P<escape>\\.)|(?P<open>\{+)|(?P<close>\})"
    r"|(?P<tag><answer>|<\|answer_start\|>)|(?P<tag_end></answer>|<\|answer_end\|>)",
    re.I | re.A | re.S,
)
_OPENER = re.compile(r"\\(?:boxed|fbox)\s*\{|<answer>|<\|answer_start\|>", re.I | re.A)
_TAG_OF_END = {"</answer>": "<answer>", "<|answer_end|>": "<|answer_start|>"}

_LONGEST_SEPARATOR = 60
_SEPARATORS = re.compile(
    r"(?:\s|[$,;&、，；和或及与]|and\b|or\b|\\text\{\s*(?:and|or|和|或)\s*\}|\\q?quad\b|\\[()\[\],;: ])*", re.I
)


class _Span(NamedTuple):
    """A closed box or tag: its start and end, and those of its content."""

    start: int
    inner_start: int
    inner_end: int
    end: int
    is_box: bool


def extract_answer(text: str) -> str | None:
    """Extract a completion's answer, or `None` if there is none.

    Args:
        text: the completion, thinking included. Any length: the time is linear in it.

    Returns:
        What the last box or answer tag holds (neighbouring boxes joined by ", "), else the last explicit declaration,
        else the whole text if that is itself a bare short answer. Never a number picked from the prose.

    Examples:
        >>> extract_answer(r"<think>Perhaps 4.</think> So it is \\boxed{7}.")
        '7'
        >>> extract_answer("The answer is 12 cm.")
        '12 cm'
        >>> extract_answer("There are 3 red and 4 blue dots in it.") is None
        True
    """
    spoken = without_thinking(text)
    if spoken is None:
        return None
    spans, saw_blank = closed_spans(spoken)
    if spans:
        return _last_answer(spoken, spans)
    if saw_blank:
        return None
    answer = declared_answer(spoken) or bare_answer(spoken)
    # What is left of a box or tag here never closed: the answer was cut off.
    return None if answer is None or _OPENER.search(answer) else answer


def read_gold(text: str) -> str:
    """Extract the answer of a gold string: its last box, tag or `####` line, else the whole string."""
    spans, saw_blank = closed_spans(text)
    if spans:
        return _last_answer(text, spans)
    return "" if saw_blank else without_math_delimiters(text.rpartition("####")[2])


def without_thinking(text: str) -> str | None:
    """The text after the last `</think>`; `None` if it contains an open `<think>`."""
    spoken_from, thinking = 0, False
    for mark in _THINK.finditer(text):
        thinking = not mark[1]
        spoken_from = spoken_from if thinking else mark.end()
    return None if thinking else text[spoken_from:]


def closed_spans(text: str) -> tuple[list[_Span], bool]:
    """The filled boxes and tags, ordered by end, and whether there were blank ones.

    What is nested therefore stands before what holds it.
    """
    spans: list[_Span] = []
    saw_blank = False
    first = _OPENER.search(text)
    if first is None:
        return spans, saw_blank
    boxes: list[tuple[int, int, int]] = []  # of every open box: its start, where what it holds starts, the depth there
    depth = 0  # of plain braces
    tag: re.Match[str] | None = None
    scanned_to = filled_to = first.start()  # a box is blank if the last real content ends before it starts

    def close(start: int, inner_start: int, end: re.Match[str], is_box: bool) -> None:
        nonlocal saw_blank
        if filled_to > inner_start:
            spans.append(_Span(start, inner_start, end.start(), end.end(), is_box))
        else:
            saw_blank = True

    for token in _TOKEN.finditer(text, first.start()):
        if text[scanned_to : token.start()].strip():
            filled_to = token.start()
        scanned_to = token.end()
        kind = token.lastgroup
        if kind == "escape":
            filled_to = token.end()
        elif kind == "box":
            boxes.append((token.start(), token.end(), depth))
        elif kind == "open":
            depth += len(token[0])
        elif kind == "close" and boxes and depth == boxes[-1][2]:
            start, inner_start, _ = boxes.pop()
            close(start, inner_start, token, is_box=True)
        elif kind == "close":
            depth = max(depth - 1, 0)
        else:
            boxes.clear()  # no box reaches over the border of a tag
            depth = 0
            if kind == "tag":
                tag = token
            elif tag is not None and tag[0].lower() == _TAG_OF_END[token[0].lower()]:
                close(tag.start(), tag.end(), token, is_box=False)
                tag = None
    return spans, saw_blank


def _last_answer(text: str, spans: list[_Span]) -> str:
    """The last span's content; of adjacent boxes with only separators between them, all distinct contents."""
    index = _innermost(spans, len(spans) - 1)
    right = spans[index]
    answers = [_content(text, right)]
    index -= 1
    while index >= 0 and _are_neighbours(text, spans[index], right):
        right = spans[index]
        answers.append(_content(text, spans[_innermost(spans, index)]))
        while index >= 0 and spans[index].start >= right.start:  # step over what this box holds
            index -= 1
    if len(answers) == 1:
        return answers[0]
    return ", ".join(dict.fromkeys(" ".join(answer.split()) for answer in reversed(answers)))


def _innermost(spans: list[_Span], index: int) -> int:
    """The innermost span: recursively the one that ends last inside."""
    while index and spans[index - 1].start >= spans[index].inner_start:
        index -= 1
    return index


def _content(text: str, span: _Span) -> str:
    return without_dressing(text[span.inner_start : span.inner_end])


def _are_neighbours(text: str, left: _Span, right: _Span) -> bool:
    gap = right.start - left.end
    short = 0 <= gap <= _LONGEST_SEPARATOR
    return left.is_box and right.is_box and short and bool(_SEPARATORS.fullmatch(text, left.end, right.start))
