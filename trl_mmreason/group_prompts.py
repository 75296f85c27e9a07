"""The prompts of a rollout, each tokenised once, though its whole group has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from .sampling.generation import Prompt, joined_pictures, prompt_of

Tokenized = tuple[list[list[int]], list[Any] | None, dict[str, Any]]
"""Prompt ids, pictures and multimodal fields of some rows, as TRL has them."""


class GroupPrompts:
    """Tokenised prompts, in the place of TRL's multimodal fields.

    Attributes:
        place: of each row, which of the distinct prompts it has.
    """

    def __init__(self, tokenize: Callable[[list], tuple], prompts: Sequence[Any]) -> None:
        """Tokenise each run of equal prompts once.

        Args:
            tokenize: TRL's `_tokenize_prompts`.
            prompts: of each row; the rows of a group are consecutive.
        """
        self._distinct: list[Prompt] = []
        self._images: list[Any] = []
        self.place: list[int] = []
        for prompt, rows in groupby(prompts):
            self.place += [len(self._distinct) for _ in rows]
            (ids,), images, fields = tokenize([prompt])
            self._distinct.append(prompt_of(ids, fields))
            self._images.append(images and images[0])

    @property
    def names(self) -> set[str]:
        """Names of the fields."""
        return {name for prompt in self._distinct for name in (*prompt.token_fields, *prompt.picture_fields)}

    def distinct(self) -> Tokenized:
        """Each distinct prompt as one row."""
        return self._joined(range(len(self._distinct)))

    def rows(self, rows: Sequence[int]) -> Tokenized:
        """Some rows of the rollout."""
        return self._joined([self.place[row] for row in rows])

    def __len__(self) -> int:
        return len(self.place)

    def _joined(self, places: Sequence[int]) -> Tokenized:
        prompts = [self._distinct[place] for place in places]
        images = [self._images[place] for place in places]
        fields: dict[str, Any] = dict(joined_pictures(prompts))
        for name in dict.fromkeys(name for prompt in prompts for name in prompt.token_fields):
            # A row that says nothing of its tokens has only text, type 0.
            fields[name] = [list(prompt.token_fields.get(name, [0] * len(prompt.ids))) for prompt in prompts]
        return [list(prompt.ids) for prompt in prompts], images if any(images) else None, fields
