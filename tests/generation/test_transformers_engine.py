import copy
import json
import math
import shutil
from collections import Counter
from contextlib import contextmanager
from functools import cache

import PIL.Image
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from support import FAMILY_NAMES, drawn_rows, full_but, load
from text_reasoners import REASONERS, plain_ids, text_requests
from transformers import ProcessorMixin
from trl.data_utils import prepare_multimodal_messages

from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.generation import Failure, Request, SamplingParams, derive_seed, model_loading
from trl_mmreason.generation.batch import collate, encode, end_of_turn_ids, generate
from trl_mmreason.generation.gumbel import GumbelMaxSampler, StopTracker, cut_behind_stop
from trl_mmreason.generation.transformers_engine import TransformersEngine, beyond_rounding
from trl_mmreason.training.checkpoint import CheckpointError

GREEDY = SamplingParams(max_new_tokens=8, temperature=0)
QUESTION = [{"role": "user", "content": "What is 2+3?"}]
PREFIXES = ("", "So 1+1")


@pytest.fixture(scope="module")
def engines(checkpoints, reasoners):
    """family or text-only reasoner → an engine on its test model, with batches of 4."""

    def engine(name):
        return TransformersEngine(reasoners(name) if name in REASONERS else checkpoints(name), batch_size=4)

    return cache(engine)


@pytest.fixture(params=[*full_but("qwen2_5_vl", FAMILY_NAMES), *REASONERS])
def engine(request, engines):
    """Of every family, and of text-only reasoners."""
    return engines(request.param)


@pytest.fixture
def qwen(engines):
    return engines("qwen2_5_vl")


def requests_of(rows, **settings):
    """With one image, two and none in turn, and with and without a prefix."""
    return [
        Request(row["prompt"], row["images"], prefix=PREFIXES[number // 3 % 2], seed=number, **settings)
        for number, row in enumerate(rows)
    ]


def requests_for(engine, number, **settings):
    """`requests_of` drawn rows where the engine's model sees, and else `text_requests`."""
    if isinstance(engine.processing_class, ProcessorMixin):
        return requests_of(drawn_rows(number), **settings)
    return text_requests(number, **settings)


def plain_inputs(processor, request):
    """What the processor or tokenizer itself makes of one conversation, with the prefix's tokens behind."""
    if not isinstance(processor, ProcessorMixin):
        return {"input_ids": torch.tensor([plain_ids(processor, request)])}
    conversation = prepare_multimodal_messages(list(request.messages), images=list(request.images))
    inputs = processor.apply_chat_template(
        [conversation], tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
    )
    return append(inputs, processor.tokenizer(request.prefix, add_special_tokens=False)["input_ids"])


def append(inputs, ids):
    inputs = dict(inputs)
    more = torch.tensor([ids], dtype=torch.long)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], more], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more)], 1)
    return inputs


