"""Text and images of messages, whose content is a string or a list of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

PLACEHOLDER = "<image>"
"""Where an image stands in the text of a user's message."""
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
    """The question: a prompt's text without the system message; several turns are prefixed by their roles.

    `<image>` stands where images stand inside the prompt.

    Examples:
        >>> question_text([{"role": "system", "content": "Think."}, {"role": "user", "content": "3+4?"}])
        '3+4?'
    """
    if isinstance(prompt, str):
        return prompt
    turns = [message for message in prompt if message["role"] != "system" and message.get("content")]
    texts = text_messages(turns, between=" ")
    if len(texts) == 1:
        return texts[0]["content"]
    return "\n".join(f"{text['role'].capitalize()}: {text['content']}" for text in texts)


def text_messages(prompt: Any, between: str = "") -> list[dict[str, str]]:
    """Convert a prompt to messages of `role` and `content`, with strings as contents.

    Images become `<image>`, unless all come before the user's first text: that is where TRL puts the row's images by
    itself.

    Args:
        prompt: messages, or a string for one of the user.
        between: stands between two parts of text if no image stands inside the text; templates write nothing there.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    as_text = partial(text_of, between=between) if _images_come_first(prompt) else _marked_text
    return [{"role": message["role"], "content": as_text(message["content"])} for message in prompt]


def with_image_parts(messages: Sequence[Mapping[str, Any]], image_count: int) -> list[Mapping[str, Any]]:
    """Turn each `<image>` in the strings of users into a part {"type": "image"}, which TRL fills in order.

    Unless there are as many of them as images, messages stay as they are: they are text then, as where a question
    quotes one, and TRL puts the images before the first user message.

    Args:
        messages: the prompt's messages.
        image_count: number of images for which the prompt has no parts yet.
    """
    if not image_count or count_marks(messages) != image_count:
        return list(messages)
    return [
        {**message, "content": _parts_of(message["content"])} if _is_question(message) else message
        for message in messages
    ]


def count_marks(messages: Sequence[Mapping[str, Any]]) -> int:
    """Count `<image>` in the strings of users."""
    return sum(message["content"].count(PLACEHOLDER) for message in messages if _is_question(message))


def quoted(text: str) -> str:
    """A model's text for a message of the user, with a space in each `<image>`, so that it is no image's place."""
    return text.replace(PLACEHOLDER, f"{PLACEHOLDER[0]} {PLACEHOLDER[1:]}")


def plain_messages(prompt: Any, where: str) -> list[dict[str, str]]:
    """Convert a prompt to messages as `text_messages` does, and refuse one of which something would be lost.

    Args:
        prompt: messages, or a string for one of the user.
        where: which prompt that is, for the error.

    Raises:
        ValueError: it has other keys, images themselves, or placeholders of images that are not the user's.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    plain = [_without_none(message) for message in messages or ()]
    for message in plain:
        content = message.get("content")
        if message.keys() == {"role", "content"} and isinstance(content, list | tuple):
            message["content"] = [_without_none(part) for part in content]
    if not plain or not all(map(_is_plain, plain)):
        raise ValueError(
            f"{where} has the prompt {prompt!r:.300}, expected messages of role and content alone, with strings as "
            'content, or parts of text, and in messages of the user {"type": "image"}. Fix: move images themselves '
            "into the column `images`."
        )
    return text_messages(plain)


def conversation(value: Any) -> Any:
    """Convert messages in the forms of TRL, ms-swift and LLaVA to `role` and `content`, a string.

    A question with its answer in one record, as The Cauldron has it, becomes two messages.

    Parts become one string with `<image>` for each image. What has another form is left as it is.

    Args:
        value: a list of messages; anything else is returned.
    """
    return [_message(turn) for message in value for turn in _turns(message)] if isinstance(value, list) else value


def images_inside(value: Any) -> list[Any]:
    """The images inside the parts of messages, in order.

    Parts are {"type": "image", "image": …}, or OpenAI's {"type": "image_url", "image_url": {"url": …}}.
    """
    messages = value if isinstance(value, list) else []
    contents = [_without_none(message).get("content") for message in messages]
    parts = [_without_none(part) for content in contents if isinstance(content, list) for part in content]
    return [image for part in parts if (image := _image_of(part)) is not None]


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


def _turns(message: Any) -> list[Any]:
    """The two messages of {"user": …, "assistant": …}, as The Cauldron and FineVision have them, or of ms-swift's
    {"human": …, "assistant": …}; any other message as it is."""
    fields = _without_none(message)
    asker = "human" if "human" in fields else "user"
    if not {asker, "assistant"} <= fields.keys() <= {asker, "assistant", "source"}:
        return [message]
    return [{"role": role, "content": fields[name]} for role, name in (("user", asker), ("assistant", "assistant"))]


