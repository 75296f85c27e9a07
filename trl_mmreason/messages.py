"""Text and images of messages, whose content is a string or a list of parts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import dropwhile
from typing import Any

PLACEHOLDER = "<image>"
# The image processors of the Qwen-VL family refuse longer shapes in the middle of training.
_MAX_ASPECT_RATIO = 200
_SPEAKERS = {"human": "user", "gpt": "assistant"}  # LLaVA's names of roles


def text_of(content: Any, between: str = "") -> str:
    """The text of a message's content, without its images.

    Args:
        content: a string, or parts with a `type`.
        between: stands between the text of two parts.
    """
    if isinstance(content, str):
        return content
    return between.join(part["text"] for part in content if part["type"] == "text")


def question_text(prompt: Any) -> str:
    """The question: the text of a prompt's first user message.

    Examples:
        >>> question_text([{"role": "system", "content": "Think."}, {"role": "user", "content": "3+4?"}])
        '3+4?'
    """
    if isinstance(prompt, str):
        return prompt
    return text_of(next((message["content"] for message in prompt if message["role"] == "user"), ""), between=" ")


def plain_messages(prompt: Any, where: str) -> list[dict[str, str]]:
    """Convert a prompt to messages of `role` and `content`, with strings as contents.

    The text parts are joined as chat templates write them, with nothing between. Placeholders of images are left
    out at the beginning of the user's first message: that is where TRL puts the row's images by itself.

    Args:
        prompt: messages, or a string for one of the user.
        where: which prompt that is, for the error.

    Raises:
        ValueError: something would be lost: other keys, images within the text or in the message itself.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    plain: list[dict[str, str]] = []
    for message in messages or ():
        fields = _without_none(message)
        text = _flat(
            fields.get("content"), fields.get("role") == "user" and all(one["role"] != "user" for one in plain)
        )
        if fields.keys() != {"role", "content"} or text is None:
            break
        plain.append({"role": fields["role"], "content": text})
    if not plain or len(plain) < len(messages):
        raise ValueError(
            f"{where} has the prompt {prompt!r:.300}, expected messages of role and content alone, with strings as "
            "content. Of parts, placeholders of images may come before the text of the user's first message; move "
            "others, and images themselves, into the column `images`."
        )
    return plain


def conversation(value: Any) -> Any:
    """Convert messages in the forms of TRL, ms-swift and LLaVA to `role` and `content`, a string.

    Parts become one string with `<image>` for each image. What has another form is left as it is.

    Args:
        value: a list of messages; anything else is returned.
    """
    return [_message(message) for message in value] if isinstance(value, list) else value


def images_inside(value: Any) -> list[Any]:
    """The images inside the parts of messages, {"type": "image", "image": …}, in order."""
    messages = value if isinstance(value, list) else []
    contents = [_without_none(message).get("content") for message in messages]
    parts = [_without_none(part) for content in contents if isinstance(content, list) for part in content]
    return [part["image"] for part in parts if part.get("type") == "image" and "image" in part]


def split_answer(messages: Any) -> tuple[Any, Any]:
    """Split off the assistant's last message: the other messages, and its content or `None`."""
    if not isinstance(messages, list) or not messages or _without_none(messages[-1]).get("role") != "assistant":
        return messages, None
    return messages[:-1], messages[-1].get("content")


def completion_text(completion: Any, where: str) -> str:
    """The text of a completion, given as a string or as one message of the assistant.

    Args:
        completion: completion as the row has it.
        where: which row that is, for the error.

    Raises:
        ValueError: it is anything else.
    """
    messages = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    if not messages or len(messages) > 1 or messages[0]["role"] != "assistant":
        raise ValueError(
            f"The completion of {where} is {completion!r}, expected a string or one message of the assistant."
        )
    content = messages[0]["content"]
    if not isinstance(content, str) and any(part["type"] != "text" for part in content):
        raise ValueError(f"The completion of {where} is {completion!r}, expected text alone, no images.")
    return text_of(content)


