"""What can be tested without vLLM: what it is given, what is made of its outputs, and how a refused prompt is found."""

import importlib.util
import json
import sys
from dataclasses import make_dataclass
from types import ModuleType, SimpleNamespace

import PIL.Image
import pytest
from peft import LoraConfig, get_peft_model
from support import drawn_rows, load
from tokenizers.processors import TemplateProcessing

from trl_mmreason.generation import Failure, Request, Sample, SamplingParams, derive_seed
from trl_mmreason.generation.batch import encode, end_of_turn_ids
from trl_mmreason.generation.vllm_engine import VLLMEngine, prompt_of, samples_of, vllm_sampling_params

QUESTION = [{"role": "user", "content": "What is 2+3?"}]


class TestPrompt:
    def test_one_placeholder_an_image_and_else_what_transformers_is_given(self, family, checkpoints):
        model, processor = load(checkpoints(family))
        image = model.config.image_token_id
        for row in drawn_rows(3):
            prompt = prompt_of(processor, Request(row["prompt"], row["images"], prefix="So 1"), {})
            ids = prompt["prompt_token_ids"]
            assert ids.count(image) == len(row["images"])
            prefix_ids = processor.tokenizer("So 1", add_special_tokens=False)["input_ids"]
            ours = encode(processor, row["prompt"], row["images"]).extended(prefix_ids).ids
            # The processor widens each placeholder, to which InternVL adds tokens around it; the rest is the same.
            tokens = {processor.tokenizer.convert_tokens_to_ids(token) for token in ("<img>", "</img>")} | {image}
            assert [i for i in ids if i not in tokens] == [i for i in ours if i not in tokens]
            images = prompt.get("multi_modal_data", {"image": []})["image"]
            assert all(given is own for given, own in zip(images, row["images"], strict=True))

    def test_a_first_token_that_the_tokenizer_adds_is_there_as_in_training(self, checkpoints):
        """LLaVA's templates do not write it, and their tokenizers add it."""
        _, processor = load(checkpoints("llava_next"))
        tokenizer = processor.tokenizer
        tokenizer.add_special_tokens({"bos_token": "<s>"})
        first = [("<s>", tokenizer.bos_token_id)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=first)
        (given, ours) = prompt_of(processor, Request(QUESTION), {})["prompt_token_ids"], encode(processor, QUESTION).ids
        assert given == ours
        assert given.count(tokenizer.bos_token_id) == 1
        template = {"chat_template": "{{ bos_token }}{{ messages[0]['content'][0]['text'] }}"}  # writes it itself
        assert prompt_of(processor, Request(QUESTION), template)["prompt_token_ids"].count(tokenizer.bos_token_id) == 1
        template = {"chat_template": "{{ messages[0]['content'] }}"}  # of a text-only policy, whose templates write it
        given = prompt_of(tokenizer, Request(QUESTION), template)["prompt_token_ids"]
        assert given == encode(tokenizer, QUESTION, **template).ids
        assert tokenizer.bos_token_id not in given

    def test_images_of_later_messages_go_along(self, processor):
        """Also where no answer is known in tokens, as after one that a stop string ended."""
        first, later = PIL.Image.new("RGB", (64, 64)), PIL.Image.new("RGB", (96, 64), "red")
        said = {"role": "user", "content": [{"type": "image", "image": later}, {"type": "text", "text": "And here?"}]}
        messages = [*QUESTION, {"role": "assistant", "content": "5"}, said]
        prompt = prompt_of(processor, Request(messages, [first]), {})
        assert prompt["prompt_token_ids"].count(processor.image_token_id) == 2
        assert prompt["multi_modal_data"]["image"] == [first, later]
        (alone,) = prompt_of(processor, Request(messages), {})["multi_modal_data"]["image"]
        assert alone is later

    def test_template_arguments_reach_the_template(self, processor):
        template = "{{ messages[0]['content'][0]['text'] }}{{ mood }}"
        given = prompt_of(processor, Request(QUESTION), {"chat_template": template, "mood": "!"})
        assert processor.tokenizer.decode(given["prompt_token_ids"]) == "What is 2+3?!"


