"""Images that are encoded once: in a pass, and in all while no weight that encodes them is trained."""

import copy
import functools

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from PIL import Image
from support import (
    FAMILY_NAMES,
    SUPERVISED_RUN,
    adapo_trainer,
    assert_weights,
    changed_weights,
    drawn_rows,
    full_but,
    load,
    losses_of,
    prepared_batch,
    srpo_trainer,
    weights_of,
)
from transformers import Ovis2Config, Ovis2ForConditionalGeneration

from trl_mmreason import IterativeDPOConfig, IterativeDPOTrainer, OffPolicyRewardConfig, OffPolicyRewardTrainer
from trl_mmreason.compat import known_images
from trl_mmreason.compat.known_images import encode_images_once, fingerprints
from trl_mmreason.compat.model_parts import freeze_vision_encoder
from trl_mmreason.compat.vision_passes import vision_weights
from trl_mmreason.miniature.models import build_model
from trl_mmreason.training import preparation

FAMILY = "qwen2_5_vl"
QUESTION = {"type": "text", "text": "?"}
LANGUAGE = r".*language_model.*\.(q_proj|v_proj)"


def in_language(**settings):
    return LoraConfig(r=2, target_modules=LANGUAGE, task_type="CAUSAL_LM", init_lora_weights=False, **settings)


def asked_about(processor, *images):
    """Input of one row for each list of images."""
    messages = [
        [
            {
                "role": "user",
                "content": [*({"type": "image", "image": one} for one in row), {"type": "text", "text": "?"}],
            }
        ]
        for row in images
    ]
    inputs = processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt", processor_kwargs={"padding": True}
    )
    return {name: value for name, value in inputs.items() if name != "token_type_ids"}


@pytest.fixture
def drawn():
    return [image for row in drawn_rows(4)[::3] for image in row["images"]] + [Image.new("RGB", (40, 90), "teal")]


def frozen(family):
    model, processor = build_model(family, "test")
    for weight in vision_weights(model):
        weight.requires_grad_(False)
    return model, processor


@pytest.fixture
def encodings(monkeypatch):
    """A function that lists from then on how many images, or tiles, a model encodes at once."""

    def watch(model):
        asked, kind = [], type(model.base_model)
        encode = kind.get_image_features

        @functools.wraps(encode)
        def noted(self, pixel_values, *args, **kwargs):
            if self is model.base_model:
                grids = kwargs.get("image_grid_thw", args[0] if args else None)
                asked.append(len(pixel_values if grids is None else grids))
            return encode(self, pixel_values, *args, **kwargs)

        monkeypatch.setattr(kind, "get_image_features", noted)
        return asked

    return watch


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_logits_and_gradients_are_those_of_images_that_every_row_encodes(family, drawn, encodings):
    (plain, processor), (model, _) = frozen(family), frozen(family)
    one, other, third = drawn
    inputs = asked_about(processor, [one], [one, third], [other], [one])
    encode_images_once(model)
    asked = encodings(model)
    expected = plain(**inputs).logits
    expected.square().mean().backward()
    for _ in range(2):
        model.zero_grad()
        found = model(**inputs).logits
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        found.square().mean().backward()
        for (name, weight), same in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert (weight.grad is None) == (same.grad is None), name
            if weight.grad is not None:
                torch.testing.assert_close(weight.grad, same.grad, atol=1e-5, rtol=0)
    assert asked == [1, 1, 1]  # of the second time nothing
    torch.testing.assert_close(
        model(**asked_about(processor, [third], [other])).logits,
        plain(**asked_about(processor, [third], [other])).logits,
        atol=1e-5,
        rtol=0,
    )
    assert asked == [1, 1, 1]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_trained_encoder_has_the_gradients_of_every_row_although_rows_share_an_image(family, drawn, encodings):
    (plain, processor), (model, _) = build_model(family, "test"), build_model(family, "test")
    one, other, third = drawn
    inputs = asked_about(processor, [one], [one, third], [other], [one])
    encode_images_once(model)
    asked = encodings(model)
    for _ in range(2):
        outputs = []
        for each in (model, plain):
            each.zero_grad()
            outputs.append(each(**inputs).logits)
            outputs[-1].square().mean().backward()
            with torch.no_grad():
                for weight in each.parameters():
                    if weight.grad is not None:
                        weight.sub_(0.1 * weight.grad)
        torch.testing.assert_close(*outputs, atol=1e-5, rtol=0)
        for (name, weight), same in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert (weight.grad is None) == (same.grad is None), name
            if weight.grad is not None:
                torch.testing.assert_close(weight.grad, same.grad, atol=1e-5, rtol=0)
    assert max(weight.grad.abs().max() for weight in vision_weights(model) if weight.grad is not None) > 1e-3
    assert asked == [3, 3]  # of five


