"""Rollouts are sampled with the trainer's settings; those of the checkpoint's generation_config.json are left out."""

import json
import re
import shutil
from contextlib import contextmanager, nullcontext

import pytest
from support import ParityGrader, adapo_trainer, load, prepared_batch
from transformers import GenerationConfig

from trl_mmreason import AdaPOConfig
from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.generation.engine import SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine

UNLIKELY = list(range(100, 300))
HOSTILE = {  # transformers' `generate` would take each of them from the checkpoint, and samples otherwise or stops
    "min_p": 0.5,
    "typical_p": 0.3,
    "epsilon_cutoff": 0.02,
    "top_h": 0.3,
    "no_repeat_ngram_size": 1,
    "encoder_repetition_penalty": 3.0,
    "bad_words_ids": [[token] for token in UNLIKELY],
    "sequence_bias": [[[120], 50.0]],
    "begin_suppress_tokens": UNLIKELY,
    "min_new_tokens": 3,
    "forced_eos_token_id": 120,
    "exponential_decay_length_penalty": (1, 5.0),
    "watermarking_config": {"bias": 20.0, "seeding_scheme": "selfhash"},
    "max_time": 0.0,
    "num_beams": 2,
    "use_cache": False,
    "cache_implementation": "offloaded",
    "stop_strings": ["7"],
    "guidance_scale": 1.5,
}


@pytest.fixture(scope="module")
def trainer(checkpoints, rows, tmp_path_factory):
    return adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path_factory.mktemp("run"), rows, filter_truncated=False)


@contextmanager
def checkpoint_with(trainer, settings):
    """Let the checkpoint have had these sampling settings."""
    own = trainer.model.generation_config
    trainer.model.generation_config = hostile = GenerationConfig(**{**own.to_dict(), **settings})
    try:
        yield trainer
        assert trainer.model.generation_config is hostile  # a saved model keeps them
    finally:
        trainer.model.generation_config = own


def sampled(trainer):
    """The sampled tokens of each row, without what the user says between two answers."""
    batch = prepared_batch(trainer)
    pairs = zip(batch["completion_ids"], batch["completion_mask"] * batch["tool_mask"], strict=True)
    return [ids[mask.bool()].tolist() for ids, mask in pairs]


@pytest.fixture(scope="module")
def clean(trainer):
    return sampled(trainer)


@pytest.mark.parametrize("name", ["all", *HOSTILE])
def test_the_checkpoints_settings_change_no_token(trainer, clean, name):
    with checkpoint_with(trainer, HOSTILE if name == "all" else {name: HOSTILE[name]}):
        assert sampled(trainer) == clean


def test_nor_where_rows_cannot_leave_the_batch(trainer, monkeypatch):
    monkeypatch.setattr(trainer, "_rows_can_leave", lambda: False)
    plain = sampled(trainer)
    with checkpoint_with(trainer, HOSTILE):
        assert sampled(trainer) == plain


