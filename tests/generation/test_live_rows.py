"""Rows that ended leave the model's batch, and answers stay those of transformers' own decoding."""

from __future__ import annotations

import inspect
import logging
import textwrap
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from all_families import FAMILIES as ALL_FAMILIES
from all_families import TEXT_ONLY
from peft import LoraConfig, get_peft_model
from support import adapo_trainer, drawn_rows, full_but
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    SuppressTokensLogitsProcessor,
)
from transformers.generation import utils as generation_utils
from transformers.utils import ModelOutput
from trl import GRPOTrainer

from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.generation import live_rows
from trl_mmreason.generation.batch import Prompt, collate, encode
from trl_mmreason.generation.engine import Request, SamplingParams
from trl_mmreason.generation.live_rows import (
    SampledLogprobs,
    _passes,
    can_decode,
    can_share_prompts,
    decode_live_rows,
    ended_rows_leave,
    step_aside,
)
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature.models import FAMILIES, build_model
from trl_mmreason.miniature.tasks import make_problems, problems_dataset
from trl_mmreason.training.construction import pad_left

LENGTHS = [2, 9, 3, 24, 4, 5, 1, 12]
END = 5


class EndAt(LogitsProcessor):
    """Ends each row after so many tokens, the end among them, and not before."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.step = torch.tensor(lengths), 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.step += 1
        ends = self.lengths == self.step
        scores = scores.clone()
        scores[~ends, END] = -torch.inf
        scores[ends, END] = torch.inf
        scores[ends] = scores[ends].nan_to_num(posinf=0).where(scores[ends].isposinf(), -torch.inf)
        return scores


@dataclass
class Encoded(ModelOutput):
    """Images that `generate` has encoded."""

    pooler_output: Any = None
    deepstack_features: Any = None


class Record(LogitsProcessor):
    """Keeps the log-probabilities that the model gives to the next token of each row, step by step."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.steps.append(scores.log_softmax(-1))
        return scores

    def of(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """The log-probabilities of each row's sampled tokens, as long as it was there."""
        steps = torch.stack(self.steps, dim=1)[:, : ids.shape[1]]
        sampled = steps.gather(2, ids[:, :, None]).squeeze(2)
        return [row[:length] for row, length in zip(sampled, LENGTHS, strict=True)]


def prompts_of(processor: Any, with_images: bool = True) -> dict[str, torch.Tensor]:
    return collate(conversations(processor, with_images), 0)


def conversations(processor: Any, with_images: bool = True) -> list[Prompt]:
    """Eight prompts of different lengths, every third without its image."""
    encoded = []
    for number, row in enumerate(problems_dataset(make_problems(["adding"], len(LENGTHS)))):
        said = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][-1]["content"]
        images = row["images"] if with_images and number % 3 else []
        encoded.append(encode(processor, [{"role": "user", "content": said + " now" * number}], images))
    return encoded


def answers(model: Any, inputs: dict[str, torch.Tensor], custom: Any, **settings: Any) -> torch.Tensor:
    torch.manual_seed(0)
    settings = {"do_sample": True, "max_new_tokens": 24, "eos_token_id": [END], "pad_token_id": 0, **settings}
    return model.generate(**inputs, logits_processor=[EndAt(LENGTHS)], custom_generate=custom, **settings)


