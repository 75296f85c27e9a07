"""Extract a completion's answer, ignoring its thinking: boxes and tags first, then declarations, then a bare line.

Model text is hostile, so every scan here is linear in its length: token patterns whose quantifiers never overlap, one
stack for braces, and slices that are taken of disjoint parts only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .declarations import (
    TAKES_BACK,
    bare_answer,
    declared_answer,
    declares_nothing,
    opening_choice,
    without_dressing,
    without_math_delimiters,
)
from .prose import STATES, concluded_answer, last_statement, stated_value
from .units import parse_unit

_THINK = re.compile(r"<(/?)think>", re.I | re.A)

# A doubled backslash is how JSON-minded models write a single one. Other escapes are eaten whole: `\{` is no brace.
_TOKEN = re.compile(
    r"(?P<box>\\{1,2}(?:boxed|fbox)\s*\{)|(?P<escape>\\.)|(?P<open>\{+)|(?P<close>\})"
    r"|(?P<tag><answer>|<\|(?:answer_start|begin_of_box)\|>)|(?P<tag_end></answer>|<\|(?:answer_end|end_of_box)\|>)",
    re.I | re.A | re.S,
)
_OPENER = re.compile(r"\\(?:boxed|fbox)\s*\{|<answer>|<\|(?:answer_start|begin_of_box)\|>", re.I | re.A)
_TAG_OF_END = {"</answer>": "<answer>", "<|answer_end|>": "<|answer_start|>", "<|end_of_box|>": "<|begin_of_box|>"}

_LONGEST_SEPARATOR = 60
_LONGEST_ANSWER = 5  # words; a bare line may be a sentence
_INSTRUCTION = re.compile(r"\b(?:in|inside|within|into|using|uses?|with|an?|the|of)[\s`$\\(\"'*]*\Z", re.I)
_PART = re.compile(r"(?<![A-Za-z\d)])\((?:[b-h]|ii|iii|iv|2|3|4)\)|\b[Pp]art\s+\(?[b-hB-H2-4]\b")
_BLANK = re.compile(
    r"(?:\\[,;:! ]|\\q?quad\b|[~.\s$]|\\(?:text|math)[a-z]{0,2}\s?\{\s*\}|\\[hv]?phantom\s?\{[^{}]{0,9}\})+"
)
_ALL_BOLD = re.compile(r"\A\*\*([^*]+)\*\*\Z")
_BARE_BOX = re.compile(r"(\\(?:boxed|fbox))\s+(?=[^\s{}$])([^\s{}$]+?)(?=[.,;]?(?:[\s$]|\Z|\\[\])]))")
_SEPARATORS = re.compile(
    r"(?:\s|[$,;&、，；和或及与]|and\b|or\b|\\text\{\s*(?:and|or|和|或)\s*\}|\\q?quad\b|\\[()\[\],;: ])*", re.I
)
_UNIT_BEHIND = re.compile(r"[\s\\,;~]*\\(?:text|mathrm)\s?\{([^{}]{1,20})\}(?!\s*\^)")
_NAMED_BOX = re.compile(r"\b(?:the|its)\s(\w+)\s(?:is|are|equals|=)[\s$]*\Z", re.I)
_AND_THE = re.compile(r"[\s$]*,?\s?and\s(?:the|its)\s\w+\s(?:is|are|equals|=)[\s$]*", re.I)
_IS_SENTENCE = re.compile(
    rf"(?!.*answer)(?=.*(?:{STATES.pattern}|\b(?:s?he|they)\b))(?:[A-Za-z]+ [a-z]{{2,}}[ -]|[\u4e00-\u9fff]{{3}})", re.I
)
_NAMED_SEPARATORS = re.compile(rf"{_SEPARATORS.pattern}(?:[A-Za-z]\s{{0,3}}=[\s$]*)?", re.I)  # x = … and y = …


_NOTE = re.compile(r"\s?[(（]\s?答案不唯一[^()（）]{0,40}[)）]\s?\Z|\A答案不唯一[,，]\s?(?:例?如)[:：]?")  # of a gold
# A box that its own sentence takes back
_NOT_THIS = re.compile(r"(?:\b(?:is|are|be)\s+not|\bisn't|\bcannot\s+be|不是|不可能是)[\s$*(\\:]*\Z", re.I)
_IS_WRONG = re.compile(
    r"[\s$*)\\]*(?:\b(?:is|was)\s+(?:not\b|wrong|incorrect|false)|是错|不对"
    r"|[,;]?\s*\b(?:but|which|though)\s(?:(?:that|this|it)\s)?(?:is|was)\s+(?:wrong|incorrect|false|not\s(?:right|correct)))",
    re.I,
)


class _Span(NamedTuple):
    """A closed box or tag: its start and end, and those of its content."""

    start: int
    inner_start: int
    inner_end: int
    end: int
    is_box: bool


def extract_answer(text: str, *, parts: bool = False, choices: Mapping[str, str] | None = None) -> str | None:
    """Extract a completion's answer, or `None` if there is none.

    Args:
        text: the completion, thinking included. Any length: the time is linear in it.
        parts: whether the boxes of parts (a), (b), … are one list, and the values of a conclusion.
        choices: label → text, by which a conclusion may name one.

    Returns:
        What the last box or answer tag holds (neighbouring boxes joined by ", "), else the last explicit declaration,
        else what the last sentence concludes ("So x is 4."), else the whole text if that is itself a bare short
        answer. Never another number out of the prose.

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
    spoken = _BARE_BOX.sub(r"\1{\2}", spoken)
    boxes = find_spans(spoken)
    if boxes.missing_until is not None:
        return declared_answer(spoken[boxes.missing_until :])
    if boxes.filled:
        return _last_answer(spoken, boxes.filled, parts=parts)
    answer = _stated(declared_answer(spoken), choices) or (
        None
        if boxes.some_are_empty
        else concluded_answer(spoken, parts=parts, choices=choices)
        or _stated(bare_answer(spoken), choices)
        or opening_choice(spoken)
    )
    # What is left of a box or tag here never closed: the answer was cut off.
    return None if answer is None or _OPENER.search(answer) else answer