class TestSettings:
    def test_every_field_of_sampling_params(self):
        sampling_params = SamplingParams(64, 0.7, 0.9, 40, ("\n\n",), logprobs=True)
        assert vllm_sampling_params(Request(QUESTION, n=5, seed=3), sampling_params, [5, 6], [2, 9]) == {
            "n": 5,
            "seed": derive_seed(3),
            "max_tokens": 64,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop": ["\n\n"],
            "stop_token_ids": [2, 9],
            "include_stop_str_in_output": True,
            "logprobs": 0,
            "logit_bias": {5: -100.0, 6: -100.0},
        }

    def test_greedy_without_logprobs_or_stop(self):
        settings = vllm_sampling_params(Request(QUESTION, n=5), SamplingParams(temperature=0), [], [2])
        expected = {"n": 1, "temperature": 0, "top_k": -1, "logprobs": None, "logit_bias": None, "stop": []}
        assert settings.items() >= expected.items()
        assert settings["include_stop_str_in_output"] is False


def answer(index, ids, reason="stop", logprobs=None):
    """A `CompletionOutput`."""
    return SimpleNamespace(index=index, text=f"text {index}", token_ids=ids, finish_reason=reason, logprobs=logprobs)


class TestSamples:
    def test_answers_come_in_the_order_of_their_index(self):
        output = SimpleNamespace(outputs=[answer(1, (7,), "length"), answer(0, (8, 9))])
        expected = [Sample("text 0", "stop", [8, 9]), Sample("text 1", "length", [7])]
        assert samples_of(output, 2, SamplingParams()) == expected

    def test_the_log_probability_of_the_sampled_token(self):
        second = {9: SimpleNamespace(logprob=-0.5), 3: SimpleNamespace(logprob=-0.1)}
        steps = [{8: SimpleNamespace(logprob=-1.5)}, second]
        output = SimpleNamespace(outputs=[answer(0, (8, 9), logprobs=steps)])
        assert samples_of(output, 1, SamplingParams(logprobs=True))[0].logprobs == [-1.5, -0.5]

    def test_greedy_answers_are_repeated(self):
        output = SimpleNamespace(outputs=[answer(0, (8,))])
        assert samples_of(output, 3, SamplingParams(temperature=0)) == [Sample("text 0", "stop", [8])] * 3

    def test_an_answer_that_was_broken_off_is_a_failure(self):
        output = SimpleNamespace(outputs=[answer(0, (8,)), answer(1, (), "abort")])
        assert samples_of(output, 2, SamplingParams()) == Failure("vLLM ended an answer with finish reason 'abort'")


class StandInLLM:
    """As documented: all prompts of a call are checked before any is answered; an answer names its prompt's length."""

    def __init__(self, model, **kwargs):
        self.kwargs, self.calls = kwargs, []
        config = SimpleNamespace(image_token_id=5)
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(hf_config=config))

    def generate(self, prompts, params, *, use_tqdm):
        self.calls.append(len(prompts))
        for prompt in prompts:
            if len(prompt["prompt_token_ids"]) > 100:
                raise ValueError("The prompt is longer than the maximum model length of 100.")
        return [
            SimpleNamespace(outputs=[answer(k, (len(prompt["prompt_token_ids"]),)) for k in range(asked["n"])])
            for prompt, asked in zip(prompts, params, strict=True)
        ]


def install(monkeypatch, llm):
    """Let `vllm` be a module with this LLM, whose arguments have no say in who normalises pixels."""
    parts = {name: ModuleType(name) for name in ("vllm", "vllm.engine", "vllm.engine.arg_utils")}
    parts["vllm"].LLM, parts["vllm"].SamplingParams = llm, dict
    parts["vllm.engine.arg_utils"].EngineArgs = make_dataclass("EngineArgs", [])
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def vllm(monkeypatch):
    install(monkeypatch, StandInLLM)


