"""Build a question's prompt: template, choices, and names of images instead of placeholders."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterable, Mapping, Sequence

TEMPLATE = "{hint}\n{question}\n{choices}\n{instruction}"
"""Lines that come out empty are left out. SOPHIA adds the hint "before the original query" (appendix C)."""

INSTRUCTION = (
    "Think step by step, then give the final answer as \\boxed{...}. "
    "If there are choices, the final answer is the letter of the right one."
)

_FIELDS = ("question", "choices", "hint", "instruction")
_TAG = re.compile(r"<image[ _]?(\d{0,2})>", re.IGNORECASE)
_TAG_LINE = re.compile(rf"^[ \t]*(?:{_TAG.pattern}[ \t]*)+(?:\n|\Z)", re.IGNORECASE | re.MULTILINE)
_TAGS_AT_THE_ENDS = re.compile(rf"\A(?:\s*{_TAG.pattern})+|(?:{_TAG.pattern}\s*)+\Z", re.IGNORECASE)


def check_prompt_template(template: str) -> None:
    """Raise ValueError unless the template has a place for the question and no unknown places."""
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"the template {template!r} cannot be read: {error}; a brace itself is {{{{") from error
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown or "question" not in fields:
        raise ValueError(
            f"the template {template!r} has the fields {fields}; expected {{question}} and any of "
            f"{', '.join(f'{{{name}}}' for name in _FIELDS[1:])}"
        )


def render(template: str, *, question: str, choices: Mapping[str, str] | None, hint: str, instruction: str) -> str:
    """Render the user's message; template lines whose fields are all empty are left out."""
    shown = choices or {}
    if all(label == text for label, text in shown.items()):  # the choices are in the image, the letters say nothing
        shown = {}
    values = {
        "question": question,
        "choices": "\n".join(f"({label}) {text}" for label, text in shown.items()),
        "hint": hint,
        "instruction": instruction,
    }
    lines = [(line, line.format(**values)) for line in template.split("\n")]
    return "\n".join(filled for line, filled in lines if filled.strip() or not line).strip()


def images_named(texts: Iterable[str]) -> set[int]:
    """Numbers in tags such as `<image 2>` or `<image_2>`."""
    return {int(match[1]) for text in texts for match in _TAG.finditer(text) if match[1]}


def name_images(question: str, choices: Mapping[str, str] | None, hint: str, numbers: Sequence[int]) -> list:
    """Replace `<image 2>`, `<image_2>` and `<image2>` by "image 2", as all images precede the message.

    A tag without a number is the next image. Where there is just one image, tags at an end of the text or alone on
    a line say nothing and go. (MathVision keeps several numbered drawings in one image: a tag in a sentence stays.)

    Args:
        question, choices, hint: strings with tags.
        numbers: numbers of the images, as the tags name them, in the order in which they are given.

    Returns:
        Question, choices and hint.
    """
    positions = {number: position for position, number in enumerate(numbers, 1)}
    following = itertools.count(1)

    def name(match: re.Match[str]) -> str:
        number = int(match[1]) if match[1] else next(following)
        return f"image {positions.get(number, number)}"

    def named(text: str) -> str:
        return _TAG.sub(name, text).strip()

    if len(numbers) < 2:
        question, hint = (_TAGS_AT_THE_ENDS.sub("", _TAG_LINE.sub("", text)) for text in (question, hint))
    question = named(question)
    texts = choices and {label: named(text) for label, text in choices.items()}
    return [question, texts, named(hint)]
