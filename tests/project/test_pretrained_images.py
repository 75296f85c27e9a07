"""The pretrained example with images, with a tiny random Llama in place of the published one and drawn scans."""

import gzip
import json
import sys
from itertools import islice
from random import Random

import numpy as np
import pytest
import torch
from datasets import Dataset
from example_runs import ROOT, load_example, start
from text_reasoners import saved_reasoner
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.scripts.refusals import WrongArgument
from trl_mmreason.training.model_card import EVALUATIONS

sys.path.append(str(ROOT / "examples"))  # where its own import finds the other example, as it does when it is run
EXAMPLE = load_example("pretrained_images")
INK, BLANK = (EXAMPLE.Pen(np.full((20, 8, 8), ink), np.arange(20) % 10) for ink in (1.0, 0.0))


@pytest.fixture
def seeing(tmp_path):
    """A model with a vision tower, its processor, and the folder of its language model."""
    folder = saved_reasoner("llama", tmp_path / "model")
    return *EXAMPLE.with_vision(folder), folder


def colours(image):
    return {tuple(colour) for colour in np.asarray(image).reshape(-1, 3)}


def test_numbers_of_the_comparison_are_in_no_other_row_and_the_answer_is_theirs():
    test, train = (list(islice(EXAMPLE.drawn_problems(0, test=test), 500)) for test in (True, False))
    assert not {one.numbers for one in test} & {one.numbers for one in train}
    for one in (*test, *train):
        a, b = one.numbers
        assert a >= b
        assert one.answer == (a + b if "sum" in one.question else a - b)


def test_an_image_is_of_handwriting_or_of_print():
    images = [INK.image((71, 23), Random(seed)) for seed in range(200)]
    assert {image.size for image in images} == {(EXAMPLE.SIDE, EXAMPLE.SIDE)}
    # a scan full of ink is a square, of at most some 24 * 24 of the 28 * 28 points of its cell; print leaves more paper
    paper = [np.asarray(image).reshape(-1, 3).max(axis=1) >= 200 for image in images]
    by_hand = sum(each.mean() < 0.7 for each in paper)
    assert 72 < by_hand < 128  # 100, four standard deviations of 7


def test_scans_of_the_comparison_are_shown_there_only(tmp_path):
    """Those of the comparison are blank here, those of training are not: a blank image has one colour."""
    numbers = {"sft_rows": 30, "reflection_rows": 30, "train_rows": 30, "test_rows": 30}
    EXAMPLE.write_rows(EXAMPLE.ImageArguments(str(tmp_path), **numbers), {False: INK, True: BLANK})
    blank = {}
    for name in ("sft", "reflections", "train", "test"):
        rows = Dataset.from_parquet(str(tmp_path / f"images_{name}.parquet"), cache_dir=str(tmp_path / "cache"))
        blank[name] = sum(len(colours(row["images"][0])) == 1 for row in rows)
        assert len(rows) == 30
    assert blank["sft"] == blank["reflections"] == blank["train"] == 0
    assert 4 < blank["test"] < 26  # 15, four standard deviations of 2.7


