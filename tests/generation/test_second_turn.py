"""What a policy reads before its second answer is one thing: in training, in evaluation and in AdaPO's prefilter."""

import pytest
import torch
from datasets import Dataset
from support import adapo_trainer, drawn_rows, full_but, ids_of, load

from trl_mmreason.adapo.prefilter import prefilter
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.compat.chat_template import _ANSWER, continued_ids, next_turn_ids
from trl_mmreason.evaluation.runner import evaluate
from trl_mmreason.generation import Failure, Request, Sample, SamplingParams
from trl_mmreason.generation.batch import encode
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.generation.turn_after_turn import sample_turns
from trl_mmreason.generation.vllm_engine import prompt_of
from trl_mmreason.jobs.store import Store

SAID = r"<think>3+4=7</think> \boxed{7}"

# Shows of earlier answers what stands behind their thoughts, as the templates of thinking models do.
FORGETS_THOUGHTS = """{% set seen = namespace(messages=[]) %}{% for message in messages %}\
{% if message['role'] == 'assistant' %}{% set answer = message['content'][0]['text'].split('</think>')[-1] %}\
{% set message = {'role': 'assistant', 'content': [{'type': 'text', 'text': answer}]} %}\
{% set seen.messages = seen.messages + [message] %}{% else %}{% set seen.messages = seen.messages + [message] %}\
{% endif %}{% endfor %}{% set messages = seen.messages %}"""


class SaysByHeart:
    """Lets a model write these tokens whatever it is asked, and keeps every prompt that `generate` lets it read."""

    def __init__(self, model, ids):
        self.ids, self.step, self.read = ids, 0, []
        model.register_forward_hook(self, with_kwargs=True)

    def __call__(self, model, args, inputs, outputs):
        if not inputs.get("use_cache"):  # training scores what was said
            return
        if inputs["input_ids"].shape[1] > 1:  # a prompt: its answer begins
            # one row alone has no padding to mask
            masks = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
            rows = zip(inputs["input_ids"], masks, strict=True)
            self.read += [tuple(ids[mask].tolist()) for ids, mask in rows]
            self.step = 0
        outputs.logits[:] = -1e4
        outputs.logits[..., self.ids[min(self.step, len(self.ids) - 1)]] = 0.0
        self.step += 1

    def read_since(self):
        """The prompts since the last call, each once, in an order that says nothing."""
        read, self.read = sorted(set(self.read)), []
        return read


KINDLY = {"tone": "Kindly: "}
TEMPLATES = {
    "own template": "",
    "template that forgets thoughts": FORGETS_THOUGHTS,
    "template with an argument": "{{ tone }}",
}


@pytest.fixture(params=full_but("template with an argument", TEMPLATES))
def policy(request, family, checkpoints):
    """A model with its processor, and the tokens of what it says."""
    model, processor = load(checkpoints(family))
    processor.chat_template = TEMPLATES[request.param] + processor.chat_template
    return model, processor, [*ids_of(processor, SAID), processor.tokenizer.eos_token_id]


def test_four_ways_read_the_same_tokens(policy, tmp_path):
    """The rollout of AdaPO, the evaluation of its example, `mmreason evaluate`'s protocol and the prefilter."""
    model, processor, said = policy
    rows = drawn_rows(3)  # with one image, two and none
    dataset, bound = Dataset.from_list(rows), len(said) + 2
    by_heart = SaysByHeart(model, said)
    read = {}

    settings = {"max_completion_length": bound, "per_device_train_batch_size": 12, "chat_template_kwargs": KINDLY}
    trainer = adapo_trainer(model, tmp_path, rows, trainer_kwargs={"processing_class": processor}, **settings)
    trainer.model.train()
    trainer._generate_and_score_completions([row for row in rows for _ in range(4)])
    read["training"] = by_heart.read_since()

    model.eval()
    protocol, sampling_params = TwoTurn(EVALUATION_PROMPT), SamplingParams(bound, temperature=0.0)
    engine = TransformersEngine(model, processor, chat_template_kwargs=KINDLY)
    evaluate(dataset, engine, None, protocol, sampling_params=sampling_params, batch_size=4)
    read["evaluation in training"] = by_heart.read_since()

    with Store(tmp_path / "evaluation.sqlite") as store:
        evaluate(dataset, engine, store, TwoTurn(EVALUATION_PROMPT), sampling_params=SamplingParams(bound, 0.0))
    read["mmreason evaluate"] = by_heart.read_since()

    with Store(tmp_path / "prefilter.sqlite") as store:
        prefilter(dataset, engine, store, n=2, sampling_params=SamplingParams(bound))
    read["prefilter"] = by_heart.read_since()

    behind = [*said, *next_turn_ids(processor, EVALUATION_PROMPT, eos_token_ids=trainer.eos_token_ids)]
    firsts = [encode(processor, row["prompt"], row["images"], **KINDLY).ids for row in rows]
    expected = sorted({tuple(ids) for first in firsts for ids in (first, [*first, *behind])})
    assert read == dict.fromkeys(read, expected)
    assert "3+4=7" in processor.decode(behind)


