"""The server engine against a real server that misbehaves as it is told to."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import PIL.Image
import pytest
from chat_stub import HANG_SECONDS, Handler, chat_stub
from loopback import serving

from trl_mmreason.generation import Failure, Request, SamplingParams, derive_seed
from trl_mmreason.generation.server_engine import ServerEngine, ServerError

KEY = "sk-very-secret"
RED, BLUE = (PIL.Image.new("RGB", (28, 28), colour) for colour in ("red", "blue"))


@pytest.fixture
def stub():
    with chat_stub() as server:
        yield server


def asked(text, **fields):
    return Request([{"role": "user", "content": text}], **fields)


def engine_at(stub, **settings):
    return ServerEngine("m", stub.url, api_key=KEY, **settings)


def texts(outcome):
    return [sample.text for sample in outcome]


FAULTS = {
    "drop": r"^no answer from http://127.0.0.1:\d+/v1: Connection error\. \(RemoteProtocolError\)$",
    "hang": r"^no answer from .* \(ReadTimeout\)$",
    "broken": r"answered with broken JSON",
    "page": r"answered '<html>hello</html>'; expected a chat completion\. Does the address end in /v1\?$",
    "other": r"answered \{'ok': True\}; expected a chat completion",
    "none": r"holds no answer",
    "too long": r"^HTTP 400 from .*: maximum context length is 4096 tokens$",
    "an hour": r"^HTTP 429 from .*: slow down \(it asks to wait: Retry-After 3600\)$",
    "leak": r"^HTTP 400 from .*: you sent Bearer <key>$",
    "filtered": r"ended with 'content_filter'; expected stop or length",
    "refused": r"ended with 'I would rather not'",
    "thinking": r"the answer is neither a string nor parts of text",
    "thoughts": r"start it without a reasoning parser",
}


@pytest.mark.full
def test_what_is_wrong_with_one_request_harms_no_other(stub):
    """All faults in one call of `sample`, with good requests between them; every outcome stands at its place."""
    requests = [request for text in FAULTS for request in (asked(text), asked(f"beside {text}"))]
    requests += [asked("429 twice"), asked("an image", images=[BLUE, RED])]
    outcomes = engine_at(stub, timeout_seconds=1, max_retries=2).sample(requests, SamplingParams())
    for (text, reason), outcome, beside in zip(FAULTS.items(), outcomes[0:-2:2], outcomes[1:-2:2], strict=True):
        assert isinstance(outcome, Failure), text
        assert re.search(reason, outcome.reason), outcome.reason
        assert texts(beside) == [f"beside {text} {derive_seed(0, 0) >> 32}"]
    assert not isinstance(outcomes[-2], Failure), outcomes[-2]
    assert texts(outcomes[-2]) == [f"429 twice {derive_seed(0, 0) >> 32}"]
    assert re.search(r"^HTTP 500 from .*: the image broke me$", outcomes[-1].reason)
    tries = {"429 twice": 3, "drop": 3, "hang": 3, "an image": 3, "too long": 1, "broken": 1, "beside drop": 1}
    assert {text: stub.attempts[text] for text in tries} == tries


def test_no_more_calls_at_once_than_allowed(stub):
    outcomes = engine_at(stub, concurrency=3).sample([asked("slow", n=2, seed=k) for k in range(9)], SamplingParams())
    assert [len(outcome) for outcome in outcomes] == [2] * 9
    assert stub.peak == 3
    stub.peak = 0
    engine_at(stub, concurrency=3).sample([asked("fewer", n=8)], SamplingParams())
    assert stub.peak <= 3


def test_n_answers_come_in_one_call_where_the_server_knows_n(stub):
    first = derive_seed(7, 0) >> 32
    (outcome,) = engine_at(stub).sample([asked("a", n=3, seed=7)], SamplingParams())
    assert texts(outcome) == [f"a {first} #0", f"a {first} #1", f"a {first} #2"]
    assert [(body["n"], body["seed"]) for body in stub.bodies] == [(3, first)]


@pytest.mark.parametrize("text", ["fewer", "no n"])
def test_what_a_server_does_not_give_at_once_is_asked_for_singly(stub, text):
    """Each of the n answers has the seed of its index, and the next request is asked for one by one from the start."""
    engine = engine_at(stub)
    for seed in (7, 8):
        (outcome,) = engine.sample([asked(text, n=3, seed=seed)], SamplingParams())
        assert texts(outcome) == [f"{text} {derive_seed(seed, k) >> 32}" for k in range(3)]
    calls = [body.get("n", 1) for body in stub.bodies]
    assert calls == ([3, 1, 1] if text == "fewer" else [3, 1, 1, 1]) + [1, 1, 1]


def test_a_request_that_is_too_long_says_nothing_about_n(stub):
    engine = engine_at(stub)
    outcomes = engine.sample([asked("too long", n=2)], SamplingParams())
    assert "maximum context length" in outcomes[0].reason
    engine.sample([asked("a", n=2)], SamplingParams())
    assert stub.bodies[-1]["n"] == 2


def test_greedy_answers_are_one_answer(stub):
    (outcome,) = engine_at(stub).sample([asked("a", n=3)], SamplingParams(temperature=0))
    assert texts(outcome) == [f"a {derive_seed(0, 0) >> 32}"] * 3
    assert len(stub.bodies) == 1


def test_a_server_that_takes_no_seed_is_sent_none(stub):
    engine_at(stub, extra_body={"seed": None}, max_retries=0).sample([asked("a")], SamplingParams())
    assert ["seed" in body for body in stub.bodies] == [False]


def test_a_call_says_everything_that_decides_the_answer(stub):
    """vLLM and SGLang take what is left out from the model's own generation settings."""
    engine = engine_at(stub, extra_body={"return_token_ids": True, "min_p": None})
    sampling_params = SamplingParams(max_new_tokens=9, temperature=0.5, top_p=0.9, stop=("</step>",), logprobs=True)
    engine.sample([asked("a", prefix="So", seed=1)], sampling_params)
    assert stub.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "So"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
            "max_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": ["</step>"],
            "include_stop_str_in_output": True,
            "logprobs": True,
            "return_token_ids": True,
            "seed": derive_seed(1, 0) >> 32,
        }
    ]


