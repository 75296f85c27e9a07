"""What a run did is stated, and a run that trained nothing ends with an error."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from datasets import Dataset
from every_trainer import DPO, GRPO, REFLECTION, TRAINERS, make, saved_base
from peft import LoraConfig, PeftModel, get_peft_model
from processes import outcomes
from support import (
    SMALL_RUN,
    adapo_trainer,
    changed_weights,
    drawn_rows,
    full_but,
    load,
    losses_of,
    sft_trainer,
    weights_of,
    with_nan,
)
from transformers import TrainerCallback

from trl_mmreason import GroupGRPOTrainer, RolloutConfig
from trl_mmreason.compat.fused_head import HeadOutput, use_own_head_output
from trl_mmreason.grading import Verdict
from trl_mmreason.training import credit
from trl_mmreason.training.facts import MAX_SKIPPED_IN_A_ROW, NonFiniteUpdates, NothingTrained
from trl_mmreason.training.model_card import FACTS_FILE


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base("qwen2_5_vl", tmp_path_factory.mktemp("base"))


class AllAlike:
    """A grader with the same verdict for every answer; `None` for an unusable gold answer."""

    def __init__(self, correct):
        self.correct = correct

    def grade_batch(self, items):
        return [Verdict(self.correct, None, "") for _ in items]


class AfterStep(TrainerCallback):
    def __init__(self, function):
        self.function = function

    def on_step_end(self, *args, **kwargs):
        self.function()


def completed(n):
    """Rows with a completion in the format of `ReflectionSFTTrainer`."""
    return [{**row, "completion": REFLECTION.format("so")} for row in drawn_rows(n)]


# --------------------------------------------------------------------------------------------- what a run did


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", TRAINERS))
def test_every_trainer_states_what_it_did(base, tmp_path, capsys, name):
    trainer = make(name, base, tmp_path)
    before = weights_of(trainer.model)
    trainer.train()
    facts = trainer.facts
    trainable = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    assert facts.weights == sum(weight.numel() for weight in trainer.model.parameters())
    assert facts.trainable == sum(weight.numel() for weight in trainable)
    assert (facts.tensors, facts.changed) == (len(trainable), len(changed_weights(trainer.model, before)))
    assert facts.changed > 0
    assert facts.changed_frozen == []
    assert 0 <= facts.start_difference < 1e-4
    assert (facts.updates, facts.skipped) == (2, 0)
    assert facts.groups == (4 if name in GRPO else 0)  # two rollouts of two groups
    assert (facts.taught > 0) == (name in GRPO)
    assert f"tensors changed           {facts.changed} of {facts.tensors}\n" in capsys.readouterr().out
    file = next(tmp_path.rglob(FACTS_FILE))  # iterative DPO has a folder for each round
    assert json.loads(file.read_text())["changed"] == facts.changed


def test_an_evaluation_in_which_nothing_is_graded_ends_no_run(base, tmp_path):
    def pays(completions, known, **_):
        return [
            float(sum(map(ord, each[-1]["content"]))) if paid else None
            for each, paid in zip(completions, known, strict=True)
        ]

    rows, unknown = (Dataset.from_list([{**row, "known": known} for row in drawn_rows(8)]) for known in (True, False))
    run = {**SMALL_RUN, "max_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    args = RolloutConfig(str(tmp_path), **run)
    trainer = GroupGRPOTrainer(base, [pays], args, train_dataset=rows, eval_dataset=unknown.select(range(2)))
    trainer.train()
    assert trainer.facts.evaluated == {"eval_reward": None}
    assert "last evaluation           eval_reward none\n" in str(trainer.facts)


def test_the_sampled_policy_is_the_trained_one(base, tmp_path, caplog):
    trainer = adapo_trainer(base, tmp_path, drawn_rows(8))
    trainer.train()
    assert trainer.facts.compared > 10
    assert 0 < trainer.facts.max_difference < 1e-4
    assert not [each for each in caplog.records if "sampled and trained policy" in each.message]


def test_another_policy_than_the_sampled_one_is_refused(base, tmp_path):
    """Of a head that divides logits by 4, as TRL's would by the configuration of some, which the model does not."""
    trainer = adapo_trainer(load(base)[0], tmp_path, drawn_rows(8))
    use_own_head_output(trainer.model, HeadOutput(0.25, None))
    with pytest.raises(ValueError, match=r"samples with `generate` has log-probabilities that differ .* Fix"):
        trainer.train()
    assert trainer.facts.mean_difference > 0.1