@contextmanager
def watched(model, watch):
    """Call `watch` with the token ids of every forward pass while the block runs."""
    hook = model.register_forward_pre_hook(lambda module, args, kwargs: watch(kwargs["input_ids"]), with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


class TestGreedy:
    def test_a_batch_gives_what_plain_generate_gives_one_by_one(self, engine):
        model, processor = engine.model, engine.processing_class
        requests = requests_for(engine, 9)
        for request, (sample,) in zip(requests, engine.sample(requests, GREEDY), strict=True):
            inputs = plain_inputs(processor, request)
            settings = {"max_new_tokens": 8, "suppress_tokens": placeholder_ids(model.config)}
            plain = model.generate(**inputs, do_sample=False, **settings)[0, inputs["input_ids"].shape[1] :].tolist()
            assert sample.token_ids == plain
            ended = plain[-1] in model.generation_config.eos_token_id
            assert sample.finish_reason == ("stop" if ended else "length")
            assert sample.text == processor.decode(plain[:-1] if ended else plain, skip_special_tokens=True)

    def test_n_greedy_answers_are_one_answer(self, qwen):
        assert qwen.sample([Request(QUESTION, n=3)], GREEDY) == [qwen.sample([Request(QUESTION)], GREEDY)[0] * 3]

    def test_the_checkpoints_own_settings_do_not_count_and_stay(self, qwen):
        requests = requests_of(drawn_rows(6))
        plain = qwen.sample(requests, GREEDY)
        own = qwen.model.generation_config
        changed = copy.deepcopy(own)
        changed.update(repetition_penalty=3.0, no_repeat_ngram_size=1, min_new_tokens=5, bad_words_ids=[[300]])
        qwen.model.generation_config = changed
        try:
            assert qwen.sample(requests, GREEDY) == plain
            assert qwen.model.generation_config is changed
        finally:
            qwen.model.generation_config = own

    def test_a_processor_that_pads_right_is_left_as_it_is(self, qwen):
        requests = requests_of(drawn_rows(6))
        processor = copy.deepcopy(qwen.processing_class)
        processor.tokenizer.padding_side = "right"
        assert TransformersEngine(qwen.model, processor).sample(requests, GREEDY) == qwen.sample(requests, GREEDY)
        assert processor.tokenizer.padding_side == "right"

    def test_a_model_in_training_is_sampled_without_dropout_and_trains_on(self, checkpoints):
        model, processor = load(checkpoints("qwen2_5_vl"))
        engine = TransformersEngine(model, processor)
        for config in (model.config.get_text_config(), model.config.vision_config):
            config.attention_dropout = 0.9
        for module in model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.9
        still = engine.sample([Request(QUESTION)], GREEDY)
        model.train()
        assert engine.sample([Request(QUESTION)], GREEDY) == still
        assert model.training


class TestImages:
    @pytest.mark.parametrize("name", ["llava_next", "internvl"])
    def test_images_of_different_numbers_of_tiles(self, name, checkpoints):
        """A wide image has more tiles than a square one, so the pixels of the rows have different shapes."""
        model, processor = load(checkpoints(name))
        if name == "llava_next":
            points = [[56, 112], [112, 56], [56, 168]]
            model.config.image_grid_pinpoints = processor.image_processor.image_grid_pinpoints = points
        image = drawn_rows(1)[0]["images"][0]
        square, wide = image.resize((56, 56)), image.resize((168, 56))
        requests = [Request(QUESTION, images) for images in ([square], [wide], [wide, square], [])]
        together = TransformersEngine(model, processor).sample(requests, GREEDY)
        alone = [TransformersEngine(model, processor).sample([request], GREEDY)[0] for request in requests]
        assert together == alone
        tiles = [len(plain_inputs(processor, request)["pixel_values"].flatten(0, -4)) for request in requests[:2]]
        assert tiles[1] > tiles[0]

    def test_an_answer_follows_its_own_image_and_no_other(self, family, engines):
        """Log-probabilities move with the row's own image and stay when the neighbour's changes (PITFALL 15)."""
        rows = [row for row in drawn_rows(9) if len(row["images"]) == 1][:2]
        first, second = ([row["images"][0]] for row in rows)

        def first_logp(both, row):
            requests = [Request(QUESTION, images) for images in both]
            return engines(family).sample(requests, SamplingParams(1, temperature=0, logprobs=True))[row][0].logprobs[0]

        base = first_logp([first, second], 0)
        assert first_logp([first, first], 0) == pytest.approx(base, abs=1e-5)
        assert abs(first_logp([second, second], 0) - base) > 1e-3

    def test_no_placeholder_is_ever_drawn(self, qwen):
        config = qwen.model.config
        ends = [config.vision_start_token_id, config.vision_end_token_id]
        assert placeholder_ids(config) == [config.image_token_id, config.video_token_id, *ends]
        head = qwen.model.lm_head.weight
        kept = head.detach().clone()
        with torch.no_grad():  # logits of the placeholders far above all others' half of the time
            head[placeholder_ids(config)] *= 100
        try:
            for sampling_params in (GREEDY, SamplingParams(8), SamplingParams(8, top_k=2)):
                answers = qwen.sample([Request(QUESTION, n=8)], sampling_params)[0]
                drawn = {token for answer in answers for token in answer.token_ids}
                assert not drawn & set(placeholder_ids(config))
        finally:
            with torch.no_grad():
                head.copy_(kept)


class TestSeeds:
    @pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 40}], ids=["plain", "warped"])
    def test_samples_do_not_depend_on_the_batch(self, engine, settings):
        sampling_params = SamplingParams(8, **settings)
        requests = requests_for(engine, 6, n=2)
        together = engine.sample(requests, sampling_params)
        larger = TransformersEngine(engine.model, engine.processing_class, batch_size=12)
        assert larger.sample(requests[::-1], sampling_params)[::-1] == together  # other batches, other neighbours
        alone = TransformersEngine(engine.model, engine.processing_class, batch_size=1)
        assert alone.sample(requests[:3], sampling_params) == together[:3]

    def test_answer_k_stays_when_more_are_asked_for_and_differs_from_the_others(self, qwen):
        few, many = (qwen.sample([Request(QUESTION, n=n)], SamplingParams(8))[0] for n in (3, 12))
        assert many[:3] == few
        assert len({tuple(answer.token_ids) for answer in many}) == 12  # the first token alone has 768 possible values
        other = qwen.sample([Request(QUESTION, n=3, seed=1)], SamplingParams(8))[0]
        assert not {tuple(a.token_ids) for a in other} & {tuple(a.token_ids) for a in many}

    def test_the_global_random_state_is_neither_used_nor_moved(self, qwen):
        torch.manual_seed(0)
        state = torch.get_rng_state()
        first = qwen.sample([Request(QUESTION, n=3)], SamplingParams(8))
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(1)
        assert qwen.sample([Request(QUESTION, n=3)], SamplingParams(8)) == first