def rows_computed(model: Any) -> list[int]:
    """Rows of each later forward pass."""
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, args, given: seen.append(len(given["input_ids"])), with_kwargs=True)
    return seen


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_transformers_and_ended_rows_are_not_computed(family, sampled):
    model, processor = build_model(family, "test")
    inputs = prompts_of(processor)
    plain = answers(model.eval(), inputs, None, do_sample=sampled)
    seen = rows_computed(model)
    assert answers(model, inputs, decode_live_rows, do_sample=sampled).equal(plain)
    # token 1 comes from the prompt's pass; of the 8 rows so many continue after tokens 1, 2, 3, …
    left = [sum(length > token for length in LENGTHS) for token in range(24)]
    assert left[:6] == [8, 7, 6, 5, 4, 3]
    # rows leave when fewer than 7/8 of the batch continue: 7 of 8 stay, 6 of 8 leave
    assert seen[:6] == [8, 8, 6, 5, 4, 3]
    assert seen == [8, 8, *left[2:]]


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_share_a_prompt_answer_as_with_a_copy_of_it_each(family, sampled):
    model, processor = build_model(family, "test")
    three = conversations(processor)[:3]  # the first has no image
    place = [0, 0, 1, 2, 2, 2, 1, 0]
    plain = answers(model.eval(), collate([three[number] for number in place], 0), None, do_sample=sampled)
    seen = rows_computed(model)
    sharing = partial(decode_live_rows, prompt_of=torch.tensor(place))
    assert answers(model, collate(three, 0), sharing, do_sample=sampled).equal(plain)
    assert seen[:4] == [3, 8, 6, 5]


@pytest.mark.parametrize(("place", "rows", "parts"), [(None, 3, [3, 3, 2]), ([0, 0, 1, 2, 2, 2, 1, 0], 1, [1, 1, 1])])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_too_many_tokens_are_read_some_at_a_time(family, place, rows, parts, monkeypatch):
    """A part of the prompts gets the images of its rows: the rows 0, 3 and 6 have none."""
    model, processor = build_model(family, "test")
    prompts = conversations(processor)[: 8 if place is None else 3]
    inputs, of = collate(prompts, 0), None if place is None else torch.tensor(place)

    def decode():
        logprobs = SampledLogprobs(1.0)
        ids = answers(model.eval(), inputs, partial(decode_live_rows, prompt_of=of, logprobs=logprobs))
        return ids, torch.tensor(logprobs.of_rows([[0]] * 8))  # of each first token

    ids, first = decode()
    monkeypatch.setattr(live_rows, "_TOKENS_A_PASS", (rows + 1) * inputs["input_ids"].shape[1] - 1)
    seen = rows_computed(model)
    divided, first_divided = decode()
    assert seen[: len(parts) + 1] == [*parts, 8]
    assert divided.equal(ids)
    torch.testing.assert_close(first_divided, first, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", full_but("ovis2", sorted(ALL_FAMILIES.keys() - {"mllama"})))
def test_any_family_answers_the_same_where_prompts_are_divided(family, monkeypatch):
    """MLlama is refused in training. Ovis2 encodes images into more than transformers selects, and is not divided."""
    model, processor = ALL_FAMILIES[family]()
    pad_left(processor)
    said = [{"role": "user", "content": "What is shown?"}]
    images = [[] if family in TEXT_ONLY else row["images"][:2] for row in drawn_rows(5)]
    inputs = collate([encode(processor, said, each) for each in images if each or family != "paligemma"], 0)

    def answered():
        logprobs = SampledLogprobs(1.0)
        decode = partial(decode_live_rows, logprobs=logprobs)
        ids = model.eval().generate(**inputs, custom_generate=decode, max_new_tokens=2, do_sample=False, pad_token_id=0)
        return ids, torch.tensor(logprobs.of_rows([[0]] * len(ids)))  # of first tokens

    ids, expected = answered()
    monkeypatch.setattr(live_rows, "_TOKENS_A_PASS", 2 * inputs["input_ids"].shape[1])
    divided, found = answered()
    assert divided.equal(ids)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("features", "divided"),
    [
        ({"pooler_output": torch.zeros(2, 3, 4)}, True),  # two images of three tokens
        ({"pooler_output": [torch.zeros(5, 4), torch.zeros(1, 4)]}, True),
        ({"pooler_output": torch.zeros(2, 4, 4)}, False),  # tokens of which the prompts show fewer
        ({"pooler_output": torch.zeros(2, 3, 4), "deepstack_features": [[torch.zeros(6, 4)]]}, True),
        ({"pooler_output": torch.zeros(2, 3, 4), "deepstack_features": [(1, [torch.zeros(6, 4)])]}, False),
        ({"deepstack_features": [(1, [torch.zeros(6, 4)])]}, False),  # of Granite 4 Vision
    ],
)
def test_images_that_transformers_cannot_select_are_read_with_all_prompts(features, divided, monkeypatch):
    monkeypatch.setattr(live_rows, "_TOKENS_A_PASS", 1)
    config = SimpleNamespace(image_token_id=7)
    given = {"mm_encoder_outputs": {"image": Encoded(**features)}, "past_key_values": DynamicCache()}
    passes = [*_passes(SimpleNamespace(config=config), torch.tensor([[7, 7, 7, 1], [2, 7, 7, 7]]), given)]
    assert len(passes) == (2 if divided and live_rows._FEATURES_OF is not None else 1)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("family", full_but("qwen2_5_vl", FAMILIES))
