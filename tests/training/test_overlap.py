"""Answers are graded, judged and scored while others are sampled, and the run is the same as without."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
import torch
from chat_stub import Handler, chat_stub
from judged import make as make_self_evolution
from judged import reply
from short_chains import chain
from support import (
    SMALL_RUN,
    adapo_trainer,
    assert_weights,
    drawn_rows,
    full_but,
    ids_of,
    is_even,
    maker,
    srpo_trainer,
    weights_of,
)
from transformers import LogitsProcessor, LogitsProcessorList

from trl_mmreason import ChainOfStepGRPOConfig, ChainOfStepGRPOTrainer
from trl_mmreason.chain_of_step.process_reward import Scores
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.generation import Sample
from trl_mmreason.generation.engine import Chat
from trl_mmreason.generation.server_engine import ServerEngine
from trl_mmreason.grading import Grader, JudgeGrader, Verdict, get_accuracy_reward
from trl_mmreason.grading.async_rewards import Ahead
from trl_mmreason.miniature.models import build_model
from trl_mmreason.training import rollout
from trl_mmreason.training.grpo import GroupGRPOTrainer
from trl_mmreason.training.timing import Stopwatch
from trl_mmreason.training.vllm_config import RolloutConfig

MODEL = "qwen2_5_vl"
LENGTHS = [2, 9, 3, 24, 4, 5, 1, 12]  # tokens of the answers of a batch


class Party:
    """A grader, a process reward model and a judge whose answers follow from the text; keeps what it was asked."""

    settings = {"kind": "parity"}

    def __init__(self, overlaps):
        self.works_elsewhere = overlaps
        self.asked = []  # of what, and whether in the trainer's own thread

    def grade_batch(self, items):
        return [Verdict(even, None, "") for even in self.look("graded", [item["completion"] for item in items])]

    def score(self, rows):
        return [
            Scores(torch.tensor([0.5 * even]), 0.1 + 0.8 * even)
            for even in self.look("scored", [row["completion"] for row in rows])
        ]

    def sample(self, requests, sampling_params):
        shown = [request.messages[-1]["content"] for request in requests]
        return [[Sample(reply(0.25 + even / 2), "stop")] for even in self.look("judged", shown)]

    def look(self, what, texts):
        here = threading.current_thread() is threading.main_thread()
        self.asked += [(here, what, text) for text in texts]
        return [is_even(text) for text in texts]


def wait_while_working(monkeypatch):
    """Let whatever is begun be done before sampling continues, however slow the machine is."""
    begin = Ahead.begin

    def begin_and_wait(self, items):
        begin(self, items)
        while self._is_working:
            time.sleep(0.001)

    monkeypatch.setattr(Ahead, "begin", begin_and_wait)


class Writes(LogitsProcessor):
    """Lets a row write these tokens, and then end."""

    def __init__(self, ids, end):
        self.ids, self.step = [[*row, end] for row in ids], -1

    def __call__(self, input_ids, scores):
        self.step += 1
        tokens = [[row[min(self.step, len(row) - 1)]] for row in self.ids]
        return torch.full_like(scores, -torch.inf).scatter(1, torch.tensor(tokens), 0.0)


def let_write(monkeypatch, trainer, texts):
    """Let the policy decode these texts, one a row and the same in every batch."""
    kind, tokenizer = type(trainer.model), trainer.processing_class.tokenizer
    processors, ids = kind._get_logits_processor, [ids_of(trainer.processing_class, text) for text in texts]

    def write(self, *args, **kwargs):
        return LogitsProcessorList([*processors(self, *args, **kwargs), Writes(ids, tokenizer.eos_token_id)])

    monkeypatch.setattr(kind, "_get_logits_processor", write)


make_grpo = maker(GroupGRPOTrainer, RolloutConfig, **SMALL_RUN)
make_chains = maker(ChainOfStepGRPOTrainer, ChainOfStepGRPOConfig, **SMALL_RUN)
SOLUTION = "<think>{0}</think> <answer>{0}</answer>"
WRITTEN = {
    "adapo": None,  # what a random policy samples
    "grpo": None,
    "srpo": [SOLUTION.format(k) + "<reflection>so</reflection>" * (k % 2) + SOLUTION.format(2 * k) for k in range(8)],
    "chains": [chain(*"ab"[: 1 + k % 2], answer=None if k == 3 else str(k)) + "!" * (k == 4) for k in range(8)],
    "self-evolution": [rf"<think>{'so ' * k}</think>\boxed{{{k % 3}}}" for k in range(8)],
}


@pytest.fixture
def make(checkpoints, tmp_path, monkeypatch):
    """Make a trainer of a method that asks a party."""

    def chain_policy():
        model, processor = build_model(MODEL, "test")
        add_chain_tokens(model, processor)
        for part in (model, processor):
            part.save_pretrained(tmp_path / "chains")
        return str(tmp_path / "chains")

    rows = [
        {**row, "id": f"row {k}", "hint": "Add." * (k % 2), "choices": {"A": "1", "B": "2"}}
        for k, row in enumerate(drawn_rows(24))
    ]

    def make(method, party, **settings):
        settings |= {"max_completion_length": 24} if WRITTEN[method] is None else {"max_completion_length": 400}
        make, model, arguments = {
            "adapo": (adapo_trainer, checkpoints, {"grader": party}),
            "grpo": (make_grpo, checkpoints, {"reward_funcs": get_accuracy_reward(party)}),
            "srpo": (srpo_trainer, checkpoints, {"grader": party}),
            "chains": (make_chains, lambda _: chain_policy(), {"process_reward_model": party, "grader": party}),
            "self-evolution": (make_self_evolution, checkpoints, {"judge": party}),
        }[method]
        trainer = make(model(MODEL), tmp_path, rows, trainer_kwargs=arguments, **settings)
        if WRITTEN[method]:
            let_write(monkeypatch, trainer, WRITTEN[method])
        return trainer

    return make


def logged_by(trainer):
    """What was logged but times; as a string, in which NaN equals NaN."""
    timings = ("time/", "step_time", "train_")
    return repr([{k: v for k, v in entry.items() if not k.startswith(timings)} for entry in trainer.state.log_history])


@pytest.mark.parametrize("method", full_but("adapo", WRITTEN))
def test_a_run_is_the_same_and_everything_is_asked_ahead(method, make, monkeypatch):
    alone, meanwhile = Party(overlaps=False), Party(overlaps=True)
    plain = make(method, alone)
    plain.train()
    monkeypatch.undo()
    wait_while_working(monkeypatch)
    trainer = make(method, meanwhile)
    trainer.train()
    assert logged_by(trainer) == logged_by(plain)
    assert_weights(trainer.model, plain.model)
    assert {here for here, *_ in alone.asked} == {True}
    assert {here for here, *_ in meanwhile.asked} == {False}  # what rewards are made of was there, all of it
    ahead, as_ever = (Counter((what, text) for _, what, text in party.asked) for party in (meanwhile, alone))
    assert ahead.keys() == as_ever.keys()
    assert ahead <= as_ever  # and nothing more often


def test_verdicts_come_while_other_rows_are_sampled(make, monkeypatch):
    wait_while_working(monkeypatch)
    party = Party(overlaps=True)
    trainer = make("grpo", party, max_steps=1)
    let_write(monkeypatch, trainer, ["7" * (length - 1) for length in LENGTHS])
    seen, answers_ended = [], trainer.answers_ended

    def watched(rows, texts):
        answers_ended(rows, texts)
        seen.append((list(rows), len(party.asked)))

    trainer.answers_ended = watched
    trainer.train()
    # row by row as they end, each with its verdict before the next one ends; then of all, where one is new
    assert seen == [([row], 1 + k) for k, row in enumerate([6, 0, 2, 4, 5, 1, 7])] + [(list(range(8)), 8)]
    assert [len(text) for *_, text in party.asked] == sorted(length - 1 for length in LENGTHS)


def test_first_answers_are_graded_while_second_ones_are_sampled(make, monkeypatch):
    wait_while_working(monkeypatch)
    party = Party(overlaps=True)
    trainer = make("adapo", party, max_steps=1)
    known, add_turns = [], rollout.add_turns

    def watched(*args):
        known.append(len(party.asked))
        return add_turns(*args)

    monkeypatch.setattr(rollout, "add_turns", watched)
    trainer.train()
    distinct = len({text for *_, text in party.asked})
    assert 1 < known[0] < distinct == len(party.asked)


@pytest.mark.parametrize("overlaps", [True, False])
def test_an_error_of_the_grader_ends_the_run(overlaps, make):
    class Broken(Party):
        def grade_batch(self, items):
            raise OSError("the grader is gone")

    with pytest.raises(OSError, match="the grader is gone"):
        make("adapo", Broken(overlaps)).train()


@pytest.mark.full
@pytest.mark.parametrize("overlaps", [True, False])
def test_the_time_of_rewards_is_the_waiting_that_is_left(overlaps, make, monkeypatch):
    """By a clock that only graders move on, by a second each time."""
    graded = []

    class Timed(Party):
        def grade_batch(self, items):
            graded.append(len(items))
            return super().grade_batch(items)

    wait_while_working(monkeypatch)
    monkeypatch.setattr("trl_mmreason.training.timing.Stopwatch", lambda: Stopwatch(lambda: float(len(graded))))
    trainer = make("adapo", Timed(overlaps), max_steps=1)
    trainer.train()
    (logged,) = (entry for entry in trainer.state.log_history if "loss" in entry)
    assert logged["time/rewards"] == (0 if overlaps else len(graded))
    assert logged["time/generation"] == (len(graded) if overlaps else 0)


class Judge(Handler):
    """Finds an even number of characters right."""

    def answer(self, body):
        text, *_ = self.noted(body)
        self.say(f"Judgement: {is_even(text):d}" if text.endswith("Judgement:") else text[-60:])


@pytest.mark.full
def test_a_judge_behind_http_gives_the_same_verdicts(make):
    runs = []
    for overlaps in (True, False):
        with chat_stub(Judge) as server:
            chat = Chat(ServerEngine("judge", server.url, suppressed_ids=()))
            assert JudgeGrader(chat).works_elsewhere
            trainer = make("adapo", JudgeGrader(chat if overlaps else chat.__call__))
            trainer.train()
            runs.append((logged_by(trainer), weights_of(trainer.model), server.attempts.keys()))
    (logged, weights, asked), (expected, expected_weights, expected_asked) = runs
    assert logged == expected
    assert "acc_t1': 0.0," not in logged  # the judge found some right
    assert_weights(weights, expected_weights)
    assert asked == expected_asked


def test_who_works_elsewhere():
    class Own(Grader):
        def grade(self, completion, gold, **given):
            return super().grade(completion, gold, **given)

    served = Chat(ServerEngine("judge", "http://127.0.0.1:1", suppressed_ids=()))
    assert Grader().works_elsewhere
    assert not Own().works_elsewhere
    assert JudgeGrader(served).works_elsewhere
    assert not JudgeGrader(served, Own()).works_elsewhere
    assert not JudgeGrader(lambda conversations: []).works_elsewhere
    assert not Chat(Party(overlaps=False)).works_elsewhere
