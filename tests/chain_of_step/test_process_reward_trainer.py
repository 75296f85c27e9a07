"""ProcessRewardTrainer: the loss by hand, what is refused, every family, resumed or not, one process or two."""

import math

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from processes import one_and_two
from solution_chains import chain_of_steps, prefixes
from support import (
    SUPERVISED_RUN,
    assert_micro_batches_agree,
    assert_resumes,
    assert_weights,
    changed_weights,
    drawn_rows,
    full_but,
    load,
    maker,
    untimed,
    weights_of,
)
from torch.testing import assert_close

from trl_mmreason.chain_of_step.config import ProcessRewardConfig
from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.chain_of_step.process_reward_trainer import UNLABELLED, ProcessRewardTrainer, score_metrics
from trl_mmreason.chain_of_step.template import parse_chain
from trl_mmreason.chain_of_step.tokens import add_chain_tokens, chain_token_ids
from trl_mmreason.compat.model_parts import parts_of
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import make_problems

RUN = {**SUPERVISED_RUN, "warmup_steps": 0}  # the first step of a warm-up changes nothing
ADAPTER = {"r": 2, "target_modules": "all-linear", "exclude_modules": ["lm_head"]}


def labelled_rows(n, *, seed=0):
    """Right and wrong chains with one, two or no image: one in four has a label missing, and one is partial."""
    problems = make_problems(["adding", "counting"], n, seed=seed)
    rows = []
    for number, (row, problem) in enumerate(zip(drawn_rows(n, seed=seed), problems, strict=True)):
        solution = solve(problem, error=[None, "slip", "off_by_one"][number % 3])
        labels = [float(step in problem.steps) for step in solution.steps]
        chain, answer = chain_of_steps(solution), solution.answer == problem.answer
        if number % 4 == 1:
            labels[0] = None if number % 8 == 1 else math.nan
        if number % 4 == 2:
            chain, labels, answer = prefixes(parse_chain(chain))[1], [0.25, 0.75], None
        row = {"prompt": row["prompt"], "images": row["images"], "completion": chain, "step_labels": labels}
        rows.append({**row, "answer_label": None if answer is None else float(answer)})
    return rows


make = maker(ProcessRewardTrainer, ProcessRewardConfig, **RUN)


def trainer_for(model, folder, rows, eval_rows=None, *, trainer_kwargs=None, **settings):
    own = {"eval_dataset": eval_rows and Dataset.from_list(eval_rows), **(trainer_kwargs or {})}
    return make(model, folder, rows, trainer_kwargs=own, **settings)


def by_hand(prm, rows):
    """The summed cross entropy and the number of labels, from the scores of `ProcessRewardModel`."""
    total, count = 0.0, 0
    for row, (steps, answer) in zip(rows, prm.score(rows), strict=True):
        for label, score in zip([*row["step_labels"], row["answer_label"]], [*steps.tolist(), answer], strict=True):
            if label is not None and not math.isnan(label):
                total -= label * math.log(score) + (1 - label) * math.log(1 - score)
                count += 1
    return total, count


def test_the_loss_is_the_mean_over_labelled_positions(family, bases, tmp_path):
    rows = labelled_rows(8)
    total, count = by_hand(ProcessRewardModel.from_pretrained(bases(family), device="cpu"), rows)
    assert count == sum(len(row["step_labels"]) for row in rows) - 2 + 6  # two steps and two answers have no label
    trainer = trainer_for(bases(family), tmp_path, rows, labelled_rows(8), max_steps=1, per_device_eval_batch_size=3)
    # of the whole set, although its batches have different numbers of labels
    assert trainer.evaluate()["eval_loss"] == pytest.approx(total / count, abs=1e-5)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(total / count, abs=1e-5)


def test_gradient_accumulation_does_not_change_the_update(bases, tmp_path):
    def trained(**settings):
        run = {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, **settings}
        trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, labelled_rows(8), **run)
        trainer.train()
        return trainer

    first, *others = assert_micro_batches_agree(trained, (8, 4, 1))
    start = weights_of(load(bases("qwen2_5_vl"))[0])
    assert max((weight - start[name]).abs().max() for name, weight in weights_of(first.model).items()) > 1e-3
    for name in ("loss", "step_accuracy", "step_auroc", "answer_accuracy", "answer_auroc"):
        for other in others:
            assert other.state.log_history[0][name] == pytest.approx(first.state.log_history[0][name], abs=1e-5)