class TestDistribution:
    """Pearson's statistic of N draws over c cells is χ² with c − 1 degrees of freedom, 0.1 % of which lie above the
    quantile given. The seeds are fixed."""

    LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 1.5, 3.0])
    ROWS = 4000

    def draws(self, sampling_params, suppressed=(), steps=1):
        rows = self.ROWS
        ending = StopTracker([steps + 1] * rows, [], (), None, [[]] * rows)
        seeds = [derive_seed("test", row) for row in range(rows)]
        drawing = GumbelMaxSampler(sampling_params, seeds, ending, suppressed, torch.device("cpu"))
        ids = torch.zeros(rows, 1, dtype=torch.long)
        return [drawing(ids, self.LOGITS.expand(rows, -1).clone()).argmax(-1).tolist() for _ in range(steps)]

    @pytest.mark.parametrize(
        ("settings", "allowed", "temperature", "quantile"),
        [
            ({}, range(8), 1.0, 24.32),  # 7 degrees of freedom
            ({"temperature": 2.0}, range(8), 2.0, 24.32),
            ({"top_k": 3}, [0, 6, 7], 1.0, 13.82),  # 2 degrees
            # Shares of the highest: 0.50, 0.18, 0.11, 0.07: the first three are the fewest that make 0.75.
            ({"top_p": 0.75}, [0, 6, 7], 1.0, 13.82),
            ({"suppressed": [7]}, range(7), 1.0, 22.46),  # 6 degrees
        ],
    )
    def test_draws_are_distributed_as_the_warped_probabilities(self, settings, allowed, temperature, quantile):
        settings = dict(settings)
        suppressed = settings.pop("suppressed", ())
        counts = Counter(self.draws(SamplingParams(**settings), suppressed)[0])
        assert set(counts) <= set(allowed)
        weights = {token: math.exp(self.LOGITS[token].item() / temperature) for token in allowed}
        expected = {token: self.ROWS * weight / sum(weights.values()) for token, weight in weights.items()}
        assert sum((counts[t] - expected[t]) ** 2 / expected[t] for t in allowed) < quantile

    def test_successive_draws_of_a_row_are_independent(self):
        first, second = self.draws(SamplingParams(top_k=3), steps=2)
        weights = {token: math.exp(self.LOGITS[token].item()) for token in (0, 6, 7)}
        shares = {token: weight / sum(weights.values()) for token, weight in weights.items()}
        counts = Counter(zip(first, second, strict=True))
        expected = {(a, b): self.ROWS * shares[a] * shares[b] for a in shares for b in shares}
        assert sum((counts[pair] - e) ** 2 / e for pair, e in expected.items()) < 26.12  # 8 degrees

    def test_temperature_0_adds_no_noise(self):
        assert self.draws(SamplingParams(temperature=0))[0] == [7] * self.ROWS

    def test_rows_that_ended_cost_no_noise(self):
        ending = StopTracker([1, 2], [], (), None, [[], []])
        drawing = GumbelMaxSampler(SamplingParams(), [1, 2], ending, (), torch.device("cpu"))
        ids, states = torch.zeros(2, 1, dtype=torch.long), []
        for _ in range(2):
            drawing(ids, self.LOGITS.expand(2, -1).clone())
            ending(ids, None)
            states.append([generator.get_state() for generator in drawing._generators])
        assert torch.equal(states[0][0], states[1][0])
        assert not torch.equal(states[0][1], states[1][1])