class TestEngine:
    def test_bad_requests_fail_alone_and_the_others_are_answered_in_order(self, vllm, checkpoints, tmp_path):
        broken = tmp_path / "broken.png"
        drawn_rows(1)[0]["images"][0].save(broken)
        broken.write_bytes(broken.read_bytes()[:-200])
        engine = VLLMEngine(checkpoints("qwen2_5_vl"))
        long = [{"role": "user", "content": "1 " * 200}]
        requests = [Request(QUESTION, prefix="1" * k, n=2) for k in range(8)]
        requests[1:1] = [Request(QUESTION, [PIL.Image.open(broken)]), Request(long)]
        found = engine.sample(requests, SamplingParams())
        assert "truncated" in found[1].reason
        refused = "vLLM refuses the prompt: The prompt is longer than the maximum model length of 100."
        assert found[2] == Failure(refused)
        good = [result for result in found if not isinstance(result, Failure)]
        tokens = len(encode(engine.processing_class, QUESTION).ids)
        assert [[sample.token_ids for sample in samples] for samples in good] == [[[tokens + k]] * 2 for k in range(8)]
        assert engine.llm.calls == [9, 4, 2, 1, 1, 2, 5]

    def test_nothing_to_ask(self, vllm, checkpoints):
        engine = VLLMEngine(checkpoints("qwen2_5_vl"))
        assert engine.sample([], SamplingParams()) == []
        assert engine.llm.calls == []

    def test_prefixes_are_cached_unless_the_caller_says_otherwise(self, vllm, checkpoints):
        path = checkpoints("qwen2_5_vl")
        assert VLLMEngine(path, dtype="float16").llm.kwargs == {"enable_prefix_caching": True, "dtype": "float16"}
        assert VLLMEngine(path, enable_prefix_caching=False).llm.kwargs == {"enable_prefix_caching": False}

    def test_settings_are_json_and_leave_out_what_changes_no_answer(self, vllm, checkpoints, tmp_path):
        path = checkpoints("qwen2_5_vl")
        settings = VLLMEngine(path, dtype="float16", gpu_memory_utilization=0.5).settings
        assert json.loads(json.dumps(settings)) == settings
        assert settings == VLLMEngine(path, dtype="float16", tensor_parallel_size=2).settings
        assert settings != VLLMEngine(path, dtype="bfloat16").settings
        changed = {"kv_cache_dtype": "fp8", "speculative_config": {"method": "ngram"}, "disable_sliding_window": True}
        for name, value in changed.items():
            assert settings != VLLMEngine(path, dtype="float16", **{name: value}).settings
        model, processor = load(path)
        model.lm_head.weight.data += 1e-3
        model.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        other = VLLMEngine(str(tmp_path), dtype="float16").settings
        assert {name for name in settings if settings[name] != other[name]} == {"model", "weights"}

    def test_an_adapter_is_refused(self, vllm, checkpoints, tmp_path):
        model, _ = load(checkpoints("qwen2_5_vl"))
        get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="Merge the adapter"):
            VLLMEngine(str(tmp_path))

    @pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
    def test_without_vllm_the_error_says_what_to_install(self, checkpoints):
        with pytest.raises(ImportError, match=r"pip install 'trl-mmreason\[vllm\]'"):
            VLLMEngine(checkpoints("qwen2_5_vl"))

    @pytest.mark.parametrize("declares", ["generation_config.json", "config.json"])
    def test_answers_end_with_what_the_checkpoint_says(self, vllm, checkpoints, tmp_path, declares):
        """As in the model that transformers loads from it, whose answers a second turn may follow."""
        model, processor = load(checkpoints("qwen2_5_vl"))
        model.config.get_text_config().eos_token_id = 9
        model.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        if declares == "config.json":
            (tmp_path / "generation_config.json").unlink()
        engine = VLLMEngine(str(tmp_path))
        loaded, _ = load(str(tmp_path))
        assert engine._eos_ids == end_of_turn_ids(loaded, processor)
        assert (9 in engine._eos_ids) == (declares == "config.json")
