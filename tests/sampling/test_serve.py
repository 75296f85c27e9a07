"""`mmreason serve` under a real client, with an engine that tells what it was asked, and with a real one."""

import asyncio
import base64
import io
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import httpx2
import openai
import PIL.Image
import pytest
from loopback import served, wait_for
from support import drawn_rows

from trl_mmreason.sampling import Failure, Request, Sample, SamplingParams, derive_seed
from trl_mmreason.sampling.serve import GATHER_SECONDS, BatchingQueue, create_app, engine_app
from trl_mmreason.sampling.server_engine import ServerEngine, ServerError
from trl_mmreason.sampling.transformers_engine import TransformersEngine

RED = PIL.Image.new("RGB", (28, 28), "red")


class TellingEngine:
    """Answers with what it was asked, one call at a time, and remembers its calls."""

    def __init__(self):
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()
        self._busy = threading.Lock()

    settings = {"kind": "telling"}

    def sample(self, requests, sampling_params):
        assert self._busy.acquire(blocking=False), "called twice at once"
        self.calls.append(([request.messages[-1]["content"] for request in requests], sampling_params))
        try:
            assert self.gate.wait(10)
            return [self.answer(request, sampling_params) for request in requests]
        finally:
            self._busy.release()

    def answer(self, request, sampling_params):
        text = request.messages[-1]["content"]
        if text == "too long":
            return Failure("the prompt has 5000 tokens")
        if text == "crash":
            raise RuntimeError("out of something")
        if text == "impossible":
            raise ValueError("a stop text that no answer can show")
        said = f"{[m['content'] for m in request.messages]} {request.prefix!r} {len(request.images)} {request.seed}"
        logprobs = [-0.5, -0.25] if sampling_params.logprobs else None
        return [Sample(said + "".join(sampling_params.stop), "stop", [1, 2], logprobs) for _ in range(request.n)]


@pytest.fixture(scope="module")
def telling():
    engine = TellingEngine()
    known = {"token_text": lambda token: f"<{token}>", "count_prompt": lambda request: 7}
    app = create_app(engine, "m", **known, batch_size=4, max_body_bytes=20_000)
    with served(app) as address:
        engine.url = f"{address}/v1"
        yield engine


@pytest.fixture
def client(telling):
    telling.calls.clear()
    with openai.OpenAI(base_url=telling.url, api_key="EMPTY", max_retries=0) as client:
        yield client


def user(*content):
    return [{"role": "user", "content": content[0] if len(content) == 1 else list(content)}]


def text(value):
    return {"type": "text", "text": value}


def picture(image=RED, kind="PNG"):
    file = io.BytesIO()
    image.save(file, kind)
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind.lower()};base64,{data}", "detail": "auto"}}


def test_a_chat_completion(client):
    more = {"name": "n"}  # fields of a message or part that say nothing about the answer
    parts = [text("a"), {**picture(), **more}, picture(kind="JPEG"), {**text("b"), **more}]
    messages = [{"role": "system", "content": "s", **more}, *user(*parts)]
    reply = client.chat.completions.create(model="m", messages=messages, n=2, seed=3, logprobs=True, user="me")
    assert [(choice.index, choice.finish_reason) for choice in reply.choices] == [(0, "stop"), (1, "stop")]
    assert reply.choices[0].message.content == "['s', 'ab'] '' 2 3"
    scores = [(token.token, token.logprob) for token in reply.choices[1].logprobs.content]
    assert scores == [("<1>", -0.5), ("<2>", -0.25)]
    usage = reply.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 4, 11)
    assert (reply.object, reply.model) == ("chat.completion", "m")


