"""The metric for the best model: what no evaluation has is refused, and what has no value is passed over."""

import shutil

import pytest
from every_trainer import make, rows_of, saved_base
from support import assert_weights, load
from transformers import EarlyStoppingCallback

from trl_mmreason import IterativeDPOConfig

SFT = "ReflectionSFTTrainer"
EACH_STEP = {
    **{"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1},
    **{"load_best_model_at_end": True, "per_device_eval_batch_size": 4},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base("qwen2_5_vl", tmp_path_factory.mktemp("base"))


@pytest.fixture
def evaluated(base, tmp_path):
    """A trainer that evaluates one row after each step, or one row of each of these sets."""

    def trainer(name=SFT, sets=(), callbacks=(), **settings):
        rows = rows_of(name)
        evaluation = {each: rows.select([place]) for place, each in enumerate(sets)} or rows.select([0])
        kwargs = {"eval_dataset": evaluation, "callbacks": list(callbacks)}
        return make(name, base, tmp_path, trainer_kwargs=kwargs, **{**EACH_STEP, **settings})

    return trainer


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("trl_mmreason")]


@pytest.mark.parametrize(
    ("name", "sets", "settings", "message"),
    [
        ("AdaPOTrainer", (), {}, "='loss' (the default) does not say how good a policy is. Fix: 'acc_t2'"),
        ("SRPOTrainer", (), {}, "='loss' (the default) does not say how good a policy is. Fix: 'reward'."),
        ("AdaPOTrainer", ("easy", "hard"), {}, "Fix: 'eval_easy_acc_t2' or 'eval_easy_reward' or 'eval_hard_acc_t2'"),
        (SFT, ("easy", "hard"), {}, "='loss' (the default) names none of the evaluation sets"),
        (SFT, ("easy", "hard"), {}, "Fix: 'eval_easy_loss' or 'eval_hard_loss'."),
        (SFT, ("easy",), {"metric_for_best_model": "entropy"}, "Fix: 'eval_easy_entropy'."),
        (SFT, (), {"eval_strategy": "no", "save_strategy": "best", "load_best_model_at_end": False}, "no checkpoint"),
    ],
)
def test_a_metric_that_no_evaluation_will_have_is_refused_at_once(evaluated, name, sets, settings, message):
    with pytest.raises(ValueError, match="metric_for_best_model|save_strategy='best'") as refused:
        evaluated(name, sets, **settings)
    assert message in str(refused.value)


@pytest.mark.parametrize("scheduler", ["linear", "reduce_lr_on_plateau"])
def test_an_unknown_metric_is_named_with_the_nearest_ones_in_one_line(evaluated, scheduler):
    trainer = evaluated(metric_for_best_model="mean_token_acuracy", lr_scheduler_type=scheduler)
    with pytest.raises(
        ValueError, match=r"is none of the \d+ metrics.* nearest are eval_mean_token_accuracy, "
    ) as error:
        trainer.train()
    assert len(str(error.value)) < 250
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("scheduler", ["linear", "reduce_lr_on_plateau"])
def test_an_evaluation_without_a_value_is_left_out_of_all_comparisons(evaluated, missing, scheduler, caplog):
    """0.5, none, 0.9, 0.1, 0.1: the third is the best; patience 2 ends after the fifth, not after the fourth."""
    values = iter([0.5, missing, 0.9, 0.1, 0.1, 1.0])
    stops = EarlyStoppingCallback(early_stopping_patience=2)
    trainer = evaluated(
        callbacks=[stops], metric_for_best_model="share", max_steps=6, num_train_epochs=4, lr_scheduler_type=scheduler
    )
    loop = trainer.evaluation_loop

    def measured(*args, **kwargs):
        output = loop(*args, **kwargs)
        output.metrics["eval_share"] = next(values)
        return output

    trainer.evaluation_loop = measured
    trainer.train()
    assert trainer.state.global_step == 5
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (3, 0.9)
    (said,) = [line for line in warnings_of(caplog) if "has no value" in line]
    assert said.startswith("eval_share has no value at step 2: this evaluation is left out of the choice")


def counted(trainer, values):
    """The trainer, whose evaluations have these shares, one after the other."""
    values, loop = iter(values), trainer.evaluation_loop

    def measured(*args, **kwargs):
        output = loop(*args, **kwargs)
        output.metrics[f"{kwargs['metric_key_prefix']}_share"] = next(values)
        return output

    trainer.evaluation_loop = measured
    return trainer


STOPS = {"metric_for_best_model": "share", "early_stopping_patience": 2, "early_stopping_threshold": 0.1}


def test_a_configuration_ends_training_early_also_when_it_is_resumed(evaluated, tmp_path, caplog):
    """0.8 is better than its best before by more than 0.1, 0.85 and 0.9 are not: the fourth evaluation ends it."""
    asked = {**STOPS, "max_steps": 6, "num_train_epochs": 4}
    whole = counted(evaluated(**asked), [0.5, 0.8, 0.85, 0.9])
    whole.train()
    why = "at step 4 of 6: 2 evaluations in a row in which share was not better by more than 0.1 than its best before"
    assert whole.facts.stopped_early == why
    assert f"ended early               {why}" in str(whole.facts)
    assert [line for line in warnings_of(caplog) if "early" in line] == [f"Training ends early, {why}."]
    assert whole.state.global_step == 4
    shutil.rmtree(tmp_path / "checkpoint-4")
    resumed = counted(evaluated(**asked), [0.9])
    resumed.train("auto")
    assert resumed.state.global_step == 4
    assert resumed.facts.stopped_early == why
    patient = counted(evaluated(**{**asked, "early_stopping_patience": 9}), [0.9, 0.9])
    patient.train("auto")
    assert (patient.state.global_step, patient.facts.stopped_early) == (6, "")


def test_early_stopping_looks_at_one_of_several_sets(evaluated):
    """Steps 1, 2, 3 with easy and hard in turn: hard does not get better, and easy does not count."""
    asked = {"metric_for_best_model": "eval_hard_share", "early_stopping_patience": 2}
    trainer = counted(evaluated(sets=("easy", "hard"), **asked, max_steps=6), [0.1, 0.5, 0.2, 0.5, 0.3, 0.5])
    trainer.train()
    assert trainer.state.global_step == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"early_stopping_patience": 0}, "=0 with early_stopping_threshold=0.0, expected a patience of at least 1"),
        ({"early_stopping_threshold": 0.1}, "=None with early_stopping_threshold=0.1, expected a patience"),
        ({"early_stopping_patience": 2, "load_best_model_at_end": False}, "metric_for_best_model=None"),
    ],
)
def test_early_stopping_without_what_it_needs_is_refused(evaluated, settings, message):
    with pytest.raises(ValueError, match="early_stopping_patience") as refused:
        evaluated(**settings)
    assert message in str(refused.value)