def test_openai_only_sends_nothing_else_and_refuses_what_would_need_it(stub):
    engine = engine_at(stub, openai_only=True)
    engine.sample([asked("a")], SamplingParams())
    penalties = {"presence_penalty", "frequency_penalty"}  # OpenAI's, too
    length = "max_completion_tokens"
    assert stub.bodies[0].keys() == {"model", "messages", length, "temperature", "top_p", "seed", *penalties}
    for request, sampling_params in [
        (asked("a", prefix="So"), SamplingParams()),
        (asked("a"), SamplingParams(top_k=5)),
        (asked("a"), SamplingParams(stop=("x",))),
    ]:
        with pytest.raises(ValueError, match="openai_only=True.*use a server such as vLLM"):
            engine.sample([request], sampling_params)


class LikeTransformersServe(Handler):
    """Refuses fields as `transformers serve` does, and answers once however many are asked for."""

    def answer(self, body):
        if unknown := body.keys() & {"top_k", "min_p", "repetition_penalty", "continue_final_message"}:
            return self.reply(422, {"detail": f"Unexpected fields in the request: {unknown}"})
        return super().answer({**body, "n": 1})


def test_transformers_serve_gets_the_settings_that_it_would_take_from_the_checkpoint():
    sampling_params = SamplingParams(max_new_tokens=9, temperature=0.5, top_p=0.9, top_k=7)
    with chat_stub(LikeTransformersServe) as server:
        engine = engine_at(server)
        outcomes = engine.sample([asked("a", n=2), asked("b")], sampling_params)
        assert [len(outcome) for outcome in outcomes] == [2, 1]
        expected = {"do_sample": True, "top_k": 7, "min_p": 0.0, "repetition_penalty": 1.0, "temperature": 0.5}
        assert json.loads(server.bodies[-1]["generation_config"]) == expected
        assert (server.bodies[-1]["max_tokens"], server.bodies[-1]["top_p"]) == (9, 0.9)
        engine.sample([asked("a")], SamplingParams(temperature=0))
        assert json.loads(server.bodies[-1]["generation_config"])["do_sample"] is False
        for request, more in [
            (asked("a", prefix="So"), {}),
            (asked("a"), {"stop": ("x",)}),
            (asked("a"), {"logprobs": True}),
        ]:
            with pytest.raises(ServerError, match="is `transformers serve`, which can neither .*Fix: `vllm serve`"):
                engine.sample([request], SamplingParams(**more))
        with pytest.raises(ServerError, match="takes what stands between <think> and </think> out of the answers"):
            engine.sample([asked("thoughts")], SamplingParams())


