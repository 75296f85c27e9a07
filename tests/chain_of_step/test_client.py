"""ProcessRewardClient: a served model scores as one in this process, and a server that fails is outlasted or named."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import PIL.Image
import pytest
import torch
from loopback import served, serving
from solution_chains import chain_of_steps, prefixes
from support import drawn_rows
from telling_scorer import TellingScorer, chain
from torch.testing import assert_close

from trl_mmreason.chain_of_step import client as client_module
from trl_mmreason.chain_of_step.client import ProcessRewardClient, ProcessRewardServerError, process_reward_from
from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.chain_of_step.scored_chain import UnscorableRow
from trl_mmreason.chain_of_step.serve import create_app
from trl_mmreason.chain_of_step.template import parse_chain
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import make_problems

CHAINS = [chain_of_steps(solve(problem)) for problem in make_problems(["adding", "counting"], 6, seed=0)]


@pytest.fixture(scope="module")
def served_model(bases):
    """A model in this process, and the address of a server that has the same one."""
    prm = ProcessRewardModel.from_pretrained(bases("qwen2_5_vl"), device="cpu")
    with served(create_app(prm, "tiny")) as url:
        yield prm, url


def rows_with_pictures():
    """One, two or no picture; whole, partial and unscored chains; a message, and pictures of unusual kinds."""
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


def test_the_same_scores_and_settings_as_in_this_process(served_model):
    prm, url = served_model
    rows = rows_with_pictures()
    client = ProcessRewardClient(url)
    expected = prm.score(rows)
    for (steps, answer), (expected_steps, expected_answer) in zip(client.score(rows), expected, strict=True):
        assert steps.dtype == torch.float32
        assert steps.tolist() == expected_steps.tolist()  # the same batches: not even rounding differs
        assert answer == expected_answer
    assert len({round(answer, 5) for _, answer in expected[6:]}) > 4  # pictures count
    assert client.settings == prm.settings
    assert client.score([]) == []
    for few in (1, 4):
        for ours, theirs in zip(ProcessRewardClient(url, rows_a_request=few).score(rows), expected, strict=True):
            assert_close(ours.steps, theirs.steps, atol=1e-6, rtol=0)


def test_the_caller_s_picture_is_left_as_it_was(served_model):
    _, url = served_model
    image = drawn_rows(1)[0]["images"][0]
    image.info["icc_profile"] = b"of a camera"
    ProcessRewardClient(url).score([{**drawn_rows(1)[0], "images": [image], "completion": CHAINS[0]}])
    assert image.info["icc_profile"] == b"of a camera"


def test_rows_that_cannot_be_scored_are_refused_as_in_this_process(served_model):
    prm, url = served_model
    row = {"prompt": drawn_rows(1)[0]["prompt"], "completion": CHAINS[0]}
    bad = {**row, "completion": CHAINS[0][:-3]}
    expected = r"completion of row 1: malformed chain at character \d+: expected <\|answer_end\|>"
    for scorer in (prm, ProcessRewardClient(url)):
        with pytest.raises(UnscorableRow, match=expected):
            scorer.score([row, bad])
    with pytest.raises(UnscorableRow, match=rf"HTTP 400 from {url}/score: The {expected}.* Its row 0 is row 2 of this"):
        ProcessRewardClient(url, rows_a_request=2).score([row, row, row, bad])
    with pytest.raises(UnscorableRow, match="row 0 has a picture that cannot be read"):
        ProcessRewardClient(url).score([{**row, "images": ["a.png"]}])


def numbered(numbers):
    return [{"prompt": [{"role": "user", "content": str(k)}], "completion": chain("b")} for k in numbers]


def test_rows_go_in_requests_of_a_bounded_size(monkeypatch):
    scorer, rows = TellingScorer(), numbered(range(5))
    with served(create_app(scorer, "m", batch_size=99)) as url:
        client = ProcessRewardClient(url, rows_a_request=2)
        assert [answer for _, answer in client.score(rows)] == [k / 1024 for k in range(5)]
        assert scorer.batches == [["0", "1"], ["2", "3"], ["4"]]
        scorer.batches.clear()
        monkeypatch.setattr(client_module, "_MOST_BODY_BYTES", 4_000)  # three chains
        rows[3] = {**rows[3], "completion": chain("b" * 5_000)}
        client = ProcessRewardClient(url)
        assert [answer for _, answer in client.score(rows)] == [k / 1024 for k in range(5)]
        assert scorer.batches == [["0", "1", "2"], ["3"], ["4"]]


def test_threads_may_share_a_client():
    with served(create_app(TellingScorer(), "m")) as url:
        client = ProcessRewardClient(url, rows_a_request=3)

        def answers(first):
            return [answer for _, answer in client.score(numbered(range(first, first + 8)))]

        with ThreadPoolExecutor(16) as pool:
            for first, found in enumerate(pool.map(answers, range(64))):
                assert found == [(first + k) / 1024 for k in range(8)]


# ----------------------------------------------------------------------------------------- a server that misbehaves


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server.asked.append((self.path, json.loads(body) if body else None))
        reply = server.replies.pop(0) if server.replies else GOOD
        if reply in ("drop", "hang"):
            if reply == "hang":
                server.released.wait(10)
            self.close_connection = True
            return
        status, content, headers = (*reply, {})[:3]
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        """Keep the test's output quiet."""


