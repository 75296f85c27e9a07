"""A compiled model with a static cache answers as transformers' own decoding does."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from every_trainer import GRPO, make, saved_base
from peft import LoraConfig, get_peft_model
from support import adapo_config, adapo_trainer, changed_weights, full_but, untimed, weights_of
from test_live_rows import END, LENGTHS, EndAt, Record, answers, conversations, prompts_of
from torch._dynamo.utils import counters
from transformers import CompileConfig, DynamicCache, LogitsProcessor, Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.integrations import sdpa_attention

from trl_mmreason import AdaPOTrainer
from trl_mmreason.miniature.models import FAMILIES, build_model
from trl_mmreason.sampling.generation import collate
from trl_mmreason.sampling.live_rows import decode_live_rows, ended_rows_leave
from trl_mmreason.sampling.static_rows import StaticRows

# In older versions a compiled pass copies keys and values for each of their queries, and has one graph more.
PACKS_HEADS = hasattr(sdpa_attention, "is_torchdynamo_compiling")
packs_heads = pytest.mark.skipif(not PACKS_HEADS, reason="this transformers always packs heads, or never does")
TRACED = CompileConfig(backend="eager")  # torch records the pass and guards it; no code is generated


class Given(LogitsProcessor):
    """Lets each row have these tokens, step by step."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = iter(tokens)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).scatter(1, next(self.tokens)[:, None], 0.0)


def state_of(*prompts: list[float]) -> DynamicCache:
    """A cache of one layer and one head of width 1, whose keys are these numbers and whose values their negatives."""
    keys, cache = torch.tensor(prompts, dtype=torch.float32)[:, None, :, None], DynamicCache()
    cache.update(keys, -keys, 0)
    return cache


def rows_of(static: Any, tokens: int) -> list[list[float]]:
    layer = static.layers[0]
    assert layer.values.equal(-layer.keys)
    return layer.keys[:, 0, :tokens, 0].tolist()


def batches_of(model: Any) -> list[int]:
    """Rows of each later pass but those over prompts, seen where the inputs are made, as hooks would be compiled."""
    seen: list[int] = []
    prepare = model.prepare_inputs_for_generation

    def prepared(*args: Any, **kwargs: Any) -> Any:
        inputs = prepare(*args, **kwargs)
        if inputs["input_ids"].shape[1] == 1:
            seen.append(len(inputs["input_ids"]))
        return inputs

    model.prepare_inputs_for_generation = prepared
    return seen


def test_rows_are_copies_of_their_prompts_and_become_fewer_in_the_same_place():
    static = StaticRows()
    rows = static.padded(torch.arange(16))
    assert rows.equal(torch.arange(16))
    place = torch.tensor([0] * 8 + [1] * 8)
    cache = static.filled(state_of([1, 2], [3, 4]), place, tokens=5)
    layer = cache.layers[0]
    assert layer.keys.shape == (16, 1, 128, 1)
    assert rows_of(cache, 3) == [[1, 2, 0]] * 8 + [[3, 4, 0]] * 8
    address = layer.keys.data_ptr(), layer.values.data_ptr(), layer.cumulative_length.data_ptr()
    new = torch.arange(16.0).view(16, 1, 1, 1)
    layer.update(new, -new)
    assert layer.get_seq_length() == 3
    cache.batch_select_indices(torch.tensor([2, 3, 5, 7, 8, 9, 12, 15]))
    assert rows_of(cache, 3) == [
        [1, 2, 2],
        [1, 2, 3],
        [1, 2, 5],
        [1, 2, 7],
        [3, 4, 8],
        [3, 4, 9],
        [3, 4, 12],
        [3, 4, 15],
    ]
    again = static.filled(state_of([5, 6, 7]), torch.zeros(8, dtype=torch.long), tokens=128)
    assert again is cache
    assert rows_of(cache, 3) == [[5, 6, 7]] * 8
    assert cache.layers[0].get_seq_length() == 3
    assert address == (layer.keys.data_ptr(), layer.values.data_ptr(), layer.cumulative_length.data_ptr())