class TestLogps:
    def test_they_are_those_of_a_forward_pass_and_ids_keep_the_end_of_turn(self, engine):
        """Of the model itself, whatever the temperature, within 1e-4 in fp32 (PITFALL 16).

        What off-policy training weighs: the end is a decision of the model too.
        """
        eos_ids = end_of_turn_ids(engine.model, engine.processing_class)
        requests, reasons = requests_for(engine, 6, n=4), set()
        answers = engine.sample(requests, SamplingParams(8, temperature=0.7, top_k=50, logprobs=True))
        for request, samples in zip(requests, answers, strict=True):
            prompt = plain_inputs(engine.processing_class, request)
            for sample in samples:
                *others, last = sample.token_ids
                reasons.add(sample.finish_reason)
                assert not set(others) & set(eos_ids)
                assert (last in eos_ids) == (sample.finish_reason == "stop")
                with torch.no_grad():
                    logits = engine.model(**append(prompt, sample.token_ids)).logits[0, -len(others) - 2 : -1]
                expected = logits.log_softmax(-1)[range(len(others) + 1), sample.token_ids].tolist()
                assert sample.logprobs == pytest.approx(expected, abs=1e-4)
        assert reasons == {"stop", "length"}

    def test_none_unless_asked_for(self, qwen):
        assert qwen.sample([Request(QUESTION)], GREEDY)[0][0].logprobs is None


