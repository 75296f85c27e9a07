"""Text-only reasoners under the engines: a causal model with a tokenizer, and nothing that sees."""

import json
from dataclasses import replace
from types import SimpleNamespace

import PIL.Image
import pytest
import torch
from loopback import served
from peft import LoraConfig, get_peft_model
from support import drawn_rows, load
from test_vllm_engine import StandInLLM, install
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Phi4MultimodalConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from trl_mmreason.miniature.corpus import corpus
from trl_mmreason.miniature.tokenizer import train_tokenizer
from trl_mmreason.sampling import Failure, Request, SamplingParams
from trl_mmreason.sampling.generation import encode, end_of_turn_ids
from trl_mmreason.sampling.loading import load_processor, processor_fingerprint, sees_pictures
from trl_mmreason.sampling.serve import engine_app
from trl_mmreason.sampling.server_engine import ServerEngine
from trl_mmreason.sampling.transformers_engine import TransformersEngine
from trl_mmreason.sampling.vllm_engine import VLLMEngine, prompt_of

GREEDY = SamplingParams(8, temperature=0, logprobs=True)
QUESTION = [{"role": "user", "content": "What is 2+3?"}]
PICTURE = PIL.Image.new("RGB", (28, 28))
# As published text templates, it adds texts up, and so refuses contents in parts.
CHATML = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + (opening or '') }}{% endif %}"
)
WIDTHS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDTHS |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, "initializer_range": 0.1}
FAMILIES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"pad_token": "<|endoftext|>"}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"bos_token": "<|endoftext|>"}),  # with nothing to pad with
}


def saved_reasoner(name, folder):
    """A random model, a quarter of whose vocabulary ends a turn, as in `support.saved_model`."""
    config_class, model_class, named_tokens = FAMILIES[name]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    named_tokens = {"eos_token": "<|im_end|>", **named_tokens}
    tokenizer = train_tokenizer(corpus(), special_tokens=special, named_tokens=named_tokens)
    tokenizer.chat_template = CHATML
    size = len(tokenizer)
    torch.manual_seed(0)
    model = model_class(config_class(vocab_size=size, bos_token_id=None, eos_token_id=None, **WIDTHS))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(size - size // 4, size)]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: saved_reasoner(name, tmp_path_factory.mktemp(name)) for name in FAMILIES}


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request, folders):
    return TransformersEngine(folders[request.param], batch_size=4)


@pytest.fixture(scope="module")
def qwen(folders):
    return TransformersEngine(folders["qwen2"], batch_size=4)


def requests_of(rows, **fields):
    """Of several lengths, every other with a system message, every third with a beginning of the answer."""
    system = [{"role": "system", "content": "Think."}]
    return [
        Request(system * (k % 2) + row["prompt"], prefix=["", "", "So 1+1"][k % 3], seed=k, **fields)
        for k, row in enumerate(drawn_rows(rows))
    ]


def plain_ids(tokenizer, request):
    """What the tokenizer itself makes of a conversation and of what the assistant has said already."""
    text = tokenizer.apply_chat_template(list(request.messages), tokenize=False, add_generation_prompt=True)
    return [i for part in (text, request.prefix) for i in tokenizer(part, add_special_tokens=False)["input_ids"]]


class TestSampling:
    def test_a_batch_gives_what_plain_generate_gives_one_by_one(self, engine):
        model, tokenizer = engine.model, engine.processing_class
        assert type(model) in (Qwen2ForCausalLM, LlamaForCausalLM)
        requests = requests_of(9)
        for request, (sample,) in zip(requests, engine.sample(requests, GREEDY), strict=True):
            ids = plain_ids(tokenizer, request)
            plain = model.generate(input_ids=torch.tensor([ids]), do_sample=False, max_new_tokens=8)[0, len(ids) :]
            assert sample.token_ids == plain.tolist()

    @pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 40}], ids=["plain", "warped"])
    def test_samples_do_not_depend_on_the_batch(self, engine, settings):
        sampling_params = SamplingParams(8, **settings)
        requests = requests_of(6, n=2)
        together = engine.sample(requests, sampling_params)
        for batch_size in (1, 12):
            other = TransformersEngine(engine.model, engine.processing_class, batch_size=batch_size)
            assert other.sample(requests[::-1], sampling_params)[::-1] == together

    def test_ids_keep_the_end_of_turn_and_each_has_the_log_probability_of_a_forward_pass(self, engine):
        """What off-policy training weighs: the end is a decision of the model too. Within 1e-4 in fp32 (PITFALL 16)."""
        eos_ids = end_of_turn_ids(engine.model, engine.processing_class)
        requests = requests_of(6, n=4)
        answers = engine.sample(requests, SamplingParams(8, temperature=0.7, logprobs=True))
        reasons = set()
        for request, samples in zip(requests, answers, strict=True):
            prompt = plain_ids(engine.processing_class, request)
            for sample in samples:
                reasons.add(sample.finish_reason)
                assert [token in eos_ids for token in sample.token_ids[:-1]] == [False] * (len(sample.token_ids) - 1)
                assert (sample.token_ids[-1] in eos_ids) == (sample.finish_reason == "stop")
                assert len(sample.logprobs) == len(sample.token_ids)
                with torch.no_grad():
                    logits = engine.model(input_ids=torch.tensor([prompt + sample.token_ids])).logits[0]
                scores = logits[len(prompt) - 1 : -1].log_softmax(-1)
                expected = scores[range(len(sample.token_ids)), sample.token_ids].tolist()
                assert sample.logprobs == pytest.approx(expected, abs=1e-4)
        assert reasons == {"stop", "length"}

    def test_token_types_that_a_tokenizer_gives_and_its_model_refuses_are_left_out(self, folders):
        plain, typed = (TransformersEngine(folders["llama"]) for _ in range(2))
        typed.processing_class.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        assert "token_type_ids" in typed.processing_class("1")
        assert typed.processing_class.pad_token is None
        requests = requests_of(3)
        assert typed.sample(requests, GREEDY) == plain.sample(requests, GREEDY)

    def test_the_template_opens_the_thoughts_of_a_reasoner(self, folders):
        plain = TransformersEngine(folders["qwen2"])
        opened = TransformersEngine(folders["qwen2"], chat_template_kwargs={"opening": "So 1+1"})
        (expected,) = plain.sample([Request(QUESTION, prefix="So 1+1")], GREEDY)
        assert opened.sample([Request(QUESTION)], GREEDY) == [expected]