def with_system_message(prompt: Any, text: str | None) -> Any:
    """Add `text` as a prompt's system message; without a string return the prompt unchanged.

    Raises:
        TypeError: the prompt is no list of messages.
        ValueError: it has a system message already.
    """
    if text is None:
        return prompt
    fix = "set the trainer's prompt to None (null in a configuration file) to leave prompts as they are"
    if isinstance(prompt, str):
        raise TypeError(
            f"The prompt {prompt[:60]!r} is a string, which can have no system message; write messages, or {fix}."
        )
    if prompt[0]["role"] == "system":
        raise ValueError(
            f"A row has a system message of its own, {str(prompt[0]['content'])[:60]!r}; drop it, or {fix}."
        )
    return [{"role": "system", "content": text}, *prompt]


def _message(message: Any) -> Any:
    fields = _without_none(message)
    if fields.keys() == {"from", "value"}:
        fields = {"role": _SPEAKERS.get(str(fields["from"]), fields["from"]), "content": fields["value"]}
    content = fields.get("content")
    texts = [_part_text(_without_none(part)) for part in content] if isinstance(content, list) else [None]
    if None not in texts:
        fields["content"] = "".join(map(str, texts))
    return fields or message


def _part_text(part: Mapping[str, Any]) -> Any:
    """A part as a string; `None` if it is neither text nor an image."""
    if part.get("type") == "image" and part.keys() <= {"type", "image"}:
        return PLACEHOLDER
    return part["text"] if part.keys() == {"type", "text"} and part["type"] == "text" else None


def _without_none(keys: Any) -> dict[str, Any]:
    """The keys of a message or part without `None`, which Arrow adds for keys of other rows."""
    return {key: value for key, value in keys.items() if value is not None} if isinstance(keys, Mapping) else {}


def _flat(content: Any, images_come_first: bool) -> str | None:
    """The text of a content; `None` if it holds anything else."""
    if not isinstance(content, list | tuple):
        return content if isinstance(content, str) else None
    parts = [_without_none(part) for part in content]
    if images_come_first:
        parts = list(dropwhile(lambda part: part == {"type": "image"}, parts))
    is_text = [part.keys() == {"type", "text"} and part["type"] == "text" for part in parts]
    return text_of(parts) if all(is_text) else None


def checked_message(message: Any) -> dict[str, Any]:
    """A copy of what the user says after an answer, as `next_message` returns it.

    Args:
        message: role "user" and content: text, or parts such as `{"type": "image", "image": image}` and
            `{"type": "text", "text": "Look closer."}`.

    Raises:
        ValueError: it has another form, or an image has a shape that models do not take.
    """
    expected = (
        "expected {'role': 'user', 'content': …} with a string, or a list of {'type': 'text', 'text': …} and "
        "{'type': 'image', 'image': a PIL image}"
    )
    if not isinstance(message, Mapping) or message.keys() != {"role", "content"} or message["role"] != "user":
        raise ValueError(f"next_message returned {message!r:.200}; {expected}.")
    if isinstance(message["content"], str):
        return dict(message)
    parts: list[Any] = message["content"] if isinstance(message["content"], list) else [None]
    for part in parts:
        fields = part if isinstance(part, Mapping) else {}
        is_text = fields.get("type") == "text" and isinstance(fields.get("text"), str)
        if not is_text and not (fields.get("type") == "image" and hasattr(fields.get("image"), "getexif")):
            raise ValueError(f"next_message returned content with {part!r:.200}; {expected}.")
        if not is_text and (problem := shape_problem(fields["image"])):
            raise ValueError(
                f"next_message returned an image that {problem}. Fix: a larger part of it, or text instead."
            )
    return {"role": "user", "content": [dict(part) for part in parts]}


def shape_problem(image: Any) -> str | None:
    """What keeps image processors from taking a PIL image of this shape; `None` if they take it."""
    width, height = image.size
    if max(width, height, 1) <= _MAX_ASPECT_RATIO * min(width, height):
        return None
    return f"is {width}×{height} pixels; sides may differ by a factor of {_MAX_ASPECT_RATIO} at most"