class TestEnds:
    def test_every_end_of_turn_id_counts(self, checkpoints):
        """PITFALL 19: with the tokenizer's own alone, few answers would end."""
        model, processor = load(checkpoints("qwen2_5_vl"))
        # A quarter of the tokens end a turn: about 0.9 of the answers within 8 tokens, if all were as likely.
        assert Counter(a.finish_reason for a in self.answers(model, processor))["stop"] > 25
        model.generation_config.eos_token_id = None
        answers = self.answers(model, processor)
        own = processor.tokenizer.eos_token_id  # one of 768, drawn now and then
        assert [a.finish_reason for a in answers] == ["stop" if a.token_ids[-1] == own else "length" for a in answers]
        assert sum(a.finish_reason == "length" for a in answers) > 25

    def answers(self, model, processor):
        return TransformersEngine(model, processor).sample([Request(QUESTION, n=50)], SamplingParams(8))[0]

    def test_an_answer_ends_behind_a_stop_text(self, checkpoints):
        model, processor = load(checkpoints("qwen2_5_vl"))
        model.generation_config.eos_token_id = None
        engine = TransformersEngine(model, processor)
        request = Request(QUESTION, n=40)
        free = engine.sample([request], SamplingParams(16))[0]
        stopped = engine.sample([request], SamplingParams(16, stop=("e", "1+")))[0]
        assert sum(answer.finish_reason == "stop" for answer in stopped) > 5
        for whole, answer in zip(free, stopped, strict=True):
            assert answer.text == cut_behind_stop(whole.text, ("e", "1+"))
            assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
            tokens = range(len(whole.token_ids) + 1)
            decoded = [processor.tokenizer.decode(whole.token_ids[:t], skip_special_tokens=True) for t in tokens]
            shown = next((t for t, text in enumerate(decoded) if "e" in text or "1+" in text), None)
            expected = (whole.finish_reason, len(whole.token_ids)) if shown is None else ("stop", shown)
            assert (answer.finish_reason, len(answer.token_ids)) == expected

    @pytest.mark.parametrize("stop", ["\n\nStep 2", "é→"])
    def test_a_stop_text_of_many_tokens_is_noticed_at_its_last(self, qwen, stop):
        tokenizer = qwen.processing_class.tokenizer
        ids = tokenizer(f"So 1+1 is 2, and é is not →.{stop} and more", add_special_tokens=False)["input_ids"]
        ending = StopTracker([len(ids)], [], [stop], tokenizer, [[]])
        while ending.live:
            ending(torch.tensor([ids[: len(ending.ids[0]) + 1]]), None)
        assert ending.reasons == ["stop"]
        assert stop in tokenizer.decode(ending.ids[0])
        assert stop not in tokenizer.decode(ending.ids[0][:-1])
        assert len(tokenizer(stop, add_special_tokens=False)["input_ids"]) > 3

    @pytest.mark.parametrize(
        ("text", "stop", "expected"),
        [
            ("a step. b", (". ",), "a step. "),
            ("a b c", ("c", "b"), "a b"),
            ("a bc", ("bc", "b"), "a b"),
            ("a", ("b",), "a"),
            ("a", (), "a"),
        ],
    )
    def test_cut_behind_stop(self, text, stop, expected):
        assert cut_behind_stop(text, stop) == expected

    @pytest.mark.parametrize("text", ["<|vision_end|>", ""])
    def test_a_stop_text_that_no_answer_shows_is_refused(self, qwen, text):
        with pytest.raises(ValueError, match="can never end at the stop text"):
            qwen.sample([Request(QUESTION)], SamplingParams(8, stop=(text,)))

    def test_text_continues_behind_the_prefix_without_repeating_it(self, qwen):
        """The prefix's own tokens stand behind the rendered prompt, and the answer's text is what joins on to it."""
        tokenizer = qwen.processing_class.tokenizer
        prefix = "So 1+1 is"
        plain = encode(qwen.processing_class, QUESTION)
        seen = []
        with watched(qwen.model, seen.append):
            (sample,) = qwen.sample([Request(QUESTION, prefix=prefix)], GREEDY)[0]
        prefix_ids = tokenizer(prefix, add_special_tokens=False)["input_ids"]
        assert seen[0].tolist() == [[*plain.ids, *prefix_ids]]
        said = [i for i in sample.token_ids if i not in end_of_turn_ids(qwen.model, qwen.processing_class)]
        assert prefix + sample.text == tokenizer.decode([*prefix_ids, *said])


