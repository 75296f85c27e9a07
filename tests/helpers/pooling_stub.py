"""What `vllm serve` says of a process reward model, from one in this process, over real HTTP."""

import base64
import io
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

import PIL.Image
from loopback import serving

from trl_mmreason.chain_of_step.template import ANSWER_END, STEP_END
from trl_mmreason.generation.batch import tokenizer_of

BEFORE = 5  # tokens of the prompt, which are scored too


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "prm", "root": "folder/prm"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == "prm"
        self.reply({"/tokenize": self.tokenize, "/pooling": self.pool}[self.path](body))

    def tokens(self, text):
        tokenizer = tokenizer_of(self.server.model.processing_class)
        return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])

    def tokenize(self, body):
        assert body["return_token_strs"]
        if "messages" in body:
            return {"token_strs": ["prompt"] + [STEP_END] * bool(body.get("continue_final_message"))}
        assert not body["add_special_tokens"]
        with self.server.lock:
            return {"token_strs": self.tokens(body["prompt"])}

    def pool(self, body):
        assert body["continue_final_message"]
        assert not body["add_generation_prompt"]
        *prompt, answer = body["messages"]
        images = []
        for message in prompt:
            if not isinstance(message["content"], str):
                *parts, text = message["content"]
                urls = [part["image_url"]["url"].partition("base64,")[2] for part in parts]
                images += [PIL.Image.open(io.BytesIO(base64.b64decode(url))) for url in urls]
                message["content"] = text["text"]
        with self.server.lock:
            completion = answer["content"]
            self.server.asked.append((prompt, images, completion))
            ((steps, of_answer),) = self.server.model.score(
                [{"prompt": prompt, "images": images, "completion": completion}]
            )
            steps, tokens = iter(steps.tolist()), self.tokens(completion)
            ends = {STEP_END: lambda: next(steps), ANSWER_END: lambda: of_answer}
            scores = [[0.5]] * BEFORE + [[ends.get(token, float)()] for token in tokens]
        return {"data": [{"index": 0, "data": scores}]}

    def reply(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        """Keep the test's output quiet."""


@contextmanager
def pooling_stub(model):
    """Serve a process reward model while the block runs; the server has `url` and `asked`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.model, server.lock, server.asked = model, Lock(), []
    server.url = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        yield server
