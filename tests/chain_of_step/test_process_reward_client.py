"""ProcessRewardClient: a served model scores as one in this process, and a server that fails is outlasted or named."""

import json
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import PIL.Image
import pytest
import torch
from loopback import serving
from pooling_stub import pooling_stub
from short_chains import chain
from solution_chains import chain_of_steps, prefixes
from support import drawn_rows
from torch.testing import assert_close

from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel, UnscorableRow
from trl_mmreason.chain_of_step.process_reward_client import (
    ProcessRewardClient,
    ProcessRewardServerError,
    process_reward_from,
)
from trl_mmreason.chain_of_step.template import ANSWER_END, STEP_END, parse_chain
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import make_problems

CHAINS = [chain_of_steps(solve(problem)) for problem in make_problems(["adding", "counting"], 6, seed=0)]


@pytest.fixture(scope="module")
def served_model(bases):
    """A model in this process, and a server that has the same one."""
    prm = ProcessRewardModel.from_pretrained(bases("qwen2_5_vl"), device="cpu")
    with pooling_stub(prm) as server:
        yield prm, server


def rows_with_images():
    """One, two or no image; whole, partial and unscored chains; a message, and images of unusual kinds."""
    completions = [*CHAINS[:4], prefixes(parse_chain(CHAINS[4]))[1], "It is 7."]
    rows = [{**row, "completion": text} for row, text in zip(drawn_rows(6), completions, strict=True)]
    rows[1]["completion"] = [{"role": "assistant", "content": CHAINS[1]}]
    noise = PIL.Image.effect_noise((56, 56), 99)
    transparent = PIL.Image.merge("RGBA", [noise, noise, noise, noise.rotate(90)])
    kinds = [transparent, transparent.quantize(8), transparent.quantize(4), noise, noise.convert("1")]
    kinds[1].info["transparency"] = 3
    kinds += [transparent.convert("CMYK"), transparent.convert("LA")]
    kinds += [PIL.Image.linear_gradient("L").convert("I;16")]
    return rows + [{"prompt": rows[0]["prompt"], "image": image, "completion": CHAINS[0]} for image in kinds]


def test_the_same_scores_as_in_this_process(served_model):
    prm, server = served_model
    rows, client = rows_with_images(), ProcessRewardClient(server.url)
    expected = prm.score(rows)
    for concurrency in (1, 64):
        scores = ProcessRewardClient(server.url, concurrency=concurrency).score(rows)
        for (steps, answer), (expected_steps, expected_answer) in zip(scores, expected, strict=True):
            assert steps.dtype == torch.float32
            assert_close(steps, expected_steps, atol=1e-5, rtol=0)
            assert answer == (None if expected_answer is None else pytest.approx(expected_answer, abs=1e-5))
    assert len({round(answer, 5) for _, answer in expected[6:]}) > 4  # images count
    assert client.settings == {"kind": "process_reward_server", "model": "folder/prm"}
    assert client.score([]) == []


def test_what_looks_like_a_special_token_is_sent_as_text(served_model):
    _, server = served_model
    server.asked.clear()
    text = chain("1 <|im_end|><|image_pad|> <b> a<b")
    ((steps, answer),) = ProcessRewardClient(server.url).score(
        [{"prompt": drawn_rows(1)[0]["prompt"], "completion": f" {text}\n"}]
    )
    assert (len(steps), answer is None) == (1, False)
    ((_, _, sent),) = server.asked
    assert sent == " " + chain("1 < |im_end|>< |image_pad|> <b> a<b")


def test_the_caller_s_image_is_left_as_it_was(served_model):
    _, server = served_model
    image = drawn_rows(1)[0]["images"][0]
    image.info["icc_profile"] = b"of a camera"
    ProcessRewardClient(server.url).score([{**drawn_rows(1)[0], "images": [image], "completion": CHAINS[0]}])
    assert image.info["icc_profile"] == b"of a camera"


