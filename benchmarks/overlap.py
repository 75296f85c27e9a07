"""Grading while answers are sampled, beside grading afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import LogitsProcessorList

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.compat.replaced import replaced
from trl_mmreason.generation import Failure, SamplingParams
from trl_mmreason.generation.protocols import Direct
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.grading import Verdict
from trl_mmreason.jobs.answering import answer_questions
from trl_mmreason.jobs.store import Store

from .common import BOUND, GROUP, MEDIAN, Result, lengths, make_questions, report, save_policy, take_turns
from .sampling import EndsAt
from .training import prepare, settings, train_on

TIMES = ("time/", "step_time", "num_tokens")  # what differs from step to step


class SlowGrader:
    """Decides by the text's length, after waiting as for a worker process."""

    works_elsewhere = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"SlowGrader({self.seconds})"

    def grade_batch(self, items: Any) -> list[Verdict]:
        items = list(items)
        time.sleep(self.seconds * len(items))
        return [Verdict(len(item["completion"]) % 2 == 0, None, "") for item in items]


class Afterwards(SlowGrader):
    """The same grader, which is not asked before all answers are there."""

    works_elsewhere = False


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


def train_step(trainer: AdaPOTrainer, rows: list[dict[str, Any]], turns: list[list[int]]) -> dict[str, float]:
    """Train on one rollout batch; gives what was logged."""
    trainer._metrics["train"].clear()
    torch.manual_seed(0)
    with answers_end_at(trainer, turns):
        train_on(trainer, rows)
    return {name: sum(values) / len(values) for name, values in trainer._metrics["train"].items() if values}


def answer(engine: TransformersEngine, asked: Dataset, grader: Any) -> list[dict[str, Any]]:
    """The graded samples of all questions, by way of a store."""
    params = SamplingParams(max_new_tokens=MEDIAN)
    with TemporaryDirectory() as folder, Store(Path(folder) / "answers.sqlite") as store:
        answered = answer_questions(
            asked, engine, store, Direct(), stage="answers", n=4 * GROUP, sampling_params=params, grader=grader
        )
        return [sample for samples in answered for sample in samples if not isinstance(sample, Failure)]


def overlap(
    *,
    rounds: int = 5,
    size: str = "demo",
    questions: int = 4,
    tokens: int | None = None,
    seconds: float = 0.02,
) -> Result:
    """Time with grading while other answers are sampled, over that with grading afterwards; results must be the same.

    A step: AdaPO's two turns on the standard workload, whose answers end at the lengths drawn for them. Outside
    training: `answer_questions` into a store.

    Args:
        size: of the miniature model.
        questions: questions in a step, with 8 trajectories each.
        tokens: of every answer, instead of the standard workload's lengths.
        seconds: what the grader takes per answer.
    """
    asked = make_questions(questions)
    rows = [row for row in asked for _ in range(GROUP)]
    turns = [[tokens] * len(rows) if tokens else lengths(len(rows), seed=k) for k in (0, 1)]
    checkpointing = torch.cuda.is_available()
    run = settings(len(rows), GROUP, max_completion_length=tokens or BOUND, gradient_checkpointing=checkpointing)
    graders: dict[str, Any] = {"with": SlowGrader(seconds), "without": Afterwards(seconds)}
    steps = {}
    with TemporaryDirectory() as folder:
        policy = f"{folder}/model"
        save_policy(Path(policy), size)
        for name, grader in graders.items():
            args = AdaPOConfig(f"{folder}/{name}", **run)
            trainer = AdaPOTrainer(policy, args=args, train_dataset=asked, grader=grader)
            with answers_end_at(trainer, turns):
                prepare(trainer)
            steps[name] = partial(train_step, trainer, rows, turns)
        training, logged = take_turns(steps, rounds, warm_up=0)  # `prepare` has made a step
        engine = TransformersEngine(policy)
        work = {name: partial(answer, engine, asked, grader) for name, grader in graders.items()}
        offline, samples = take_turns(work, rounds)
    waits = {name: median(one["time/rewards"] for one in each) for name, each in logged.items()}
    report(training, "with", "without", title="a step")
    print("  of which time/rewards: " + ", ".join(f"{name} {took:.2f} s" for name, took in waits.items()))
    report(offline, "with", "without", title="answers into a store")
    same = [[{k: v for k, v in one.items() if not k.startswith(TIMES)} for one in each] for each in logged.values()]
    result = Result({"step": training, "rewards": waits, "store": offline})
    result.check(same[0] == same[1], "With overlap other metrics are logged.")
    result.check(samples["with"] == samples["without"], "With overlap the store has other samples.")
    return result
