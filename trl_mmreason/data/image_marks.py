"""Numbered marks of images, such as `<image1>`, as `<image>` or in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..messages import PLACEHOLDER

_NUMBERED = re.compile(r"<image[ _]?(\d{1,2})>", re.IGNORECASE)


def with_usual_marks(messages: Sequence[Mapping[str, Any]], image_count: int | None) -> list[dict[str, Any]]:
    """Write numbered marks in the user's texts as `<image>`, or in words.

    - The first `<image1>`, `<image 1>` or `<image_1>` of each image is its place, if all have one, in their order.
    - Others become "image 1". Where no mark is a place, the images come first, or stand at `<image>`.

    Args:
        messages: messages with `role` and `content`; other contents than strings are left as they are.
        image_count: number of the row's images; None if they cannot be read, and then no mark is a place.
    """
    texts = [message["content"] for message in messages if _is_users_text(message)]
    numbers = [int(match[1]) for text in texts for match in _NUMBERED.finditer(text)]
    plain = sum(text.count(PLACEHOLDER) for text in texts)
    if image_count is not None and any(not 1 <= number <= image_count for number in numbers):
        return [dict(message) for message in messages]  # what is wrong is reported where marks are checked
    unplaced = set(numbers) if not plain and [*dict.fromkeys(numbers)] == [*range(1, (image_count or 0) + 1)] else set()

    def name(match: re.Match[str]) -> str:
        number = int(match[1])
        if number in unplaced:
            unplaced.remove(number)
            return PLACEHOLDER
        return f"image {number}"

    return [
        {**message, "content": _NUMBERED.sub(name, message["content"])} if _is_users_text(message) else dict(message)
        for message in messages
    ]


def _is_users_text(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "user" and isinstance(message.get("content"), str)
