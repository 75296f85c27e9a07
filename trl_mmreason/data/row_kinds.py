"""What rows are for: questions, completions, preferences or labelled steps, and how each kind is read.

A kind adds its own columns to `prompt`, `images`, `id` and `category`, which all have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol

from datasets import Json, List, Value

from ..messages import PLACEHOLDER, conversation, split_answer, text_of
from .row_values import RefusedValue, read_answers, read_choices, read_text, show, wrong_type

RowKindName = Literal["questions", "completions", "preferences", "steps"]


class Read(Protocol):
    def __call__(self, name: str, reader: Callable[[Any], Any]) -> Any:
        """The value of our column as `reader` reads it; `None` if there is none, or if it is refused, as is noted."""
        ...


class RowKind(NamedTuple):
    """A kind of rows.

    Attributes:
        names: our names of its own columns in a source.
        required: those that every source has, unless `columns` says None.
        features: type of each of its columns in the result.
        read: reads them; its second argument says whether the value of `ends` is the end of a conversation.
        ends: the column that the end of a conversation fills; "" if none.
        split: splits a conversation into the prompt and that end, `None` if it has no such end.
    """

    names: tuple[str, ...]
    required: tuple[str, ...]
    features: Mapping[str, Any]
    read: Callable[[Read, bool], dict[str, Any]]
    ends: str = ""
    split: Callable[[Any], tuple[Any, Any]] = split_answer


def _read_question(read: Read, ends: bool) -> dict[str, Any]:
    choices = read("choices", read_choices)
    return {"answer": read("answer", lambda value: read_answers(value, choices, ends)) or [], "choices": choices}


def _read_completion(read: Read, ends: bool) -> dict[str, Any]:
    del ends  # a conversation without an end has the completion None, which is refused
    return {"completion": read("completion", _read_reply) or ""}


def _read_preference(read: Read, ends: bool) -> dict[str, Any]:
    del ends
    replies = {name: read(name, _read_reply) for name in ("chosen", "rejected")}
    if replies["chosen"] is not None and replies["chosen"] == replies["rejected"]:
        read("rejected", _refuse_equal)
    return {
        name: [{"role": "assistant", "content": reply}] if reply is not None else [] for name, reply in replies.items()
    }


def _refuse_equal(value: Any) -> None:
    raise RefusedValue("equal answers", f"chosen and rejected are the same, {show(value)}; expected two answers")


def _read_steps(read: Read, ends: bool) -> dict[str, Any]:
    del ends
    steps = read("steps", read_labelled_steps) or []
    return {"steps": [text for text, _ in steps], "step_labels": [label for _, label in steps]}


def _read_reply(value: Any) -> str:
    """The text of an answer: a string, a number, a message of the assistant, or messages that end with one."""
    if isinstance(value, list):
        value = split_answer(conversation(value))[1]
    elif isinstance(value, Mapping):
        value = conversation([value])[0].get("content")
    if isinstance(value, list):
        with suppress(KeyError, TypeError):
            value = text_of(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise RefusedValue("empty answer", f"the answer is {show(value)}; expected text, or messages that end with it")
    if isinstance(value, int | float):
        value = read_text(value)
    if not isinstance(value, str):
        raise wrong_type(value, "a string, or messages that end with the assistant's")
    if PLACEHOLDER in value:
        raise RefusedValue("image in the answer", f"the answer {show(value)} has an image; models here answer in text")
    return value


# -------------------------------------------------------------------------------------------------------------- steps

_LABELS = {"+": 1.0, "-": 0.0}  # VisualPRM400K: a step is right if a continuation of it came to the right answer
_HUMAN_LABELS = {1: 1.0, 0: None, -1: 0.0}  # VisualProcessBench: correct, neutral, incorrect
_SOLUTION_STARTS = re.compile(
    r"\A\s*### Question:\s*\n(?P<question>.*)\n\s*### Solution Process:\s*\n(?P<step>.*)\Z", re.S
)


def read_labelled_steps(value: Any) -> list[tuple[str, float | None]]:
    """The steps of a solution, each with its label in [0, 1] or None.

    Args:
        value: a list of `{"step": …, "score": …}` as VisualPRM400K-Raw has it, where a score above 0 makes a step right
            as its authors take it, or with a `label` that stays as it is; or `{"steps": […], "process_correctness":
            […]}` of VisualProcessBench, also as JSON text.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, Mapping) and {"steps", "process_correctness"} <= value.keys():
        pairs = _human_labels(value["steps"], value["process_correctness"])
    elif isinstance(value, list) and value and all(isinstance(one, Mapping) and "step" in one for one in value):
        pairs = [(one["step"], _label_of(one)) for one in value]
    elif value is None:
        raise RefusedValue(
            "no labelled steps",
            'expected the turns of VisualPRM400K: "### Question: … ### Solution Process: …" by the user, then steps, '
            'each answered by the assistant with "+" or "-"',
        )
    else:
        expected = '[{"step": …, "score": …}, …] or {"steps": […], "process_correctness": […]}'
        raise RefusedValue("no labelled steps", f"got {show(value)}; expected {expected}")
    for text, _ in pairs:
        if not isinstance(text, str) or not text.strip():
            raise RefusedValue("no labelled steps", f"a step is {show(text)}; expected text")
    return pairs


