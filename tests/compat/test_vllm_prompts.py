"""What a rollout with vLLM is given and how it is compared; vLLM itself runs in tests/engines."""

from types import SimpleNamespace

import pytest
import torch
from support import adapo_config, adapo_trainer, load
from trl import GRPOConfig
from trl.data_utils import prepare_multimodal_messages

from trl_mmreason import AdaPOConfig, ChainOfStepGRPOConfig, SelfEvolutionConfig, SRPOConfig
from trl_mmreason.compat.vllm import engine_dtype
from trl_mmreason.compat.vllm_prompts import (
    PromptMemory,
    PromptMismatch,
    compare_prompts,
    find_images,
    unexpanded_prompts,
)
from trl_mmreason.compat.vllm_sampling import sampling_settings, without_placeholders
from trl_mmreason.miniature.models import build_model

P = 7  # the placeholder


def test_prompts_without_expansion_have_one_placeholder_an_image(family, checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows)
    prompts = [prepare_multimodal_messages(row["prompt"], images=row["images"]) for row in rows[:3]]
    expanded, images, _ = trainer._tokenize_prompts(prompts)
    short = unexpanded_prompts(trainer, prompts)
    placeholder = trainer.processing_class.image_token_id
    counts = [len(row or []) for row in images]
    assert counts == [1, 2, 0]
    assert [ids.count(placeholder) for ids in short] == counts
    for own, ids, count in zip(expanded, short, counts, strict=True):
        # the rest is the same: with each run of placeholders, and what a family puts around it, taken for one
        around = set(trainer.processing_class.tokenizer.convert_tokens_to_ids(["<img>", "</img>"])) - {None}
        left = [token for token in own if token != placeholder and token not in around]
        assert left == [token for token in ids if token != placeholder]
        assert (own == ids) == (count == 0)


def test_a_prompt_is_looked_up_with_what_continues_it():
    memory = PromptMemory()
    one, two = [1, P, P, P, P, 2], [1, P, P, P, P, 2]  # an image of four tokens, and two of two side by side
    memory.keep([one, one, two, [1, 2]], [["a"], ["a"], ["b", "c"], None], [[1, P, 2], [1, P, 2], [1, P, P, 2], [1, 2]])
    assert memory.unexpanded(one, 1) == [1, P, 2]
    assert memory.unexpanded(two, 2) == [1, P, P, 2]
    assert memory.unexpanded([*two, 8, 9], 2) == [1, P, P, 2, 8, 9]  # a second turn
    assert memory.unexpanded([5, 6], 0) == [5, 6]  # text is as it is
    with pytest.raises(PromptMismatch, match=r"a prompt of 6 tokens with 3 image\(s\), but"):
        memory.unexpanded(two, 3)
    memory.keep([[4, P, P]], [["d"]], [[4, P]])
    with pytest.raises(PromptMismatch):  # of an earlier batch
        memory.unexpanded(one, 1)


def test_a_policy_in_memory_needs_a_folder_that_vllm_can_start_from(tmp_path, rows):
    model, processor = build_model("qwen2_5_vl")
    with pytest.raises(ValueError, match="vllm_mode='colocate': the policy was passed in memory and has no folder"):
        adapo_trainer(model, tmp_path, rows, use_vllm=True, trainer_kwargs={"processing_class": processor})


def test_images_are_found_between_text_and_side_by_side():
    prompt = [1, P, P, P, 2, P, P, P, P, P, 3]
    assert find_images(prompt, P, [3, 5]) == [{"offset": 1, "length": 3}, {"offset": 5, "length": 5}]
    # the run of five is two images
    assert find_images(prompt, P, [3, 2, 3]) == [
        {"offset": 1, "length": 3},
        {"offset": 5, "length": 2},
        {"offset": 7, "length": 3},
    ]
    assert find_images([1, 2], P, []) == []


@pytest.mark.parametrize("lengths", [[3, 4], [3, 6], [4, 4], [3], [3, 5, 1], [], [8]])
def test_other_lengths_than_the_prompts_are_refused(lengths):
    with pytest.raises(PromptMismatch, match=f"{sum(lengths)} in all, where the trainer's prompt has 8"):
        find_images([1, P, P, P, 2, P, P, P, P, P, 3], P, lengths)


def test_prompts_that_vllm_read_otherwise_are_refused():
    compare_prompts([[1, 2], [3]], [(1, 2), (3,)])
    with pytest.raises(PromptMismatch, match=r"row 1 has 3 tokens in the trainer and 4 in vLLM; .* from token 2 on"):
        compare_prompts([[1], [1, 2, 3]], [[1], [1, 2, 2, 3]])
    with pytest.raises(PromptMismatch, match=r"row 0 has 2 tokens in the trainer and 2 in vLLM; .* from token 1 on"):
        compare_prompts([[1, 2]], [[1, 3]])
    with pytest.raises(PromptMismatch, match=r"row 0 has 2 tokens in the trainer and 1 in vLLM"):
        compare_prompts([[1, 2]], [[1]])