def passes(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


def test_only_new_pictures_are_encoded(drawn, encodings):
    model, processor = frozen(FAMILY)
    encode_images_once(model)
    asked = encodings(model)
    one, other, third = drawn
    passes(model, asked_about(processor, [one], [other]))
    passes(model, asked_about(processor, [other], [third], [third]))
    assert asked == [1, 1, 1]
    inputs = asked_about(processor, [one])
    inputs["pixel_values"] = inputs["pixel_values"].clone()
    inputs["pixel_values"][3, 7] += 1e-3  # one number of one patch
    passes(model, inputs)
    assert asked == [1, 1, 1, 1]


def test_with_a_trained_weight_of_the_vision_side_every_pass_encodes_an_image_once(drawn, encodings):
    for family in ("internvl", FAMILY):
        model, processor = frozen(family)
        inputs = asked_about(processor, [drawn[0]], [drawn[0]])
        encode_images_once(model)
        asked = encodings(model)
        vision_weights(model)[-1].requires_grad_(True)  # of the projector
        passes(model, inputs)
        passes(model, inputs)
        assert asked == [1, 1]
        model(**inputs).logits.sum().backward()
        assert vision_weights(model)[-1].grad.abs().sum() > 0


def test_other_weights_forget_what_the_old_ones_gave(drawn, encodings):
    model, processor = frozen(FAMILY)
    inputs = asked_about(processor, [drawn[0]])
    encode_images_once(model)
    asked = encodings(model)
    before = passes(model, inputs)
    other, _ = build_model(FAMILY, "test", seed=1)
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(passes(model, inputs), passes(other, inputs), atol=1e-5, rtol=0)
    assert asked == [1, 1]
    assert not torch.allclose(before, passes(other, inputs), atol=1e-3)


def test_features_have_no_gradient_although_adapters_ask_for_one(drawn):
    """With gradient checkpointing PEFT lets what the encoder reads require one; a kept graph could be used but once."""
    model, processor = frozen(FAMILY)
    model.enable_input_require_grads()
    encode_images_once(model)
    for _ in range(2):
        model(**asked_about(processor, [drawn[0]])).logits.sum().backward()
    assert all(weight.grad is None for weight in vision_weights(model))


def test_processes_encode_together_where_weights_are_sharded(drawn, encodings):
    model, processor = frozen(FAMILY)
    encode_images_once(model)
    asked = encodings(model)
    vision_weights(model)[0].ds_id = 0  # as DeepSpeed marks them
    for _ in range(2):
        passes(model, asked_about(processor, [drawn[0]], [drawn[0]]))
    assert asked == [1, 1]  # a known image would not be encoded at all


def test_features_are_those_of_the_precision_at_hand(drawn):
    (plain, processor), (model, _) = frozen(FAMILY), frozen(FAMILY)
    inputs = asked_about(processor, [drawn[0]])
    encode_images_once(model)
    passes(model, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(passes(model, inputs), passes(plain, inputs))


def test_features_are_the_same_whatever_was_encoded_before(drawn):
    """Bit by bit, as after a resume other images are known than in the run without a break."""
    (together, processor), (alone, _) = frozen(FAMILY), frozen(FAMILY)
    encode_images_once(together)
    encode_images_once(alone)
    passes(together, asked_about(processor, drawn))
    inputs = asked_about(processor, [drawn[2]])
    assert torch.equal(passes(together, inputs), passes(alone, inputs))


def test_a_copy_knows_its_own_images(drawn):
    model, processor = frozen(FAMILY)
    inputs = asked_about(processor, [drawn[0]])
    encode_images_once(model)
    passes(model, inputs)
    other = copy.deepcopy(model)
    with torch.no_grad():
        vision_weights(other)[0].mul_(2)
    assert not torch.allclose(passes(other, inputs), passes(model, inputs), atol=1e-3)


@pytest.mark.parametrize("where", ["encoder", "decoder"])
def test_adapters_on_the_encoder_let_every_pass_encode(where, drawn, encodings):
    model, processor = build_model(FAMILY, "test")
    inputs = asked_about(processor, [drawn[0]], [drawn[0]])
    target = LANGUAGE if where == "decoder" else r".*visual.*\.(q|k|v|qkv)"
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=target, init_lora_weights=False))
    adapted.requires_grad_(False)  # also an adapter that is not trained may be switched off
    encode_images_once(adapted)
    asked = encodings(model)
    with adapted.disable_adapter():
        without = passes(adapted, inputs)
    assert not torch.allclose(passes(adapted, inputs), without, atol=1e-4)
    assert asked == ([1] if where == "decoder" else [2, 2])