# ------------------------------------------------------------------------------------------------ nothing is trained


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", TRAINERS))
def test_a_model_without_trainable_weights_is_refused(base, tmp_path, name):
    trainer = make(name, base, tmp_path)
    trainer.model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"not one of [\d,]+ weights may change.*is_trainable=True"):
        trainer.train()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_an_adapter_that_was_loaded_for_inference_is_refused(base, tmp_path):
    adapter = get_peft_model(load(base)[0], LoraConfig(r=2, target_modules="all-linear"))
    adapter.save_pretrained(tmp_path / "adapter")
    policy = PeftModel.from_pretrained(load(base)[0], tmp_path / "adapter")
    trainer = adapo_trainer(policy, tmp_path, drawn_rows(8))
    with pytest.raises(ValueError, match="is_trainable=True"):
        trainer.train()
    policy = PeftModel.from_pretrained(load(base)[0], tmp_path / "adapter", is_trainable=True)
    trainer = adapo_trainer(policy, tmp_path, drawn_rows(8))
    trainer.train()
    assert 0 < trainer.facts.changed <= trainer.facts.tensors < len(list(policy.parameters()))
    assert trainer.facts.changed_frozen == []


def test_fewer_questions_than_a_rollout_asks_are_refused(base, tmp_path):
    with pytest.raises(ValueError, match=r"1 rows, but one rollout asks 2 questions \(8 answers, num_generations=4\)"):
        adapo_trainer(base, tmp_path, drawn_rows(1))
    adapo_trainer(base, tmp_path, drawn_rows(2))


def test_a_batch_that_no_rows_fill_trains_nothing(base, tmp_path):
    trainer = sft_trainer(base, tmp_path, completed(4), per_device_train_batch_size=8, dataloader_drop_last=True)
    with pytest.raises(NothingTrained, match="Not one update was made"):
        trainer.train()


@pytest.mark.parametrize(
    ("correct", "reason"), [(False, "the other answers to each question earn the same"), (None, "100% ungraded")]
)
def test_groups_that_teach_nothing(base, tmp_path, monkeypatch, caplog, correct, reason):
    monkeypatch.setattr(credit, "SILENT_ROLLOUTS", 2)
    grader = AllAlike(correct)
    trainer = adapo_trainer(base, tmp_path, drawn_rows(8), max_steps=3, trainer_kwargs={"grader": grader})
    before = weights_of(trainer.model)
    with pytest.raises(NothingTrained, match=f"Not one of 6 groups of answers had anything to teach.*{reason}"):
        trainer.train()
    assert not changed_weights(trainer.model, before)
    (warning,) = [each.message for each in caplog.records if "2 rollouts in a row" in each.message]
    assert reason in warning


def test_what_trained_nothing_trains_nothing_when_it_is_resumed(base, tmp_path):
    """From the last checkpoint, which leaves no step to do, and from the one before."""

    def trainer():
        kwargs = {"grader": AllAlike(False)}
        settings = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
        return adapo_trainer(base, tmp_path, drawn_rows(8), **settings, trainer_kwargs=kwargs)

    with pytest.raises(NothingTrained, match="Not one of 6 groups"):
        trainer().train()
    for checkpoint in (True, str(tmp_path / "checkpoint-2")):
        with pytest.raises(NothingTrained, match="Not one of 6 groups"):
            trainer().train(resume_from_checkpoint=checkpoint)