def test_log_probabilities_are_those_of_generate_and_of_a_pass_over_the_whole_row(family, shared):
    model, processor = build_model(family, "test")
    model.eval()
    prompts, place = conversations(processor), list(range(len(LENGTHS)))
    if shared:
        prompts, place = prompts[:3], [0, 0, 1, 2, 2, 2, 1, 0]
    repeated = collate([prompts[number] for number in place], 0)
    begin = repeated["input_ids"].shape[1]
    settings = {"do_sample": True, "max_new_tokens": 24, "eos_token_id": [END], "pad_token_id": 0}

    def decode(inputs, custom):
        torch.manual_seed(0)
        record = Record()
        processors = [record, SuppressTokensLogitsProcessor(placeholder_ids(model.config)), EndAt(LENGTHS)]
        rows = model.generate(**inputs, logits_processor=processors, custom_generate=custom, **settings)
        return rows[:, begin:], record

    ids, plain = decode(repeated, None)
    seen = rows_computed(model)
    sharing = partial(decode_live_rows, prompt_of=torch.tensor(place) if shared else None)
    ours, live = decode(collate(prompts, 0) if shared else repeated, sharing)
    assert ours.equal(ids)
    assert seen[-1] == 1  # the row of 24 tokens is alone at the end
    for row, (number, theirs, there) in enumerate(zip(place, plain.of(ids), live.of(ids), strict=True)):
        assert there.shape == (LENGTHS[row],)
        torch.testing.assert_close(there, theirs, atol=1e-5, rtol=0)
        answer = ids[row, : LENGTHS[row]]
        with torch.no_grad():  # by itself, without padding and without a cache
            logits = model(**collate([prompts[number].extended(answer[:-1].tolist())], 0), use_cache=False).logits[0]
        whole = logits[-len(answer) :].log_softmax(-1).gather(1, answer[:, None]).squeeze(1)
        torch.testing.assert_close(there, whole, atol=1e-5, rtol=0)


def test_the_answers_to_one_request_share_its_prompt():
    model, processor = build_model("qwen2_5_vl", "test")
    requests = [
        Request(row["prompt"], images=row["images"], n=n, seed=n)
        for row, n in zip(problems_dataset(make_problems(["adding"], 2)), (3, 5), strict=True)
    ]
    sampling_params = SamplingParams(4, temperature=1.0)
    engine = TransformersEngine(model, processor, batch_size=8)
    seen = rows_computed(model)
    together = engine.sample(requests, sampling_params)
    assert seen[:2] == [2, 8]
    alone = TransformersEngine(model, processor, batch_size=1).sample(requests, sampling_params)
    assert [[one.token_ids for one in row] for row in together] == [[one.token_ids for one in row] for row in alone]