def test_a_head_with_an_adapter_is_not_the_vision_sides(drawn, encodings):
    model, processor = build_model(FAMILY, "test")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"], task_type="CAUSAL_LM"))
    encode_images_once(adapted)
    asked = encodings(model)
    passes(adapted, asked_about(processor, [drawn[0]], [drawn[0]]))
    assert asked == [1]


def test_an_encoder_with_dropout_encodes_in_every_pass(drawn, encodings):
    model, processor = frozen("internvl")
    model.config.vision_config.hidden_dropout_prob = 0.1
    encode_images_once(model)
    asked = encodings(model)
    inputs = asked_about(processor, [drawn[0]])
    passes(model, inputs)
    passes(model, inputs)
    assert len(asked) == 2


def test_models_without_images_stay_as_they_are():
    model, _ = build_model(FAMILY, "test")
    language = model.get_decoder()
    before = set(vars(language))
    encode_images_once(language)
    assert set(vars(language)) == before


def test_a_method_that_the_user_has_set_stays():
    model, _ = frozen(FAMILY)
    inner = model.base_model
    inner.get_image_features = own = functools.partial(type(inner).get_image_features, inner)
    encode_images_once(model)
    assert inner.get_image_features is own


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("trained", [False, True])
def test_generation_encodes_what_is_new_and_writes_what_it_would(family, trained, drawn, encodings):
    (plain, processor), (model, _) = (build_model(family, "test") if trained else frozen(family) for _ in range(2))
    inputs = asked_about(processor, drawn[:1], drawn[1:2], drawn[:1])
    encode_images_once(model)
    asked = encodings(model)
    settings = {"max_new_tokens": 4, "do_sample": False, "num_return_sequences": 2, "num_beams": 2}
    for _ in range(2):
        assert torch.equal(model.generate(**inputs, **settings), plain.generate(**inputs, **settings))
    passes(model, inputs)
    assert asked == ([2, 2, 2] if trained else [1, 1])  # what is scored was read before


def test_other_outputs_are_the_models_own(drawn, encodings):
    model, processor = frozen("llava_next")
    encode_images_once(model)
    asked = encodings(model)
    inputs = asked_about(processor, [drawn[0]])
    given = {name: inputs[name] for name in ("pixel_values", "image_sizes")}
    for _ in range(2):
        assert model.get_image_features(**given, output_hidden_states=True).hidden_states is not None
    assert len(asked) == 2