def _stated(answer: str | None, choices: Mapping[str, str] | None) -> str | None:
    """What an answer states that is a sentence: `The angle measures 30°`."""
    told = answer and not choices and re.search(r"\d", answer) and _IS_SENTENCE.match(answer)
    return stated_value(answer) or answer if answer and told else answer


def read_gold(text: str) -> str:
    """Extract the answer of a gold string, which may be a solution: as of a completion, else the whole string."""
    spoken = without_thinking(text)
    text = _NOTE.sub("", text if spoken is None else spoken)
    boxes = find_spans(text)
    if boxes.missing_until is not None or boxes.some_are_empty and not boxes.filled:
        return ""
    if boxes.filled:
        return _last_answer(text, boxes.filled)
    if (declared := declared_answer(text)) is not None or declares_nothing(text):
        return declared or ""
    return without_math_delimiters(_ALL_BOLD.sub(r"\1", text.strip()))


def prose_answer(
    text: str, golds: Sequence[str] = (), choices: Mapping[str, str] | None = None, question: str | None = None
) -> str | None:
    """The declared answer of a text, else what its last sentence with a value states; see `last_statement`.

    Examples:
        >>> prose_answer("The number missing in the sequence is 14.")
        '14'
        >>> prose_answer("I cannot see the image.") is None
        True
    """
    declared, spoken = extract_answer(text), without_thinking(text) or ""
    if find_spans(_BARE_BOX.sub(r"\1{\2}", spoken)).filled:
        return declared
    length = len(re.findall(r"[\u4e00-\u9fff]{2}|[^\s\u4e00-\u9fff]+", declared or ""))
    is_a_sentence = length > 2 and declared == without_dressing(spoken)
    if declared is not None and not is_a_sentence and length <= _LONGEST_ANSWER:
        return declared
    return last_statement(spoken, golds, choices, question) or declared