def test_answers_are_read_as_they_are_meant(stub):
    requests = [asked(text) for text in ("trimmed", "long", "silent", "parts", "thinking", "a")]
    trimmed, long, silent, parts, thinking, plain = engine_at(stub).sample(requests, SamplingParams(stop=("</step>",)))
    assert trimmed[0].text.endswith("</step>")
    assert (long[0].finish_reason, plain[0].finish_reason) == ("length", "stop")
    assert (texts(silent), texts(parts)) == ([""], ["in parts"])
    assert "the answer is neither a string nor parts of text" in thinking.reason
    assert (plain[0].token_ids, plain[0].logprobs) == (None, None)


class Counting(Handler):
    """Answers with the user's text, n times, and counts four tokens for each, unless the text says otherwise."""

    USAGE = {
        "uncounted": None,
        "zero": {"completion_tokens": 0},
        "hidden": {"completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 3}},
        "details": {"completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 0}},
    }

    def answer(self, body):
        text, _, _ = self.noted(body)
        n = body.get("n", 1)
        choice = {"message": {"content": text}, "finish_reason": "stop"}
        if text == "ids":
            choice["token_ids"] = [5, 6, 7]
        usage = self.USAGE.get(text, {"completion_tokens": 4 * n})
        self.reply(200, {"choices": [{"index": k, **choice} for k in range(n)], "usage": usage})


def test_tokens_are_counted_where_the_server_counts_those_of_one_answer():
    expected = {"a": 4, "ids": 3, "details": 4, "hidden": None, "uncounted": None, "zero": None}
    with chat_stub(Counting) as stub:
        one = engine_at(stub).sample([asked(text) for text in expected], SamplingParams())
        (two,) = engine_at(stub).sample([asked("a", n=2)], SamplingParams())
    assert {sample.text: sample.tokens for (sample,) in one} == expected
    assert [sample.tokens for sample in two] == [None, None]


class Named(Handler):
    """Answers under the name that the user's text is."""

    def answer(self, body):
        text, _, _ = self.noted(body)
        choice = {"index": 0, "message": {"content": "7"}, "finish_reason": "stop"}
        self.reply(200, {"model": text, "choices": [choice]})


def test_a_model_of_another_name_is_warned_of_once(caplog):
    with chat_stub(Named) as stub:
        engine = ServerEngine("owner/qwen-7b", stub.url, openai_only=True)
        for name in ("owner/qwen-7b", "qwen-7b", "owner/Qwen-7B-2026-01-01", "llama-70b", "llama-70b"):
            engine.sample([asked(name)], SamplingParams())
    (warning,) = [message for message in caplog.messages if "answered" in message]
    assert re.fullmatch(r"http://\S+/v1 was asked for the model 'owner/qwen-7b', and 'llama-70b' answered", warning)


class Parsing(Handler):
    """Takes the thoughts out of answers, under the name that it is asked."""

    def answer(self, body):
        name, _, _ = self.noted(body)
        choice = {"index": 0, "message": {"content": "7", name: "3 + 4"}, "finish_reason": "stop"}
        self.reply(200, {"choices": [choice]})


def test_a_server_that_takes_thoughts_out_of_answers_is_warned_of_once(caplog):
    for name, times in (("reasoning_content", 1), ("reasoning", 1), ("refusal_of_others", 0)):
        caplog.clear()
        with chat_stub(Parsing) as stub:
            engine = ServerEngine("m", stub.url, openai_only=True)
            found = engine.sample([asked(name)] * 2, SamplingParams())
        assert [texts(outcome) for outcome in found] == [["7"]] * 2
        assert [message.endswith("start it without a reasoning parser") for message in caplog.messages] == [
            True
        ] * times


def test_log_probabilities_that_do_not_come_are_missed(stub):
    scored, unscored = engine_at(stub).sample([asked("scored"), asked("a")], SamplingParams(logprobs=True))
    assert (scored[0].logprobs, scored[0].token_ids) == ([-0.5, -0.25], [5, 6])
    assert "the server returned no log-probabilities" in unscored.reason


def test_images_stand_before_the_first_text_of_the_user_in_order(stub):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "compare"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "again"},
    ]
    blue = BLUE.copy()
    palette = PIL.Image.new("RGBA", (28, 28), (0, 255, 0, 128)).quantize(4)
    cmyk = PIL.Image.new("CMYK", (28, 28), (255, 255, 0, 0))
    for image in (blue, palette, cmyk):
        image.info |= {"icc_profile": b"of a camera", "dpi": (72, 72)}
    engine_at(stub).sample([Request(messages, [blue, palette, cmyk])], SamplingParams())
    sent = stub.bodies[0]["messages"]
    assert [part["type"] for part in sent[1]["content"]] == ["image_url"] * 3 + ["text"]
    assert [sent[0], *sent[2:]] == [messages[0], *messages[2:]]
    assert stub.images == [(0, 0, 255), (127, 255, 127), (0, 0, 255)]  # half transparent green is on white
    assert set(stub.image_info) == {()}
    assert blue.info["icc_profile"] == b"of a camera"  # the caller's image is as it was