def _message(message: Any) -> Any:
    fields = _without_none(message)
    if fields.keys() == {"from", "value"}:
        fields = {"role": _SPEAKERS.get(str(fields["from"]), fields["from"]), "content": fields["value"]}
    content = fields.get("content")
    texts = [_part_text(_without_none(part)) for part in content] if isinstance(content, list) else [None]
    if None not in texts:
        fields["content"] = "".join(map(str, texts))
    return fields or message


def _image_of(part: Mapping[str, Any]) -> Any:
    """The image of a part; `None` if it has none."""
    if part.get("type") == "image":
        return part.get("image")
    url = part.get("image_url") if part.get("type") == "image_url" else None
    return url.get("url") if isinstance(url, Mapping) else url


def _part_text(part: Mapping[str, Any]) -> Any:
    """A part as a string; `None` if it is neither text nor an image."""
    if part.get("type") == "image" and part.keys() <= {"type", "image"}:
        return PLACEHOLDER
    if part.get("type") == "image_url" and _image_of(part) is not None:
        return PLACEHOLDER
    return part["text"] if part.keys() == {"type", "text"} and part["type"] == "text" else None


def _is_question(message: Mapping[str, Any]) -> bool:
    return message["role"] == "user" and isinstance(message.get("content"), str)


def _parts_of(text: str) -> list[dict[str, str]]:
    """A text in parts, one of an image for each `<image>`."""
    parts = []
    for number, between in enumerate(text.split(PLACEHOLDER)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": between}] if between else []
    return parts or [{"type": "text", "text": ""}]


def _marked_text(content: Any) -> str:
    """The text of a message's content, with `<image>` for each image."""
    if isinstance(content, str):
        return content
    return "".join(PLACEHOLDER if part["type"] == "image" else part.get("text") or "" for part in content)


def _images_come_first(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no image among the parts of messages stands behind text of a user."""
    is_asked = False
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else [{"type": "text"}]:
            if is_asked and part["type"] == "image":
                return False
            is_asked |= message["role"] == "user" and part["type"] == "text"
    return True


def _is_plain(message: Mapping[str, Any]) -> bool:
    """Whether a message has only text, and places of images if it is the user's."""
    if message.keys() != {"role", "content"} or not isinstance(message["content"], str | list | tuple):
        return False
    parts = message["content"] if not isinstance(message["content"], str) else []
    is_text = [part.keys() == {"type", "text"} and part["type"] == "text" for part in parts]
    is_place = [part == {"type": "image"} and message["role"] == "user" for part in parts]
    return all(map(max, is_text, is_place))


def _without_none(keys: Any) -> dict[str, Any]:
    """The keys of a message or part without `None`, which Arrow adds for keys of other rows."""
    return {key: value for key, value in keys.items() if value is not None} if isinstance(keys, Mapping) else {}


_PARTS = "a list of {'type': 'text', 'text': …} and {'type': 'image', 'image': a PIL image}"


def checked_message(message: Any) -> dict[str, Any]:
    """A copy of what the user says after an answer, as `next_message` returns it.

    Args:
        message: role "user" and content: text, or parts such as `{"type": "image", "image": image}` and
            `{"type": "text", "text": "Look closer."}`.

    Raises:
        ValueError: it has another form, or an image has a shape that models do not take.
    """
    expected = f"expected {{'role': 'user', 'content': …}} with a string, or {_PARTS}"
    if not isinstance(message, Mapping) or message.keys() != {"role", "content"} or message["role"] != "user":
        raise ValueError(f"next_message returned {message!r:.200}; {expected}.")
    if isinstance(message["content"], str):
        return dict(message)
    parts: list[Any] = message["content"] if isinstance(message["content"], list) else [None]
    return {"role": "user", "content": checked_content(parts, "next_message")}


def checked_content(parts: Sequence[Any], source: str) -> list[dict[str, Any]]:
    """A copy of a message's parts.

    Args:
        parts: as in `checked_message`.
        source: what returned them, for errors.

    Raises:
        ValueError: as `checked_message`.
    """
    for part in parts:
        fields = part if isinstance(part, Mapping) else {}
        is_text = fields.get("type") == "text" and isinstance(fields.get("text"), str)
        if not is_text and not (fields.get("type") == "image" and hasattr(fields.get("image"), "getexif")):
            raise ValueError(f"{source} returned content with {part!r:.200}; expected {_PARTS}.")
        if not is_text and (problem := shape_problem(fields["image"])):
            raise ValueError(f"{source} returned an image that {problem}. Fix: a larger part of it, or text instead.")
    return [dict(part) for part in parts]


def shape_problem(image: Any) -> str | None:
    """What keeps image processors from taking a PIL image of this shape; `None` if they take it."""
    width, height = image.size
    if max(width, height, 1) <= _MAX_ASPECT_RATIO * min(width, height):
        return None
    return f"is {width}×{height} pixels; sides may differ by a factor of {_MAX_ASPECT_RATIO} at most"
