"""Fields of images are joined along the dimension that a processor's own batches grow by."""

import pytest
import torch
from all_families import FAMILIES
from support import drawn_rows

from trl_mmreason.data.images import images_of
from trl_mmreason.generation.batch import collate, encode
from trl_mmreason.generation.image_fields import concatenate, image_axes


@pytest.mark.parametrize("family", ["internvl", "idefics3", "minicpmv4_6", "llava_next"])
def test_the_dimension_is_found_by_trying_it(family):
    _, processor = FAMILIES[family]()
    assert image_axes(processor) == ({"pixel_values": 3} if family == "minicpmv4_6" else {})


def test_a_tokenizer_has_no_images():
    _, tokenizer = FAMILIES["qwen3"]()
    assert image_axes(tokenizer) == {}


def test_rows_join_as_the_processor_joins_them():
    """MiniCPM-V lays images of a batch side by side in one, and rows of ours in the same way."""
    _, processor = FAMILIES["minicpmv4_6"]()
    rows = [row for row in drawn_rows(9) if row["images"]][:3]
    prompts = [encode(processor, row["prompt"], images_of(row)) for row in rows]
    joined = collate(prompts, 0)
    own = processor.image_processor(images=[image for row in rows for image in images_of(row)], return_tensors="pt")
    assert torch.equal(joined["pixel_values"], own["pixel_values"])
    assert torch.equal(joined["target_sizes"], own["target_sizes"])
    longer = prompts[0].extended([5]).followed_by(prompts[1])
    assert torch.equal(collate([longer, prompts[2]], 0)["pixel_values"], own["pixel_values"])


def test_padding_stands_behind_the_other_dimensions():
    parts = [torch.ones(1, 2, 3), torch.full((2, 1, 1), 2)]
    assert concatenate(parts, axis=2)[1].tolist() == [[0, 0, 0, 2], [0, 0, 0, 0]]
    assert concatenate(parts, padding=9)[2].tolist() == [[2, 9, 9], [9, 9, 9]]
