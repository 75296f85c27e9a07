"""An image is the same to a model in every form and on every way to it, and so is no image."""

import base64
import shutil

import PIL.Image
import pytest
import torch
from datasets import Dataset, Features, Image, List
from every_trainer import REFLECTION, TRAINERS, make, rows_of, saved_base
from image_kinds import make_frames, make_images
from support import adapo_trainer, full_but, load, prepared_batch, sft_trainer

from trl_mmreason.data.images import data_url, images_of, plain_image
from trl_mmreason.data.row_loading import load_rows
from trl_mmreason.generation.batch import encode
from trl_mmreason.generation.engine import Request
from trl_mmreason.generation.vllm_engine import prompt_of


def test_every_form_of_an_image_gives_the_same_pixels(tmp_path):
    for name, expected in make_images(tmp_path).items():
        path = tmp_path / name
        content = path.read_bytes()
        encoded = base64.b64encode(content).decode()
        forms = [path, str(path), content, {"bytes": content, "path": None}, {"bytes": None, "path": str(path)}]
        forms += [
            PIL.Image.open(path),
            plain_image(PIL.Image.open(path)),
            f"data:image/png;base64,{encoded}",
            encoded,
        ]
        opened = images_of({"images": forms}) + images_of({"images": [data_url(PIL.Image.open(path))]})
        for image in opened:
            assert (image.mode, image.size) == ("RGB", (2, 1)), name
            assert [image.getpixel((x, 0)) for x in range(2)] == expected, name
        assert plain_image(opened[0]) is opened[0]


def test_of_several_frames_the_one_that_is_meant_must_be_copied(tmp_path):
    for name in make_frames(tmp_path):
        path = tmp_path / name
        opened = PIL.Image.open(path)
        stored = Dataset.from_dict({"images": [[str(path)]]}, features=Features({"images": List(Image())}))
        for form in (path, path.read_bytes(), {"bytes": None, "path": str(path)}, opened, stored[0]["images"][0]):
            with pytest.raises(ValueError, match="it has 2 frames or pages"):
                images_of({"images": [form]})
        opened.seek(1)
        (image,) = images_of({"images": [opened.copy()]})
        assert image.getpixel((0, 0))[2] > 200  # blue


def test_an_image_whose_file_is_closed_is_read(tmp_path):
    for name in make_images(tmp_path):
        with PIL.Image.open(tmp_path / name) as image:
            image.load()
        assert plain_image(image).size == (2, 1)


@pytest.fixture
def sideways(tmp_path):
    """The path of a tall image, red above and blue below, that is to be shown after a quarter turn."""
    image = PIL.Image.new("RGB", (56, 112), "red")
    image.paste("blue", (0, 56, 56, 112))
    exif = PIL.Image.Exif()
    exif[PIL.Image.ExifTags.Base.Orientation] = 8
    image.save(tmp_path / "sideways.png", exif=exif)
    return tmp_path / "sideways.png"


def test_an_opened_image_is_upright_in_training_and_in_every_engine(checkpoints, tmp_path, sideways):
    question = [{"role": "user", "content": "Which is red?"}]
    _, processor = load(checkpoints("qwen2_5_vl"))
    expected = encode(processor, question, [plain_image(PIL.Image.open(sideways))]).image_fields
    assert expected["image_grid_thw"].tolist() == [[1, 4, 8]]  # wide

    def assert_same(fields):
        for name, values in expected.items():
            torch.testing.assert_close(torch.as_tensor(fields[name])[: len(values)], values)

    opened = PIL.Image.open(sideways)
    assert_same(encode(processor, question, [opened]).image_fields)
    assert prompt_of(processor, Request(question, [opened]), {})["multi_modal_data"]["image"][0].size == (112, 56)
    rows = [{"prompt": question, "answer": "7"}] * 8
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    parts = [{"type": "image", "image": opened}, {"type": "text", "text": "Which is red?"}]
    for shown in ({"images": [opened]}, {"prompt": [{"role": "user", "content": parts}]}):
        assert_same(prepared_batch(trainer, [{**row, **shown} for row in rows])["fields"][0]["image"])
    learnt = {"prompt": question, "completion": [{"role": "assistant", "content": REFLECTION.format("b")}]}
    supervised = sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, [learnt])
    assert_same(supervised.data_collator([{**learnt, "images": [opened]}]))


NONE = [[None], None, []]


@pytest.mark.parametrize("name", full_but("ReflectionSFTTrainer", TRAINERS))
def test_every_form_of_no_image_trains_alike(tmp_path, name):
    """The rows of a trainer whose third ones have no image, which another data set says in three ways."""
    base, losses = saved_base("qwen2_5_vl", tmp_path / "base"), []
    for none in (NONE, [[]] * len(NONE)):
        rows = rows_of(name).to_list()
        for place, row in enumerate(rows):
            image = PIL.Image.new("RGB", (56, 56), (place, 0, 0))
            row["images"] = [image] if place % 3 else none[place // 3 % len(NONE)]
        features = {**rows_of(name).features, "images": List(Image())}
        dataset = Dataset.from_list(rows, features=Features(features))
        torch.manual_seed(0)
        trainer = make(name, base, tmp_path / "run", rows=dataset, max_steps=1)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert losses[0] == losses[1] != []


def test_every_form_of_no_image_is_read_alike(tmp_path):
    rows = [{"prompt": "p", "answer": "a", "images": images} for images in NONE]
    Dataset.from_list(rows).to_parquet(tmp_path / "r.parquet")
    (tmp_path / "r.csv").write_text("prompt,answer,image\np,a,\n")
    for source in (Dataset.from_list(rows), tmp_path / "r.parquet", tmp_path / "r.csv"):
        loaded = load_rows(source)
        assert loaded.problems == []
        assert all(row["images"] == [] for row in loaded.dataset)
