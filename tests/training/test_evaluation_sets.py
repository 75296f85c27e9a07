"""Two evaluation sets of one trainer: each has metrics of its own, by which the best checkpoint can be chosen."""

import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from every_trainer import make, rows_of, saved_base
from processes import outcomes
from support import adapo_trainer, drawn_rows, full_but

from trl_mmreason.grading import Verdict
from trl_mmreason.training.logged_questions import read_questions

METRICS = {
    "AdaPOTrainer": "acc_t2",
    "SRPOTrainer": "rewards/format_reward/mean",
    "ChainOfStepGRPOTrainer": "trajectory_score",
    "SelfEvolutionTrainer": "distinct_answers",
    "ReflectionSFTTrainer": "mean_token_accuracy",
    "OffPolicyRewardTrainer": "reward",
    "ProcessRewardTrainer": "answer_accuracy",
}
"""Trainer → something that it measures. Iterative DPO evaluates questions of its own between rounds."""


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", METRICS))
def test_the_metrics_of_two_sets_have_names_of_their_own(name, tmp_path):
    rows, metric = rows_of(name), METRICS[name]
    best = f"eval_easy_{metric}"
    asked = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    trainer = make(
        name,
        saved_base("qwen2_5_vl", tmp_path / "base"),
        tmp_path / "out",
        trainer_kwargs={"eval_dataset": {"easy": rows.select(range(1)), "hard-2": rows.select(range(1, 3))}},
        load_best_model_at_end=True,
        metric_for_best_model=best,
        per_device_eval_batch_size=4,
        **asked,
    )
    trainer.train()
    logged = {key: value for entry in trainer.state.log_history for key, value in entry.items()}
    easy, hard = (
        {key.removeprefix(prefix) for key in logged if key.startswith(prefix)}
        for prefix in ("eval_easy_", "eval_hard-2_")
    )
    assert {metric, "loss", "runtime"} <= easy & hard
    assert f"eval_{metric}" not in logged
    assert trainer.state.best_metric == logged[best]
    telling = next(iter(trainer.telling_metrics), "loss")
    names = [f"eval_easy_{telling}", f"eval_hard-2_{telling}"]
    assert trainer.facts.evaluated == {each: logged[each] for each in names}
    assert f"last evaluation           {names[0]} {logged[names[0]]:.4g}, {names[1]} " in str(trainer.facts)
    alone = trainer.evaluate(rows.select(range(1)))
    assert f"eval_{metric}" in alone
    assert not [key for key in alone if key.startswith("eval_easy")]


class ByGold:
    """Finds every answer right, or wrong, as the gold answer says."""

    def grade_batch(self, items):
        return [Verdict(item["gold"] == "right", None, "") for item in items]


def test_a_prediction_leaves_nothing_to_the_next_evaluation(checkpoints, tmp_path):
    """It logs nothing, and what it has measured would be averaged with what the evaluation measures."""
    right, wrong = (
        Dataset.from_list([{**row, "answer": gold} for row in drawn_rows(2)]) for gold in ("right", "wrong")
    )
    given = {"grader": ByGold(), "eval_dataset": wrong}
    run = {"per_device_eval_batch_size": 8, "filter_truncated": False, "max_completion_length": 2}
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, right, trainer_kwargs=given, **run)
    trainer.predict(right)
    found = trainer.evaluate()
    assert found["eval_acc_t1"] == found["eval_acc_t2"] == 0
    assert found["eval_reward"] == pytest.approx(-1.5)  # of 0→0, where all first answers are wrong


def accuracy_of_three(model, folder, rows_a_process):
    """AdaPO's accuracy on three questions, of which the first is answered right, with two answers each."""
    rows = [{**row, "answer": gold} for row, gold in zip(drawn_rows(3), ("right", "wrong", "wrong"), strict=True)]
    given = {"grader": ByGold(), "eval_dataset": Dataset.from_list(rows)}
    run = {"per_device_train_batch_size": 4, "num_generations_eval": 2, "max_completion_length": 2}
    run["per_device_eval_batch_size"] = rows_a_process
    trainer = adapo_trainer(model, folder, drawn_rows(8), trainer_kwargs=given, **run)
    return trainer.accelerator.num_processes, trainer.evaluate()["eval_acc_t1"]


@pytest.mark.parametrize("processes", [1, 2])
def test_several_processes_count_each_question_once(processes, checkpoints, tmp_path):
    """Six answers do not suffice for twice four, and the first question's are made again."""
    found = outcomes(accuracy_of_three, processes, checkpoints("qwen2_5_vl"), tmp_path, 4)
    assert found == [(processes, pytest.approx(1 / 3))] * processes


def test_completions_of_an_evaluation_are_in_no_table_of_training(checkpoints, tmp_path):
    """Neither in the place of training's of its step, nor in that of the next step, which has the same rollout."""
    asked = {"eval_dataset": Dataset.from_list([{**drawn_rows(1)[0], "id": "of the evaluation"}])}
    run = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "num_iterations": 2}
    rows = [{**row, "id": "of training"} for row in drawn_rows(8)]
    run |= {"log_completions": True, "filter_zero_advantage": False, "filter_truncated": False}
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, trainer_kwargs=asked, **run)
    trainer.train()
    tables = []
    for step in (1, 2):
        assert [question.id for question in read_questions(tmp_path, step)] == ["of training"] * 8
        tables.append(pq.read_table(tmp_path / f"completions/completions_0000{step}.parquet").drop_columns("step"))
    assert len(tables[0]) == 8
    assert tables[0] == tables[1]  # rewards and what else was logged among it


def test_an_evaluation_in_batches_of_no_whole_groups_is_refused(checkpoints, rows, tmp_path):
    """Without an `eval_strategy` TRL does not look, and a tensor's shape is invalid in the middle of it."""
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, per_device_eval_batch_size=6)
    with pytest.raises(ValueError, match="^AdaPOTrainer: per_device_eval_batch_size=6 on 1 processes, expected whole"):
        trainer.evaluate(trainer.train_dataset)