def test_sampling_params_reach_the_engine(telling, client):
    known = {"max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "stop": ["x", "y"]}
    more = {"top_k": 3, "min_p": 0, "repetition_penalty": 1.0, "stream": False, "tools": None}
    client.chat.completions.create(model="m", messages=user("a"), **known, extra_body=more)
    assert telling.calls[0][1] == SamplingParams(5, 0.5, 0.9, 3, ("x", "y"))
    client.chat.completions.create(model="m", messages=user("a"), stop="x", extra_body={"top_k": -1})
    assert telling.calls[1][1] == SamplingParams(stop=("x",))


@pytest.mark.parametrize(("kept", "end"), [(False, ""), (True, "</s>")])
def test_stop_texts_are_cut_off_unless_asked_for(client, kept, end):
    body = {"include_stop_str_in_output": kept}
    reply = client.chat.completions.create(model="m", messages=user("a"), stop="</s>", seed=1, extra_body=body)
    assert reply.choices[0].message.content == f"['a'] '' 0 1{end}"


def test_an_answer_is_continued(client):
    messages = [*user("a"), {"role": "assistant", "content": "So"}]
    body = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    reply = client.chat.completions.create(model="m", messages=messages, seed=1, extra_body=body)
    assert reply.choices[0].message.content == "['a'] 'So' 0 1"
    assert reply.choices[0].token_ids == [1, 2]


def test_without_a_seed_every_answer_has_its_own(client):
    said = {client.chat.completions.create(model="m", messages=user("a")).choices[0].message.content for _ in range(3)}
    assert len(said) == 3


def linked(url):
    return {"messages": user({"type": "image_url", "image_url": {"url": url}}, text("a"))}


def blank(side):
    """A picture of so many pixels in two kilobytes."""
    return picture(PIL.Image.new("1", (side, side)))


LATER = [*user("a"), {"role": "assistant", "content": "b"}, *user(text("c"), picture())]
REFUSED = {
    "stream": ({"stream": True}, "stream is True, which this server does not support; leave it out"),
    "unknown": ({"guided_json": {}}, "guided_json is {}, which this server does not support; leave it out"),
    "penalty": ({"presence_penalty": 0.5}, "presence_penalty is 0.5, which this server does not support"),
    "many logprobs": ({"logprobs": True, "top_logprobs": 3}, "top_logprobs is 3"),
    "n": ({"n": 0}, "n is 0: Input should be greater than or equal to 1"),
    "n of text": ({"n": "3"}, "n is '3': Input should be a valid integer"),
    "bool for a number": ({"max_tokens": True}, "max_tokens is True: Input should be a valid integer"),
    "bool for a temperature": ({"temperature": True}, "temperature is True: Input should be a valid number"),
    "temperature": ({"temperature": -1}, "temperature is -1: Input should be greater than or equal to 0"),
    "top_p": ({"top_p": 1.5}, "top_p is 1.5: Input should be less than or equal to 1"),
    "stop": ({"stop": [""]}, r"stop\[0\] is '': String should have at least 1 character"),
    "stop of numbers": ({"stop": 3}, "stop is 3: Input should be a string or a list of strings"),
    "no messages": ({"messages": None}, r"messages is \[\]: Input should end with the user's message"),
    "role": ({"messages": [{"role": "tool", "content": "a"}]}, r"messages\[0\].role is 'tool': .* 'system', 'user' or"),
    "content": ({"messages": user(3)}, r"messages\[0\].content is 3: Input should be a string or a list of parts"),
    "no content": ({"messages": [{"role": "user"}]}, r"messages\[0\].content is missing"),
    "part": ({"messages": user({"type": "input_audio"}, text("a"))}, "'input_audio' .* not match .*'text', 'image"),
    "text": ({"messages": user(text("a"), text(3))}, r"messages\[0\].content\[1\].text is 3: .* valid string"),
    "ends with the assistant": ({"messages": LATER[:2]}, "messages is .*: Input should end with the user's message"),
    "nothing to continue": (
        {"continue_final_message": True, "add_generation_prompt": False},
        "Input should end with the assistant's message where continue_final_message is True",
    ),
    "begun and continued": (
        {"continue_final_message": True, "add_generation_prompt": True},
        "add_generation_prompt is True: Input should be False where continue_final_message is True",
    ),
    "neither": ({"add_generation_prompt": False}, "Input should be True where continue_final_message is False"),
    "a picture too early": ({"messages": [{**LATER[2], "role": "system"}, LATER[0]]}, r"Only .*messages\[0\] has"),
    "a picture later": ({"messages": LATER}, r"Only the first user message may have pictures, and messages\[2\] has"),
    "a picture elsewhere": (
        linked("http://127.0.0.1/x.png"),
        r"content\[0\].image_url.url is 'http://127.0.0.1/x.png': Input should be the picture itself, as data:im",
    ),
    "a picture on disk": (linked("file:///etc/passwd"), "this server fetches nothing"),
    "half a picture": (linked(picture()["image_url"]["url"][:80]), "url is 'data:.*: .* a picture that can be read"),
    "a large picture": (
        {"messages": user(blank(6000), text("a"))},
        "6000 × 6000 pixels, expected 33554432 at most; sc",
    ),
    "pictures that are large together": (
        {"messages": user(blank(4200), blank(4200), text("a"))},
        r"content\[1\].image_url.url is .*: it has 4200 × 4200 pixels, expected 15914432 at most; scale it down. All",
    ),
    "what the engine refuses": ({"messages": user("too long")}, "^Error code: 400 .*the prompt has 5000 tokens"),
    "how the engine refuses": ({"messages": user("impossible")}, "a stop text that no answer can show"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(client, name):
    fields, message = REFUSED[name]
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.post("/chat/completions", cast_to=object, body={"model": "m", "messages": user("a"), **fields})
    assert caught.value.type == "invalid_request_error"
    assert caught.value.body["message"].startswith(caught.value.param or "")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "The body is no JSON"),
        (b"\xff", "The body is no JSON"),
        (b"[1]", r"The body is \[1\]: Input should be an object"),
        (b"[" * 9_000, "The body is no JSON"),
        (b'{"model": "m", "messages": [{"role": "user", "content": ""}], "temperature": 1e999}', "inf: .* finite"),
        (b'{"temperature": Infinity}', "The body is no JSON: expected value at"),
    ],
)
def test_a_body_that_is_no_object(client, body, message):
    reply = httpx2.post(f"{client.base_url}chat/completions", content=body)
    assert reply.status_code == 400
    assert re.search(message, reply.json()["error"]["message"])


