"""Text-only reasoners under the engines: a causal model with a tokenizer, and nothing that sees.

That their samples are right is in test_transformers_engine.py, with those of models that see.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import PIL.Image
import pytest
import torch
from chat_server import chat_server
from peft import LoraConfig, get_peft_model
from support import load
from test_vllm_engine import StandInLLM, install
from text_reasoners import CHATML, REASONERS, plain_ids, text_requests
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, Phi4MultimodalConfig

from trl_mmreason.generation import Failure, Request, SamplingParams
from trl_mmreason.generation.batch import encode
from trl_mmreason.generation.model_loading import load_processor, processor_fingerprint, sees_images
from trl_mmreason.generation.server_engine import ServerEngine
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.generation.vllm_engine import VLLMEngine, prompt_of

GREEDY = SamplingParams(8, temperature=0, logprobs=True)
QUESTION = [{"role": "user", "content": "What is 2+3?"}]
IMAGE = PIL.Image.new("RGB", (28, 28))


@pytest.fixture(scope="module", params=REASONERS)
def engine(request, reasoners):
    return TransformersEngine(reasoners(request.param), batch_size=4)


@pytest.fixture(scope="module")
def qwen(reasoners):
    return TransformersEngine(reasoners("qwen2"), batch_size=4)


class TestSampling:
    def test_token_types_that_a_tokenizer_gives_and_its_model_refuses_are_left_out(self, reasoners):
        plain, typed = (TransformersEngine(reasoners("llama")) for _ in range(2))
        typed.processing_class.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        assert "token_type_ids" in typed.processing_class("1")
        assert typed.processing_class.pad_token is None
        requests = text_requests(3)
        assert typed.sample(requests, GREEDY) == plain.sample(requests, GREEDY)

    def test_the_template_opens_the_thoughts_of_a_reasoner(self, reasoners):
        plain = TransformersEngine(reasoners("qwen2"))
        opened = TransformersEngine(reasoners("qwen2"), chat_template_kwargs={"opening": "So 1+1"})
        (expected,) = plain.sample([Request(QUESTION, prefix="So 1+1")], GREEDY)
        assert opened.sample([Request(QUESTION)], GREEDY) == [expected]


class TestImages:
    def test_a_request_with_images_fails_alone_and_says_why(self, qwen):
        requests = [Request(QUESTION), Request(QUESTION, [IMAGE, IMAGE]), Request(QUESTION, seed=1)]
        first, failure, last = qwen.sample(requests, GREEDY)
        assert failure == Failure(
            "the conversation cannot be encoded: ValueError: it has 2 image(s), which a text-only model cannot see; "
            "leave them out, put what they show into words, or use a vision-language model with its processor"
        )
        assert [first, last] == qwen.sample(requests[::2], GREEDY)


class TestLoading:
    def test_the_configuration_says_whether_a_model_sees(self, family, checkpoints, reasoners):
        assert sees_images(AutoConfig.from_pretrained(checkpoints(family)))
        assert not any(sees_images(AutoConfig.from_pretrained(reasoners(name))) for name in REASONERS)
        assert not sees_images(AutoConfig.from_pretrained(checkpoints(family)).get_text_config())
        assert sees_images(Phi4MultimodalConfig())  # a causal model by class, with a vision part

    def test_the_model_is_of_its_own_class(self, engine):
        assert type(engine.model) is REASONERS[engine.model.config.model_type][1]

    def test_a_tokenizer_is_what_was_saved(self, reasoners):
        tokenizer = load_processor(reasoners("llama"))
        assert tokenizer.chat_template == CHATML
        assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(reasoners("llama")).get_vocab()

    def test_settings_are_json_and_follow_what_determines_answers(self, qwen, reasoners):
        assert json.loads(json.dumps(qwen.settings)) == qwen.settings
        assert TransformersEngine(reasoners("qwen2"), batch_size=1).settings == qwen.settings
        model, tokenizer = AutoModelForCausalLM.from_pretrained(reasoners("qwen2")), load_processor(reasoners("qwen2"))
        assert TransformersEngine(model).settings == qwen.settings
        tokenizer.chat_template = CHATML.replace("assistant", "helper")
        model.lm_head.weight.data += 1e-3
        changed = TransformersEngine(model, tokenizer).settings
        assert {name for name in changed if changed[name] != qwen.settings[name]} == {"weights", "processor"}

    def test_where_the_files_are_counts_for_the_configuration_too(self, reasoners, tmp_path):
        (tmp_path / "nested").symlink_to(reasoners("llama"))
        tokenizer = load_processor(reasoners("llama"))
        assert type(TransformersEngine(str(tmp_path), tokenizer, subfolder="nested").model) is LlamaForCausalLM

    def test_a_processing_class_that_does_not_fit_is_refused(self, qwen, checkpoints):
        with pytest.raises(TypeError, match="is a str, expected the tokenizer that was saved with this Qwen2"):
            TransformersEngine(qwen.model, "tokenizer")
        model, processor = load(checkpoints("qwen2_vl"))
        with pytest.raises(TypeError, match="expected the processor that was saved with this Qwen2VLForConditional"):
            TransformersEngine(model, processor.tokenizer)

    @pytest.mark.parametrize("own_tokenizer", [False, True])
    def test_an_adapter_is_loaded_on_its_base(self, engine, tmp_path, own_tokenizer):
        base = AutoModelForCausalLM.from_pretrained(engine.model.config._name_or_path)
        torch.manual_seed(0)
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        model, tokenizer = get_peft_model(base, config).eval(), load_processor(engine.model.config._name_or_path)
        model.save_pretrained(tmp_path)
        if own_tokenizer:
            tokenizer.chat_template = CHATML.replace("assistant", "helper")
            tokenizer.save_pretrained(tmp_path)
        requests = text_requests(6)
        live = TransformersEngine(model, tokenizer).sample(requests, GREEDY)
        loaded = TransformersEngine(str(tmp_path))
        # Merging rounds, so that log-probabilities may move in their last bits.
        assert texts(loaded.sample(requests, GREEDY)) == texts(live) != texts(engine.sample(requests, GREEDY))
        assert loaded.processing_class.chat_template == tokenizer.chat_template
        own = processor_fingerprint(loaded.processing_class) != engine.settings["processor"]
        assert own == own_tokenizer


def texts(answers):
    return [(sample.text, sample.token_ids, sample.finish_reason) for (sample,) in answers]


class TestVLLM:
    def test_the_prompt_is_the_one_that_transformers_is_given(self, engine):
        tokenizer = engine.processing_class
        for request in text_requests(6):
            prefix_ids = tokenizer(request.prefix, add_special_tokens=False)["input_ids"]
            ids = encode(tokenizer, request.messages).extended(prefix_ids).ids
            assert prompt_of(tokenizer, request, {}) == {"prompt_token_ids": ids}
            assert ids == plain_ids(tokenizer, request)

    def test_a_request_with_images_fails_alone(self, reasoners, monkeypatch):
        class TextOnlyLLM(StandInLLM):
            def __init__(self, model, **kwargs):
                super().__init__(model, **kwargs)
                config = AutoConfig.from_pretrained(model)
                self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(hf_config=config))

        install(monkeypatch, TextOnlyLLM)
        engine = VLLMEngine(reasoners("qwen2"))
        failure, (sample,) = engine.sample([Request(QUESTION, [IMAGE]), Request(QUESTION)], SamplingParams())
        assert "it has 1 image(s), which a text-only model cannot see" in failure.reason
        assert sample.token_ids == [len(plain_ids(engine.processing_class, Request(QUESTION)))]
        assert json.loads(json.dumps(engine.settings)) == engine.settings


def test_the_same_answers_through_a_server(engine):
    """Text, token ids, finish reasons; images are refused by the server in the engine's words."""
    with chat_server(engine) as url:
        through = ServerEngine("tiny", url, extra_body={"return_token_ids": True}, max_retries=0)
        requests = text_requests(6)
        expected, got = engine.sample(requests, GREEDY), through.sample(requests, GREEDY)
        (failure,) = through.sample([Request(QUESTION, [IMAGE])], GREEDY)
    for [mine], [theirs] in zip(expected, got, strict=True):
        assert replace(theirs, logprobs=None) == replace(mine, logprobs=None)
        assert theirs.logprobs == pytest.approx(mine.logprobs, abs=1e-4)
    assert "it has 1 image(s), which a text-only model cannot see" in failure.reason