def test_vllm_is_given_the_same_tokens(policy):
    """Behind the first prompt, in which vLLM itself widens the images; the beginning of the answer is last."""
    model, processor, said = policy
    eos = [processor.tokenizer.eos_token_id]
    (row, *_) = drawn_rows(1)
    turns = [{"role": "assistant", "content": SAID}, {"role": "user", "content": "Sure?"}]
    first = prompt_of(processor, Request(row["prompt"], row["images"]), {})
    request = Request([*row["prompt"], *turns], row["images"], answer_ids=[said], prefix="So")
    second = prompt_of(processor, request, {}, eos)
    behind = [*said, *next_turn_ids(processor, "Sure?", eos_token_ids=eos), *ids_of(processor, "So")]
    assert second["prompt_token_ids"] == [*first["prompt_token_ids"], *behind]
    assert second["multi_modal_data"] == first["multi_modal_data"]


class Keeping:
    """An engine that says the same each time, and keeps its requests."""

    settings = {"kind": "keeping"}

    def __init__(self, sample):
        self.said, self.asked = sample, []

    def sample(self, requests, sampling_params):
        self.asked += requests
        return [[self.said]] * len(requests)


@pytest.mark.parametrize(
    ("token_ids", "stop", "answer_ids"),
    [([5, 2], (), [(), ([5, 2],), ([5, 2], [5, 2])]), (None, (), [()] * 3), ([5, 2], ("\n",), [()] * 3)],
    ids=["tokens are known", "a chat endpoint's are not", "a stop text ends no turn"],
)
def test_every_answer_goes_along_as_it_was_sampled(token_ids, stop, answer_ids):
    engine = Keeping(Sample("It is 7.", "stop", token_ids))
    row = {"prompt": [{"role": "user", "content": "3+4?"}]}
    said = {"role": "user", "content": "Sure?"}
    sample_turns([row], engine, SamplingParams(8, stop=stop), lambda *_: said, [0], turns=3)
    assert [request.answer_ids for request in engine.asked] == answer_ids
    assert [len(request.messages) for request in engine.asked] == [1, 3, 5]


def test_messages_and_answers_that_do_not_fit_are_refused(checkpoints):
    user, assistant = {"role": "user", "content": "?"}, {"role": "assistant", "content": "7"}
    for messages in ([user], [assistant, user], [user, assistant], [user, user, assistant]):
        with pytest.raises(ValueError, match="got 1 answers in tokens, and messages of"):
            Request(messages, answer_ids=[[5, 2]])
    _, processor = load(checkpoints("qwen2_5_vl"))
    with pytest.raises(ValueError, match=r"ends with the token \[5\], expected one of \[2\]"):
        continued_ids(processor, [[5]], ["Sure?"], eos_token_ids=[2])


def test_a_message_may_have_the_words_that_stand_for_an_answer(checkpoints):
    _, processor = load(checkpoints("qwen2_5_vl"))
    text = f"Check {_ANSWER}. Was {_ANSWER} right?"
    ids = next_turn_ids(processor, text, eos_token_ids=[processor.tokenizer.eos_token_id])
    assert processor.decode(ids) == f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_an_answer_that_cannot_go_on_is_its_request_s_failure(checkpoints):
    model, processor = load(checkpoints("qwen2_5_vl"))
    turns = [{"role": role, "content": "7"} for role in ("user", "assistant", "user")]
    (found,) = TransformersEngine(model, processor).sample([Request(turns, answer_ids=[[5]])], SamplingParams(4))
    assert isinstance(found, Failure)
    assert "no turn can follow an answer that was cut" in found.reason