def one_step(model, folder, rows_a_process):
    """An optimizer step and an evaluation."""
    run = {"per_device_train_batch_size": rows_a_process // 3, "gradient_accumulation_steps": 3}
    run["per_device_eval_batch_size"] = 2
    run |= {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1}
    eval_rows = labelled_rows(7, seed=1)  # which two processes cannot share evenly
    trainer = trainer_for(model, folder, labelled_rows(12), eval_rows, **run)
    trainer.train()
    outcome = {"world_size": trainer.accelerator.num_processes, "weights": weights_of(trainer.model)}
    return {**outcome, "logged": untimed(trainer.state.log_history[0]), "evaluation": untimed(trainer.evaluate())}


@pytest.mark.full
def test_two_processes_equal_one(bases, tmp_path):
    alone, pair = one_and_two(one_step, bases("qwen2_5_vl"), tmp_path, 12)
    for part in pair:
        assert_weights(part["weights"], alone["weights"], atol=1e-5)
        assert part["evaluation"] == pytest.approx(alone["evaluation"], abs=1e-5)
    assert pair[0]["logged"] == pytest.approx(alone["logged"], abs=1e-5)
    parts = [f"{part}_{metric}" for part in ("step", "answer") for metric in ("accuracy", "auroc")]
    assert {*parts, "loss"} <= alone["logged"].keys()
    assert {f"eval_{name}" for name in [*parts, "loss"]} <= alone["evaluation"].keys()


def test_metrics_by_hand():
    none = UNLABELLED
    labels = torch.tensor([[1, 1.0, 0.0, 1.0], [0, 0.0, none, none]])
    differences = torch.tensor([[2, 3.0, 1.0, -1.0], [-2, -2.0, 9.0, 9.0]])
    # Steps: right 3 and -1, wrong 1 and -2: two of four on the right side; of the four pairs only -1 < 1 is wrong.
    steps = {"step_accuracy": 0.5, "step_auroc": 0.75}
    assert score_metrics(differences, labels) == {**steps, "answer_accuracy": 1.0, "answer_auroc": 1.0}
    # Without a wrong answer there is no AUROC of answers, and without a label of a step nothing on steps.
    assert score_metrics(differences[:1, :1], labels[:1, :1]) == {"answer_accuracy": 1.0}


@pytest.mark.parametrize("lora", full_but(False, [False, True]), ids=["full", "lora"])
def test_resumed_equals_uninterrupted(family, bases, tmp_path, lora):
    def trainer():
        settings = {"per_device_train_batch_size": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
        kwargs = {"peft_config": LoraConfig(**ADAPTER) if lora else None}
        return trainer_for(bases(family), tmp_path, labelled_rows(8), trainer_kwargs=kwargs, **settings)

    whole = assert_resumes(trainer, tmp_path, atol=1e-6)
    # what was saved scores as what was trained
    saved = ProcessRewardModel.from_pretrained(tmp_path / "checkpoint-4", device="cpu").score(labelled_rows(3))
    live = ProcessRewardModel(whole.model, whole.processing_class).score(labelled_rows(3))
    for (steps, answer), (expected_steps, expected_answer) in zip(saved, live, strict=True):
        assert_close(steps, expected_steps, atol=1e-5, rtol=0)
        assert answer == pytest.approx(expected_answer, abs=1e-5)


def test_a_model_without_the_templates_tokens_gets_them(family, checkpoints, tmp_path):
    trainer = trainer_for(checkpoints(family), tmp_path, labelled_rows(8), max_steps=1, right_token="7")
    ids = chain_token_ids(trainer.processing_class)
    assert len(trainer.model.get_input_embeddings().weight) == max(ids.values()) + 1
    trainer.train()
    trainer.save_model()
    loaded = ProcessRewardModel.from_pretrained(tmp_path, device="cpu")
    assert loaded.model.config.process_reward_tokens == {"right": "7", "wrong": "-"}
    adapter = {"peft_config": LoraConfig(**ADAPTER)}
    with pytest.raises(ValueError, match="Add the tokens to its base first"):
        trainer_for(checkpoints(family), tmp_path, labelled_rows(2), trainer_kwargs=adapter)


def test_an_adapter_keeps_no_tokens_of_its_own(tmp_path):
    model, processor = build_model("qwen2_5_vl")
    add_chain_tokens(model, processor)
    kwargs = {"peft_config": LoraConfig(**ADAPTER), "processing_class": processor}
    with pytest.raises(ValueError, match=r"an adapter does not keep the tokens \{'right': '7', 'wrong': '-'\}"):
        trainer_for(model, tmp_path, labelled_rows(2), trainer_kwargs=kwargs, right_token="7", model_init_kwargs=None)


def test_the_vision_encoder_is_frozen_unless_asked(family, bases, tmp_path):
    for frozen in (True, False):
        settings = {} if frozen else {"freeze_vision_encoder": False}
        trainer = trainer_for(bases(family), tmp_path, labelled_rows(8), max_steps=1, **settings)
        before = weights_of(trainer.model)
        trainer.train()
        place = parts_of(trainer.model)
        changed = {place[name] for name in changed_weights(trainer.model, before)}
        assert changed == {"projector", "language"} | (set() if frozen else {"vision"})  # Table 7


def test_rows_without_images_or_labels(bases, tmp_path):
    rows = labelled_rows(8)
    for row in rows:
        del row["images"]
    for row in rows[:4]:
        row["step_labels"], row["answer_label"] = [None] * len(row["step_labels"]), None
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, rows, per_device_train_batch_size=4, max_steps=2)
    trainer.train()
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"step_labels": [1.0]}, r"row 2 has 2 step\(s\) and 1 step label\(s\)"),
        ({"step_labels": None}, r"row 2 has 2 step\(s\) and 0 step label\(s\)"),
        ({"step_labels": [1.0, 1.5]}, r"row 2 has the step labels \[1.0, 1.5\] .*expected 0 to 1"),
        ({"step_labels": [1.0, -100.0]}, "row 2 has the step labels .*expected 0 to 1"),
        ({"answer_label": 1.0}, "row 2 has the answer label 1.0, but its chain has no answer"),
        ({"completion": "<|reasoning_start|>oops"}, "completion of row 2: malformed chain at character 19"),
    ],
)
def test_a_row_that_does_not_fit_its_labels_is_named(bases, tmp_path, change, problem):
    rows = labelled_rows(4)
    rows[2].update(change)
    for given in ({"rows": rows}, {"rows": labelled_rows(4), "eval_rows": rows}):
        with pytest.raises(ValueError, match=problem):
            trainer_for(bases("qwen2_5_vl"), tmp_path, **given)