class TestFailures:
    def test_a_bad_request_fails_alone_and_says_why(self, qwen, tmp_path):
        broken = tmp_path / "broken.png"
        drawn_rows(1)[0]["images"][0].save(broken)
        broken.write_bytes(broken.read_bytes()[:-200])
        requests = [
            Request(QUESTION, n=2),
            Request(QUESTION, [PIL.Image.open(broken)]),
            Request(QUESTION, [PIL.Image.new("RGB", (4000, 8))]),
            Request([{"role": "narrator", "content": "?"}]),
            Request([{"role": "user", "content": "1 " * 4000}]),
            Request(QUESTION, seed=5),
        ]
        found = qwen.sample(requests, GREEDY)
        assert [isinstance(result, Failure) for result in found] == [False, True, True, True, True, False]
        assert "truncated" in found[1].reason
        assert "aspect ratio" in found[2].reason
        assert "narrator" in found[3].reason
        assert "tokens and the model has 4096 positions" in found[4].reason
        assert found[0] == qwen.sample(requests[:1], GREEDY)[0]

    def test_an_answer_ends_where_the_models_positions_end(self, qwen):
        config = qwen.model.config.get_text_config()
        kept = config.max_position_embeddings
        prompt_tokens = len(encode(qwen.processing_class, QUESTION).ids)
        try:
            config.max_position_embeddings = prompt_tokens + 3
            short, long = qwen.sample([Request(QUESTION, n=20), Request(QUESTION, prefix="1")], SamplingParams(8))
        finally:
            config.max_position_embeddings = kept
        assert max(len(answer.token_ids) for answer in short) == 3
        assert len(long[0].token_ids) <= 2
        assert {answer.finish_reason for answer in short if len(answer.token_ids) < 3} == {"stop"}

    @staticmethod
    def with_memory_for(engine, rows, call):
        """Run `call` while the model runs out of memory with more rows; gives the sizes of the batches begun."""
        sizes = []

        def check(ids):
            if ids.shape[1] > 1:
                sizes.append(len(ids))
            if len(ids) > rows:
                raise torch.OutOfMemoryError("no memory left")

        with watched(engine.model, check):
            return call(), sizes

    def test_a_batch_that_does_not_fit_is_halved(self, qwen):
        requests = requests_of(drawn_rows(12), n=1)
        expected = qwen.sample(requests, SamplingParams(8))
        engine = TransformersEngine(qwen.model, qwen.processing_class, batch_size=8)
        engine.sample(requests, SamplingParams(1))  # tries once whether padding changes answers
        found, sizes = self.with_memory_for(engine, 2, lambda: engine.sample(requests, SamplingParams(8)))
        assert found == expected
        assert sizes[:3] == [8, 4, 2]
        assert sizes.count(8) == 1  # learnt

    def test_no_memory_for_one_answer_raises_and_later_is_the_requests_failure(self, qwen):
        engine = TransformersEngine(qwen.model, qwen.processing_class)
        requests = [Request(QUESTION, n=2), Request(QUESTION, prefix="1", n=2)]
        with pytest.raises(torch.OutOfMemoryError, match="this answer alone: .* tokens of prompt and up to 8"):
            self.with_memory_for(engine, 0, lambda: engine.sample(requests, SamplingParams(8)))
        expected = engine.sample(requests, SamplingParams(8))
        failed, _ = self.with_memory_for(engine, 0, lambda: engine.sample(requests, SamplingParams(8)))
        assert all("out of memory with this answer alone" in failure.reason for failure in failed)
        assert engine.sample(requests, SamplingParams(8)) == expected


