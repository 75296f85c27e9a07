"""The prompts of a rollout, each tokenised once, though its whole group has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from trl.data_utils import prepare_multimodal_messages

from ..data.images import IMAGE_COLUMNS, images_of
from ..generation.batch import Prompt, joined_images

Tokenized = tuple[list[list[int]], list[Any] | None, dict[str, Any]]
"""Prompt ids, images and multimodal fields of some rows, as TRL has them."""


class GroupPrompts:
    """Tokenised prompts of a rollout, in the place of TRL's multimodal fields.

    Attributes:
        place: of each row, which of the distinct prompts it has.
    """

    def __init__(self, encode: Callable[[Any], tuple[Prompt, list[Any]]], prompts: Sequence[Any]) -> None:
        """Tokenise each run of equal prompts once.

        Args:
            encode: gives a prompt's tokens and its images.
            prompts: of each row; the rows of a group are consecutive.
        """
        self.place: list[int] = []
        self._tokenized: list[Prompt] = []
        self._images: list[Any] = []
        for prompt, rows in groupby(prompts):
            self.place += [len(self._tokenized) for _ in rows]
            encoded, images = encode(prompt)
            self._tokenized.append(encoded)
            self._images.append(images)

    @property
    def names(self) -> set[str]:
        """Names of the fields."""
        return {name for prompt in self._tokenized for name in (*prompt.token_fields, *prompt.image_fields)}

    def without_fields(self) -> tuple[list[list[int]], list[Any] | None]:
        """Prompt ids and images of all rows."""
        ids, images, _ = self.rows(range(len(self.place)), fields=False)
        return ids, images

    def distinct(self) -> Tokenized:
        """Each distinct prompt as one row."""
        return joined(self._tokenized, self._images)

    def rows(self, rows: Sequence[int], *, fields: bool = True) -> Tokenized:
        """Some rows of the rollout, with the multimodal fields or without."""
        places = [self.place[row] for row in rows]
        prompts, images = [self._tokenized[place] for place in places], [self._images[place] for place in places]
        return joined(prompts, images) if fields else joined([Prompt(each.ids, {}, {}) for each in prompts], images)

    def prompt(self, row: int) -> Prompt:
        """The prompt of a row."""
        return self._tokenized[self.place[row]]


def joined(prompts: Sequence[Prompt], images: Sequence[Any]) -> Tokenized:
    """Prompts as TRL has them.

    Args:
        images: the images of each, `None` or empty without.
    """
    fields: dict[str, Any] = dict(joined_images(prompts))
    for name in dict.fromkeys(name for prompt in prompts for name in prompt.token_fields):
        # A row that says nothing of its tokens has only text, type 0.
        fields[name] = [list(prompt.token_fields.get(name, [0] * len(prompt.ids))) for prompt in prompts]
    return [list(prompt.ids) for prompt in prompts], [each or None for each in images] if any(images) else None, fields


def images_in_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose images stand in its prompt, as TRL puts them there, and in no column."""
    images, prompt = images_of(row), row["prompt"]
    if images and isinstance(prompt, str):
        return dict(row)  # which TRL refuses
    others = {name: value for name, value in row.items() if name not in IMAGE_COLUMNS}
    return {**others, "prompt": prepare_multimodal_messages(prompt, images=images) if images else prompt}
