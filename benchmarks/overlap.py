"""A step of AdaPO with a slow grader, and with a judge behind HTTP: its time with overlap over that without.

The policy answers the standard workload in two turns; a logits processor ends each answer at the length drawn for it.
The grader takes 20 ms an answer; the judge is a server on loopback that takes 0.3 s a call, as many at once as are sent.
With overlap answers are graded while others are sampled and the reference scores them; without, the same grader is only
asked for the rewards. Rounds alternate, the ratio is between medians, and rewards and weights are compared.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rollouts import EndsAt
from rounds import medians_of, middle_half, parser_of, take_turns, write_numbers
from transformers import PrinterCallback
from workload import BOUND, GROUP, lengths, questions, save_policy

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.commands.options import count
from trl_mmreason.grading import Grader, JudgeGrader, Verdict
from trl_mmreason.sampling.chat import Chat
from trl_mmreason.sampling.server_engine import ServerEngine

GRADER_SECONDS, JUDGE_SECONDS = 0.02, 0.3


class SlowGrader(Grader):
    """Decides by the text's length, after waiting as for a worker process."""

    def grade_batch(self, items: Any) -> list[Verdict]:
        items = list(items)
        time.sleep(GRADER_SECONDS * len(items))
        return [Verdict(len(item["completion"]) % 2 == 0, None, "") for item in items]


class Handler(BaseHTTPRequestHandler):
    """A judge that finds no answer right."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply({"data": []})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        time.sleep(JUDGE_SECONDS)
        said = "Judgement: 0" if asked.endswith("Judgement:") else "7"
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        self.reply({"choices": [choice]})

    def reply(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # clients connect all at once


@contextmanager
def judge() -> Iterator[str]:
    """Serve the judge in a thread; gives its address."""
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@contextmanager
def answers_end_at(model: Any, turns: list[list[int]], end: int) -> Iterator[None]:
    """Let every answer end at its length, turn by turn."""
    kind, plain = type(model), type(model).generate
    calls = 0

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        tokens = turns[calls % len(turns)]
        calls += 1
        return plain(self, *args, logits_processor=[EndsAt(tokens, end, self.device)], **kwargs)

    kind.generate = generate
    try:
        yield
    finally:
        kind.generate = plain