class TestLoading:
    @pytest.fixture(scope="class")
    def adapter(self, checkpoints, tmp_path_factory):
        """A LoRA adapter with random weights on one family, as `save_pretrained` leaves it."""
        model, _ = load(checkpoints("qwen2_5_vl"))
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        torch.manual_seed(0)
        model = get_peft_model(model, config).eval()
        folder = tmp_path_factory.mktemp("adapter")
        model.save_pretrained(folder)
        return model, str(folder)

    def test_an_adapter_is_loaded_on_its_base(self, qwen, adapter, checkpoints):
        model, folder = adapter
        requests = requests_of(drawn_rows(6))
        live = TransformersEngine(model, qwen.processing_class).sample(requests, GREEDY)
        assert TransformersEngine(folder).sample(requests, GREEDY) == live
        named = TransformersEngine(checkpoints("qwen2_5_vl"), adapter=folder)
        assert named.sample(requests, GREEDY) == live
        assert live != qwen.sample(requests, GREEDY)
        assert named.settings["adapter"] == folder

    def test_an_adapter_is_loaded_on_the_revision_that_it_names(self, adapter, checkpoints, tmp_path, monkeypatch):
        base, asked, load_config = checkpoints("qwen2_5_vl"), [], model_loading.AutoConfig.from_pretrained
        shutil.copytree(adapter[1], tmp_path, dirs_exist_ok=True)
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "revision": "v2"}))

        def note(*args, revision=None, **kwargs):
            asked.append(revision)
            return load_config(*args, revision=revision, **kwargs)

        monkeypatch.setattr(model_loading.AutoConfig, "from_pretrained", note)
        other = shutil.copytree(base, tmp_path / "other")  # which has no such revision
        own = [(str(tmp_path), None, "v2"), (base, str(tmp_path), "v2"), (base, None, None)]
        for model, given, revision in (*own, (str(other), str(tmp_path), None)):
            asked.clear()
            model_loading.load_model(model, adapter=given, device="cpu")
            assert asked[0] == revision
        asked.clear()
        model_loading.load_model(base, adapter=str(tmp_path), revision="v1", device="cpu")
        assert asked[0] == "v1"  # what is said goes before it

    def test_an_adapter_on_another_model_is_warned_of(self, adapter, checkpoints, tmp_path, caplog):
        """Its tensors fit that one, too."""
        _, folder = adapter
        path = checkpoints("qwen2_5_vl")
        TransformersEngine(path, adapter=folder)
        assert caplog.text == ""
        shutil.copytree(path, tmp_path, dirs_exist_ok=True)
        TransformersEngine(str(tmp_path), adapter=folder)
        [record] = caplog.records
        assert f"{folder} was trained on {path}, and is put on {tmp_path}" in record.getMessage()

    def test_an_adapter_brings_the_processor_that_was_saved_with_it(self, qwen, adapter, checkpoints, tmp_path):
        """Whether it is named beside its base or alone: it was trained on this one's prompts."""
        _, folder = adapter
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        _, processor = load(checkpoints("qwen2_5_vl"))
        processor.chat_template = processor.chat_template.replace("You are a helpful assistant", "Be brief")
        processor.save_pretrained(tmp_path)
        alone = TransformersEngine(str(tmp_path))
        named = TransformersEngine(checkpoints("qwen2_5_vl"), adapter=str(tmp_path))
        assert named.processing_class.chat_template == alone.processing_class.chat_template == processor.chat_template
        assert named.settings["processor"] == alone.settings["processor"] != qwen.settings["processor"]

    def test_an_adapter_that_does_not_reach_the_model_is_refused(self, adapter, tmp_path):
        _, folder = adapter
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        weights = load_file(tmp_path / "adapter_model.safetensors")
        renamed = {name.replace("language_model", "text_model"): value for name, value in weights.items()}
        save_file(renamed, tmp_path / "adapter_model.safetensors")
        with pytest.raises(CheckpointError, match="did not reach the model"):
            TransformersEngine(str(tmp_path))

    def test_settings_are_json_and_follow_what_determines_answers(self, qwen, checkpoints):
        assert json.loads(json.dumps(qwen.settings)) == qwen.settings
        assert TransformersEngine(checkpoints("qwen2_5_vl"), batch_size=1).settings == qwen.settings
        assert TransformersEngine(checkpoints("qwen2_5_vl"), dtype=torch.bfloat16).settings["dtype"] == "bfloat16"
        model, processor = load(checkpoints("qwen2_5_vl"))
        engine = TransformersEngine(model, processor)
        assert engine.settings == {**qwen.settings, "revision": None}
        with torch.no_grad():
            model.lm_head.weight += 1e-3
        processor.image_processor.size["longest_edge"] //= 2
        changed = {name for name, value in engine.settings.items() if value != qwen.settings[name]}
        assert changed == {"weights", "processor"}

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"batch_size": 0}, ValueError, "expected 1 or more"),
            ({"dtype": "float32"}, TypeError, "loaded already"),
        ],
    )
    def test_arguments_that_make_no_sense(self, qwen, arguments, error, message):
        with pytest.raises(error, match=message):
            TransformersEngine(qwen.model, qwen.processing_class, **arguments)

    def test_a_tokenizer_alone_and_a_device_with_a_device_map(self, qwen, checkpoints):
        with pytest.raises(TypeError, match="expected the processor"):
            TransformersEngine(qwen.model, qwen.processing_class.tokenizer)
        with pytest.raises(ValueError, match="give one of them"):
            TransformersEngine(checkpoints("qwen2_5_vl"), device="cpu", device_map="auto")


