"""Writer and parser of Chain-of-Step's step template (arXiv:2509.19003, section 3.1, Table 6 and Fig. 7).

    <|reasoning_start|>
    <|reasoning_step_start|>
    <|reasoning_step_name_start|>…<|reasoning_step_name_end|>
    <|reasoning_step_thought_start|>…<|reasoning_step_thought_end|>
    <|reasoning_step_reflection_start|>…<|reasoning_step_reflection_end|>
    <|reasoning_step_end|>
    <|reasoning_proceed|>                   between two steps
    <|reasoning_end|>                       after the last one
    <|answer_start|>…<|answer_end|>

What stands between an opening and its closing token is kept as it is, white space and all, and may be empty. Between
all other tokens white space may stand when a chain is read, as Fig. 7 has it; none is written. A step has all three
parts: the paper knows none without a reflection ("must consist of and only consist of the following three parts",
Fig. 8). A chain has one step or more. It is partial when it ends after a step, whether or not
`<|reasoning_proceed|>` or `<|reasoning_end|>` follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

REASONING_START = "<|reasoning_start|>"
REASONING_END = "<|reasoning_end|>"
STEP_START = "<|reasoning_step_start|>"
STEP_END = "<|reasoning_step_end|>"
PROCEED = "<|reasoning_proceed|>"
ANSWER_START = "<|answer_start|>"
ANSWER_END = "<|answer_end|>"

_PARTS = {
    part: (f"<|reasoning_step_{part}_start|>", f"<|reasoning_step_{part}_end|>")
    for part in ("name", "thought", "reflection")
}

SPECIAL_TOKENS = (
    REASONING_START,
    REASONING_END,
    STEP_START,
    STEP_END,
    *(token for pair in _PARTS.values() for token in pair),
    PROCEED,
    ANSWER_START,
    ANSWER_END,
)
"""The eleven tokens of Table 6 in its order, then the answer's pair, which Fig. 7 adds."""

_TOKEN = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
_STEPLESS = re.compile(
    rf"\s*(?:{re.escape(REASONING_START)}\s*{re.escape(REASONING_END)}\s*)?"
    rf"{re.escape(ANSWER_START)}(?P<answer>.*){re.escape(ANSWER_END)}\s*",
    re.DOTALL,
)


class ChainError(ValueError):
    """A string that is no chain.

    Attributes:
        position: the character at which it stops being one.
        expected: the part that was expected at that place.
        step_ends: positions after the whole steps before it.
    """

    def __init__(self, position: int, expected: str, actual: str) -> None:
        super().__init__(f"malformed chain at character {position}: expected {expected}, found {actual}")
        self.position = position
        self.expected = expected
        self.step_ends: list[int] = []


class ScorableText(str):
    """A completion that was parsed, and is what a process reward model can score: nobody parses it again."""

    __slots__ = ()


@dataclass(frozen=True)
class Step:
    """One step: its name, the reasoning, and a look back at the image and the steps before (section 3.1)."""

    name: str
    thought: str
    reflection: str


@dataclass(frozen=True)
class Chain:
    """The steps in order, one or more, and the answer; `None` = partial, not yet answered."""

    steps: list[Step]
    answer: str | None = None


class Ends(NamedTuple):
    """Ends of the scored tokens of a chain: `text[:end]` ends with the token.

    Attributes:
        steps: for each step the position after its `<|reasoning_step_end|>`.
        answer: the position after `<|answer_end|>`; `None` in a partial chain.
    """

    steps: list[int]
    answer: int | None


def parse_chain(text: str) -> Chain:
    """Parse `text` as a chain, whole or partial.

    `parse_chain(render_chain(chain)) == chain` for every chain that can be rendered. `render_chain(parse_chain(text))`
    is `text` without the white space between tokens and, if partial, without what follows its last step.

    Raises:
        ChainError: `text` is anything else; a step that is not closed, too.
    """
    return _read(text)[0]


def chain_ends(text: str) -> Ends:
    """Find where the steps and the answer of a chain end in `text`.

    Raises:
        ChainError: as `parse_chain`.
    """
    return _read(text)[1]


