"""`mmreason serve-prm`: what it answers and refuses, under load, with a scorer that tells what it was asked."""

import base64
import io
import re
import signal
import struct
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2
import PIL.Image
import pytest
from loopback import served, wait_for
from telling_scorer import TellingScorer, chain

from trl_mmreason.chain_of_step.serve import create_app
from trl_mmreason.cli.main import main

RED = PIL.Image.new("RGB", (28, 28), "red")


@pytest.fixture(scope="module")
def telling():
    scorer = TellingScorer()
    with served(create_app(scorer, "m", batch_size=2, max_waiting=12, max_body_bytes=40_000)) as scorer.url:
        yield scorer


@pytest.fixture
def http(telling):
    telling.batches.clear()
    limits = httpx2.Limits(max_connections=400)
    with httpx2.Client(base_url=telling.url, timeout=30, limits=limits) as client:
        yield client


def row(number, images=(), completion=None):
    return {
        "prompt": [{"role": "user", "content": str(number)}],
        "images": [picture(image) for image in images],
        "completion": chain("b") if completion is None else completion,
    }


def picture(image=RED, kind="PNG"):
    file = io.BytesIO()
    image.save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def post(http, *rows):
    return http.post("/score", json={"rows": list(rows)})


def test_scores_come_in_the_order_of_the_rows(http):
    partial = chain("b")[: chain("b").index("<|reasoning_end|>")]
    blue = PIL.Image.new("RGB", (28, 28), (0, 0, 512 // 4))
    reply = post(http, row(512), row(256, [RED, blue], partial), {**row(128), "images": None})
    assert reply.status_code == 200
    assert reply.json()["scores"] == [
        {"steps": [0.5], "answer": 0.5},
        {"steps": [0.25, 255 / 1024, 0.125], "answer": None},
        {"steps": [0.125], "answer": 0.125},
    ]
    assert post(http).json() == {"scores": []}


def test_what_it_says_of_itself(http):
    assert http.get("/info").json() == {"model": "m", "settings": {"kind": "telling"}, "max_waiting": 12}
    assert http.get("/health").json() == {"status": "ok"}


def bomb(width, height):
    """A row with a picture whose file says it has so many pixels, and holds none."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", b""))
    ]
    file = b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
    return {**row(1), "images": [f"data:image/png;base64,{base64.b64encode(file).decode()}"]}


def test_the_bound_of_pixels_is_one_of_each_row(http):
    large = PIL.Image.new("1", (4200, 4200))
    assert post(http, row(1, [large]), row(2, [large])).status_code == 200
    refused = post(http, row(1), row(2, [large, large]))
    assert refused.status_code == 400
    assert re.search(
        r"rows\[1\].images\[1\] is .* 4200 × 4200 pixels, expected 15914432", refused.json()["error"]["message"]
    )


GOOD, PART = row(1), {"type": "text", "text": "a"}


def said(role, content="a"):
    return {**GOOD, "prompt": [{"role": role, "content": content}]}


REFUSED = {
    "no object": (3, r"rows\[1\] is 3: Input should be an object"),
    "no completion": ({"prompt": GOOD["prompt"]}, r"rows\[1\].completion is missing"),
    "no prompt": ({"completion": ""}, r"rows\[1\].prompt is missing"),
    "an unknown field": ({**GOOD, "answer": "7"}, r"rows\[1\].answer is '7', which this server does not support"),
    "a completion that is null": ({**GOOD, "completion": None}, r"rows\[1\].completion is None: .* valid string"),
    "a completion in messages": ({**GOOD, "completion": []}, r"rows\[1\].completion is \[\]: .* valid string"),
    "one picture for a list": ({**GOOD, "images": picture()}, r"rows\[1\].images is 'data:image.*: .* valid list"),
    "a prompt of text": ({**GOOD, "prompt": "1"}, r"rows\[1\].prompt is '1': Input should be a valid list"),
    "no message": ({**GOOD, "prompt": []}, r"rows\[1\] is .*: prompt should have messages, the last not the assist"),
    "the assistant last": (said("assistant"), r"rows\[1\] is .*: prompt .* messages, the last not the assistant's"),
    "a message of text": ({**GOOD, "prompt": ["1"]}, r"rows\[1\].prompt\[0\] is '1': Input should be an object"),
    "another role": (said("tool"), r"rows\[1\].prompt\[0\].role is 'tool': .* 'system', 'user' or 'assistant'"),
    "parts for a string": (
        said("user", [PART]),
        r"rows\[1\].prompt\[0\].content is \[.*: Input should be a valid string",
    ),
    "pictures without a user": (
        {**said("system"), "images": [picture()]},
        r"rows\[1\] is .*: prompt should have a message of the user to put the images before",
    ),
    "a malformed chain": (
        {**GOOD, "completion": chain("b")[:-3]},
        r"completion of row 1: malformed chain at character \d+: expected <\|answer_end\|>, found",
    ),
    "an open step": ({**GOOD, "completion": "<|reasoning_start|> hm"}, "row 1: malformed .* found 'hm'.* Cut an unfin"),
    "a picture elsewhere": ({**GOOD, "images": ["http://127.0.0.1/x"]}, r"images\[0\] is 'http://127.* should be the"),
    "a picture on disk": ({**GOOD, "images": ["file:///etc/passwd"]}, "should be .*; this server fetches nothing"),
    "no picture": ({**GOOD, "images": [None]}, r"rows\[1\].images\[0\] is None: .*; this server fetches nothing"),
    "half a picture": ({**GOOD, "images": [picture()[:80]]}, r"images\[0\] is .* should be a picture that can be read"),
    "another kind of file": ({**GOOD, "images": [picture(kind="TIFF")]}, "should be a picture that can be read"),
    "a bomb": (bomb(10_000, 10_000), "it has 10000 × 10000 pixels, expected 33554432 at most; scale it"),
    "a bomb for Pillow": (bomb(60_000, 60_000), "should be a picture that can be read: .*decompression bomb"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bad_row_is_refused_by_its_number(telling, http, name):
    bad, message = REFUSED[name]
    reply = post(http, GOOD, bad)
    assert reply.status_code == 400
    assert re.search(message, reply.json()["error"]["message"])
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert reply.json()["error"]["param"].startswith("rows")
    assert telling.batches == []


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "The body is no JSON"),
        (b"\xff", 400, "The body is no JSON"),
        (b"[" * 30_000, 400, "The body is no JSON"),
        (b'{"rows": [NaN]}', 400, "The body is no JSON: expected value at"),
        (b"[1]", 400, r"The body is \[1\]: Input should be an object"),
        (b"{}", 400, "rows is missing"),
        (b'{"rows": [], "model": "m"}', 400, "model is 'm', which this server does not support"),
        (b'{"rows": ' + b"[1," * 3 + b"1]]]}", 400, r"rows\[0\] is 1: Input should be an object"),
        (b'{"rows": [' + b"1," * 12 + b"1]}", 413, "The body has 13 rows; this server takes 12 at a time. Send them"),
        (b"{%s}" % b",".join(b'"%d": 1' % k for k in range(200)), 400, "The body has 201 fields that are unknown or"),
        (b" " * 40_001, 413, "The body is longer than 40000 bytes; send fewer or smaller pictures"),
    ],
)
def test_a_bad_body(http, body, status, message):
    reply = http.post("/score", content=body)
    assert reply.status_code == status
    assert re.search(message, reply.json()["error"]["message"])


def test_other_paths_and_methods(http):
    for reply, status in ((http.post("/v1/score"), 404), (http.get("/score"), 405)):
        assert reply.status_code == status
        assert "expected POST /score, GET /info, GET /health" in reply.json()["error"]["message"]


def test_what_breaks_the_scorer_is_told_and_does_not_end_the_server(http):
    reply = post(http, row("crash"))
    assert (reply.status_code, reply.json()["error"]["message"]) == (500, "RuntimeError: out of something")
    reply = post(http, row("too large"))  # another try would fare no better
    assert (reply.status_code, reply.json()["error"]["message"]) == (413, "row 0 does not fit")
    assert post(http, row(512)).json() == {"scores": [{"steps": [0.5], "answer": 0.5}]}


# -------------------------------------------------------------------------------------------------------------- load


@contextmanager
def busy(telling, http, pool):
    """The scorer is at the first two of four rows while the block runs; two more wait."""
    telling.gate.clear()
    first = pool.submit(post, http, *map(row, range(4)))
    wait_for(lambda: telling.batches)
    yield first
    telling.gate.set()
    assert first.result().json()["scores"] == [{"steps": [k / 1024], "answer": k / 1024} for k in range(4)]


def test_too_many_rows_are_told_to_come_later_and_others_are_answered(telling, http):
    with ThreadPoolExecutor() as pool, busy(telling, http, pool):
        waiting = pool.submit(post, http, *map(row, range(4, 11)))
        time.sleep(0.2)
        reply = post(http, row(11), row(12))  # 4 + 7 + 2 > 12
        assert reply.status_code == 503
        assert 1 <= int(reply.headers["Retry-After"]) <= 60
        expected = r"11 rows are waiting, and 2 more would exceed 12\. Try again in \d+ s"
        assert re.search(expected, reply.json()["error"]["message"])
        one_more = pool.submit(post, http, row(11))
        start = time.monotonic()
        assert http.get("/health").status_code == 200
        assert http.get("/info").status_code == 200
        assert post(http, 3).status_code == 400
        assert time.monotonic() - start < 5  # the scorer would hang for 10
        telling.gate.set()
        assert len(waiting.result().json()["scores"]) == 7
        assert one_more.result().status_code == 200
    assert post(http, *map(row, range(12))).status_code == 200  # all have left


@pytest.mark.full
def test_nothing_is_scored_for_who_hung_up(telling, http):
    with ThreadPoolExecutor() as pool:
        with busy(telling, http, pool):
            with pytest.raises(httpx2.ReadTimeout):
                http.post("/score", json={"rows": [row(90)]}, timeout=0.3)
            time.sleep(1.5)
        assert post(http, row(91)).status_code == 200
        assert telling.batches == [["0", "1"], ["2", "3"], ["91"]]
        telling.batches.clear()
        telling.gate.clear()
        with pytest.raises(httpx2.ReadTimeout):
            http.post("/score", json={"rows": [row(92)] * 6}, timeout=0.3)
        time.sleep(1.5)
        telling.gate.set()
        assert post(http, row(93)).status_code == 200
    assert telling.batches == [["92", "92"], ["93"]]  # and what was begun is not continued


@pytest.mark.full
def test_hundreds_at_once_good_and_bad(telling, http):
    """Each of 400 gets the scores of its own rows, its own refusal, or status 503; health never waits."""
    asked = [[row(k), row(k + 1, [RED])] if k % 4 else [row(k), REFUSED["a malformed chain"][0]] for k in range(400)]

    def ask(rows):
        while (reply := post(http, *rows)).status_code == 503:
            assert int(reply.headers["Retry-After"]) >= 1
            time.sleep(0.05)
        return reply

    with ThreadPoolExecutor(64) as pool:
        replies = [pool.submit(ask, rows) for rows in asked]
        start = time.monotonic()
        assert http.get("/health").status_code == 200
        assert time.monotonic() - start < 5
        for k, reply in enumerate(replies):
            if k % 4 == 0:
                assert reply.result().status_code == 400
                continue
            here, there = k / 1024, (k + 1) / 1024
            expected = [{"steps": [here], "answer": here}, {"steps": [there, 255 / 1024], "answer": there}]
            assert reply.result().json()["scores"] == expected


# ----------------------------------------------------------------------------------------------------------- command


def test_numbers_below_one_are_refused():
    with pytest.raises(ValueError, match="batch_size=8, max_waiting=0; expected 1 or more"):
        create_app(TellingScorer(), "m", max_waiting=0)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "trl_mmreason.chain_of_step.serve", raising=False)
    with pytest.raises(SystemExit, match=r'serve-prm: the package uvicorn is missing\. .*"trl-mmreason\[server\]"'):
        main(["serve-prm", "model"])


def test_a_model_without_the_tokens_of_chains_is_refused(checkpoints):
    model = checkpoints("qwen2_5_vl")
    problem = (
        rf"mmreason serve-prm: {model} cannot be used as a process reward model: .*<\|reasoning_start\|> is encoded"
    )
    with pytest.raises(SystemExit, match=problem):
        main(["serve-prm", model])


@pytest.mark.full
def test_the_command_serves_until_interrupted(bases):
    command = [sys.executable, "-m", "trl_mmreason.cli.main", "serve-prm", bases("qwen2_5_vl"), "--port", "0"]
    process = subprocess.Popen([*command, "--max-waiting", "7"], stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stderr.readline, "")
        url = next(found[1] for line in lines if (found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line)))
        with httpx2.Client(base_url=url) as http:
            info = http.get("/info").json()
            assert (info["model"], info["max_waiting"]) == (bases("qwen2_5_vl"), 7)
            (score,) = post(http, row(1, [RED], chain("b", "c"))).json()["scores"]
        assert len(score["steps"]) == 2
        assert all(0 < each < 1 for each in [*score["steps"], score["answer"]])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)
    finally:
        process.kill()
        process.communicate()
