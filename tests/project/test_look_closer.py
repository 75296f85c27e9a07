"""The method of examples/look_closer: what a policy asks for, and what it is shown."""

import sys
from pathlib import Path

import pytest
from datasets import Dataset
from PIL import Image
from support import SMALL_RUN, drawn_rows, full_but, images_shown, load, prepared_batch, written_by_hand

from trl_mmreason import RolloutConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "look_closer"))

from method import NO_SUCH_PART, LookCloserTrainer, crop, looked_at, requested_box, seen_size
from train import CORNERS, IMAGE, PATTERNS, SIDE, SQUARE, asks_for, draw


def test_a_request_is_read():
    assert requested_box("I look closer at 1 2 30 40. look closer at 5 6 7 8") == (5, 6, 7, 8)  # the last one
    assert requested_box("look closer at 1 2 3") is None


def test_a_crop_has_the_pixels_of_the_original():
    image = Image.new("RGB", (80, 40))
    image.putpixel((20, 10), (255, 0, 0))
    part = crop(image, (10, 10, 15, 20), seen=(40, 40))  # twice as wide as seen
    assert part.size == (10, 10)
    assert part.getpixel((0, 0)) == (255, 0, 0)
    assert crop(image, (30, 30, 90, 90), seen=(40, 40)).size == (20, 10)  # cut at the edges
    assert crop(image, (15, 10, 10, 20), seen=(40, 40)) is None
    assert crop(image, (50, 0, 60, 10), seen=(40, 40)) is None


@pytest.mark.parametrize("letter", PATTERNS)
def test_a_mark_can_be_read_in_the_crop_alone(letter):
    whole = draw(letter, CORNERS[3], 255).resize((IMAGE, IMAGE), Image.Resampling.BOX)
    side = SQUARE * IMAGE // SIDE
    assert whole.crop((IMAGE - side,) * 2 + (IMAGE,) * 2).getcolors() == [(side * side, (128, 128, 128))]
    found = crop(draw(letter, CORNERS[3], 255), requested_box(asks_for(CORNERS[3])), (IMAGE, IMAGE))
    assert found.size == (SQUARE, SQUARE)
    assert [found.getpixel((x, 1))[0] == 0 for x in range(4)] == [PATTERNS[letter](x, 1) for x in range(4)]


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", ["qwen2_5_vl", "qwen3_vl", "internvl", "llava_next"]))
def test_a_rollout_shows_what_is_asked_for(checkpoints, tmp_path, family):
    rows = drawn_rows(2)[:1]
    settings = {**SMALL_RUN, "max_completion_length": 40, "per_device_train_batch_size": 4}
    args = RolloutConfig(str(tmp_path), **settings)
    trainer = LookCloserTrainer(checkpoints(family), args=args, looks=2, train_dataset=Dataset.from_list(rows))
    _, processor = load(checkpoints(family))
    width, height = seen_size(processor, rows[0]["images"][0])
    ask = f"look closer at 0 0 {width // 2} {height // 2}"
    written_by_hand(trainer, [ask, "look closer at 9 9 9 9", r"\boxed{7}", ask])
    batch = prepared_batch(trainer, rows * 4)
    shown, refused, answered, again = trainer.trajectories
    # the second turn has three rows, which write the first three texts
    assert [len(each.turns) for each in (shown, answered, again)] == [3, 1, 2]
    assert refused.messages[1]["content"] == NO_SUCH_PART
    assert shown.images[1].size == (rows[0]["images"][0].width // 2, rows[0]["images"][0].height // 2)
    assert images_shown(batch) == [len(each.images) for each in trainer.trajectories]
    assert trainer._metrics["train"]["looks"] == [sum(len(each.said) for each in trainer.trajectories) / 4]


def test_nothing_is_shown_without_an_image(processor):
    assert looked_at(processor, {"images": []}, "look closer at 0 0 9 9") is None