def test_an_image_that_cannot_be_read_is_its_request_s_failure(stub, tmp_path):
    PIL.Image.effect_noise((64, 64), 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:1500])
    requests = [asked("a", images=[PIL.Image.open(tmp_path / "cut.png")]), asked("b")]
    cut, fine = engine_at(stub).sample(requests, SamplingParams())
    assert "an image cannot be read: " in cut.reason
    assert len(fine) == 1
    (lost,) = engine_at(stub).sample([Request([{"role": "system", "content": "a"}], [BLUE])], SamplingParams())
    assert lost.reason == "1 images came without a user message to put them into"


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (401, r"Give the right key \(OPENAI_API_KEY; "),
        (403, r"not allowed this; give another key \(OPENAI_API_KEY\)"),
        (404, "no model 'm', .* correct the model's name .* or the address"),
        (405, "no OpenAI-compatible server; correct the address"),
        (501, "no OpenAI-compatible server; correct the address"),
    ],
)
def test_a_server_that_will_never_answer_stops_the_run(stub, status, fix):
    """At once, not after what else is in flight."""
    start = time.monotonic()
    with pytest.raises(ServerError, match=rf"^HTTP {status} from {stub.url}: .*<key>.*{fix}") as caught:
        engine_at(stub).sample([asked("hang"), asked(f"leak and {status}")], SamplingParams())
    assert KEY not in str(caught.value)
    assert time.monotonic() - start < HANG_SECONDS / 2
    said = [body["messages"][0]["content"] for body in stub.bodies]  # the other may not have been sent yet
    assert len(said) == len(set(said))  # no call was repeated
    assert f"leak and {status}" in said