def test_wrong_arguments(bases, tmp_path):
    rows, path = labelled_rows(2), bases("qwen2_5_vl")
    with pytest.raises(ValueError, match=r"expected .*`step_labels`.* among them"):
        trainer_for(path, tmp_path, [{"prompt": rows[0]["prompt"], "completion": rows[0]["completion"]}])
    with pytest.raises(TypeError, match="expected ProcessRewardConfig"):
        ProcessRewardTrainer(path, args=3, train_dataset=Dataset.from_list(rows))
    with pytest.raises(TypeError, match="leave `compute_metrics` out"):
        trainer_for(path, tmp_path, rows, trainer_kwargs={"compute_metrics": print})
    for setting in ({"packing": True}, {"max_length": 99}, {"remove_unused_columns": True}, {"loss_type": "dft"}):
        with pytest.raises(ValueError, match=f"ProcessRewardConfig: {next(iter(setting))}="):
            ProcessRewardConfig(str(tmp_path), use_cpu=True, bf16=False, **setting)


@pytest.mark.full
def test_a_tiny_model_learns(tmp_path):
    """Where a step stands tells much of its label, so AUROC of steps may rise on that alone, on unseen questions too.

    It tells nothing of the answers, half of which are wrong: these the model has to know, and knows those it has seen.
    """

    def solved(n, seed):
        rows = []
        for number, problem in enumerate(make_problems(["adding"], n, seed=seed)):
            solution = solve(problem, error=[None, "off_by_one"][number % 2])
            step_labels = [float(step in problem.steps) for step in solution.steps]
            labels = {"step_labels": step_labels, "answer_label": float(number % 2 == 0)}
            rows.append({"prompt": problem.prompt, "completion": chain_of_steps(solution), **labels})
        return rows

    model, processor = build_model("qwen2_5_vl")
    seen = solved(16, 0)
    eval_rows = {"seen": Dataset.from_list(seen), "unseen": Dataset.from_list(solved(50, 1000))}
    kwargs = {"eval_dataset": eval_rows, "processing_class": processor}
    settings = {"per_device_train_batch_size": 16, "max_steps": 120, "learning_rate": 3e-3, "model_init_kwargs": None}
    trainer = trainer_for(model, tmp_path, seen, trainer_kwargs=kwargs, **settings)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert before["eval_unseen_step_auroc"] < 0.6
    assert after["eval_unseen_step_auroc"] > 0.8
    assert before["eval_seen_answer_auroc"] < 0.6
    assert after["eval_seen_answer_auroc"] > 0.9