def test_prompts_are_not_shared_where_the_state_of_a_row_cannot_be_copied():
    model, _ = build_model("qwen2_5_vl", "test")
    fields, settings = ["pixel_values", "image_grid_thw", "mm_token_type_ids"], GenerationConfig()
    assert can_share_prompts(model, fields, settings)
    assert not can_share_prompts(model, [*fields, "cross_attention_mask"], settings)
    assert not can_share_prompts(model, fields, GenerationConfig(use_cache=False))
    assert not can_share_prompts(model, fields, GenerationConfig(cache_implementation="static"))
    text = {"vocab_size": 8, "hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    linear = Qwen3NextForCausalLM(Qwen3NextConfig(**text, num_hidden_layers=4, num_experts=2))
    assert not can_share_prompts(linear, [], settings)


def test_an_adapters_model_lets_rows_leave_and_is_left_as_it_was():
    model, processor = build_model("qwen2_5_vl", "test")
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)).eval()
    inputs = prompts_of(processor)
    plain = answers(adapted, inputs, None)
    seen = rows_computed(model)
    settings = {"do_sample": True, "max_new_tokens": 24, "eos_token_id": [END], "pad_token_id": 0}
    with ended_rows_leave(adapted):
        torch.manual_seed(0)
        assert adapted.generate(**inputs, logits_processor=[EndAt(LENGTHS)], **settings).equal(plain)
    assert seen[-1] == 1
    seen.clear()
    assert answers(adapted, inputs, None).equal(plain)
    assert set(seen) == {8}


@pytest.mark.parametrize(
    "kept", [{"cache_implementation": "static", "disable_compile": True}, {"use_cache": False}], ids=str
)
def test_rows_stay_where_the_cache_cannot_be_cut(kept):
    model, processor = build_model("llava_next", "test")
    inputs = prompts_of(processor, with_images=False)
    plain = answers(model.eval(), inputs, None, **kept)
    seen = rows_computed(model)
    assert answers(model, inputs, decode_live_rows, **kept).equal(plain)
    assert set(seen) == {8}


@pytest.fixture
def trainer(checkpoints, rows, tmp_path):
    """AdaPO whose answers end often, so that rows leave."""
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, max_completion_length=24)
    trainer.generation_config.eos_token_id = trainer.eos_token_ids = list(range(0, 400, 4))
    return trainer


def rollouts(trainer, rows) -> tuple[list[list[int]], list[list[int]]]:
    """The answers that TRL samples to four rows of each question, and ours; questions have different lengths."""
    prompts = [
        [{"role": "user", "content": row["prompt"][-1]["content"] + " now" * number}]
        for number, row in enumerate(rows[:3])
        for _ in range(4)
    ]
    torch.manual_seed(0)
    plain, _ = GRPOTrainer._generate_single_turn(trainer, *GRPOTrainer._tokenize_prompts(trainer, prompts), 4)
    torch.manual_seed(0)
    ours, _ = trainer._generate_single_turn(*trainer._tokenize_prompts(prompts), 4)
    return plain, ours


PENALTIES = {
    "repetition_penalty": 50.0,
    "no_repeat_ngram_size": 1,
    "encoder_repetition_penalty": 3.0,
    "encoder_no_repeat_ngram_size": 1,
    "min_new_tokens": 12,
}


def test_logits_processors_know_each_row_of_its_own_prompt(trainer, rows):
    """transformers makes them for the batch that `generate` is given: three prompts, of which each has four rows."""
    without, _ = rollouts(trainer, rows)
    for name, value in PENALTIES.items():
        setattr(trainer.generation_config, name, value)
        plain, ours = rollouts(trainer, rows)
        assert ours == plain != without, name
        setattr(trainer.generation_config, name, None)


def rename_prefill(monkeypatch) -> None:
    """As in a release of transformers that has another name for the pass over prompts."""
    mixin = generation_utils.GenerationMixin
    source = textwrap.dedent(inspect.getsource(mixin._sample)).replace("self._prefill(", "self._read_prompts(")
    there = {}
    exec(source, vars(generation_utils), there)
    monkeypatch.setattr(mixin, "_read_prompts", mixin._prefill, raising=False)
    monkeypatch.setattr(mixin, "_sample", there["_sample"])
    monkeypatch.delattr(mixin, "_prefill")


