"""Reading a response in SRPO's format: first solution, reflection, second solution, in one generation.

    <think>…</think> <answer>…</answer> <reflection>…</reflection> <think>…</think> <answer>…</answer>

Between these blocks may stand white space only. Model text is hostile: one linear scan finds the tags, nothing is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

PROBLEMS = ("cut", "unclosed", "unopened", "doubled", "misplaced", "empty", "missing", "stray")
"""The first word of every problem, in the order in which they are looked for."""

_TAG = re.compile(r"<(/?)(think|answer|reflection)>")
_CUT = re.compile(r"<(?:/?[a-z]{0,10})?\Z")
_SLOTS = ("first_think", "first_answer", "reflection", "second_think", "second_answer")
_TAGS = {"think", "answer", "reflection"}


class Block(NamedTuple):
    """`<tag>text</tag>`; `start` and `end` are the positions of its first character and of the one behind it."""

    tag: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class ReflectionResponse:
    """The parts of a response; each is `None` if it is not there.

    Attributes:
        first_think, first_answer: what stands in the tags before the reflection.
        reflection: what stands in the first `<reflection>…</reflection>`.
        second_think, second_answer: what stands in the tags after it.
        has_solution_format: the response begins with `<think>…</think> <answer>…</answer>`, neither of them empty.
        has_reflection_format: exactly one `<reflection>…</reflection>`, not empty, directly after the first answer.
        problem: what is wrong first of all, beginning with one of `PROBLEMS`; `None` for a response in full format.
        first_end: position behind the first answer's closing tag.
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
    """The parts of a response and the first thing that is wrong with it; a missing part costs nothing but itself.

    The first answer is the first before any reflection, the second the first behind it. Without a reflection the
    second solution begins behind the first answer. A tag inside another block shows that the outer one was never
    closed; what the inner one holds still counts.
    """
    blocks, fault = _blocks(text)
    slots, left_over = _slots(blocks)

    def text_of(name: str) -> str | None:
        return slots[name].text if name in slots else None

    first, reflection = slots.get("first_answer"), slots.get("reflection")
    begins = first is not None and blocks[:2] == [slots.get("first_think"), first]
    follows = first is not None and reflection is not None and not text[first.end : reflection.start].strip()
    alone = sum(block.tag == "reflection" for block in blocks) == 1
    return ReflectionResponse(
        **{name: text_of(name) for name in _SLOTS},
        has_solution_format=begins
        and all(block.text.strip() for block in blocks[:2])
        and not text[: blocks[0].start].strip()
        and not text[blocks[0].end : blocks[1].start].strip(),
        has_reflection_format=bool(follows and alone and reflection and reflection.text.strip()),
        problem=fault or left_over or _problem(text, blocks, slots),
        first_end=first.end if first else None,
        reflection_span=(reflection.start, reflection.end) if reflection else None,
    )


def _blocks(text: str) -> tuple[list[Block], str | None]:
    """All closed blocks in order, and the first tag that has no partner."""
    blocks: list[Block] = []
    faults: list[str] = []
    opened: re.Match[str] | None = None
    for tag in _TAG.finditer(text):
        closing, name = tag.groups()
        if not closing:
            if opened:
                faults.append(f"unclosed <{opened[2]}> before <{name}>")
            opened = tag
        elif opened is None:
            faults.append(f"unopened </{name}>")
        elif opened[2] != name:
            faults.append(f"unopened </{name}> inside <{opened[2]}>")
        else:
            blocks.append(Block(name, text[opened.end() : tag.start()], opened.start(), tag.end()))
            opened = None
    cut = _CUT.search(text, max(0, len(text) - 12))
    if cut and any(f"{slash}{name}>".startswith(cut[0][1:]) for slash in ("", "/") for name in _TAGS):
        return blocks, f"cut in the middle of a tag: {cut[0]!r}"
    if opened:
        faults.append(f"unclosed <{opened[2]}> at the end")
    return blocks, faults[0] if faults else None


def _slots(blocks: list[Block]) -> tuple[dict[str, Block], str | None]:
    """Which block is which part, and the first block that is none."""
    tags = [block.tag for block in blocks]
    if "reflection" in tags:
        border = behind = tags.index("reflection")
        behind += 1
    else:
        border = behind = tags.index("answer") + 1 if "answer" in tags else len(tags)
    slots = {"reflection": blocks[border]} if "reflection" in tags else {}
    left_over: list[tuple[Block, bool]] = []
    for turn, part in (("first", blocks[:border]), ("second", blocks[behind:])):
        answered = False
        for block in part:
            slot = f"{turn}_{block.tag}"
            if block.tag == "reflection" or slot in slots or answered:
                left_over.append((block, block.tag == "reflection" or slot in slots))
            else:
                slots[slot] = block
                answered = block.tag == "answer"
    if not left_over:
        return slots, None
    block, doubled = left_over[0]
    return slots, f"{'doubled' if doubled else 'misplaced'} <{block.tag}> at character {block.start}"


def _problem(text: str, blocks: list[Block], slots: dict[str, Block]) -> str | None:
    for block in blocks:
        if not block.text.strip():
            return f"empty <{block.tag}> at character {block.start}"
    for name in _SLOTS:
        if name not in slots:
            turn, _, tag = name.rpartition("_")
            return f"missing <{tag}>" + (f" of the {turn} solution" if turn else "")
    edges = [0, *(position for block in blocks for position in (block.start, block.end)), len(text)]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if text[start:end].strip():
            return f"stray text outside the tags at character {start}"
    return None