def test_rows_that_cannot_be_scored_are_refused_as_in_this_process(served_model):
    prm, server = served_model
    row = {"prompt": drawn_rows(1)[0]["prompt"], "completion": CHAINS[0]}
    bad = {**row, "completion": CHAINS[0][:-3]}
    expected = r"completion of row 1: malformed chain at character \d+: expected <\|answer_end\|>"
    for scorer in (prm, ProcessRewardClient(server.url)):
        with pytest.raises(UnscorableRow, match=expected):
            scorer.score([row, bad])
    with pytest.raises(UnscorableRow, match="row 0: The image 'a.png' does not exist"):
        ProcessRewardClient(server.url).score([{**row, "images": ["a.png"]}])


# ----------------------------------------------------------------------------------------- a server that misbehaves


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == server.bad_path:
            server.asked.append(json.loads(body) if body else None)
        bad = self.path == server.bad_path and server.replies
        good = GOOD[self.path]
        if b'"messages"' in body and self.path == "/tokenize":
            tokens = ["prompt", *server.between, STEP_END] if b"continue_final_message" in body else ["prompt"]
            good = (200, {"token_strs": tokens})
        reply = server.replies.pop(0) if bad else good
        if reply in ("drop", "hang"):
            if reply == "hang":
                server.released.wait(10)
            self.close_connection = True
            return
        status, content, headers = (*reply, {})[:3]
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "text/html" if isinstance(content, bytes) else "application/json"
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        """Keep the test's output quiet."""


GOOD = {
    "/v1/models": (200, {"data": [{"id": "m"}]}),
    "/tokenize": (200, {"token_strs": ["a", STEP_END, "b", ANSWER_END]}),
    "/pooling": (200, {"data": [{"data": [[0.0], [0.1], [0.5], [0.2], [0.25]]}]}),
}
OVERLOADED = {"error": {"message": "9 rows wait already"}}
ROW = {"prompt": [{"role": "user", "content": "?"}], "completion": chain("b")}


@contextmanager
def misbehaving(*replies, path="/pooling"):
    """A server that gives these replies at one path in turn, and good ones afterwards and elsewhere."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.bad_path, server.replies, server.asked, server.released = path, list(replies), [], threading.Event()
    server.between = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        try:
            yield server
        finally:
            server.released.set()


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts, which are not made."""
    made = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


def test_what_passes_is_outlasted(pauses):
    failing = [
        (503, OVERLOADED, {"Retry-After": "7"}),
        (500, {"error": {"message": "RuntimeError: hm"}}),
        "drop",
        "hang",
        (502, b"<html>bad gateway</html>"),
        (503, b"", {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
    ]
    with misbehaving(*failing) as server:
        client = ProcessRewardClient(server.url, timeout_seconds=0.5)
        ((steps, answer),) = client.score([ROW])
    assert (steps.tolist(), answer) == ([0.5], 0.25)
    messages = [*ROW["prompt"], {"role": "assistant", "content": ROW["completion"]}]
    chat = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    assert server.asked == [{"model": "m", **chat, "task": "token_classify"}] * 7
    assert pauses[0] == 7
    assert len(pauses) == 6
    assert all(0 < pause <= 8 for pause in pauses[1:])


def test_what_does_not_pass_is_told_with_address_status_and_fix(pauses):
    with misbehaving(*[(503, OVERLOADED, {"Retry-After": "1"})] * 3) as server:
        with pytest.raises(ProcessRewardServerError, match=f"HTTP 503 from {server.url}/pooling: 9 rows wait already"):
            ProcessRewardClient(server.url, retries=2).score([ROW])
        assert (len(server.asked), pauses) == (3, [1, 1])
    lost = pytest.raises(ProcessRewardServerError, match=r"no answer from .*asked 1 time\(s\)")
    with misbehaving("drop") as server, lost:
        ProcessRewardClient(server.url, retries=0).score([ROW])


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ((400, {"error": {"message": "too many images"}}), "row 0: HTTP 400 from .*/pooling: too many images"),
        ((413, {"error": {"message": "too long; send fewer"}}), "HTTP 413 from .*/pooling: too long; send fewer"),
        ((401, b"who are you?"), "HTTP 401 from .*/pooling: who are you.*Fix the address"),
        ((404, {"detail": "Not Found"}), "HTTP 404 from .*Not Found.*Fix the address"),
        ((200, b"<html>hello</html>"), "answered '<html>hello</html>'; expected a score per token. Fix the address"),
        ((200, {"choices": []}), r"answered \"\{'choices': \[\]\}\"; expected a score per token"),
        ((200, [1]), r"answered '\[1\]'; expected a score per token"),
        ((200, {"data": [{"data": [["high"]] * 5}]}), "expected a score per token"),
        ((200, {"data": [{"data": [[0.5, 0.5]] * 5}]}), "expected a score per token"),
        ((200, {"data": [{"data": [[0.5]]}]}), "expected a score per token"),
        ((400, {"error": {"message": "Try switching the model's pooling_task"}}), "pooling_task.*--pooler-config.task"),
    ],
)
def test_what_will_not_change_is_asked_once(pauses, reply, problem):
    with misbehaving(reply) as server, pytest.raises((ProcessRewardServerError, UnscorableRow), match=problem):
        ProcessRewardClient(server.url).score([ROW])
    assert len(server.asked) == 1
    assert pauses == []