def test_a_port_with_another_service_stops_the_run(caplog):
    """Such as `python -m http.server`, which knows no POST; what it does not suppress is of no account."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)) as other:
        engine = ServerEngine("m", f"http://127.0.0.1:{other.server_port}/v1")
        with pytest.raises(ServerError, match=r"^HTTP 501 from .*: Unsupported method \('POST'\)\. What answers"):
            engine.sample([asked("a")], SamplingParams())
    assert caplog.text == ""


def test_a_server_that_does_not_list_its_models_is_used(caplog):
    class Unlisted(Handler):
        def do_GET(self):
            self.reply(404, {"error": {"message": "there is no such page"}})

        def answer(self, body):
            if body["model"] == "m":
                return super().answer(body)
            return self.reply(404, {"error": {"message": "this server has 'm'."}})

    with chat_stub(Unlisted) as server:
        assert len(engine_at(server).sample([asked("a")], SamplingParams())[0]) == 1
        with pytest.raises(ServerError, match=r"this server has 'm'\. There is no model 'other'"):
            ServerEngine("other", server.url).sample([asked("a")], SamplingParams())
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("Nothing keeps the model 'm' at ")  # only where a call was answered


@pytest.mark.full
def test_no_server_at_all():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    engine = ServerEngine("m", f"http://user:word@127.0.0.1:{port}/v1", max_retries=0)
    with pytest.raises(ServerError, match=rf"^Nothing answers at http://127.0.0.1:{port}/v1 \(ConnectError\)\. Start"):
        engine.sample([asked("a")] * 3, SamplingParams())


def test_nothing_secret_is_shown_or_stored():
    engine = ServerEngine("m", "https://user:word@host.example:81/v1?token=t", api_key=KEY, extra_body={"a": 1})
    assert engine.settings == {"kind": "server", "model": "m", "openai_only": False, "extra_body": {"a": 1}}
    for secret in (KEY, "word", "token"):
        assert secret not in repr(engine) + json.dumps(engine.settings)


def test_the_key_comes_from_the_environment(stub, monkeypatch):
    for value, shown in (("sk-of-the-environment", "<key>"), ("", "EMPTY")):
        monkeypatch.setenv("OPENAI_API_KEY", value)
        (outcome,) = ServerEngine("m", stub.url).sample([asked("leak")], SamplingParams())
        assert outcome.reason.endswith(f"you sent Bearer {shown}")


def test_works_where_a_loop_runs_already(stub):
    async def cell_of_a_notebook():
        return engine_at(stub).sample([asked("a")], SamplingParams())

    assert len(asyncio.run(cell_of_a_notebook())[0]) == 1


@pytest.mark.full
def test_an_interrupt_ends_all_calls(stub):
    """Ctrl-C, not after the time-outs of what is in flight."""
    program = (
        "import sys; from trl_mmreason.generation import SamplingParams, Request\n"
        "from trl_mmreason.generation.server_engine import ServerEngine\n"
        "requests = [Request([{'role': 'user', 'content': 'hang'}])] * 3\n"
        "ServerEngine('m', sys.argv[1]).sample(requests, SamplingParams())"
    )
    process = subprocess.Popen([sys.executable, "-c", program, stub.url], stderr=subprocess.PIPE, text=True)
    assert stub.entered.wait(60)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base_url": "127.0.0.1:8000/v1"}, "expected an address such as http"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"timeout_seconds": 0}, "timeout_seconds=0"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"extra_body": {"n": 3, "stream": True}}, r"extra_body holds \['n', 'stream'\]"),
        ({"extra_body": {"seed": 7}}, r"extra_body holds \['seed'\]"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments, message):
    with pytest.raises(ValueError, match=message):
        ServerEngine("m", **{"base_url": "http://127.0.0.1:8000/v1", **arguments})
