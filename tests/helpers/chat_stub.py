"""A chat endpoint on loopback that behaves as the user's text says: well, badly, or not at all.

It speaks real HTTP, and nothing else of OpenAI's API than clients of a chat need. An unknown text is answered by itself
and the seed. A red image is answered 500.
"""

import base64
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import PIL.Image
from loopback import serving

HANG_SECONDS = 60  # or until the test ends
SLOW_SECONDS = 0.05


class ChatStub(ThreadingHTTPServer):
    """The server.

    Attributes:
        url: base address of the API.
        bodies: what was asked, in order of arrival.
        attempts: how often each text was asked.
        images, image_info: the first pixel of each image and what its file says beside, in order of arrival.
        entered: set when a call hangs.
        peak: most calls that were open at once.
    """

    daemon_threads = True
    request_queue_size = 128  # clients connect all at once

    def __init__(self, handler, port):
        super().__init__(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.bodies, self.attempts = [], Counter()
        self.images, self.image_info = [], []
        self.entered = threading.Event()
        self.lock = threading.Lock()
        self.open = self.peak = 0
        self.released = threading.Event()

    def handle_error(self, request, client_address):
        """Clients hang up here, as they should."""


class Handler(BaseHTTPRequestHandler):
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
        text, images, _ = self.noted(body)
        n = body.get("n", 1)
        if text == "429 twice" and self.server.attempts[text] < 3:
            return self.reply(429, {"error": {"message": "slow down"}})
        if (255, 0, 0) in images:
            return self.reply(500, {"error": {"message": "the image broke me"}})
        if text == "hang":
            self.server.entered.set()
            self.server.released.wait(HANG_SECONDS)
        if text in ("slow", "fewer"):
            time.sleep(SLOW_SECONDS)
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
        if text == "an hour":
            return self.reply(429, {"error": {"message": "slow down"}}, headers={"Retry-After": "3600"})
        if text == "leak":
            return self.reply(400, {"error": {"message": f"you sent {self.headers['Authorization']}"}})
        if text.startswith("leak and "):
            return self.reply(int(text[-3:]), {"error": {"message": f"not with {self.headers['Authorization']}"}})
        if text == "none":
            return self.reply(200, {"choices": []})
        fields = {
            "filtered": {"finish_reason": "content_filter"},
            "refused": {"message": {"content": None, "refusal": "I would rather not"}},
            "thoughts": {"message": {"content": None, "reasoning_content": "hm"}},
            "silent": {"message": {"content": None}},
            "long": {"finish_reason": "length"},
            "parts": {"message": {"content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]}},
            "thinking": {"message": {"content": [{"type": "thinking", "thinking": []}]}},
            "trimmed": {"stop_reason": "</step>"},
            "scored": {"logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}, "token_ids": [5, 6]},
        }.get(text, {})
        choices = []
        for index in range(1 if text == "fewer" else n):
            content = f"{text} {body['seed']}" + (f" #{index}" if n > 1 and text != "fewer" else "")
            message = {"role": "assistant", "content": content}
            choices.append({"index": index, "message": message, "finish_reason": "stop", **fields})
        return self.reply(200, {"choices": choices[::-1]})  # their order is in the indices

    def noted(self, body):
        """The user's text, the first pixel of each image, and how often that text has come, this time included."""
        text, images = self.read(body["messages"])
        with self.server.lock:
            self.server.attempts[text] += 1
            self.server.images += images
            return text, images, self.server.attempts[text]

    def say(self, *texts):
        """Reply with these choices."""
        messages = [{"role": "assistant", "content": text} for text in texts]
        choices = [{"index": k, "message": one, "finish_reason": "stop"} for k, one in enumerate(messages)]
        self.reply(200, {"choices": choices})

    def read(self, messages):
        content = next(message["content"] for message in messages if message["role"] == "user")
        if isinstance(content, str):
            return content, []
        urls = [part["image_url"]["url"] for part in content[:-1]]
        images = [PIL.Image.open(io.BytesIO(base64.b64decode(url.partition("base64,")[2]))) for url in urls]
        self.server.image_info += [tuple(image.info) for image in images]
        return content[-1]["text"], [image.getpixel((0, 0)) for image in images]

    def reply(self, status, content, kind="application/json", headers=None):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        """Keep the test's output quiet."""


@contextmanager
def chat_stub(handler: type[Handler] | None = None, port: int = 0) -> Iterator[ChatStub]:
    """Serve in a thread while the block runs; another handler answers otherwise. Port 0 is a free one."""
    server = ChatStub(handler or Handler, port)
    with serving(server):
        try:
            yield server
        finally:
            server.released.set()