def scored_ends(text: str) -> Ends:
    """Find where the steps and the answer of a completion end: `chain_ends`, and completions without a step.

    These are a completion without any of the template's tokens or with `<|reasoning_start|>` alone, in which nothing is
    scored, and an answer by itself.

    Raises:
        ChainError: a malformed chain; a step that is not closed, too.
    """
    if not has_token(text) or text.strip() == REASONING_START:
        return Ends([], None)
    alone = _STEPLESS.fullmatch(text)
    if alone and not has_token(alone["answer"]):
        return Ends([], alone.end("answer") + len(ANSWER_END))
    return chain_ends(text)


def render_chain(chain: Chain) -> str:
    """Write the chain in special tokens, without white space between them; a partial one ends after its last step.

    Raises:
        ValueError: the chain has no step, or one of its parts holds a special token.
    """
    if not chain.steps:
        raise ValueError("render_chain: the chain has no step, expected one or more.")
    text = REASONING_START + PROCEED.join(map(_render_step, chain.steps))
    if chain.answer is None:
        return text
    return f"{text}{REASONING_END}{ANSWER_START}{_plain('answer', chain.answer)}{ANSWER_END}"


def has_token(text: str) -> bool:
    """Whether `text` contains a special token, so that it cannot be a field of a chain."""
    return _TOKEN.search(text) is not None


def _render_step(step: Step) -> str:
    parts = (f"{opening}{_plain(part, getattr(step, part))}{closing}" for part, (opening, closing) in _PARTS.items())
    return f"{STEP_START}{''.join(parts)}{STEP_END}"


def _plain(part: str, text: str) -> str:
    if token := _TOKEN.search(text):
        raise ValueError(f"render_chain: {token[0]} is in the text of the {part}, expected none of the special tokens.")
    return text


def _read(text: str) -> tuple[Chain, Ends]:
    """Scan from left to right, up to the first fault."""
    reader = _Reader(text)
    steps: list[Step] = []
    ends: list[int] = []
    try:
        reader.take(REASONING_START)
        while True:
            reader.take(STEP_START)
            steps.append(Step(**{part: reader.enclosed(*pair) for part, pair in _PARTS.items()}))
            reader.take(STEP_END)
            ends.append(reader.position)
            if reader.ended or reader.take(PROCEED, REASONING_END) == REASONING_END or reader.ended:
                break
        if reader.ended:
            return Chain(steps), Ends(ends, None)
        answer = reader.enclosed(ANSWER_START, ANSWER_END)
        if not reader.ended:
            raise reader.error("the end of the text")
        return Chain(steps, answer), Ends(ends, reader.position)
    except ChainError as error:
        error.step_ends = ends
        raise


class _Reader:
    """Reads `text` token by token; `position` follows the last token read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.finditer(text)
        self._next = next(self._tokens, None)
        self.position = 0

    @property
    def _gap(self) -> str:
        """The text before the next token, or before the end."""
        return self._text[self.position : self._next.start() if self._next else None]

    @property
    def ended(self) -> bool:
        return self._next is None and not self._gap.strip()

    def take(self, *expected: str) -> str:
        """Read the next token, which may follow white space, if it is one of `expected`."""
        token = self._next
        if token is None or token[0] not in expected or self._gap.strip():
            raise self.error(" or ".join(expected))
        self._go_behind(token)
        return token[0]

    def enclosed(self, opening: str, closing: str) -> str:
        """Read the text between the next two tokens, which have to be these."""
        self.take(opening)
        text, token = self._gap, self._next
        if token is None or token[0] != closing:
            self.position += len(text)
            raise self.error(closing)
        self._go_behind(token)
        return text

    def error(self, expected: str) -> ChainError:
        gap = self._gap
        inked = gap.lstrip()
        position = self.position + len(gap) - len(inked)
        actual = repr(inked[:30]) if inked else self._next[0] if self._next else "the end of the text"
        return ChainError(position, expected, actual)

    def _go_behind(self, token: re.Match[str]) -> None:
        self.position = token.end()
        self._next = next(self._tokens, None)


EXAMPLE = render_chain(Chain([Step("…", "…", "…")], "…"))
"""A chain of one step, as short as one can be shown."""