def _label_of(step: Mapping[str, Any]) -> float | None:
    label, score = step.get("label"), step.get("score")
    share = score if label is None else label
    if share is None and "label" in step:
        return None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise RefusedValue("no labelled steps", f"a step has the score {show(share)}; expected a share from 0 to 1")
    return float(share) if label is not None else float(share > 0)


def _human_labels(steps: Any, labels: Any) -> list[tuple[str, float | None]]:
    if not isinstance(steps, Sequence) or not isinstance(labels, Sequence) or len(steps) != len(labels) or not steps:
        counts = f"{len(steps or [])} steps and {len(labels or [])} labels"
        raise RefusedValue("no labelled steps", f"there are {counts}; expected a label for each step, and one or more")
    if unknown := [label for label in labels if label not in _HUMAN_LABELS]:
        raise RefusedValue("no labelled steps", f"a step has the label {show(unknown[0])}; expected 1, 0 or -1")
    return [(text, _HUMAN_LABELS[label]) for text, label in zip(steps, labels, strict=True)]


def split_steps(messages: Any) -> tuple[Any, list[dict[str, Any]] | None]:
    """Split a conversation of VisualPRM400K into the question and its labelled steps, `None` if it is none.

    The system message, which tells that process reward model its task, is left out.
    """
    talk = messages if isinstance(messages, list) and all(isinstance(one, Mapping) for one in messages) else []
    turns = [one for one in talk if one.get("role") != "system"]
    texts, signs = [one.get("content") for one in turns[::2]], [one.get("content") for one in turns[1::2]]
    first = _SOLUTION_STARTS.match(texts[0]) if texts and isinstance(texts[0], str) else None
    in_turn = [one.get("role") for one in turns] == ["user", "assistant"] * len(signs)
    if first is None or not in_turn or not all(sign in _LABELS for sign in signs):
        return turns[:1] or messages, None
    steps = [first["step"], *texts[1:]]
    labelled = [{"step": text, "label": _LABELS[str(sign)]} for text, sign in zip(steps, signs, strict=True)]
    return [{"role": "user", "content": first["question"].strip()}], labelled


_TEXT = Value("string")
_REPLY = List({"role": _TEXT, "content": _TEXT})
KINDS: dict[str, RowKind] = {
    "questions": RowKind(
        ("answer", "choices"),
        ("answer",),
        # A struct would give every row the letters of all rows. (`answer` is no Json: whatever writes a decoded Json
        # string again, such as `map`, turns "7" into the number 7 and "null" into None.)
        {"answer": List(_TEXT), "choices": Json()},
        _read_question,
        ends="answer",
    ),
    "completions": RowKind(
        ("completion",), ("completion",), {"completion": _TEXT}, _read_completion, ends="completion"
    ),
    "preferences": RowKind(
        ("chosen", "rejected"),
        ("chosen", "rejected"),
        {"chosen": _REPLY, "rejected": _REPLY},
        _read_preference,
        ends="chosen",
    ),
    "steps": RowKind(
        ("steps",),
        ("steps",),
        {"steps": List(_TEXT), "step_labels": List(Value("float64"))},
        _read_steps,
        ends="steps",
        split=split_steps,
    ),
}