def give_prefill_an_argument(monkeypatch) -> None:
    mixin = generation_utils.GenerationMixin
    prefill, sample = mixin._prefill, textwrap.dedent(inspect.getsource(mixin._sample))
    there = {}
    exec(sample.replace("self._prefill(", "self._prefill(None, "), vars(generation_utils), there)
    monkeypatch.setattr(mixin, "_prefill", lambda self, mask, *args, **kwargs: prefill(self, *args, **kwargs))
    monkeypatch.setattr(mixin, "_sample", there["_sample"])


def use_another_cache(monkeypatch) -> None:
    class OtherCache(DynamicCache):
        def batch_select_indices(self, indices: torch.Tensor) -> None:
            raise NotImplementedError

    monkeypatch.setattr(generation_utils, "DynamicCache", OtherCache)


CHANGES = {
    "no prefill": (rename_prefill, "Qwen2_5_VLForConditionalGeneration._prefill is gone"),
    "other arguments": (give_prefill_an_argument, "Qwen2_5_VLForConditionalGeneration._prefill cannot be called with"),
    "other cache": (use_another_cache, "Qwen2_5_VLForConditionalGeneration has a cache that is not known"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_where_transformers_has_changed_generate_itself_samples_and_one_warning_says_so(
    change, trainer, rows, monkeypatch, caplog
):
    step_aside.cache_clear()
    engine = TransformersEngine(trainer.model, trainer.processing_class)
    problem = problems_dataset(make_problems(["adding"], 1))[0]
    three = [Request(problem["prompt"], images=problem["images"], n=3)]
    sampled = engine.sample(three, SamplingParams(4))
    alter, reason = CHANGES[change]
    alter(monkeypatch)
    seen = rows_computed(trainer.model)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            plain, ours = rollouts(trainer, rows)
            assert ours == plain
        assert set(seen) <= {12, 3}  # no row has left; where the cache is another one, three prompts were read in vain
        assert engine.sample(three, SamplingParams(4)) == sampled
    (warning,) = (record.getMessage() for record in caplog.records if record.name.endswith("live_rows"))
    assert reason in warning
    assert "Answers are sampled by its own `generate`, which is slower" in warning


def test_a_generate_that_was_set_on_the_model_is_called_as_trl_calls_it_and_stays(trainer, rows, tmp_path):
    """`from_pretrained` puts one there, too, for checkpoints that bring their own decoding."""
    asked = []

    def own(**inputs):
        asked.append((len(inputs["input_ids"]), "custom_generate" in inputs))
        return type(trainer.model).generate(trainer.model, **inputs)

    trainer.model.generate = own
    plain, ours = rollouts(trainer, rows)
    assert ours == plain
    assert asked == [(12, False)] * 2
    assert trainer.model.generate is own
    engine = TransformersEngine(trainer.model, trainer.processing_class)
    engine.sample([Request(rows[0]["prompt"], images=rows[0]["images"], n=2)], SamplingParams(4))
    assert asked[2:] == [(2, False)]
    del trainer.model.generate
    assert can_decode(trainer.model)
    with ended_rows_leave(trainer.model):
        assert "generate" in vars(trainer.model)
    assert "generate" not in vars(trainer.model)


def test_training_samples_what_trl_samples_and_computes_fewer_rows(trainer, rows):
    prompts = [row["prompt"] for row in rows for _ in range(4)]
    seen = rows_computed(trainer.model)
    torch.manual_seed(0)
    plain, _ = GRPOTrainer._generate_single_turn(trainer, *GRPOTrainer._tokenize_prompts(trainer, prompts), 4)
    computed_by_trl = sum(seen)
    seen.clear()
    torch.manual_seed(0)
    ours, _ = trainer._generate_single_turn(*trainer._tokenize_prompts(prompts), 4)
    assert ours == plain
    assert len({len(ids) for ids in ours}) > 2
    # the passes that read prompts are not seen here: each later one computes at least the rows that continue
    assert sum(len(ids) - 1 for ids in ours) <= sum(seen) < computed_by_trl
