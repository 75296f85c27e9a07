"""Parse a response in SRPO's format: first solution, reflection, second solution, in one generation.

    <think>…</think> <answer>…</answer> <reflection>…</reflection> <think>…</think> <answer>…</answer>

Between these blocks may stand white space only. Model text is hostile: one linear scan finds the tags, nothing is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

RESPONSE_PROBLEMS = ("cut", "unclosed", "unopened", "doubled", "misplaced", "empty", "missing", "stray")
"""The first word of every problem, in the order in which they are looked for."""

# Case does not matter to the grader, so it must not to the reader, or the two would see different answers.
_TAG = re.compile(r"<(/?)(think|answer|reflection)>", re.IGNORECASE)
_CUT = re.compile(r"<(?:/?[a-z]{0,10})?\Z", re.IGNORECASE)
_SLOTS = ("first_think", "first_answer", "reflection", "second_think", "second_answer")
_TAGS = {"think", "answer", "reflection"}


class Block(NamedTuple):
    """`<tag>text</tag>`; `start` and `end` delimit it as in slices."""

    tag: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class ReflectionResponse:
    """The parts of a response; a missing one is `None`.

    Attributes:
        first_think, first_answer: what is in the first answer's tags, and in those of the thought before it.
        reflection: what is in the first `<reflection>…</reflection>` after the first answer.
        second_think, second_answer: what is in the tags after it.
        has_solution_format: the response begins with `<think>…</think> <answer>…</answer>`, neither of them empty.
        has_reflection_format: exactly one `<reflection>…</reflection>`, not empty, directly after the first answer.
        problem: what is wrong first, beginning with one of `RESPONSE_PROBLEMS`; `None` for a response in full format.
        first_end: position after the first answer's closing tag.
        reflection_span: positions of the reflection, tags included.
    """

    first_think: str | None
    first_answer: str | None
    reflection: str | None
    second_think: str | None
    second_answer: str | None
    has_solution_format: bool
    has_reflection_format: bool
    problem: str | None
    first_end: int | None
    reflection_span: tuple[int, int] | None


def parse_reflection_response(text: str) -> ReflectionResponse:
    """Parse the parts of a response and its first fault; other parts survive a missing one.

    The first answer is the first there is, the reflection the first after it, and the second solution what follows;
    without a reflection that is what follows the first answer. A tag inside another block shows that the outer one was
    never closed; what the inner one holds still counts. An answer in a thought that is still open is none, as for the
    grader: a policy that is rewarded for it learns to leave thoughts open.

    Examples:
        >>> said = "<think>3+4</think> <answer>8</answer> <reflection>Not 8.</reflection> <answer>7</answer>"
        >>> parsed = parse_reflection_response(said)
        >>> parsed.first_answer, parsed.reflection, parsed.second_answer
        ('8', 'Not 8.', '7')
    """
    blocks, fault = _blocks(text)
    slots, left_over = _slots(blocks)

    def part_text(name: str) -> str | None:
        return slots[name].text if name in slots else None

    first, reflection = slots.get("first_answer"), slots.get("reflection")
    begins = first is not None and blocks[:2] == [slots.get("first_think"), first]
    return ReflectionResponse(
        **{name: part_text(name) for name in _SLOTS},
        has_solution_format=begins and _whole(blocks[:2]) and _only_space(text, [0, *_edges(blocks[:2])[:-1]]),
        has_reflection_format=first is not None
        and reflection is not None
        and _whole([reflection])
        and _only_space(text, [first.end, reflection.start])
        and sum("reflection" in tag for tag in tags_in(text)) == 2,
        problem=fault or left_over or _problem(text, blocks, slots),
        first_end=first.end if first else None,
        reflection_span=(reflection.start, reflection.end) if reflection else None,
    )


def problem_but_second_think(completion: str) -> str | None:
    """`problem` of a response, allowing no second `<think>`, as in the paper's SFT template (B.3).

    Examples:
        >>> said = "<think>3+4</think> <answer>8</answer> <reflection>Not 8.</reflection> <answer>7</answer>"
        >>> parse_reflection_response(said).problem, problem_but_second_think(said)
        ('missing <think> of the second solution', None)
    """
    response = parse_reflection_response(completion)
    unthought = response.second_think is None and response.second_answer is not None
    if unthought and response.reflection_span is not None:
        behind = response.reflection_span[1]
        response = parse_reflection_response(f"{completion[:behind]}<think>…</think>{completion[behind:]}")
    return response.problem


def in_answer_tags(answer: str | None) -> str:
    """Wrap an answer in tags for the grader, so that it is read as a whole."""
    return "" if answer is None else f"<answer>{answer}</answer>"


def first_answer(text: str) -> str:
    """The first answer of a response, wrapped for the grader; empty without one."""
    return in_answer_tags(parse_reflection_response(text).first_answer)


def tags_in(text: str) -> list[str]:
    """All tags in `text`, in lower case."""
    return [tag[0].lower() for tag in _TAG.finditer(text)]


def _whole(blocks: list[Block]) -> bool:
    """Whether all blocks are non-empty and contain no stray tag."""
    return all(block.text.strip() and not _TAG.search(block.text) for block in blocks)


def _edges(blocks: list[Block]) -> list[int]:
    return [position for block in blocks for position in (block.start, block.end)]


def _only_space(text: str, edges: list[int]) -> bool:
    """Whether only white space lies from the first to the second position, from the third to the fourth, …"""
    return not any(text[start:end].strip() for start, end in zip(edges[::2], edges[1::2], strict=True))


def _blocks(text: str) -> tuple[list[Block], str | None]:
    """All closed blocks in order, and the first unmatched tag."""
    blocks: list[Block] = []
    faults: list[str] = []
    opened: re.Match[str] | None = None
    thinking = False
    for tag in _TAG.finditer(text):
        closing, name = tag[1], tag[2].lower()
        thinking = not closing if name == "think" else thinking
        if not closing:
            if opened:
                faults.append(f"unclosed <{opened[2].lower()}> before <{name}>")
            opened = tag
        elif opened is None:
            faults.append(f"unopened </{name}>")
        elif opened[2].lower() != name:
            faults.append(f"unopened </{name}> inside <{opened[2].lower()}>")
        else:
            if name != "answer" or not thinking:
                blocks.append(Block(name, text[opened.end() : tag.start()], opened.start(), tag.end()))
            opened = None
    cut = _CUT.search(text, max(0, len(text) - 12))
    if cut and any(f"{slash}{name}>".startswith(cut[0][1:].lower()) for slash in ("", "/") for name in _TAGS):
        return blocks, f"cut in the middle of a tag: {cut[0]!r}"
    if opened:
        faults.append(f"unclosed <{opened[2].lower()}> at the end")
    return blocks, faults[0] if faults else None


def _slots(blocks: list[Block]) -> tuple[dict[str, Block], str | None]:
    """Assign blocks to parts; return them, and the first block without a part."""
    tags = [block.tag for block in blocks]
    first = tags.index("answer") if "answer" in tags else len(tags)
    reflection = tags.index("reflection", first) if "reflection" in tags[first:] else first
    slots: dict[str, Block] = {}
    left_over = None
    for position, block in enumerate(blocks):
        turn = "first" if position <= first else "second"
        solves = block.tag != "reflection" and not first < position < reflection and f"{turn}_answer" not in slots
        name = f"{turn}_{block.tag}" if solves else "reflection"
        if name not in slots and (solves or position == reflection):
            slots[name] = block
        elif left_over is None:
            kind = "doubled" if block.tag in tags[:position] else "misplaced"
            left_over = f"{kind} <{block.tag}> at character {block.start}"
    return slots, left_over


def _problem(text: str, blocks: list[Block], slots: dict[str, Block]) -> str | None:
    for block in blocks:
        if not block.text.strip():
            return f"empty <{block.tag}> at character {block.start}"
    for name in _SLOTS:
        if name not in slots:
            turn, _, tag = name.rpartition("_")
            return f"missing <{tag}>" + (f" of the {turn} solution" if turn else "")
    edges = [0, *_edges(blocks), len(text)]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if text[start:end].strip():
            return f"stray text outside the tags at character {start}"
    return None
