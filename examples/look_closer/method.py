"""A method of several turns: the policy may ask to look closer at a part of the image before it answers.

It writes "look closer at x0 y0 x1 y1", in pixels of the image as it sees it, and is shown this part of the original,
which has more pixels. Only the answers that it writes carry loss; the crops are what the user says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from trl_mmreason import GroupGRPOTrainer
from trl_mmreason.data.images import images_of
from trl_mmreason.grading import accuracy_reward

REQUEST = re.compile(r"look closer at (\d{1,5}) (\d{1,5}) (\d{1,5}) (\d{1,5})")
LONGEST = 100  # times the shorter side; some processors refuse longer images
NO_SUCH_PART = "There is no such part. Answer."

Box = tuple[int, int, int, int]


def requested_box(answer: str) -> Box | None:
    """The box that an answer asks to see, in pixels of the image as the model sees it; `None` without a request."""
    found = REQUEST.findall(answer)
    return tuple(map(int, found[-1])) if found else None  # type: ignore[return-value]


def seen_size(processor: Any, image: Image.Image) -> tuple[int, int]:
    """Width and height of an image as the model sees it, after its processor has resized it."""
    processed = processor.image_processor(images=[image], return_tensors="pt")
    if "image_grid_thw" in processed:  # in patches
        _, height, width = processed["image_grid_thw"][0].tolist()
        patch = processor.image_processor.patch_size
        return width * patch, height * patch
    return processed["pixel_values"].shape[-1], processed["pixel_values"].shape[-2]  # of each tile


def crop(image: Image.Image, box: Box, seen: tuple[int, int]) -> Image.Image | None:
    """The box of the original image; `None` if there is no pixel in it, or a line alone.

    Args:
        image: the original.
        box: left, top, right and bottom in an image of the size `seen`.
    """
    scale = image.width / seen[0], image.height / seen[1]
    corners = [round(value * scale[number % 2]) for number, value in enumerate(box)]
    left, top = (max(corners[axis], 0) for axis in (0, 1))
    right, bottom = min(corners[2], image.width), min(corners[3], image.height)
    sides = right - left, bottom - top
    if min(sides) < 1 or max(sides) > LONGEST * min(sides):
        return None
    return image.crop((left, top, right, bottom))


class LookCloserTrainer(GroupGRPOTrainer):
    """GRPO with the accuracy of the last answer as reward; at most `looks` crops come before it.

    Args:
        model: path or id of a checkpoint, or a model.
        args: a `RolloutConfig`.
        looks: how often the policy may look closer; 0 is GRPO.
        **kwargs: whatever `GroupGRPOTrainer` takes.
    """

    _tag_names = ["trl", "trl-mmreason", "look-closer"]
    _name = "Look closer"

    def __init__(self, model: Any, *, args: Any, looks: int = 1, **kwargs: Any) -> None:
        super().__init__(model, [accuracy_reward], args, max_turns=1 + looks, **kwargs)

    def next_message(self, row: Mapping[str, Any], answers: Sequence[str]) -> Mapping[str, Any] | None:
        return looked_at(self.processing_class, row, answers[-1])

    def log_rollouts(self, *rollout: Any) -> None:
        """Log `looks`: how often a trajectory looked closer, in the mean."""
        looks = [float(len(each.said)) for each in self.trajectories]
        self._metrics["train" if self.model.training else "eval"]["looks"].append(sum(looks) / len(looks))


def looked_at(processor: Any, row: Mapping[str, Any], answer: str) -> dict[str, Any] | None:
    """The message that shows what an answer asks to see; `None` if it asks for nothing.

    Args:
        processor: the policy's.
        row: a row of the data set; its first image is looked at.
        answer: the policy's last answer.
    """
    box, images = requested_box(answer), images_of(row)
    if box is None or not images:
        return None
    part = crop(images[0], box, seen_size(processor, images[0]))
    if part is None:
        return {"role": "user", "content": NO_SUCH_PART}
    return {"role": "user", "content": [{"type": "image", "image": part}, {"type": "text", "text": "Here."}]}