def test_placeholders_are_ruled_out_beside_what_the_user_sets():
    config = SimpleNamespace(image_token_id=5, video_token_id=6)
    assert without_placeholders(None, config) == {"logit_bias": {5: -100.0, 6: -100.0}}
    given = {"seed": 3, "logit_bias": {5: 2.0, 9: 1.0}}
    assert without_placeholders(given, config) == {"seed": 3, "logit_bias": {5: -100.0, 6: -100.0, 9: 1.0}}
    assert given["logit_bias"] == {5: 2.0, 9: 1.0}  # the user's stays
    assert without_placeholders({"seed": 3}, SimpleNamespace()) == {"seed": 3}  # a text-only model


@pytest.mark.parametrize(
    ("given", "ends"),
    [(None, [2, 9]), ({"stop_token_ids": [9, 4]}, [2, 9, 4]), ({"ignore_eos": True}, None)],
)
def test_answers_end_at_the_tokens_of_the_policy(given, ends):
    settings = sampling_settings(given, SimpleNamespace(), [2, 9])
    assert settings.get("stop_token_ids") == ends
    assert settings["presence_penalty"] == settings["frequency_penalty"] == 0.0


@pytest.mark.parametrize("logprobs", [5, None])
def test_log_probabilities_of_other_tokens_are_not_asked_for(logprobs):
    """TRL sorts them by rank, and takes the first of each step."""
    with pytest.raises(ValueError, match=rf"generation_kwargs sets logprobs={logprobs}, .* Fix: leave it out"):
        sampling_settings({"logprobs": logprobs}, SimpleNamespace(), [2])
    assert sampling_settings({"logprobs": 0}, SimpleNamespace(), [2])["logprobs"] == 0


def test_the_engine_computes_in_the_dtype_of_training(checkpoints, tmp_path):
    model, _ = load(checkpoints("qwen2_5_vl"))
    dtypes = {}
    for name, settings in {"plain": {}, "mixed": {"bf16": True}}.items():
        dtypes[name] = engine_dtype(adapo_config(tmp_path, **settings), model)
    assert dtypes == {"plain": "float32", "mixed": "bfloat16"}
    assert engine_dtype(adapo_config(tmp_path), model.to(torch.bfloat16)) == "bfloat16"
    chosen = adapo_config(tmp_path, use_vllm=True, vllm_dtype="float16")
    assert engine_dtype(chosen, model) == "float16"
    trl_own = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)  # which has no such field
    assert engine_dtype(trl_own, model.to(torch.float32)) == "float32"


def test_ratios_to_vllm_are_taken_token_by_token_where_sampling_is_cut(tmp_path):
    """At top-p 0.99 a token's ratio is 0.99 or more, the product over 1,000 tokens as little as 0.99^1000 = 4e-5."""
    run = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    modes = {}
    for cut in ({"top_p": 1.0}, {"top_p": 0.99}, {"top_k": 50}, {"min_p": 0.1}):
        (name,) = cut
        modes[name, cut[name]] = SRPOConfig(**run, **cut).vllm_importance_sampling_mode
    assert modes == {("top_p", 1.0): "sequence_mask"} | dict.fromkeys(
        [("top_p", 0.99), ("top_k", 50), ("min_p", 0.1)], "token_truncate"
    )
    assert AdaPOConfig(**run).vllm_importance_sampling_mode == "token_truncate"
    assert AdaPOConfig(**run, vllm_importance_sampling_mode="token_mask").vllm_importance_sampling_mode == "token_mask"


@pytest.mark.parametrize("config", [AdaPOConfig, SRPOConfig, ChainOfStepGRPOConfig, SelfEvolutionConfig])
def test_a_dtype_that_nothing_would_read_is_refused(config, tmp_path):
    run = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    with pytest.raises(ValueError, match=r"vllm_dtype='fp32', expected one of float32, bfloat16, float16"):
        config(**run, use_vllm=True, vllm_dtype="fp32")
    with pytest.raises(ValueError, match="is for use_vllm=True with vllm_mode='colocate'"):
        config(**run, vllm_dtype="float32")
    with pytest.raises(ValueError, match="is for use_vllm=True with vllm_mode='colocate'"):
        config(**run, use_vllm=True, vllm_mode="server", vllm_dtype="float32")
    assert config(**run, use_vllm=True, vllm_dtype="float32").vllm_dtype == "float32"


@pytest.mark.parametrize(
    "settings",
    [{"use_vllm": False}, {"vllm_importance_sampling_correction": False}, {"top_p": 0.9}, {"repetition_penalty": 1.1}],
)
def test_log_probabilities_of_another_distribution_do_not_serve_as_the_old_ones(settings, tmp_path):
    run = {"use_vllm": True, "top_p": 1.0}
    assert adapo_config(tmp_path, **run, sampled_as_old=True).sampled_as_old
    with pytest.raises(ValueError, match="AdaPOConfig: sampled_as_old=True is for use_vllm=True"):
        adapo_config(tmp_path, **{**run, **settings}, sampled_as_old=True)