def test_a_best_checkpoint_that_is_gone_is_said_when_the_run_is_resumed(evaluated, tmp_path, caplog):
    settings = {"metric_for_best_model": "loss", "greater_is_better": True}  # the first is the best of a falling loss
    trainer = evaluated(**settings, max_steps=2)
    trainer.train()
    assert trainer.state.best_global_step == 1
    shutil.rmtree(tmp_path / "checkpoint-1")
    again = evaluated(**settings, max_steps=3)
    again.train("auto")
    (said,) = [line for line in warnings_of(caplog) if "The best checkpoint" in line]
    assert said.startswith(f"The best checkpoint, checkpoint-1 with loss={trainer.state.best_metric:.4g}, is no longer")
    assert "saves the last weights" in said
    assert again.state.best_model_checkpoint is None
    assert_weights(again.model, load(tmp_path / "checkpoint-3")[0].state_dict())


@pytest.mark.parametrize(
    "settings", [{"save_strategy": "best", "metric_for_best_model": "accuracy"}, {"metric_for_best_model": "accuracy"}]
)
def test_rounds_choose_no_best_model(settings, tmp_path):
    with pytest.raises(ValueError, match="(save_strategy='best'|metric_for_best_model='accuracy') is not supported"):
        IterativeDPOConfig(str(tmp_path), use_cpu=True, bf16=False, **settings)
