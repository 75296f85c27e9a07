import pytest
import torch
from PIL import Image
from support import load
from trl.data_utils import prepare_multimodal_messages

from trl_mmreason.miniature.models import FAMILIES, SIZES, build_model

CLASSES = {
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "internvl": "InternVLForConditionalGeneration",
    "llava_next": "LlavaNextForConditionalGeneration",
}


@pytest.mark.parametrize("size", ["test", "demo"])
def test_saved_and_reloaded_like_any_checkpoint(family, size, tmp_path):
    for saved in build_model(family, size, seed=3):
        saved.save_pretrained(tmp_path)
    built, _ = build_model(family, size, seed=3)
    model, processor = load(str(tmp_path))
    assert type(model).__name__ == CLASSES[family]
    assert processor.tokenizer.padding_side == "left"
    for name, weight in built.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, atol=0, rtol=0)


def test_images_of_any_shape_get_their_placeholders(family, checkpoints):
    model, processor = load(checkpoints(family))
    images = [Image.new("RGB", size, "red") for size in ((56, 56), (112, 56), (70, 200))]
    prompts = [prepare_multimodal_messages([{"role": "user", "content": "?"}], images=[image]) for image in images]
    inputs = processor.apply_chat_template(
        prompts, tokenize=True, return_dict=True, padding=True, return_tensors="pt", add_generation_prompt=True
    )
    assert (inputs["input_ids"] == model.config.image_token_id).sum(dim=1).min() >= 4
    with torch.no_grad():
        logits = model(**inputs).logits  # raises when placeholders and features differ in number
    assert logits.isfinite().all()


def test_any_text_can_be_encoded_and_numbers_are_split_into_digits(family, checkpoints):
    _, processor = load(checkpoints(family))
    tokenizer = processor.tokenizer
    text = "größer 三角形 12345 \\boxed{7}\n"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    digits = tokenizer("12345", add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode([token]) for token in digits] == list("12345")


def test_the_seed_decides_the_weights_and_leaves_the_global_stream_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    one, two, other = (build_model("qwen2_5_vl", seed=seed)[0] for seed in (0, 0, 1))
    assert torch.rand(1) == expected
    first, second, third = (next(model.parameters()) for model in (one, two, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_the_study_size_is_larger_than_the_demo():
    sizes = {size: sum(p.numel() for p in build_model("qwen2_5_vl", size)[0].parameters()) for size in SIZES}
    assert sizes["test"] < sizes["demo"] < 500_000 < 5_000_000 < sizes["study"]


@pytest.mark.parametrize(("family", "size", "named"), [("gpt2", "test", "gpt2"), ("internvl", "huge", "huge")])
def test_unknown_names_are_refused(family, size, named):
    with pytest.raises(ValueError, match=f"unknown .*{named}.*expected one of"):
        build_model(family, size)


def test_all_five_families_are_there():
    assert FAMILIES.keys() == CLASSES.keys()