def test_passes_read_as_many_tokens_as_rows_may_have_and_at_most_twice_that():
    static = StaticRows()
    layer = static.filled(state_of([1, 2, 3]), torch.zeros(8, dtype=torch.long), tokens=600).layers[0]
    address, seen = layer.keys.data_ptr(), []
    for tokens in (4, 128, 129, 257, 513, 600):
        static.reach(tokens)
        assert (layer.keys.shape, layer.values.shape) == ((8, 1, layer.max_cache_len, 1),) * 2
        seen.append(layer.max_cache_len)
    assert seen == [128, 128, 256, 512, 640, 640]
    assert layer.keys.data_ptr() == address
    assert layer.keys[:, 0, :4, 0].tolist() == [[1, 2, 3, 0]] * 8
    static.filled(state_of([4.0] * 128), torch.zeros(8, dtype=torch.long), tokens=600)
    assert layer.max_cache_len == 256  # room for the next token


@pytest.mark.parametrize(
    ("prompt_of", "tokens", "shape"), [([0] * 9, 128, (9, 1, 144, 1)), ([0] * 4, 129, (8, 1, 272, 1))]
)
def test_buffers_grow_in_one_direction_and_keep_the_other(prompt_of, tokens, shape):
    static = StaticRows()
    static.filled(state_of([1.0]), torch.zeros(8, dtype=torch.long), tokens=3)
    cache = static.filled(state_of([2.0]), torch.tensor(prompt_of), tokens)
    assert cache.layers[0]._buffers[0].shape == shape
    assert rows_of(cache, 1) == [[2.0]] * len(prompt_of)


def test_buffers_grow_by_a_quarter_at_least():
    static, place = StaticRows(), torch.zeros(8, dtype=torch.long)
    lengths = []
    for tokens in (600, 641, 640):  # 5 · 128 tokens; a quarter more is 800, and 7 · 128 hold that
        layer = static.filled(state_of([1.0]), place, tokens).layers[0]
        lengths.append(layer._buffers[0].shape[2] - 16)
    assert lengths == [640, 896, 896]


def test_buffers_of_another_dtype_are_made_anew():
    static = StaticRows()
    static.filled(state_of([1.0]), torch.zeros(2, dtype=torch.long), tokens=3)
    keys, cache = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16), DynamicCache()
    cache.update(keys, keys, 0)
    assert static.filled(cache, torch.zeros(2, dtype=torch.long), 3).layers[0].keys.dtype == torch.bfloat16