def without_thinking(text: str) -> str | None:
    """The text after the last `</think>`; `None` if it contains an open `<think>`."""
    spoken_from, thinking = 0, False
    for mark in _THINK.finditer(text):
        thinking = not mark[1]
        spoken_from = spoken_from if thinking else mark.end()
    return None if thinking else text[spoken_from:]


class Spans(NamedTuple):
    """Boxes and tags of a text."""

    filled: list[_Span]  # with content, ordered by end
    some_are_empty: bool = False
    missing_until: int | None = None  # the end of the last one, if it is cut off, said to be wrong, or empty


def find_spans(text: str) -> Spans:
    """The boxes and tags of a text, in linear time."""
    spans: list[_Span] = []
    missing, empty = (-1, -1), False  # start and end of the last one without content
    first = _OPENER.search(text)
    if first is None:
        return Spans(spans)
    boxes: list[tuple[int, int, int]] = []  # of every open box: its start, where what it holds starts, the depth there
    depth = 0  # of plain braces
    tag: re.Match[str] | None = None
    scanned_to = filled_to = first.start()  # a box is blank if the last real content ends before it starts

    def close(start: int, inner_start: int, end: re.Match[str], is_box: bool) -> None:
        nonlocal missing, empty
        taken_back = _IS_WRONG.match(text, end.end()) or TAKES_BACK.match(text, end.end())
        if taken_back or _NOT_THIS.search(text, max(start - _LONGEST_SEPARATOR, 0), start):
            missing = start, end.end()
            return
        if filled_to > inner_start and not _BLANK.fullmatch(text, inner_start, end.start()):
            spans.append(_Span(start, inner_start, end.start(), end.end(), is_box))
            return
        empty = True
        if not _INSTRUCTION.search(text[max(start - _LONGEST_SEPARATOR, 0) : start]):
            missing = start, end.end()

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
    opened = max([start for start, *_ in boxes] + [tag.start() if tag else -1])
    start, end = max(missing, (opened, len(text)))
    return Spans(spans, empty, end if start > (spans[-1].start if spans else -1) else None)


def _last_answer(text: str, spans: list[_Span], *, parts: bool = False) -> str:
    """The last span's content; of adjacent boxes with only separators between them, all distinct contents.

    With `parts` also boxes of parts (a), (b), … are neighbours.
    """
    index = _innermost(spans, len(spans) - 1)
    right = spans[index]
    answers, names = [_content(text, right)], [_box_name(text, right)]
    index -= 1
    while index >= 0 and _are_neighbours(text, spans[index], right, parts):
        right = spans[index]
        answers.append(_content(text, spans[_innermost(spans, index)]))
        names.append(_box_name(text, right))
        while index >= 0 and spans[index].start >= right.start:  # step over what this box holds
            index -= 1
    if len(answers) == 1:
        return answers[0]
    if all(names):  # the mean is …, and the median is …
        answers = [f"{name} = {answer}" for name, answer in zip(names, answers, strict=True)]
    return ", ".join(dict.fromkeys(" ".join(answer.split()) for answer in reversed(answers)))


def _innermost(spans: list[_Span], index: int) -> int:
    """The innermost span: recursively the one that ends last inside."""
    while index and spans[index - 1].start >= spans[index].inner_start:
        index -= 1
    return index


def _content(text: str, span: _Span) -> str:
    content = without_dressing(text[span.inner_start : span.inner_end])
    unit = _UNIT_BEHIND.match(text, span.end)
    return f"{content} {unit[1]}" if unit and parse_unit(unit[1].strip()) and content[-1:].isdigit() else content


def _box_name(text: str, span: _Span) -> str:
    match = _NAMED_BOX.search(text, max(span.start - _LONGEST_SEPARATOR, 0), span.start)
    return match[1].lower() if match else ""


def _are_neighbours(text: str, left: _Span, right: _Span, parts: bool) -> bool:
    if not (left.is_box and right.is_box):
        return False
    between = text, left.end, right.start
    if parts and (_PART.search(*between) or _AND_THE.fullmatch(*between)):
        return True
    separators = _NAMED_SEPARATORS if parts else _SEPARATORS
    return left.end <= right.start <= left.end + _LONGEST_SEPARATOR and separators.fullmatch(*between) is not None
