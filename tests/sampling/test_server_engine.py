"""The server engine against a real server that misbehaves, against `mmreason serve`, and through the whole chain."""

import asyncio
import base64
import io
import json
import math
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import PIL.Image
import pytest
import uvicorn

from trl_mmreason.sampling import Decoding, Failure, Request, Sample, seed_of
from trl_mmreason.sampling.serve import create_app
from trl_mmreason.sampling.server_engine import ServerEngine, ServerError

KEY = "sk-very-secret"
RED, BLUE = (PIL.Image.new("RGB", (28, 28), colour) for colour in ("red", "blue"))


def asked(text, **fields):
    return Request([{"role": "user", "content": text}], **fields)


# ------------------------------------------------------------------------------------------------ a server with moods


class Moody(ThreadingHTTPServer):
    """Behaves as the user's text says. Remembers the bodies it got and how many calls were open at once."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.bodies, self.attempts, self.pictures = [], Counter(), []
        self.lock = threading.Lock()
        self.open = self.peak = 0
        self.released = threading.Event()

    def handle_error(self, request, client_address):
        """Clients hang up here, as they should."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.reply(200, {"data": []})

    def do_POST(self):
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.open += 1
            server.peak = max(server.peak, server.open)
            server.bodies.append(body)
        try:
            self.answer(body)
        finally:
            with server.lock:
                server.open -= 1

    def answer(self, body):
        text, pictures = self.read(body["messages"])
        with self.server.lock:
            self.server.attempts[text] += 1
            self.server.pictures += pictures
        n = body.get("n", 1)
        if text == "429 twice" and self.server.attempts[text] < 3:
            return self.reply(429, {"error": {"message": "slow down"}})
        if (255, 0, 0) in pictures:
            return self.reply(500, {"error": {"message": "the picture broke me"}})
        if text == "hang":
            self.server.released.wait(10)
        if text == "slow":
            time.sleep(0.05)
        if text == "drop":
            self.close_connection = True
            return None
        if text == "broken":
            return self.reply(200, b'{"choices": [{"mess')
        if text == "page":
            return self.reply(200, b"<html>hello</html>", "text/html")
        if text == "other":
            return self.reply(200, {"ok": True})
        if text == "too long":
            return self.reply(400, {"error": {"message": "maximum context length is 4096 tokens"}})
        if text == "no n" and n > 1:
            return self.reply(422, {"error": {"message": "n must be 1"}})
        if text == "leak":
            return self.reply(400, {"error": {"message": f"you sent {self.headers['Authorization']}"}})
        if text == "leak and 401":
            return self.reply(401, {"error": {"message": f"wrong key {self.headers['Authorization']}"}})
        if text == "none":
            return self.reply(200, {"choices": []})
        choice = {"message": {"role": "assistant", "content": f"{text} {body['seed']}"}, "finish_reason": "stop"}
        choice |= {
            "filtered": {"finish_reason": "content_filter"},
            "refused": {"message": {"content": None, "refusal": "I would rather not"}},
            "thoughts": {"message": {"content": None, "reasoning_content": "hm"}},
            "silent": {"message": {"content": None}},
            "long": {"finish_reason": "length"},
            "trimmed": {"stop_reason": "</step>"},
        }.get(text, {})
        choices = [{"index": k, **choice} for k in range(1 if text == "fewer" else n)]
        return self.reply(200, {"choices": choices[::-1]})  # their order is in the indices

    def read(self, messages):
        content = messages[0]["content"]
        if isinstance(content, str):
            return content, []
        urls = [part["image_url"]["url"] for part in content[:-1]]
        images = [PIL.Image.open(io.BytesIO(base64.b64decode(url.partition("base64,")[2]))) for url in urls]
        return content[-1]["text"], [image.getpixel((0, 0)) for image in images]

    def reply(self, status, content, kind="application/json"):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        """Keep the test's output quiet."""


@pytest.fixture
def moody():
    server = Moody()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


def engine_at(server, **settings):
    return ServerEngine("m", server.url, api_key=KEY, **settings)


def test_what_is_wrong_with_one_request_harms_no_other(moody):
    """Each fault in one call of `sample`, good requests between them; every answer stays at its place."""
    faults = {
        "429 twice": None,
        "drop": r"^no answer from http://127.0.0.1:\d+/v1: Connection error. \(RemoteProtocolError\)$",
        "hang": r"^no answer from .* \(ReadTimeout\)$",
        "broken": r"answered with broken JSON",
        "page": r"answered '<html>hello</html>'; expected a chat completion. Does base_url end in /v1\?$",
        "other": r"answered \{'ok': True\}; expected a chat completion",
        "none": r"it holds no answer",
        "too long": r"^HTTP 400 from .*: maximum context length is 4096 tokens$",
        "leak": r"^HTTP 400 from .*: you sent Bearer <key>$",
        "filtered": r"ended with 'content_filter'; expected stop or length",
        "refused": r"ended with I would rather not",
        "thoughts": r"start it without a reasoning parser",
        "silent": None,
    }
    requests = [request for text in faults for request in (asked(text), asked(f"fine beside {text}"))]
    requests.append(asked("what is this?", images=[RED]))
    outcomes = engine_at(moody, timeout_seconds=1, max_retries=2).sample(requests, Decoding())
    for (text, reason), outcome, beside in zip(faults.items(), outcomes[::2], outcomes[1::2], strict=False):
        assert beside[0].text.startswith(f"fine beside {text} ")
        if reason is None:
            assert isinstance(outcome, list), outcome
        else:
            pytest.raises(AssertionError, match=reason).__enter__() if False else None
            assert isinstance(outcome, Failure)
            assert __import__("re").search(reason, outcome.reason), outcome.reason
    assert outcomes[-1].reason.endswith("the picture broke me")
    tries = {text: moody.attempts[text] for text in ("429 twice", "drop", "hang", "too long", "broken")}
    assert tries == {"429 twice": 3, "drop": 3, "hang": 3, "too long": 1, "broken": 1}
    assert moody.attempts["what is this?"] == 3