def test_a_body_that_is_too_long(client):
    told = "longer than 20000 bytes; send fewer or smaller pictures"
    with pytest.raises(openai.APIStatusError, match=told) as caught:
        client.chat.completions.create(model="m", messages=user("a" * 20_000))
    assert caught.value.status_code == 413


def test_other_models_and_paths_are_not_found(telling, client):
    with pytest.raises(openai.NotFoundError, match="There is no model 'gpt'; this server has 'm'"):
        client.chat.completions.create(model="gpt", messages=[])
    with pytest.raises(openai.NotFoundError, match="There is no model ''; this server has 'm'"):
        client.post("/chat/completions", cast_to=object, body={})
    with pytest.raises(openai.NotFoundError, match="Not Found: POST /v1/embeddings; expected POST /v1/chat"):
        client.embeddings.create(model="m", input="a")
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.get(telling.url.replace("/v1", "/health"), cast_to=object) == {"status": "ok"}


def test_what_breaks_the_engine_is_told_and_does_not_end_the_server(client):
    with pytest.raises(openai.InternalServerError, match="RuntimeError: out of something"):
        client.chat.completions.create(model="m", messages=user("crash"))
    client.chat.completions.create(model="m", messages=user("a"))


# ----------------------------------------------------------------------------------------------------------- batches


@contextmanager
def busy(telling, client, pool):
    """The engine answers "first" while the block runs."""
    telling.gate.clear()
    first = pool.submit(client.chat.completions.create, model="m", messages=user("first"))
    wait_for(lambda: telling.calls)
    yield
    telling.gate.set()
    first.result()


def test_what_waits_is_answered_together(telling, client):
    """Batches of 4, by decoding, in order of arrival; no request is taken apart, and one for more goes alone."""
    asked = [("a", 1, 9), ("b", 2, 9), ("c", 1, 5), ("d", 2, 9), ("e", 1, 9), ("f", 6, 9)]
    with ThreadPoolExecutor() as pool:
        with busy(telling, client, pool):
            replies, create = [], client.chat.completions.create
            for content, n, tokens in asked:
                replies.append(pool.submit(create, model="m", messages=user(content), n=n, max_tokens=tokens))
                time.sleep(0.05)  # so that they arrive in this order
        assert [len(reply.result().choices) for reply in replies] == [n for _, n, _ in asked]
    assert [texts for texts, _ in telling.calls] == [["first"], ["a", "b", "e"], ["c"], ["d"], ["f"]]
    for reply, (content, _, _) in zip(replies, asked, strict=True):
        assert reply.result().choices[0].message.content.startswith(f"['{content}']")


def test_an_idle_engine_waits_for_those_that_come_with_the_first():
    """As long as they come, 10 ms apart, and no longer than for a full batch."""
    engine = TellingEngine()
    queue = BatchingQueue(engine, 5, lambda request: 7)

    async def ask(k):
        await asyncio.sleep(k * GATHER_SECONDS / 2)
        return await queue.sample(Request(user(str(k))), SamplingParams())

    async def main():
        worker = asyncio.create_task(queue.run())
        outcomes = await asyncio.gather(*map(ask, range(8)))
        worker.cancel()
        return outcomes

    outcomes = asyncio.run(main())
    assert [texts for texts, _ in engine.calls] == [list("01234"), list("567")]
    assert [outcome.samples[0].text[:5] for outcome in outcomes] == [f"['{k}']" for k in range(8)]


@pytest.mark.full
def test_nobody_is_answered_who_hung_up(telling, client):
    with ThreadPoolExecutor() as pool, busy(telling, client, pool):
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.3).chat.completions.create(model="m", messages=user("gone"))
        time.sleep(1.5)
    client.chat.completions.create(model="m", messages=user("last"))
    assert [texts for texts, _ in telling.calls] == [["first"], ["last"]]