def test_text_is_read_as_the_language_model_reads_it(seeing):
    model, processor, folder = seeing
    words = [{"role": "user", "content": "What is 3 + 4?"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is 3 + 4?"}]}]
    plain, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    told = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "tokenize": True}
    expected = tokenizer.apply_chat_template(words, **told)
    for content in (words, parts):
        assert torch.equal(processor.apply_chat_template(content, **told)["input_ids"], expected["input_ids"])
    with torch.no_grad():
        ours, theirs = model.eval()(**expected).logits, plain.eval()(**expected).logits
    torch.testing.assert_close(ours[..., : theirs.shape[-1]], theirs)


def test_each_digit_of_an_image_is_a_token_in_reading_order(seeing):
    """A tower that has learnt nothing but where ink is: digits 1 and 4 are blank, and only their tokens stay alike."""
    model, processor, _ = seeing
    pens = [EXAMPLE.Pen(scans, np.arange(10)) for scans in np.zeros((2, 10, 8, 8))]
    pens[1]._scans[7] = np.ones((1, 8, 8))
    model.model.vision_model.encoder.layers = torch.nn.ModuleList()  # no patch sees another
    seed = next(seed for seed in range(20) if Random(seed).random() < 0.5)  # by hand
    with torch.no_grad():
        blank, inked = (EXAMPLE.seen(model, processor, [pen.image((17, 74), Random(seed))])[0] for pen in pens)
    assert ((blank - inked).abs().amax(dim=-1) > 0).tolist() == [False, True, True, False]


def test_the_tower_learns_to_name_digits(seeing):
    model, processor, _ = seeing
    model.get_input_embeddings().weight.data *= 3  # as far apart as those of the published model
    scans = np.zeros((10, 8, 8))
    for digit in range(10):  # a bar at another height and of another thickness
        scans[digit, digit % 5 : digit % 5 + 2 + digit // 5 * 2] = 1
    EXAMPLE.teach_tower(model, processor, pen := EXAMPLE.Pen(scans, np.arange(10)), 60, seed=0)
    rng = Random(1)
    numbers = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(50)]
    with torch.no_grad():
        said = EXAMPLE.seen(model, processor, [pen.image(pair, rng) for pair in numbers])
    ids = processor.tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)])
    named = torch.cdist(said, model.get_input_embeddings().weight[ids]).argmin(-1)
    shown = torch.tensor([[int(digit) for number in pair for digit in str(number)] for pair in numbers])
    assert (named == shown).float().mean() > 0.2  # by chance 0.1, four standard deviations of 200 digits below 0.19


def test_without_the_package_and_without_a_file_the_fix_is_named(tmp_path):
    with pytest.raises(WrongArgument, match="pip install --no-deps scikit-learn, or --digits FILE"):
        EXAMPLE.read_digits(str(tmp_path / "missing.csv.gz"))


@pytest.mark.full
def test_the_commands_leave_trained_policies(tmp_path):
    folder = tmp_path / "prepared"
    saved_reasoner("llama", folder / "model")
    rng = np.random.default_rng(0)
    with gzip.open(tmp_path / "digits.csv.gz", "wt") as file:
        np.savetxt(file, np.c_[rng.integers(0, 17, (1500, 64)), np.arange(1500) % 10], fmt="%d", delimiter=",")
    few = ("--sft_rows", 8, "--reflection_rows", 8, "--train_rows", 4, "--test_rows", 3, "--tower_steps", 2)
    run("pretrained_images", folder, "--digits", tmp_path / "digits.csv.gz", *few)
    small = ["--use_cpu", "true", "--max_steps", 1, "--per_device_train_batch_size", 8, "--warmup_steps", 0]
    for method, rows in (("sft", "images_sft"), ("reflection_sft", "images_reflections")):
        given = ["--model_name_or_path", folder / "model_images", "--dataset_name", folder / f"{rows}.parquet"]
        run(method, tmp_path / method, "--config", ROOT / f"configs/{method}/pretrained_images.yaml", *given, *small)
    rows = ["--dataset_name", folder / "images_train.parquet", "--eval_dataset_name", folder / "images_test.parquet"]
    kept = ["--filter_zero_advantage", "false", "--filter_truncated", "false"]
    for method, start_of, options in (("adapo", "sft", kept), ("grpo", "sft", []), ("srpo", "reflection_sft", [])):
        config = ["--config", ROOT / f"configs/{method}/pretrained_images.yaml", "--learning_rate", 0]
        run(method, tmp_path / method, *config, "--model_name_or_path", tmp_path / start_of, *rows, *small, *options)
        assert (tmp_path / method / "adapter_model.safetensors").exists()
        history = json.loads((tmp_path / method / "trainer_state.json").read_text())["log_history"]
        assert history[0]["completions/mean_length"] > 0
        for moment in ("before", "after"):
            assert read_evaluation(tmp_path / method / EVALUATIONS / moment).results.counts["questions"] == 3


def run(name, folder, *options):
    done = start(name, folder, *options)
    assert done.returncode == 0, done.stderr[-3000:]