def test_a_batch_has_few_sizes():
    """24 rows are halved to 12 and no further, as fewer than 8 save nothing."""
    static = StaticRows()
    static.filled(state_of([1.0]), torch.zeros(24, dtype=torch.long), tokens=1)
    assert [static.size(rows) for rows in (24, 13, 12, 7, 1)] == [24, 24, 12, 12, 12]
    assert static.size(30) == 30
    few = StaticRows()
    few.filled(state_of([1.0]), torch.zeros(4, dtype=torch.long), tokens=1)
    assert [few.size(rows) for rows in (4, 2, 1)] == [4, 4, 4]
    assert static.padded(torch.tensor([3, 8, 9])).tolist() == [3, 8] + [9] * 10


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("family", full_but("qwen2_5_vl", FAMILIES))
def test_answers_and_log_probabilities_are_those_of_transformers(family, sampled, monkeypatch):
    monkeypatch.setattr("trl_mmreason.sampling.static_rows._FEWEST", 2)
    model, processor = build_model(family, "test")
    three, place = conversations(processor)[:3], [0, 0, 1, 2, 2, 2, 1, 0]  # the first has no picture
    repeated = collate([three[number] for number in place], 0)
    begin = repeated["input_ids"].shape[1]
    monkeypatch.setattr("trl_mmreason.sampling.static_rows._MULTIPLE", begin + 4)  # after 4 tokens passes read more
    settings = {"do_sample": sampled, "max_new_tokens": 24, "eos_token_id": [END], "pad_token_id": 0}

    def decode(inputs, **custom):
        torch.manual_seed(0)
        record = Record()
        rows = model.generate(**inputs, logits_processor=[record, EndAt(LENGTHS)], **settings, **custom)
        return rows[:, begin:], record.of(rows[:, begin:])

    plain, there = decode(repeated)
    ways = {
        "each its own prompt": (repeated, None),
        "shared prompts": (collate(three, 0), torch.tensor(place)),
    }
    static = StaticRows()
    for way, (inputs, prompt_of) in ways.items():
        seen = batches_of(model)
        compiled = partial(decode_live_rows, prompt_of=prompt_of, static=static)
        ours, here = decode(inputs, custom_generate=compiled, compile_config=TRACED)
        assert ours.equal(plain), way
        for one, other in zip(here, there, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
        # the first token comes from the prompt's pass; 4 rows of 8 continue after 4 tokens, 2 after 9
        assert seen == [8] * 3 + [4] * 5 + [2] * 15


@packs_heads
def test_a_pass_is_compiled_for_one_size_and_for_all_others_together(monkeypatch):
    monkeypatch.setattr("trl_mmreason.sampling.static_rows._FEWEST", 2)
    model, processor = build_model("qwen2_5_vl", "test")
    model.eval()
    static, encoded = StaticRows(), conversations(processor)
    torch._dynamo.reset()
    counters.clear()
    graphs, sizes = [], []
    # 5 rows are padded to 8; the last lengths leave 3 rows of 8 at once, which are padded to 4
    for lengths in (LENGTHS, LENGTHS[:5], [3, 3, 3, 3, 3, 9, 24, 12]):
        inputs = collate(encoded[: len(lengths)], 0)
        settings = {"max_new_tokens": 24, "eos_token_id": [END], "pad_token_id": 0, "compile_config": TRACED}
        found, seen = [], batches_of(model)
        for custom in (None, partial(decode_live_rows, static=static)):
            torch.manual_seed(0)
            seen.clear()
            ending = [EndAt(lengths)]
            found.append(
                model.generate(**inputs, **settings, do_sample=True, logits_processor=ending, custom_generate=custom)
            )
        assert found[0].equal(found[1])
        graphs.append(counters["stats"]["unique_graphs"])
        sizes.append([seen.count(size) for size in (8, 4, 2)])
    assert graphs == [2, 2, 2]
    assert not counters["graph_break"]
    # passes with more than 4, with 3 or 4, and with fewer rows that continue, up to that for token 24
    assert sizes == [[3, 5, 15], [1, 2, 20], [2, 6, 15]]


def test_rollouts_of_all_kinds_share_five_graphs():
    """Batches with and without padding, in training and evaluation, whose rows, prompts and buffers become larger."""
    model, processor = build_model("qwen2_5_vl", "test")
    static, encoded = StaticRows(), conversations(processor)
    torch._dynamo.reset()
    counters.clear()
    settings = {"do_sample": True, "eos_token_id": [END], "pad_token_id": 0, "compile_config": TRACED}
    for training in (True, False):
        model.train(training)
        for places in (range(8), [1] * 8, [7] * 16):
            inputs = collate([encoded[place] for place in places], 0)
            for most in (4, 100):
                found = []
                for custom in (None, partial(decode_live_rows, static=static)):
                    torch.manual_seed(0)
                    ending = [EndAt([most] * len(places))]
                    more = {"logits_processor": ending, "custom_generate": custom, "max_new_tokens": most}
                    found.append(model.generate(**inputs, **settings, **more))
                assert found[0].equal(found[1])
    # the first size; those of any buffer, then of any length, then of any number of rows; and that of evaluation
    assert counters["stats"]["unique_graphs"] == 5


def test_each_model_and_way_to_compile_has_its_own_pass():
    (model, processor), static = build_model("qwen2_5_vl", "test"), StaticRows()
    inputs, compiled = prompts_of(processor, pictures=False), partial(decode_live_rows, static=static)
    other = deepcopy(model)
    with torch.no_grad():
        other.get_output_embeddings().weight.neg_()
    assert not answers(model, inputs, None).equal(answers(other, inputs, None))
    for each in (model, other):
        assert answers(each, inputs, compiled, compile_config=TRACED).equal(answers(each, inputs, None))
    first = static.compiled(model, TRACED).args
    assert static.compiled(model, CompileConfig(backend="eager")).args == first
    assert static.compiled(model, CompileConfig(backend="aot_eager")).args != first


def test_former_buffers_are_gone_before_larger_ones_are_made():
    model, processor = build_model("qwen2_5_vl", "test")
    static = StaticRows()
    torch._dynamo.reset()
    gc.disable()  # after a compilation they are in cycles
    try:
        compiled = partial(decode_live_rows, static=static)
        answers(model, prompts_of(processor, pictures=False), compiled, compile_config=TRACED)
        former = [weakref.ref(buffer) for layer in static._cache.layers for buffer in layer._buffers]
        assert all(buffer() is not None for buffer in former)
        static.filled(state_of([1.0]), torch.zeros(16, dtype=torch.long), tokens=1)
        assert all(buffer() is None for buffer in former)
    finally:
        gc.enable()


def copies_of_heads(model, inputs) -> list[int]:
    """Ranks of the tensors that the graph of a compiled pass repeats for each of its queries."""
    found = []

    def look(graph, _, **kwargs):
        repeats = [node for node in graph.graph.nodes if node.op == "call_method" and node.target == "expand"]
        found.extend(len(node.args) - 1 for node in repeats)
        return graph.forward

    torch._dynamo.reset()
    answers(model, inputs, partial(decode_live_rows, static=StaticRows()), compile_config=CompileConfig(backend=look))
    return [rank for rank in found if rank == 5]


@packs_heads
def test_a_compiled_pass_does_not_copy_keys_and_values_for_each_query(monkeypatch):
    model, processor = build_model("qwen2_5_vl", "test")
    layers = model.config.get_text_config().num_hidden_layers
    inputs = prompts_of(processor, pictures=False)
    assert copies_of_heads(model, inputs) == []
    monkeypatch.setattr("trl_mmreason.sampling.static_rows._not_compiling", lambda: True)
    # where this fails, transformers packs heads in compiled passes, too: `_not_compiling` can go
    assert len(copies_of_heads(model, inputs)) == 2 * layers


def test_what_a_former_rollout_left_behind_a_row_is_zero():
    static = StaticRows()
    for layer in static.filled(state_of([1.0]), torch.zeros(8, dtype=torch.long), tokens=300).layers:
        for buffer in layer._buffers:
            buffer.fill_(torch.nan)
    cache = static.filled(state_of([1.0, 2.0]), torch.zeros(8, dtype=torch.long), tokens=300)
    static.reach(300)
    assert rows_of(cache, 300) == [[1.0, 2.0, *[0.0] * 298]] * 8


@pytest.mark.full
def test_generated_code_answers_as_transformers_does():
    """With torch's default compiler, weights of an adapter, and in a half-size batch."""
    model, processor = build_model("qwen2_5_vl", "test")
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)).eval()
    inputs = {name: value.repeat_interleave(2, 0) for name, value in prompts_of(processor, pictures=False).items()}
    settings = {"do_sample": True, "max_new_tokens": 12, "eos_token_id": [END], "pad_token_id": 0}
    seen = batches_of(model)

    def decode():
        torch.manual_seed(0)
        return adapted.generate(**inputs, logits_processor=[EndAt(LENGTHS * 2)], **settings)

    plain = decode()
    seen.clear()
    with ended_rows_leave(adapted, static=StaticRows()):
        settings["compile_config"] = CompileConfig()
        assert decode().equal(plain)
    assert set(seen) == {16, 8}


