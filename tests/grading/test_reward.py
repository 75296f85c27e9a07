"""The grader as a reward function of TRL, alone and in two processes."""

import logging

import pytest
from processes import outcomes
from support import SMALL_RUN, drawn_rows, maker
from trl import GRPOConfig, GRPOTrainer

from trl_mmreason.grading import Grader, JudgeGrader, Verdict, accuracy_reward, get_accuracy_reward
from trl_mmreason.grading.reward import grading_items, log_verdicts


def messages(*texts):
    return [[{"role": "assistant", "content": text}] for text in texts]


def test_rewards():
    texts = (r"\boxed{7}", r"\boxed{8}", r"\boxed{8}", "I cannot tell.")
    assert accuracy_reward(messages(*texts), answer=["7", "7", "", "7"]) == [1.0, 0.0, None, 0.0]
    assert accuracy_reward.__name__ == "accuracy_reward"  # TRL logs under it


def test_the_columns_of_the_rows_reach_the_grader():
    asked = [{"role": "user", "content": "How long is it in cm?"}]
    assert accuracy_reward(messages("0.5 m"), answer=["50"]) == [0.0]
    assert accuracy_reward(messages("0.5 m"), answer=["50"], prompts=[asked]) == [1.0]
    assert accuracy_reward(messages("B"), answer=["4"], choices=[{"A": "3", "B": "4", "C": None}]) == [1.0]


def test_the_hints_of_the_rows_reach_the_judge():
    asked = []
    judge = JudgeGrader(lambda conversations: [asked.append(one[0]["content"]) or "1" for one in conversations])
    reward = get_accuracy_reward(judge)
    assert reward(messages("I see four, I think."), answer=["9"], hint=["Say a number."]) == [1.0]
    assert "\nHint: Say a number.\nQuestion: \nModel response: I see four, I think.\n" in asked[0]


def test_another_grader():
    assert get_accuracy_reward(Grader(tolerance="lenient"))(messages("3.14"), answer=[r"\pi"]) == [1.0]
    assert accuracy_reward(messages("3.14"), answer=[r"\pi"]) == [0.0]


def test_columns_that_are_not_there_are_not_asked_about():
    assert grading_items(["4"], ["4"]) == [{"completion": "4", "gold": "4"}]


def test_what_is_logged():
    verdicts = [
        Verdict(True, "7", ""),
        Verdict(False, None, "no answer found"),
        Verdict(None, None, ""),
        Verdict(None, "7", "", "unreadable"),
        *(Verdict(False, "7", "", "size") for _ in range(2)),
    ]
    logged = {}
    log_verdicts(verdicts, logged.__setitem__)
    assert logged == {
        "grading/refused": 2 / 6,
        "grading/unusable_gold": 1 / 6,
        "grading/unreadable": 1 / 6,
        "grading/no_answer": 1 / 6,
    }


def test_an_unusable_gold_is_reported_once_with_its_row(caplog):
    rows = {"answer": ["", r"\frac{1}{", "7", ""], "id": ["train-3", "train-5", "train-6", "train-3"]}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert accuracy_reward(messages("7", "7", "7", "8"), **rows) == [None, None, 1.0, None]
    assert len(caplog.messages) == 2
    assert "row train-3 cannot be used: it is empty" in caplog.messages[0]
    assert r"'\\frac{1}{' of row train-5 cannot be used: its braces are not balanced" in caplog.messages[1]


# a group of four answers a process, with their golds
ANSWERS = [
    [
        ("7", "7"),
        (r"\binom{5}{3}", "10"),
        ("9^{9^{9}}", "7"),
        ("8", r"\frac{1}{"),
    ],
    [(r"\binom{5}{2}", "10"), ("9^{9^{9^9}}", "7"), (None, "7"), ("8", "7")],
]


def step_on_given_answers(model, folder):
    """What the policy wrote is replaced before the package's reward function sees it."""
    reward, seen = get_accuracy_reward(Grader()), []

    def given_answers(completions, **columns):
        answers = ANSWERS[trainer.accelerator.process_index]
        texts = [r"I cannot tell." if text is None else rf"\boxed{{{text}}}" for text, _ in answers]
        values = reward(texts, **{**columns, "answer": [gold for _, gold in answers]})
        seen.append({"values": values})
        return values

    make = maker(GRPOTrainer, GRPOConfig, arguments={"reward_funcs": given_answers}, **SMALL_RUN)
    rows = [row for row in drawn_rows(24) if row["images"]]
    trainer = make(model, folder, rows, per_device_train_batch_size=4, max_steps=1)
    trainer.train()
    first = trainer.state.log_history[0]
    logged = {name: value for name, value in first.items() if name.startswith(("grading", "reward"))}
    return {"world_size": trainer.accelerator.num_processes, "logged": logged, **seen[0]}


@pytest.mark.full
def test_grpo_with_two_processes(checkpoints, tmp_path):
    results = outcomes(step_on_given_answers, 2, checkpoints("qwen2_5_vl"), tmp_path)
    assert [result["world_size"] for result in results] == [2, 2]
    assert results[0]["values"] == [1.0, 1.0, 0.0, None]
    assert results[1]["values"] == [1.0, 0.0, 0.0, 0.0]
    # seven rewards, three of them 1
    expected = {"refused": 2 / 8, "unusable_gold": 1 / 8, "no_answer": 1 / 8, "unreadable": 0}
    for result in results[:1]:
        for name, value in expected.items():
            assert result["logged"][f"grading/{name}"] == pytest.approx(value), name