GOOD = (200, {"scores": [{"steps": [0.5], "answer": None}]})
OVERLOADED = {"error": {"message": "9 rows wait already"}}
ROW = {"prompt": [{"role": "user", "content": "?"}], "completion": chain("b")}


@contextmanager
def misbehaving(*replies):
    """A server that gives these replies in turn, and good ones afterwards."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.replies, server.asked, server.released = list(replies), [], threading.Event()
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
        (503, b"", {"Retry-After": "9999"}),
        (503, b"", {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
    ]
    with misbehaving(*failing) as server:
        client = ProcessRewardClient(server.url, timeout_seconds=0.5)
        ((steps, answer),) = client.score([ROW])
    assert (steps.tolist(), answer) == ([0.5], None)
    assert server.asked == [("/score", {"rows": [{**ROW, "images": []}]})] * 8
    assert (pauses[0], pauses[5]) == (7, 120)
    for attempt in (1, 2, 3, 4, 6):  # 0.5 · 2^attempt, at most 30, less a random quarter
        longest = min(0.5 * 2**attempt, 30)
        assert 0.75 * longest <= pauses[attempt] <= longest


def test_what_does_not_pass_is_told_with_address_status_and_fix(pauses):
    with misbehaving(*[(503, OVERLOADED, {"Retry-After": "1"})] * 3) as server:
        with pytest.raises(ProcessRewardServerError, match=f"HTTP 503 from {server.url}/score: 9 rows wait already"):
            ProcessRewardClient(server.url, retries=2).score([ROW])
        assert (len(server.asked), pauses) == (3, [1, 1])
    lost = pytest.raises(ProcessRewardServerError, match=r"no answer from .*RemoteProtocolError.*asked 1 time\(s\)")
    with misbehaving("drop") as server, lost:
        ProcessRewardClient(server.url, retries=0).score([ROW])


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ((400, {"error": {"message": "row 0 lacks prompt"}}), "HTTP 400 from .*/score: row 0 lacks prompt"),
        ((413, {"error": {"message": "too long; send fewer"}}), "HTTP 413 from .*/score: too long; send fewer"),
        ((401, b"who are you?"), "HTTP 401 from .*/score: who are you.*Fix the address: it is that of `mmr"),
        ((404, {"detail": "Not Found"}), "HTTP 404 from .*Not Found.*Fix the address"),
        ((302, b"", {"Location": "/login"}), "HTTP 302 from .*Fix the address"),
        ((200, b"<html>hello</html>"), "answered '<html>hello</html>'; expected JSON. Fix the address"),
        ((200, {"choices": []}), r"answered \"\{'choices': \[\]\}\"; expected scores"),
        ((200, [1]), r"answered '\[1\]'; expected scores"),
        ((200, {"scores": [{"steps": "high", "answer": 1}]}), "expected scores"),
        ((200, {"scores": []}), r"answered \"\{'scores': \[\]\}\"; expected the scores of 1 rows"),
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
    with pytest.raises(ProcessRewardServerError, match=f"no answer from {url}/info: ConnectError.*Start the server"):
        _ = ProcessRewardClient(url).settings
    assert len(pauses) == 2
    with (
        misbehaving((200, {"object": "list"})) as other,
        pytest.raises(ProcessRewardServerError, match="expected the settings of a process reward model"),
    ):
        _ = ProcessRewardClient(other.url).settings


def test_a_server_that_was_long_silent_is_asked_once_a_request_until_it_answers(pauses):
    with misbehaving(*["drop"] * 6, GOOD, "drop") as server:
        client = ProcessRewardClient(server.url, retries=3)
        asked = []
        for _ in range(3):
            with pytest.raises(ProcessRewardServerError):
                client.score([ROW])
            asked.append(len(server.asked))
        assert asked == [4, 5, 6]
        client.score([ROW])
        client.score([ROW])  # the first attempt is dropped, and again followed by another
    assert len(server.asked) == 6 + 1 + 2


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
        ({"url": "http://a", "rows_a_request": 0}, "rows_a_request=0"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        ProcessRewardClient(**arguments)


def test_a_process_reward_from_what_names_one(served_model, bases):
    prm, url = served_model
    assert process_reward_from(prm) is prm
    assert process_reward_from(url).settings == prm.settings
    assert process_reward_from(bases("qwen2_5_vl")).settings == prm.settings
    with pytest.raises(TypeError, match="got a int, expected a ProcessRewardModel, the path of one, or the address"):
        process_reward_from(3)