def test_no_server_is_found_out_soon(pauses):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ProcessRewardServerError, match=f"no answer from {url}/v1/models: .*start"):
        _ = ProcessRewardClient(url).settings
    assert len(pauses) == 2
    with (
        misbehaving((200, {"object": "list"}), path="/v1/models") as other,
        pytest.raises(ProcessRewardServerError, match="expected the served model"),
    ):
        _ = ProcessRewardClient(other.url).settings


def test_a_server_that_was_long_silent_is_asked_once_a_request_until_it_answers(pauses):
    with misbehaving(*["drop"] * 6, path="/tokenize") as server:
        client = ProcessRewardClient(server.url, retries=3)
        asked = []
        for _ in range(3):
            with pytest.raises(ProcessRewardServerError):
                client.score([ROW])
            asked.append(len(server.asked))
        assert asked == [4, 5, 6]
        client.score([ROW])
        assert len(server.asked) == 6 + 3  # the template's two, and the row's
        server.replies.append("drop")
        client.score([ROW])  # the first attempt is dropped, and again followed by another
    assert len(server.asked) == 6 + 3 + 2


def test_a_template_that_begins_answers_with_something_of_its_own_is_refused():
    """As Mistral's does: the scores would be of another chain."""
    with misbehaving() as server:
        server.between = ["Ġ"]
        with pytest.raises(ProcessRewardServerError, match=r"begins an answer with \['Ġ'\]"):
            ProcessRewardClient(server.url).score([ROW])


def test_a_password_in_the_address_is_used_and_not_shown():
    with misbehaving((404, b"")) as server:
        client = ProcessRewardClient(server.url.replace("//", "//me:secret@"))
        with pytest.raises(ProcessRewardServerError) as caught:
            client.score([ROW])
    assert "secret" not in f"{caught.value}{client!r}"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"url": "127.0.0.1:8001"}, "url has scheme '' and host None; expected an address such as http://"),
        ({"url": "http://"}, "expected an address such as http://"),
        ({"url": "http://a", "timeout_seconds": 0}, "timeout_seconds=0.*expected timeout_seconds > 0"),
        ({"url": "http://a", "retries": -1}, "retries=-1"),
        ({"url": "http://a", "concurrency": 0}, "concurrency=0"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        ProcessRewardClient(**arguments)


def test_a_process_reward_from_what_names_one(served_model, bases):
    prm, server = served_model
    assert process_reward_from(prm) is prm
    assert process_reward_from(server.url).settings["model"] == "folder/prm"
    assert process_reward_from(bases("qwen2_5_vl")).settings == prm.settings
    with pytest.raises(TypeError, match="got a int, expected a ProcessRewardModel, the path of one, or the address"):
        process_reward_from(3)
