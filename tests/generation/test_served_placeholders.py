"""Which tokens a server is told not to write: those of its own checkpoint, and none where that is not known."""

import json

import pytest
from chat_stub import Handler, chat_stub
from text_reasoners import saved_reasoner
from transformers import AutoTokenizer

from trl_mmreason.generation import Request, SamplingParams, servers
from trl_mmreason.generation.server_engine import ServerEngine

REQUESTS = [Request([{"role": "user", "content": "a"}])]
WARNING = "Nothing keeps the model 'm' at {url} from writing placeholders of images: "


class LikeVLLM(Handler):
    """Lists its checkpoint and decodes tokens as vLLM does; `listed` and `tokenizer` belong to the server."""

    def do_GET(self):
        if self.server.busy:
            self.server.released.wait(10)
        self.reply(200, {"data": self.server.listed})

    def do_POST(self):
        if self.path != "/detokenize":
            return super().do_POST()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return self.reply(200, {"prompt": self.server.tokenizer.decode(body["tokens"])})


@pytest.fixture
def stub():
    with chat_stub(LikeVLLM) as server:
        server.busy = False
        yield server


def serve(stub, checkpoint, *, decodes_like=None, **entry):
    """Let the stub serve a checkpoint as `m`."""
    stub.listed = [{"id": "m", "owned_by": "vllm", "root": str(checkpoint), **entry}]
    stub.tokenizer = AutoTokenizer.from_pretrained(decodes_like or checkpoint)


def bias_of(stub, **options):
    ServerEngine("m", stub.url, **options).sample(REQUESTS, SamplingParams())
    return stub.bodies[-1].get("logit_bias")


def placeholders_of(checkpoint):
    """Of the miniature, which names them as Qwen2.5-VL does."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    named = [f"<|{kind}|>" for kind in ("image_pad", "video_pad", "vision_start", "vision_end")]
    return {str(token): -100 for token in tokenizer.convert_tokens_to_ids(named)}


def test_the_placeholders_of_the_served_checkpoint_are_suppressed(stub, checkpoints, caplog):
    path = checkpoints("qwen2_5_vl")
    serve(stub, path)
    assert bias_of(stub) == placeholders_of(path)
    assert len(placeholders_of(path)) == 4
    assert caplog.text == ""


def test_of_an_adapter_those_of_its_base(stub, checkpoints):
    path = checkpoints("qwen2_5_vl")
    serve(stub, path)
    stub.listed[0]["id"] = "base"
    stub.listed.append({"id": "m", "owned_by": "vllm", "root": "runs/adapter", "parent": "base"})
    assert bias_of(stub) == placeholders_of(path)


def test_ids_that_mean_something_else_at_the_server_are_never_sent(stub, checkpoints, tmp_path, caplog):
    """The same path may hold another checkpoint on the server's machine."""
    serve(stub, checkpoints("qwen2_5_vl"), decodes_like=saved_reasoner("qwen2", tmp_path))
    assert bias_of(stub) is None
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith(WARNING.format(url=stub.url) + "its token ")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"root": "/nowhere"}, "its checkpoint /nowhere cannot be read here"),
        ({"root": None}, "it does not say which checkpoint it serves"),
        ({"id": "another"}, "it does not list the model"),
    ],
)
def test_one_line_says_why_nothing_is_suppressed(stub, checkpoints, entry, why, caplog):
    serve(stub, checkpoints("qwen2_5_vl"), **entry)
    engine = ServerEngine("m", stub.url)
    for _ in range(2):
        engine.sample(REQUESTS * 3, SamplingParams())
    assert not any("logit_bias" in body for body in stub.bodies)
    [record] = caplog.records
    assert record.getMessage().startswith(WARNING.format(url=stub.url) + why)
    assert "\n" not in record.getMessage()


def test_a_server_too_busy_to_say_is_warned_of_and_asked_again(stub, checkpoints, caplog, monkeypatch):
    path = checkpoints("qwen2_5_vl")
    serve(stub, path)
    stub.busy, engine = True, ServerEngine("m", stub.url)
    with monkeypatch.context() as patched:
        patched.setattr(servers, "_PROBE_SECONDS", 0.2)
        engine.sample(REQUESTS * 3, SamplingParams())
    stub.busy = False
    engine.sample(REQUESTS, SamplingParams())
    assert [body.get("logit_bias") for body in stub.bodies] == [None, None, None, placeholders_of(path)]
    [record] = caplog.records
    assert record.getMessage().startswith(WARNING.format(url=stub.url) + "it does not say in time (APITimeoutError)")


def test_nothing_is_said_or_sent_where_there_is_nothing_to_suppress(stub, checkpoints, tmp_path, caplog):
    serve(stub, saved_reasoner("qwen2", tmp_path))
    assert bias_of(stub) is None  # a text-only model
    serve(stub, checkpoints("qwen2_5_vl"))
    assert bias_of(stub, openai_only=True) is None
    assert caplog.text == ""


def test_what_is_given_comes_before_what_is_found(stub, checkpoints):
    serve(stub, checkpoints("qwen2_5_vl"))
    assert bias_of(stub, suppressed_ids=[7]) == {"7": -100}
    assert bias_of(stub, suppressed_ids=[]) is None
    assert bias_of(stub, extra_body={"logit_bias": {"8": 1}}) == {"8": 1}