def test_what_the_configuration_asks_for_is_sampled_with(checkpoints, rows, tmp_path):
    asked = {"no_repeat_ngram_size": 1, "bad_words_ids": [[token] for token in UNLIKELY]}
    with_settings = adapo_trainer(
        checkpoints("qwen2_5_vl"), tmp_path, rows, generation_kwargs=asked, filter_truncated=False
    )
    answers = sampled(with_settings)
    assert not {token for ids in answers for token in ids} & set(UNLIKELY)
    left_out = placeholder_ids(with_settings.model.config)
    assert sorted(with_settings.generation_config.suppress_tokens) == sorted(left_out)
    quarter = with_settings.model.generation_config.eos_token_id  # tokens that end turns, as the checkpoint says
    assert set(with_settings.eos_token_ids) == set(quarter)
    assert {ids[-1] for ids in answers} & set(quarter)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topk": 1}, "generation_kwargs: GenerationConfig has no `topk`; did you mean `top_k`?"),
        ({"temperature": 0.5}, "generation_kwargs: temperature=0.5: updates assume .* Fix: set temperature."),
        ({"num_return_sequences": 2}, "generation_kwargs: num_return_sequences=2: the answers to a question are num_g"),
        ({"max_new_tokens": 2}, "generation_kwargs: max_new_tokens=2: .* max_completion_length. Fix: set that."),
        ({"stop_strings": ["7"]}, "generation_kwargs: stop_strings=.* Fix: leave it out, or sample with vLLM"),
        ({"do_sample": False}, "generation_kwargs: do_sample=False: updates assume that answers are sampled .* Fix"),
        ({"num_beams": 4}, "generation_kwargs: num_beams=4: updates assume that answers are sampled .* Fix"),
        (
            {"guidance_scale": 2.0},
            "generation_kwargs: guidance_scale=2.0: updates assume that answers are sampled .* Fix",
        ),
        (
            {"prompt_lookup_num_tokens": 2},
            "generation_kwargs: prompt_lookup_num_tokens=2: transformers takes one row at a time .* Fix",
        ),
        ("text", "generation_kwargs='text', expected `name: value` pairs"),
        ("[1]", r"generation_kwargs=\[1\], expected `name: value` pairs"),
        ('{"num_beams": 4}', "generation_kwargs: num_beams=4: updates assume"),
        ({"top_k": 5, "num_return_sequences": 1, "min_p": 0.1, "do_sample": True, "num_beams": 1}, None),
    ],
)
def test_what_would_be_ignored_or_sampled_otherwise_is_refused(given, message, tmp_path):
    refused = pytest.raises(ValueError, match=f"AdaPOConfig: {message}") if message else nullcontext()
    with refused:
        AdaPOConfig(str(tmp_path), use_cpu=True, bf16=False, generation_kwargs=given)


def test_one_warning_names_what_is_left_out(checkpoints, rows, tmp_path, caplog):
    def warnings_with(**settings):
        model, processor = load(checkpoints("qwen2_5_vl"))
        model.generation_config.update(**settings)
        caplog.clear()
        given = {"processing_class": processor, "grader": ParityGrader()}
        adapo_trainer(model, tmp_path, rows, model_init_kwargs=None, trainer_kwargs=given)
        return [message for message in caplog.messages if "generation_config.json" in message]

    # what many checkpoints have and the trainer sets anew is no news
    assert warnings_with(do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05) == []
    (warning,) = warnings_with(do_sample=True, min_p=0.15, no_repeat_ngram_size=3, typical_p=1.0)
    assert warning.startswith("AdaPOTrainer: ")
    assert "min_p=0.15, no_repeat_ngram_size=3;" in warning
    assert "generation_kwargs" in warning


def test_an_engine_names_what_it_leaves_out(checkpoints, tmp_path, caplog):
    def warnings_with(**settings):
        folder = shutil.copytree(checkpoints("qwen2_5_vl"), tmp_path / "model", dirs_exist_ok=True)
        file = folder / "generation_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
        caplog.clear()
        TransformersEngine(str(folder))
        return [message for message in caplog.messages if "generation_config.json" in message]

    assert warnings_with(do_sample=True, temperature=0.7, top_p=0.8, top_k=20) == []
    (warning,) = warnings_with(repetition_penalty=5.0, suppress_tokens=[300])
    assert warning.startswith("TransformersEngine: ")
    assert "suppress_tokens=[300]" in warning
    assert "repetition_penalty=5.0" in warning
    assert warning.endswith("answers are sampled without.")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": float("nan")}, "temperature=nan, expected a number ≥ 0"),
        ({"temperature": float("inf")}, "temperature=inf, expected a number ≥ 0"),
        ({"temperature": "1"}, "temperature='1', expected a number ≥ 0"),
        ({"max_new_tokens": "20"}, "max_new_tokens='20', expected an integer ≥ 1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0, expected an integer ≥ 1"),
        ({"max_new_tokens": True}, "max_new_tokens=True, expected an integer ≥ 1"),
        ({"top_p": float("nan")}, "top_p=nan, expected a number above 0 and at most 1"),
        ({"top_p": 0}, "top_p=0, expected a number above 0 and at most 1"),
        ({"top_k": 2.5}, "top_k=2.5, expected an integer ≥ 0"),
        ({"stop": "END"}, "stop='END', expected a tuple of strings"),
    ],
)
def test_sampling_parameters_out_of_range_are_named(given, message):
    with pytest.raises(ValueError, match=f"^SamplingParams: {re.escape(message)}.$"):
        SamplingParams(**given)