def test_facts_of_a_resumed_run_are_those_of_the_whole(base, tmp_path):
    settings = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    whole = adapo_trainer(base, tmp_path, drawn_rows(8), **settings)
    whole.train()
    resumed = adapo_trainer(base, tmp_path, drawn_rows(8), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    found, expected = asdict(resumed.facts), {**asdict(whole.facts), "earlier": 2}
    assert found.pop("dropped") == pytest.approx(expected.pop("dropped"))
    assert found.pop("mean_difference") == pytest.approx(expected.pop("mean_difference"), abs=1e-6)
    assert found.pop("max_difference") == pytest.approx(expected.pop("max_difference"), abs=1e-6)
    assert found == expected


def test_an_answer_that_nobody_pays_is_no_advantage(base, tmp_path):
    """One answer of each group is paid, and the others have no reward at all."""

    def pays_one(completions, **_):
        return [1.0 if number % 4 == 0 else None for number in range(len(completions))]

    args = RolloutConfig(str(tmp_path), **SMALL_RUN)
    trainer = GroupGRPOTrainer(base, [pays_one], args, train_dataset=Dataset.from_list(drawn_rows(8)))
    with pytest.raises(NothingTrained, match="Not one of 4 groups of answers had anything to teach"):
        trainer.train()


class HoldsWeightsSmall(GroupGRPOTrainer):
    """GRPO whose loss has a term of its own."""

    def compute_loss(self, model, *args, **kwargs):
        squares = sum(weight.square().sum() for weight in model.parameters())
        return super().compute_loss(model, *args, **kwargs) + 1e-3 * squares


def test_a_term_of_a_subclass_trains_without_groups_that_teach(base, tmp_path):
    args, rows = RolloutConfig(str(tmp_path), **SMALL_RUN), Dataset.from_list(drawn_rows(8))
    trainer = HoldsWeightsSmall(base, [lambda completions, **_: [1.0] * len(completions)], args, train_dataset=rows)
    trainer.train()
    assert (trainer.facts.groups, trainer.facts.taught) == (4, 0)
    assert trainer.facts.changed > 0


def test_weight_decay_alone_trains_nothing(base, tmp_path):
    trainer = sft_trainer(base, tmp_path, completed(8), weight_decay=0.1)
    compute_loss = trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: compute_loss(*args, **kwargs) * 0.0
    with pytest.raises(NothingTrained, match="Not one of 2 updates had a gradient other than 0"):
        trainer.train()
    assert trainer.facts.changed > 0


def test_a_learning_rate_of_zero_was_meant(base, tmp_path):
    trainer = adapo_trainer(base, tmp_path, drawn_rows(8), learning_rate=0.0)
    trainer.train()
    assert (trainer.facts.changed, trainer.facts.updates) == (0, 2)


def test_weights_that_never_move(base, tmp_path):
    """The first step of a warm-up has a learning rate of 0."""
    trainer = sft_trainer(base, tmp_path, completed(8), max_steps=1, warmup_steps=5)
    with pytest.raises(NothingTrained, match="tensors changed in 1 updates with a learning rate of at most 0"):
        trainer.train()


# -------------------------------------------------------------------------------------------------- not finite numbers


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", [each for each in TRAINERS if each != DPO]))
def test_an_update_that_is_not_finite_changes_nothing(base, tmp_path, name):
    """The second of three updates is skipped: weights are those of the first and the third."""
    trainer = with_nan(make(name, base, tmp_path, max_steps=3, num_train_epochs=3, logging_steps=1), {1})
    seen = []
    trainer.add_callback(AfterStep(lambda: seen.append(weights_of(trainer.model))))
    trainer.train()
    first, second, third = seen
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(second[name], third[name]) for name in third)
    assert all(weight.isfinite().all() for weight in third.values())
    assert (trainer.facts.updates, trainer.facts.skipped) == (3, 1)
    losses = losses_of(trainer)
    assert [math.isnan(loss) for loss in losses] == [False, True, False]
    assert [entry.get("updates_skipped") for entry in trainer.state.log_history if "loss" in entry] == [None, 1, 1]


def test_a_gradient_whose_norm_overflows_changes_nothing(base, tmp_path):
    """Each entry is finite; clipping would make all 0, and momentum and weight decay would go on."""
    trainer = sft_trainer(base, tmp_path, completed(16), max_steps=3, logging_steps=1, weight_decay=0.1)
    compute_loss, seen = trainer.compute_loss, []

    def large(*args, **kwargs):
        return compute_loss(*args, **kwargs) * (1e30 if trainer.state.global_step == 1 else 1.0)

    trainer.compute_loss = large
    trainer.add_callback(AfterStep(lambda: seen.append(weights_of(trainer.model))))
    trainer.train()
    assert (trainer.facts.updates, trainer.facts.skipped, trainer.facts.with_gradient) == (3, 1, 2)
    assert all(torch.equal(seen[0][name], seen[1][name]) for name in seen[0])


