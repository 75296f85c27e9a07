"""Convert prompts with images from the trainer's form to vLLM's, and check that the two agree.

A processor expands each image's one placeholder into as many as the image has tokens. vLLM does the same by itself,
so it is given prompts that are not expanded, and what it made of them is compared with the trainer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trl.data_utils import prepare_multimodal_messages

from .chat_template import ids_of_rendered


class PromptMismatch(RuntimeError):
    """vLLM's prompt differs from the trainer's."""


class PromptMemory:
    """The last tokenised prompts with images, before and after expansion of placeholders.

    The ids alone do not tell where one image ends: runs of placeholders may touch, and families put tokens of their
    own around an image. So nothing is collapsed; the prompts are looked up.
    """

    def __init__(self) -> None:
        self._known: list[tuple[list[int], int, list[int]]] = []  # expanded ids, number of images, unexpanded ids

    def keep(self, expanded: Sequence[Sequence[int]], images: Any, unexpanded: Sequence[Sequence[int]]) -> None:
        """Store prompts instead of the previous ones.

        Args:
            expanded: token ids of each prompt as the processor made them.
            images: the images of each, or `None` for a prompt without.
            unexpanded: token ids with one placeholder per image.
        """
        self._known = []
        for ids, row, short in zip(expanded, images, unexpanded, strict=True):
            entry = (list(ids), len(row or []), list(short))
            if row and entry not in self._known:  # prompts come once for every generation
                self._known.append(entry)

    def unexpanded(self, ids: list[int], image_count: int) -> list[int]:
        """Reduce the placeholders in a prompt to one for each image.

        Args:
            ids: token ids of a prompt that was kept, or of one that continues it with text, such as a second turn.
            image_count: number of its images.

        Raises:
            PromptMismatch: no such prompt was kept.
        """
        if not image_count:
            return ids
        matches = [(own, short) for own, count, short in self._known if count == image_count and ids[: len(own)] == own]
        if not matches:
            raise PromptMismatch(
                f"vLLM is to answer a prompt of {len(ids)} tokens with {image_count} image(s), but the trainer has "
                "tokenised none that it begins with. Images have to come with the prompt, not with a tool's result."
            )
        own, short = max(matches, key=lambda pair: len(pair[0]))
        return [*short, *ids[len(own) :]]


def unexpanded_prompts(trainer: Any, prompts: Sequence[Any]) -> list[list[int]]:
    """Tokenise prompts as the trainer's processor does, but leave one placeholder for each image."""
    processor = trainer.processing_class
    texts = processor.apply_chat_template(
        conversation=[prepare_multimodal_messages(prompt) for prompt in prompts],
        tools=trainer.tools or None,
        chat_template=trainer.chat_template,
        add_generation_prompt=True,
        tokenize=False,
        **trainer.chat_template_kwargs,
    )
    return ids_of_rendered(processor, texts)


def compare_prompts(expected: Sequence[Sequence[int]], read: Sequence[Sequence[int]]) -> None:
    """Compare the trainer's prompts with those that vLLM read.

    Args:
        expected: token ids of each prompt, its images' placeholders expanded, as the training pass sees them.

    Raises:
        PromptMismatch: they differ.
    """
    for row, (own, other) in enumerate(zip(expected, read, strict=True)):
        own, other = list(own), list(other)
        if own == other:
            continue
        where = next((i for i, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), len(own))
        raise PromptMismatch(
            f"vLLM generated from a different prompt than the trainer's: row {row} has {len(own)} tokens in the "
            f"trainer and {len(other)} in vLLM; they differ from token {where} on. vLLM expands images with the "
            "processor saved beside the model. Fix: train with that one, pixel limits included, or save yours there."
        )


def find_images(prompt_ids: Sequence[int], image_token_id: int, lengths: Sequence[int]) -> list[dict[str, int]]:
    """Find each image's placeholders in a prompt.

    Args:
        prompt_ids: token ids of a prompt with expanded placeholders.
        image_token_id: the placeholder.
        lengths: placeholders that each image has, in order. Images may stand side by side.

    Returns:
        Offset and length of each image.

    Raises:
        PromptMismatch: the prompt has other placeholders than these.
    """
    places: list[dict[str, int]] = []
    position = 0
    for length in lengths:
        while position < len(prompt_ids) and prompt_ids[position] != image_token_id:
            position += 1
        places.append({"offset": position, "length": length})
        position += length
    own = sum(token == image_token_id for token in prompt_ids)
    covered = [token for place in places for token in prompt_ids[place["offset"] : place["offset"] + place["length"]]]
    if own != sum(lengths) or covered != [image_token_id] * own:
        raise PromptMismatch(
            f"The vLLM server makes other placeholders of a prompt's images than the trainer: {list(lengths)}, "
            f"{sum(lengths)} in all, where the trainer's prompt has {own}. The server expands images with the "
            "processor saved beside its model. Fix: train with that one, pixel limits included, or save yours there."
        )
    return places