def test_models_that_cannot_be_compiled_with_a_static_cache_are_named():
    text = {"vocab_size": 8, "hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    linear = Qwen3NextForCausalLM(Qwen3NextConfig(**text, num_hidden_layers=4, num_experts=2, num_experts_per_tok=1))
    compiled = partial(decode_live_rows, static=StaticRows())
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="Qwen3NextForCausalLM keeps more of a row than a key-value cache"):
        linear.generate(ids, custom_generate=compiled, max_new_tokens=2, pad_token_id=0)
    model, processor = build_model("qwen2_5_vl", "test")
    model.config.get_text_config()._attn_implementation_internal = "flex_attention"
    with pytest.raises(ValueError, match="attn_implementation='flex_attention' is not known to read a static cache"):
        answers(model, prompts_of(processor, pictures=False), compiled)


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", GRPO))
def test_training_samples_and_learns_the_same_and_compiles_once(tmp_path, name):
    """Three steps, of which the later ones sample from changed weights; AdaPO in two turns."""
    base, runs = saved_base("qwen2_5_vl", tmp_path / "base"), {}
    torch._dynamo.reset()
    counters.clear()
    for compiles in (False, True):
        trainer = make(name, base, tmp_path / str(compiles), compile_generation=compiles, max_steps=3)
        trainer.generation_config.compile_config = TRACED
        trainer.train()
        runs[compiles] = trainer
        assert counters["stats"]["unique_graphs"] <= (int(compiles) if PACKS_HEADS else 2)
    assert not counters["graph_break"]
    plain, compiled = (runs[way].state.log_history[:3] for way in (False, True))
    for step, other in zip(plain, compiled, strict=True):
        assert untimed(step) == pytest.approx(untimed(other), abs=1e-5)
    weights = weights_of(runs[True].model)
    for key, value in weights_of(runs[False].model).items():
        torch.testing.assert_close(weights[key], value, atol=1e-5, rtol=0)