@pytest.mark.parametrize("trained", [False, True])
def test_a_family_that_reads_more_than_features_encodes_as_its_own_code_does(trained):
    """Ovis2 reads `visual_indicator_features`, too."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {
        "image_size": 28,
        "patch_size": 14,
        "hidden_stride": 1,
        "num_visual_indicator_tokens": 2,
        "vocab_size": 12,
    }
    text = {"model_type": "qwen2", "num_key_value_heads": 2, "vocab_size": 20}
    config = Ovis2Config(
        vision_config=sizes | vision,
        text_config=sizes | text,
        image_token_id=9,
        visual_indicator_token_ids=[10, 11],
        vocab_size=20,
        hidden_size=16,
    )
    model = Ovis2ForConditionalGeneration(config).requires_grad_(trained)
    inputs = {
        "input_ids": torch.tensor([[10, 9, 9, 9, 9, 11, 3]] * 2),
        "pixel_values": torch.rand(1, 3, 28, 28).repeat(2, 1, 1, 1),
    }
    expected = passes(model, inputs)
    encode_images_once(model)
    for _ in range(2):
        assert torch.equal(passes(model, inputs), expected)


def test_features_take_a_bounded_memory_and_the_longest_unused_go(drawn, encodings, monkeypatch):
    model, processor = frozen(FAMILY)
    encode_images_once(model)
    asked = encodings(model)
    one, other, third = drawn
    features = model.base_model.get_image_features(
        **{name: asked_about(processor, [one])[name] for name in ("pixel_values", "image_grid_thw")}, return_dict=True
    )
    asked.clear()
    size = features.pooler_output[0].nbytes
    passes(model, asked_about(processor, [one, other, third]))
    kept = [level for image in model.base_model.get_image_features._known.values() for level in image]
    assert sum(level.untyped_storage().nbytes() for level in kept) == sum(level.nbytes for level in kept)
    monkeypatch.setattr(known_images, "KEPT", 2 * size)
    passes(model, asked_about(processor, [third]))
    asked.clear()
    for image, encoded in ((one, 1), (other, 1), (one, 0), (other, 0), (one, 0)):
        passes(model, asked_about(processor, [image]))
        assert sum(asked) == encoded, image
        asked.clear()
    passes(model, asked_about(processor, [Image.new("RGB", one.size, "teal")]))  # `other` goes
    asked.clear()
    passes(model, asked_about(processor, [one]))
    assert asked == []
    passes(model, asked_about(processor, [other]))
    assert asked == [1]
    passes(model, asked_about(processor, [third], [one], [other]))  # more than is kept
    assert asked[0] == 1


# --------------------------------------------------------------------------------------------------------- fingerprints


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_equal_images_alone_have_equal_fingerprints(dtype):
    torch.manual_seed(0)
    image = (torch.rand(70, 3, 40) * 255).to(dtype)  # more numbers than one row of factors has
    swapped = image.clone()
    swapped[[0, 69]] = image[[69, 0]]
    changed = image.clone()
    changed[69, 2, 39] += 1
    shifted = image.roll(1, dims=2)
    others = [image[:69], image.flip(0), image.flip(2), swapped, changed, shifted, torch.zeros_like(image)]
    numbers = fingerprints([image, *others])
    assert len(set(numbers)) == len(numbers)
    assert fingerprints([image.clone(), torch.cat([image, torch.zeros_like(image)])]) == [numbers[0]] * 2


def test_rows_and_columns_are_told_apart():
    """A row of factors is as long as `_FACTORS`; both levels multiply with them."""
    image = torch.arange(2.0 * 4096)
    swapped = image.clone()
    swapped[[1, 4096]] = image[[4096, 1]]  # (0, 1) with (1, 0)
    assert len(set(fingerprints([image, swapped]))) == 2


@pytest.mark.parametrize("bit", [0, 15, 31])
def test_every_bit_of_every_number_counts(bit):
    """The top bit as well: its multiples are 0 or 2^63 at the first level."""
    marked = torch.eye(64, dtype=torch.int32) * (-(2**31) if bit == 31 else 2**bit)
    assert len(set(fingerprints(list(marked.view(torch.float32))))) == 64


# ------------------------------------------------------------------------------------------------------------- training


def make(way, path, folder, rows, **settings):
    """A trainer of AdaPO: all weights, all but the vision side, or an adapter on the language model."""
    settings = {"beta": 0.1, "filter_zero_advantage": False, "filter_truncated": False, **settings}
    if way == "adapter":
        settings |= {"trainer_kwargs": {"peft_config": in_language()}, "gradient_checkpointing": True}
    trainer = adapo_trainer(path, folder, rows, **settings)
    if way == "frozen":
        freeze_vision_encoder(trainer.model)
    return trainer


@pytest.mark.parametrize("way", full_but("frozen", ["frozen", "adapter", "full"]))
def test_updates_are_those_of_images_that_every_row_encodes(way, checkpoints, tmp_path, monkeypatch):
    rows = Dataset.from_list([row for row in drawn_rows(12) if row["images"]])
    settings = {"num_iterations": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    found = []
    for once in (True, False):
        if not once:
            monkeypatch.setattr(preparation, "encode_images_once", lambda *_: None)
        torch.manual_seed(0)
        trainer = make(way, checkpoints(FAMILY), tmp_path / str(once), rows, **settings)
        before = weights_of(trainer.model)
        trainer.train()
        assert changed_weights(trainer.model, before)
        found.append(trainer)
    assert abs(losses_of(found[0])[1]) > 1e-4
    assert_weights(found[0].model, found[1].model, atol=1e-4)


@pytest.mark.parametrize(
    ("way", "policy", "reference"),
    [("frozen", 0, 2), ("adapter", 0, None), ("full", 2, 2), ("synchronised", 2, 2)],
)
def test_a_groups_images_are_encoded_once(way, policy, reference, checkpoints, tmp_path, encodings):
    """Two groups of four rows with an image each, sampled, scored by the reference, and by the policy."""
    rows = Dataset.from_list(drawn_rows(4)[::3])
    trainer = make(way, checkpoints(FAMILY), tmp_path, rows, sync_ref_model=way == "synchronised")
    own = trainer.accelerator.unwrap_model(trainer.model)
    by_policy = encodings(own.get_base_model() if way == "adapter" else own)
    by_reference = encodings(trainer.ref_model) if reference else None
    batch = prepared_batch(trainer)
    if not policy:  # for both turns, and with an adapter for the reference; its images were scored at the start
        assert sum(by_policy) == (0 if way == "adapter" else 2)
    by_policy.clear()
    trainer.compute_loss(trainer.model, batch)
    assert sum(by_policy) == policy
    if reference:
        assert sum(by_reference) == reference


@pytest.mark.parametrize("kind", ["dpo", "off policy"])
def test_a_reference_encodes_as_its_policy_does(kind, checkpoints, drawn, tmp_path, encodings):
    rows = [{**row, "completion": [{"role": "assistant", "content": "7"}], "reward": 1.0} for row in drawn_rows(2)]
    run = {name: value for name, value in SUPERVISED_RUN.items() if name != "model_init_kwargs"}
    trainer_of, config = {
        "dpo": (IterativeDPOTrainer, IterativeDPOConfig),
        "off policy": (OffPolicyRewardTrainer, OffPolicyRewardConfig),
    }[kind]
    model, processor = load(checkpoints(FAMILY))
    given = {"train_dataset": Dataset.from_list(rows), "processing_class": processor}
    if kind == "dpo":
        run["chains"], parties = False, (model, None)
    else:
        run["trainable_parts"], parties = ["vision", "language"], (model,)
    trainer = trainer_of(*parties, args=config(str(tmp_path), beta=0.1, **run), **given)
    reference = trainer.ref_model if kind == "dpo" else trainer.reference
    asked, inputs = encodings(reference), asked_about(processor, [drawn[0]], [drawn[0]])
    passes(reference, inputs)
    passes(reference, inputs)
    assert asked == [1, 1]
    for weight in vision_weights(trainer.model):
        weight.requires_grad_(False)
    passes(reference, inputs)
    passes(reference, inputs)
    assert asked == [1, 1, 1]


def by_tokens(completion_ids, **_):
    """A reward that differs between random answers."""
    return [float(sum(ids) % 7) for ids in completion_ids]


@pytest.mark.full
def test_a_resumed_run_encodes_with_the_weights_of_its_checkpoint(checkpoints, tmp_path):
    rows = Dataset.from_list(drawn_rows(4)[::3])
    other, _ = load(checkpoints(FAMILY))
    with torch.no_grad():
        for weight in vision_weights(other):
            weight.mul_(1.5)
    folder = tmp_path / "other"
    other.save_pretrained(folder)
    load_processor = load(checkpoints(FAMILY))[1]
    load_processor.save_pretrained(folder)
    settings = {"freeze_vision_encoder": True, "save_strategy": "steps", "save_steps": 1}
    # the two runs begin with other policies, which would be their references
    settings |= {"beta": 0.0, "lr_scheduler_type": "constant", "trainer_kwargs": {"reward_funcs": by_tokens}}
    srpo_trainer(str(folder), tmp_path / "run", rows, max_steps=1, **settings).train()
    resumed = srpo_trainer(checkpoints(FAMILY), tmp_path / "run", rows, **{**settings, "max_steps": 2})
    batch = prepared_batch(resumed)
    resumed.compute_loss(resumed.model, batch)  # its own images are known now
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    whole = srpo_trainer(str(folder), tmp_path / "whole", rows, **{**settings, "max_steps": 2})
    whole.train()
    assert_weights(resumed.model, whole.model, atol=1e-5)
