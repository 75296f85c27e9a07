"""Work with a slow grader, and with a judge behind HTTP: its time with overlap over that without.

A step: AdaPO's two turns on the standard workload, whose answers end at the lengths drawn for them. Outside training:
`answer_questions` into a store. The grader takes 20 ms an answer, the judge is a server on loopback that takes 0.3 s a
call, as many at once as are sent. With overlap answers are graded while others are sampled; without, they are graded
afterwards. Rounds alternate, the ratio is the median of theirs, and what comes of it is compared.
"""

from __future__ import annotations

import json
import statistics
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
from datasets import Dataset
from rollouts import EndsAt
from rounds import Seconds, median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from training import prepare, settings, train_on
from transformers import LogitsProcessorList
from workload import BOUND, GROUP, MEDIAN, lengths, questions, save_policy

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.commands.parsers import count
from trl_mmreason.engines.replaced import replaced
from trl_mmreason.grading import Grader, JudgeGrader, Verdict
from trl_mmreason.sampling import Failure, SamplingParams
from trl_mmreason.sampling.answering import answer_questions
from trl_mmreason.sampling.chat import Chat
from trl_mmreason.sampling.protocols import Direct
from trl_mmreason.sampling.server_engine import ServerEngine
from trl_mmreason.sampling.store import Store
from trl_mmreason.sampling.transformers_engine import TransformersEngine

GRADER_SECONDS, JUDGE_SECONDS = 0.02, 0.3
GRADERS = ("grader", "judge", "rules")
TIMES = ("time/", "step_time", "num_tokens")  # what differs from step to step


class SlowGrader:
    """Decides by the text's length, after waiting as for a worker process."""

    works_elsewhere = True

    def grade_batch(self, items: Any) -> list[Verdict]:
        items = list(items)
        time.sleep(GRADER_SECONDS * len(items))
        return [Verdict(len(item["completion"]) % 2 == 0, None, "") for item in items]


class Afterwards:
    """The same grader, which is not asked before all answers are there."""

    def __init__(self, grader: Any) -> None:
        self.grade_batch = grader.grade_batch

    def __repr__(self) -> str:
        return "Afterwards()"


class Handler(BaseHTTPRequestHandler):
    """A judge that decides by the length of what it is asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply({"data": []})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        time.sleep(JUDGE_SECONDS)
        said = f"Judgement: {len(asked) % 2}" if asked.endswith("Judgement:") else "7"
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
def answers_end_at(trainer: AdaPOTrainer, turns: list[list[int]]) -> Iterator[None]:
    """Let every answer end at its length, turn by turn."""
    kind, end, calls = type(trainer.model), trainer.processing_class.tokenizer.eos_token_id, 0
    processors = kind._get_logits_processor

    def ending(self: Any, *args: Any, **kwargs: Any) -> LogitsProcessorList:
        nonlocal calls
        tokens = turns[calls % len(turns)]
        calls += 1
        return LogitsProcessorList([*processors(self, *args, **kwargs), EndsAt(tokens, end, self.device)])

    with replaced(kind, _get_logits_processor=ending):
        yield


def make_trainer(
    policy: str, folder: str, asked: Dataset, grader: Any, run: dict[str, Any], turns: list[list[int]]
) -> AdaPOTrainer:
    """A trainer that is ready for steps, and stays where it is."""
    trainer = AdaPOTrainer(policy, args=AdaPOConfig(folder, **run), train_dataset=asked, grader=grader)
    with answers_end_at(trainer, turns):
        prepare(trainer)
    return trainer


def train_step(trainer: AdaPOTrainer, rows: list[dict[str, Any]], turns: list[list[int]]) -> dict[str, float]:
    """One rollout batch and its update: what was logged."""
    trainer._metrics["train"].clear()
    torch.manual_seed(0)
    with answers_end_at(trainer, turns):
        train_on(trainer, rows)
    return {name: sum(values) / len(values) for name, values in trainer._metrics["train"].items() if values}


def answer(engine: TransformersEngine, asked: Dataset, grader: Any, n: int) -> list[dict[str, Any]]:
    """The graded samples of all questions, by way of a store."""
    with TemporaryDirectory() as folder, Store(Path(folder) / "answers.sqlite") as store:
        params = SamplingParams(max_new_tokens=MEDIAN)
        found = answer_questions(
            asked, engine, store, Direct(), stage="answers", n=n, sampling_params=params, grader=grader
        )
        return [sample for samples in found for sample in samples if not isinstance(sample, Failure)]


def report(what: str, times: Seconds, rewards: dict[str, float] | None = None) -> None:
    medians = medians_of(times)
    ratio, half = (of(times["with"], times["without"]) for of in (median_ratio, middle_half))
    print(f"{what}: {ratio:.2f} of the time without (middle half {half}), seconds {medians}")
    if rewards:
        print(f"  of which time/rewards: {rewards}")


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--size", default="demo", help="of the miniature model")
    parser.add_argument("--questions", type=count, default=4, help=f"in a step, with {GROUP} trajectories each")
    parser.add_argument("--tokens", type=count, help="of every answer, in the place of the standard workload's lengths")
    parser.add_argument("--graders", nargs="+", choices=GRADERS, default=GRADERS)
    arguments = parser.parse_args()
    asked = questions(arguments.questions)
    rows = [row for row in asked for _ in range(GROUP)]
    turns = [[arguments.tokens] * len(rows) if arguments.tokens else lengths(len(rows), seed=k) for k in (0, 1)]
    others = {"max_completion_length": arguments.tokens or BOUND, "gradient_checkpointing": torch.cuda.is_available()}
    run = settings(len(rows), GROUP, **others)
    numbers: dict[str, Any] = {}
    with TemporaryDirectory() as folder, judge() as url:
        policy = str(Path(folder) / "model")
        save_policy(Path(policy), arguments.size)
        engine = TransformersEngine(policy)
        judged = JudgeGrader(Chat(ServerEngine("judge", url, suppressed_ids=())))
        for name in arguments.graders:
            grader = {"grader": SlowGrader(), "judge": judged, "rules": Grader()}[name]
            graders = {"with": grader, "without": Afterwards(grader)}
            trainers = {
                kind: make_trainer(policy, f"{folder}/{name}-{kind}", asked, one, run, turns)
                for kind, one in graders.items()
            }
            steps = {kind: partial(train_step, trainer, rows, turns) for kind, trainer in trainers.items()}
            times, logged = take_turns(steps, arguments.rounds, warm_up=0)  # `make_trainer` has made a step
            waits = {kind: statistics.median(one["time/rewards"] for one in found) for kind, found in logged.items()}
            report(f"a step, {name}", times, waits)
            same = [
                [{k: v for k, v in one.items() if not k.startswith(TIMES)} for one in found]
                for found in logged.values()
            ]
            work = {kind: partial(answer, engine, asked, one, 4 * GROUP) for kind, one in graders.items()}
            offline, samples = take_turns(work, arguments.rounds)
            report(f"answers into a store, {name}", offline)
            numbers[name] = {"step": times, "rewards": waits, "store": offline}
            if same[0] != same[1] or samples["with"] != samples["without"]:
                sys.exit(f"With overlap another result came of it: {same}")
    write_numbers(arguments, **numbers)


if __name__ == "__main__":
    main()