def test_weights_that_an_update_makes_infinite_are_not_saved(base, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4, "lr_scheduler_type": "constant"}
    trainer = sft_trainer(base, tmp_path, completed(16), **settings, learning_rate=1e-3)

    def rise():
        if trainer.state.global_step == 1:
            for group in trainer.optimizer.param_groups:
                group["lr"] = 1e39
            trainer.lr_scheduler.base_lrs = [1e39] * len(trainer.lr_scheduler.base_lrs)

    trainer.add_callback(AfterStep(rise))
    with pytest.raises(NonFiniteUpdates, match=r"infinity \(.*\) after update 2.*checkpoint-1"):
        trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", ["AdaPOTrainer", "ReflectionSFTTrainer"]))
def test_a_model_that_is_not_finite_is_refused_before_training(base, tmp_path, name):
    trainer = make(name, base, tmp_path)
    weight, _ = next(iter(trainer.model.named_parameters()))
    with torch.no_grad():
        trainer.model.get_parameter(weight).view(-1)[0] = math.nan
    with pytest.raises(ValueError, match=f"weights hold NaN or infinity \\({weight}\\) before the first update"):
        trainer.train()


def test_a_run_stops_after_many_of_them_and_keeps_its_checkpoints(base, tmp_path):
    steps = range(2, 2 + MAX_SKIPPED_IN_A_ROW)
    settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "max_steps": 20}
    trainer = with_nan(sft_trainer(base, tmp_path, completed(8), **settings), steps)
    with pytest.raises(NonFiniteUpdates, match="5 updates in a row, up to update 7, were not finite"):
        trainer.train()
    kept, _ = load(sorted(tmp_path.glob("checkpoint-*"))[-1])
    assert all(weight.isfinite().all() for weight in kept.parameters())


def two_processes(model, folder, rows):
    trainer = adapo_trainer(model, folder, drawn_rows(8), per_device_train_batch_size=rows, max_steps=3)
    with_nan(trainer, {1}).train()
    finite = all(weight.isfinite().all() for weight in trainer.model.parameters())
    return {"facts": asdict(trainer.facts), "finite": finite, "processes": trainer.accelerator.num_processes}


def test_both_processes_skip_what_one_of_them_cannot_compute(base, tmp_path):
    first, second = outcomes(two_processes, 2, base, tmp_path, 4)
    assert first["processes"] == 2
    assert first["facts"] == second["facts"]
    assert [first["facts"][name] for name in ("updates", "skipped", "groups")] == [3, 1, 6]
    assert first["finite"]
    assert second["finite"]


# -------------------------------------------------------------------------------------------------------- bad rewards


def infinite(completions, **_):
    return [math.inf, *[0.0] * (len(completions) - 1)]


def scalar(completions, **_):
    return 1.0


def words(completions, **_):
    return ["0.5"] * len(completions)


def nested(completions, **_):
    return [[0.5]] * len(completions)


async def words_later(completions, **_):
    return words(completions)


@pytest.mark.parametrize(
    ("reward", "error", "message"),
    [
        (infinite, ValueError, "'infinite' returned infinity"),
        (scalar, TypeError, r"'scalar' returned 1.0, expected a list"),
        (words, TypeError, r"'words' returned '0.5' for answer 0"),
        (nested, TypeError, r"'nested' returned \[0.5\] for answer 0"),
        (words_later, TypeError, r"'words_later' returned '0.5' for answer 0"),
    ],
)
def test_what_is_no_reward_is_refused_by_the_name_of_its_function(base, tmp_path, reward, error, message):
    trainer = adapo_trainer(base, tmp_path, drawn_rows(8), trainer_kwargs={"reward_funcs": [reward]})
    with pytest.raises(error, match=message):
        trainer.train()


def test_rewards_may_be_tensors_arrays_and_none(base, tmp_path):
    rewards = [
        lambda completions, **_: torch.arange(len(completions)) / 8,
        lambda completions, **_: np.arange(len(completions)) % 2 == 0,
        lambda completions, **_: [None, *[True] * (len(completions) - 1)],
    ]
    for number, reward in enumerate(rewards):
        reward.__name__ = f"reward_{number}"
    settings = {"max_steps": 1, "filter_truncated": False, "filter_zero_advantage": False}
    trainer = adapo_trainer(base, tmp_path, drawn_rows(8), trainer_kwargs={"reward_funcs": rewards}, **settings)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["rewards/reward_0/mean"] == pytest.approx(3.5 / 8)
    assert logged["rewards/reward_1/mean"] == pytest.approx(0.5)
    assert logged["rewards/reward_2/mean"] == pytest.approx(1.0)