class TestPictures:
    def test_a_request_with_pictures_fails_alone_and_says_why(self, qwen):
        requests = [Request(QUESTION), Request(QUESTION, [PICTURE, PICTURE]), Request(QUESTION, seed=1)]
        first, failure, last = qwen.sample(requests, GREEDY)
        assert failure == Failure(
            "the conversation cannot be encoded: ValueError: it has 2 picture(s), which a text-only model cannot see; "
            "leave them out, put what they show into words, or use a vision-language model with its processor"
        )
        assert [first, last] == qwen.sample(requests[::2], GREEDY)


class TestLoading:
    def test_the_configuration_says_whether_a_model_sees(self, family, checkpoints, folders):
        assert sees_pictures(AutoConfig.from_pretrained(checkpoints(family)))
        assert not any(sees_pictures(AutoConfig.from_pretrained(folder)) for folder in folders.values())
        assert not sees_pictures(AutoConfig.from_pretrained(checkpoints(family)).get_text_config())
        assert sees_pictures(Phi4MultimodalConfig())  # a causal model by class, with a vision part

    def test_a_tokenizer_is_what_was_saved(self, folders):
        tokenizer = load_processor(folders["llama"])
        assert tokenizer.chat_template == CHATML
        assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(folders["llama"]).get_vocab()

    def test_settings_are_json_and_follow_what_determines_answers(self, qwen, folders):
        assert json.loads(json.dumps(qwen.settings)) == qwen.settings
        assert TransformersEngine(folders["qwen2"], batch_size=1).settings == qwen.settings
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folders["qwen2"]), load_processor(folders["qwen2"])
        assert TransformersEngine(model).settings == qwen.settings
        tokenizer.chat_template = CHATML.replace("assistant", "helper")
        model.lm_head.weight.data += 1e-3
        changed = TransformersEngine(model, tokenizer).settings
        assert {name for name in changed if changed[name] != qwen.settings[name]} == {"weights", "processor"}

    def test_where_the_files_are_counts_for_the_configuration_too(self, folders, tmp_path):
        (tmp_path / "nested").symlink_to(folders["llama"])
        tokenizer = load_processor(folders["llama"])
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
        requests = requests_of(6)
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
        for request in requests_of(6):
            prefix_ids = tokenizer(request.prefix, add_special_tokens=False)["input_ids"]
            ids = encode(tokenizer, request.messages).extended(prefix_ids).ids
            assert prompt_of(tokenizer, request, {}) == {"prompt_token_ids": ids}
            assert ids == plain_ids(tokenizer, request)

    def test_a_request_with_pictures_fails_alone(self, folders, monkeypatch):
        class TextOnlyLLM(StandInLLM):
            def __init__(self, model, **kwargs):
                super().__init__(model, **kwargs)
                config = AutoConfig.from_pretrained(model)
                self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(hf_config=config))

        install(monkeypatch, TextOnlyLLM)
        engine = VLLMEngine(folders["qwen2"])
        failure, (sample,) = engine.sample([Request(QUESTION, [PICTURE]), Request(QUESTION)], SamplingParams())
        assert "it has 1 picture(s), which a text-only model cannot see" in failure.reason
        assert sample.token_ids == [len(plain_ids(engine.processing_class, Request(QUESTION)))]
        assert json.loads(json.dumps(engine.settings)) == engine.settings


def test_the_same_answers_through_a_server(engine):
    """Text, token ids, finish reasons; pictures are refused by the server in the engine's words."""
    with served(engine_app(engine, "tiny")) as address:
        through = ServerEngine("tiny", f"{address}/v1", extra_body={"return_token_ids": True}, max_retries=0)
        requests = requests_of(6)
        expected, got = engine.sample(requests, GREEDY), through.sample(requests, GREEDY)
        (failure,) = through.sample([Request(QUESTION, [PICTURE])], GREEDY)
    for [mine], [theirs] in zip(expected, got, strict=True):
        assert replace(theirs, logprobs=None) == replace(mine, logprobs=None)
        assert theirs.logprobs == pytest.approx(mine.logprobs, abs=1e-4)
    assert "it has 1 picture(s), which a text-only model cannot see" in failure.reason