def test_log_probabilities_in_bfloat16_differ_by_what_it_rounds_away():
    """Each way is given the same tokens: a rounded probability may draw another one, on each processor elsewhere."""
    model, processor = build_model("qwen2_5_vl", "test")
    model.eval()
    inputs, tokens = prompts_of(processor), torch.randint(10, 100, (24, len(LENGTHS)))
    settings = {"max_new_tokens": 24, "eos_token_id": None, "pad_token_id": 0, "compile_config": TRACED}
    compiled = partial(decode_live_rows, static=StaticRows())
    recorded = {}
    for way, custom, half in (("exact", None, False), ("rounded", None, True), ("compiled", compiled, True)):
        record = Record()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            model.generate(**inputs, logits_processor=[record, Given(tokens)], custom_generate=custom, **settings)
        recorded[way] = torch.stack(record.steps)
    rounding = (recorded["rounded"] - recorded["exact"]).abs()
    difference = (recorded["compiled"] - recorded["rounded"]).abs()
    # two roundings of the same number are at most twice as far apart as each is from it, here over 24 × 8 × V numbers
    assert 0 < rounding.mean() < 0.05
    assert difference.mean() < 2 * rounding.mean()
    assert difference.max() < 2 * rounding.max()


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", GRPO))
def test_training_in_bfloat16_compiles_once(tmp_path, name):
    """With activation checkpointing, which is off while answers are sampled."""
    torch._dynamo.reset()
    counters.clear()
    settings = {"bf16": True, "gradient_checkpointing": True, "compile_generation": True}
    trainer = make(name, saved_base("qwen2_5_vl", tmp_path / "base"), tmp_path, **settings)
    trainer.generation_config.compile_config = TRACED
    before = weights_of(trainer.model)
    trainer.train()
    assert counters["stats"]["unique_graphs"] == (1 if PACKS_HEADS else 2)
    assert not counters["graph_break"]
    assert len(changed_weights(trainer.model, before)) > 20


@pytest.mark.parametrize(
    "other",
    [{"use_vllm": True}, {"use_transformers_continuous_batching": True}, {"cache_implementation": "static"}],
    ids=str,
)
def test_one_way_to_sample_is_chosen(tmp_path, other):
    name, value = next(iter(other.items()))
    with pytest.raises(ValueError, match=rf"AdaPOConfig: compile_generation=True with {name}={value!r}"):
        adapo_config(tmp_path, compile_generation=True, **other)


def test_a_policy_in_parts_is_not_compiled(checkpoints, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(AdaPOTrainer, "_rows_can_leave", lambda self: False)
    with pytest.raises(ValueError, match="AdaPOTrainer: compile_generation=True with ZeRO-3 or FSDP2, expected whole"):
        adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, compile_generation=True)
