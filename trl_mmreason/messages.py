"""The texts of conversational messages, whose content is a text, or parts where it has pictures."""

from __future__ import annotations

from typing import Any


def text_of(content: Any, between: str = "") -> str:
    """The text of a message's content, without its pictures.

    Args:
        content: a text, or parts with a `type`.
        between: stands between the texts of two parts.
    """
    if isinstance(content, str):
        return content
    return between.join(part["text"] for part in content if part["type"] == "text")


def question_text(prompt: Any) -> str:
    """The text of the first user message of a prompt: the question, without what followed it."""
    if isinstance(prompt, str):
        return prompt
    return text_of(next((message["content"] for message in prompt if message["role"] == "user"), ""), between=" ")