# ------------------------------------------------------------------------------------ from a model to the server engine


GREEDY = SamplingParams(max_new_tokens=8, temperature=0, logprobs=True)


@pytest.fixture(scope="module")
def chain(checkpoints):
    """An engine on a real model, and a server engine that reaches the same one."""
    engine = TransformersEngine(checkpoints("qwen2_5_vl"), batch_size=8)
    with served(engine_app(engine, "tiny")) as address:
        yield engine, ServerEngine("tiny", f"{address}/v1", extra_body={"return_token_ids": True}, max_retries=0)


def requests_of(n, **fields):
    """With one picture, with two and without any, in turn; every other with a beginning of the answer."""
    return [
        Request(row["prompt"], row["images"], prefix=["", "So 1+1"][index % 2], seed=index, **fields)
        for index, row in enumerate(drawn_rows(n))
    ]


def test_the_same_answers_through_the_server(chain):
    """Text, token ids, finish reasons; log-probabilities up to the rounding of another batch."""
    engine, through = chain
    requests = requests_of(12)
    sampling_params = replace(GREEDY, max_new_tokens=2)
    expected, got = engine.sample(requests, sampling_params), through.sample(requests, sampling_params)
    for [mine], [theirs] in zip(expected, got, strict=True):
        assert replace(theirs, logprobs=None) == replace(mine, logprobs=None)
        assert theirs.logprobs == pytest.approx(mine.logprobs, abs=1e-4)
    assert {sample.finish_reason for [sample] in got} == {"stop", "length"}


def test_the_server_sees_pictures_and_the_answer_s_beginning(chain):
    """Another picture, another order of two, or another beginning gives other log-probabilities of the first token."""
    _, through = chain
    one, other = (row["images"][0] for row in drawn_rows(2))
    cases = [([one], ""), ([other], ""), ([one, other], ""), ([other, one], ""), ([], ""), ([one], "So")]
    requests = [Request(user("How many?"), images, prefix) for images, prefix in cases]
    first = [samples[0].logprobs[0] for samples in through.sample(requests, GREEDY)]
    assert len({round(value, 4) for value in first}) == len(requests)
    again = [samples[0].logprobs[0] for samples in through.sample(requests[::-1], GREEDY)]
    assert again[::-1] == pytest.approx(first, abs=1e-4)


def test_several_answers_follow_from_the_seed(chain):
    """The seed that the server engine sends is a request's at the other end."""
    engine, through = chain
    sampling_params = SamplingParams(max_new_tokens=6, top_k=20)
    (got,) = through.sample([Request(user("How many?"), n=4, seed=5)], sampling_params)
    (expected,) = engine.sample([Request(user("How many?"), n=4, seed=derive_seed(5, 0) >> 32)], sampling_params)
    assert [sample.text for sample in got] == [sample.text for sample in expected]
    assert len({sample.text for sample in got}) > 1


def test_stop_texts_stay_in_the_answer(chain):
    """An answer that continues behind the text without it."""
    engine, through = chain
    requests = requests_of(24)
    found = ((request, plain.text) for request, [plain] in zip(requests, engine.sample(requests, GREEDY), strict=True))
    request, text = next((request, text) for request, text in found if len(text) > 1 and text[0].isalnum())
    (got,) = through.sample([request], replace(GREEDY, stop=(text[0],)))
    assert (got[0].text, got[0].finish_reason) == (text[0], "stop")


def test_a_request_that_the_model_cannot_take_is_its_failure(chain):
    _, through = chain
    long, fine = through.sample([Request(user("1 " * 5000)), Request(user("How many?"))], GREEDY)
    assert "the model has 4096 positions" in long.reason
    assert len(fine) == 1


def test_prompt_tokens_are_counted_with_pictures_and_prefix(chain):
    engine, through = chain
    with openai.OpenAI(base_url=through._addresses[0].base_url, api_key="EMPTY") as client:
        counts = []
        for content in (text("How many?"),), (text("How many?"), picture()):
            messages = [*user(*content, text("")), {"role": "assistant", "content": "So 1"}]
            body = {"continue_final_message": True, "add_generation_prompt": False}
            reply = client.chat.completions.create(model="tiny", messages=messages, max_tokens=1, extra_body=body)
            counts.append(reply.usage.prompt_tokens)
    # A picture of 28 × 28 pixels is one patch of 2 × 2 merged ones, between a start and an end.
    assert counts[1] - counts[0] == 3


def test_a_wrong_name_of_the_model_is_told_with_what_there_is(chain):
    _, through = chain
    with pytest.raises(ServerError, match="There is no model 'large'; this server has 'tiny'"):
        ServerEngine("large", through._addresses[0].base_url).sample(requests_of(1), GREEDY)