class TestBatches:
    def test_prompts_of_similar_length_go_together_the_longest_first(self, qwen):
        engine = TransformersEngine(qwen.model, qwen.processing_class, batch_size=2)
        requests = [Request([{"role": "user", "content": "1" * digits}]) for digits in (10, 50, 11, 90, 12, 51)]
        shortest = len(encode(qwen.processing_class, requests[0].messages).ids)
        engine.sample(requests, GREEDY)  # tries once whether padding changes answers
        shapes = []
        with watched(engine.model, lambda ids: shapes.append(tuple(ids.shape))):
            engine.sample(requests, GREEDY)
        shapes = [shape for shape in shapes if shape[1] > 1]  # of prompts
        assert shapes == [(2, shortest + 80), (2, shortest + 40), (2, shortest + 1)]  # 90 51, 50 12, 11 10


class TestCollate:
    def test_rows_are_padded_left_and_images_follow_in_order(self, qwen):
        rows = drawn_rows(3)
        prompts = [encode(qwen.processing_class, row["prompt"], row["images"]) for row in rows]
        prompts[2] = prompts[2].extended([7, 8])
        inputs = collate(prompts, pad_token_id=0)
        width = max(len(prompt.ids) for prompt in prompts)
        for row, prompt in enumerate(prompts):
            lack = width - len(prompt.ids)
            assert inputs["input_ids"][row].tolist() == [0] * lack + prompt.ids
            assert inputs["attention_mask"][row].tolist() == [0] * lack + [1] * len(prompt.ids)
            # Type 1 marks exactly the image's tokens.
            image = [int(token == qwen.model.config.image_token_id) for token in inputs["input_ids"][row]]
            assert inputs["mm_token_type_ids"][row].tolist() == image
        assert inputs["input_ids"][2, -2:].tolist() == [7, 8]
        grids = [prompt.image_fields["image_grid_thw"] for prompt in prompts[:2]]
        assert torch.equal(inputs["image_grid_thw"], torch.cat(grids))

    def test_settings_for_generate_override(self, qwen):
        prompts, settings = [encode(qwen.processing_class, QUESTION)], {"suppress_tokens": list(range(300))}
        (ids,) = generate(qwen.model, qwen.processing_class, prompts, max_new_tokens=3, **settings)
        assert min(ids) >= 300


def test_no_process_waits_for_another_at_each_token(qwen, monkeypatch):
    """As transformers would under ZeRO-3, where processes that sample unequally would wait for ever."""
    seen, sample = [], qwen.model.generate

    def spied(**settings):
        seen.append(settings["synced_gpus"])
        return sample(**settings)

    monkeypatch.setattr(qwen.model, "generate", spied)
    qwen.sample([Request(QUESTION)], GREEDY)
    assert seen == [False]


def test_a_certain_token_that_is_rounded_is_no_effect_of_padding():
    """A logit of 40.25 that becomes 40 in bfloat16 moves the log-probabilities of all other tokens by a quarter."""
    alone = torch.tensor([40.25, 2.0, 1.0, 0.0, -1.0])  # a standard deviation of 17.8
    assert beyond_rounding([alone.bfloat16().float()], [alone], exact=False) == 0
    assert beyond_rounding([alone + 5], [alone], exact=True) == 0
    moved = torch.tensor([0.0, 2.0, -2.0, 0.0, 4.0])  # from their median 0 by 0, 0, 2, 2 and 4
    assert beyond_rounding([alone + moved], [alone], exact=False) == pytest.approx(2 / 17.812, rel=1e-3)
    assert beyond_rounding([alone + moved], [alone], exact=True) == pytest.approx(4 / 17.812, rel=1e-3)
    assert beyond_rounding([alone + moved / 20], [alone], exact=False) == 0


def test_tokens_after_another_likeliest_one_are_not_compared():
    first, second = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
    apart = torch.tensor([0.0, 9.0, 0.0])
    same = beyond_rounding([first], [second], exact=True)
    assert same == beyond_rounding([first, apart], [second, -apart], exact=True) > 1
