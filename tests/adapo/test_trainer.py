"""AdaPOTrainer: from types to rewards, coefficients and filters; and what it is without them."""

import math

import pytest
import torch
from datasets import Dataset
from support import (
    ParityGrader,
    adapo_config,
    adapo_trainer,
    assert_micro_batches_agree,
    assert_weights,
    changed_weights,
    full_but,
    is_even,
    load,
    logps_of,
    prepared_batch,
    suppress_as_ours,
    types_of,
    weights_of,
)
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import nanstd

from trl_mmreason.compat.patch_embedding import use_matrix_product_for_patches

NAN = float("nan")


def trainer_with(checkpoints, tmp_path, rows, **settings):
    return adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, **settings)


def score(trainer, *groups):
    """`score_groups` of groups of types, as `types_of` reads them."""
    trainer.model.train()
    trainer._metrics["train"].clear()
    trainer.types = types_of([value for group in groups for value in group])
    outcome = trainer.score_groups(torch.zeros(len(trainer.types), 1))
    logged = {}
    trainer.log(logged)
    return outcome, logged


def test_types_become_rewards_and_coefficients(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows)
    # 0→0, 0→1, 0→0, 1→1 (P = 3/4) and 1→1, 1→1, 1→0, 0→1 (P = 1/4)
    outcome, logged = score(trainer, [0.0, 1.0, 0.0, 3.0], [3.0, 3.0, 2.0, 1.0])
    expected = [-1.375, 1.15, -1.375, 0.85, 1.35, 1.35, -0.875, 0.65]
    assert outcome.rewards[:, 0].tolist() == pytest.approx(expected)
    assert outcome.keep.all()
    # P = 3/4: beta_1 = 2 * 0.15 * 0.01 + 0.001; P = 1/4: beta_2 = 2 * 0.35 * 0.01 + 0.001
    for row in range(8):
        assert outcome.kl_coefs[row].tolist() == pytest.approx([0.004, 0.001] if row < 4 else [0.001, 0.008])
    assert logged["acc_t1"] == 0.5
    assert logged["acc_t2"] == 5 / 8
    assert logged["delta"] == pytest.approx(1 / 8)
    assert logged["correction_rate"] == 2 / 4  # of the four first wrong
    assert logged["misjudgment_rate"] == 1 / 4
    assert logged["correction_share"] == 2 / 8
    assert logged["misjudgment_share"] == 1 / 8
    assert logged["error_rate"] == 0.5
    assert logged["correction_state"] == 0.5  # P > 0.6 in one of two
    assert logged["beta_1"] == pytest.approx(0.0025)
    assert logged["beta_2"] == pytest.approx(0.0045)


def test_every_setting_of_the_rewards_reaches_the_trainer(checkpoints, rows, tmp_path):
    """Values of which no two are alike, or the paper's, in a group of one trajectory of each type."""
    slopes = {"k_01": 0.4, "k_11": -0.8, "k_10": 0.6, "k_00": -0.2}
    bases = {"base_correct": 2.0, "base_incorrect": -3.0, "threshold": 0.25}
    trainer = trainer_with(checkpoints, tmp_path, rows, **slopes, **bases, beta=0.02, kl_scale=0.1)
    outcome, _ = score(trainer, [0.0, 1.0, 2.0, 3.0])
    # P = 1/2, P - 0.25 = 1/4; 0→0, 0→1, 1→0, 1→1
    expected = [-3 - 0.2 / 2, 2 + 0.4 / 4, -3 + 0.6 / 2, 2 - 0.8 / 4]
    assert outcome.rewards[:, 0].tolist() == pytest.approx(expected)
    # R01 - R11 = 1.2 / 4 = 0.3, times 0.1
    assert outcome.kl_coefs.tolist() == [pytest.approx([0.05, 0.02])] * 4


def test_without_the_adaptive_rewards_only_the_base_ones_are_paid(checkpoints, rows, tmp_path):
    """Table 3, "w/o ARM": whatever P is; then both right rewards are equal, and so are the coefficients."""
    trainer = trainer_with(checkpoints, tmp_path, rows, k_01=0.0, k_11=0.0, k_10=0.0, k_00=0.0)
    outcome, _ = score(trainer, [0.0, 1.0, 0.0, 3.0], [3.0, 3.0, 2.0, 1.0])
    assert outcome.rewards[:, 0].tolist() == [-1, 1, -1, 1, 1, 1, -1, 1]
    assert outcome.kl_coefs.tolist() == [pytest.approx([0.001, 0.001])] * 8


def test_without_the_kl_scale_both_turns_have_one_coefficient(checkpoints, rows, tmp_path):
    """Table 3, "w/o reward-aware KL": the rewards still adapt."""
    trainer = trainer_with(checkpoints, tmp_path, rows, kl_scale=0.0)
    outcome, _ = score(trainer, [0.0, 1.0, 0.0, 3.0], [3.0, 3.0, 2.0, 1.0])
    assert outcome.kl_coefs.tolist() == [pytest.approx([0.001, 0.001])] * 8
    assert outcome.rewards[:4, 0].tolist() == pytest.approx([-1.375, 1.15, -1.375, 0.85])


def test_truncated_trajectories_take_part_in_nothing(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows)
    # 4 + type: an answer was cut. Kept of the first group: 0→0 and 1→1, so P = 1/2; of the second only one
    outcome, logged = score(trainer, [0.0, 4.0, 3.0, 5.0], [3.0, 4.0, 4.0, 4.0])
    assert outcome.rewards[0].item() == pytest.approx(-1.25)
    assert outcome.rewards[2].item() == pytest.approx(1.1)
    assert outcome.rewards[[1, 3, 5, 6, 7]].isnan().all()
    assert outcome.keep.tolist() == [True, False, True, False, False, False, False, False]
    assert logged["dropped_truncated"] == 5 / 8
    assert logged["dropped_zero_advantage"] == 1 / 8
    # accuracies speak of every answer, also of the dropped: 2 of 8 right first, 3 of 8 right second
    assert logged["acc_t1"] == 2 / 8
    assert logged["acc_t2"] == 3 / 8


def test_the_filters_can_be_switched_off(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows, filter_truncated=False, filter_zero_advantage=False)
    outcome, logged = score(trainer, [0.0, 4.0, 3.0, 5.0], [3.0, 3.0, 3.0, 3.0])
    assert outcome.keep.all()
    assert not outcome.rewards.isnan().any()
    assert logged["dropped_truncated"] == logged["dropped_zero_advantage"] == 0


def test_groups_of_one_reward_are_dropped(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows)
    outcome, logged = score(trainer, [3.0, 3.0, 3.0, 3.0], [0.0, 3.0, 3.0, 3.0])
    assert outcome.keep.tolist() == [False] * 4 + [True] * 4
    assert logged["dropped_zero_advantage"] == 0.5


def test_the_letter_of_a_2_drops_groups_whose_advantages_are_not_zero(checkpoints, rows, tmp_path):
    """R(τ) = C(y2, y) is one in a group of 0→1 and 1→1, and the adaptive rewards are two."""
    groups = [1.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 2.0], [0.0, 0.0, 4.0, 4.0], [1.0, 0.0, 4.0, 4.0]
    by_reward = trainer_with(checkpoints, tmp_path, rows)
    outcome, logged = score(by_reward, *groups)
    # P = 1/4: R01 = 1 + (0.25 - 0.6), R11 = 1 - (0.25 - 0.6), so the advantages are -1.5 and three times 0.5
    assert outcome.rewards[:4, 0].tolist() == pytest.approx([0.65, 1.35, 1.35, 1.35])
    assert outcome.keep.view(4, 4).tolist() == [[True] * 4, [True] * 4, [False] * 4, [True, True, False, False]]
    assert logged["dropped_zero_advantage"] == 2 / 16
    by_letter = trainer_with(checkpoints, tmp_path, rows, zero_advantage_criterion="correctness")
    outcome, logged = score(by_letter, *groups)
    assert outcome.keep.view(4, 4).tolist() == [[False] * 4, [True] * 4, [False] * 4, [True, True, False, False]]
    assert logged["dropped_zero_advantage"] == 6 / 16
    assert logged["error_rate"] == pytest.approx((1 / 4 + 0 + 1 + 1) / 4)  # dropped groups count for P


def test_a_question_whose_gold_is_unusable_trains_nothing(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows)
    outcome, logged = score(trainer, [NAN] * 4, [0.0, 3.0, 3.0, 3.0])
    assert not outcome.keep[:4].any()
    assert outcome.rewards[:4].isnan().all()
    assert not outcome.kl_coefs.isnan().any()
    assert logged["dropped_ungraded"] == 0.5
    assert logged["error_rate"] == 0.25


def test_an_added_reward_counts_and_can_tell_groups_apart(checkpoints, rows, tmp_path):
    added = {"reward_funcs": lambda completions, **_: [0.0] * len(completions)}
    trainer = trainer_with(checkpoints, tmp_path, rows, trainer_kwargs=added, reward_weights=[1.0, 2.0])
    trainer.types = types_of([3, 3, 3, 7] * 2)
    outcome = trainer.score_groups(torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]] * 2))
    assert outcome.keep.tolist() == [True, True, True, False] * 2
    assert outcome.rewards[3].isnan().all()
    assert outcome.rewards[0, 1] == 1.0


@pytest.mark.parametrize("loss_type", full_but("dapo", ["dapo", "grpo", "bnpo", "dr_grpo"]))
def test_dropped_trajectories_leave_no_trace_in_the_loss(checkpoints, rows, tmp_path, loss_type):
    """The loss of a batch with dropped rows is the loss of the batch without these rows."""
    trainer = trainer_with(checkpoints, tmp_path, rows, loss_type=loss_type, beta=0.05, max_completion_length=4)
    batch = prepared_batch(trainer)
    keep = batch["tool_mask"].bool().any(dim=1)
    assert 0 < keep.sum() < len(keep)
    loss = trainer.compute_loss(trainer.model, batch)

    mask = (batch["completion_mask"] * batch["tool_mask"])[keep]
    logps = logps_of(trainer, batch)[keep]
    weight = len(keep) / keep.sum() if loss_type in ("grpo", "dr_grpo") else 1.0
    advantages = batch["advantages"][keep].unsqueeze(1) / weight
    betas = batch["kl_coefs"].gather(1, batch["turn"] - 1)[keep] / weight
    d = batch["ref_per_token_logps"][keep] - logps
    per_token = -advantages + betas * (d.exp() - d - 1)  # at the first step the ratio is 1
    total = (per_token * mask).sum()
    expected = {
        "dapo": total / mask.sum(),
        "bnpo": total / mask.sum(),
        "grpo": ((per_token * mask).sum(1) / mask.sum(1)).mean(),
        "dr_grpo": total / (keep.sum() * 8),  # each of two turns may hold 4 tokens
    }[loss_type]
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


def scored_batch(trainer):
    """What `score_groups` makes of the first batch, and the batch."""
    outcomes, score_groups = [], trainer.score_groups
    trainer.score_groups = lambda rewards: outcomes.append(score_groups(rewards)) or outcomes[-1]
    batch = prepared_batch(trainer)
    return outcomes[0], batch


def test_advantages_are_normalised_over_the_kept_of_each_group(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows, loss_type="dapo")  # others weigh the kept more
    grade, types = trainer.reward_funcs[0], [0, 4, 1, 3, 3, 2, 7, 0]  # the second and the seventh were cut

    def graded(**given):
        values = grade(**given)
        trainer.types = types_of(types)
        return values

    trainer.reward_funcs[0] = graded
    outcome, batch = scored_batch(trainer)
    keep = torch.tensor(types).view(2, 4) < 4
    for group, advantages, kept in zip(
        outcome.rewards[:, 0].view(2, 4), batch["advantages"].view(2, 4), keep, strict=True
    ):
        expected = (group[kept] - group[kept].mean()) / (group[kept].std() + 1e-4)
        assert advantages[kept].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
        assert (advantages[~kept] == 0).all()


def even_reward(completions, **kwargs):
    return [1.0 if is_even(completion[0]["content"]) else -1.0 for completion in completions]


@pytest.mark.parametrize("loss_type", full_but("dapo", ["dapo", "grpo", "dr_grpo", "bnpo"]))
@pytest.mark.parametrize("bias_correction", [False, True])
def test_without_its_parts_it_is_trls_grpo(checkpoints, rows, tmp_path, loss_type, bias_correction):
    """Four K at 0, one turn, λ = 0, no filters: the same weights as TRL's trainer with rewards ±1.

    Not to the last bit, as rows of other lengths share a forward pass, which sums in another order.
    """
    path = checkpoints("qwen2_5_vl")
    rows = [row for row in rows if row["images"]]  # TRL's own trainer fails on a batch with and without images
    shared = {"loss_type": loss_type, "use_bias_correction_kl": bias_correction, "beta": 0.05, "max_steps": 3}
    plain = {"k_01": 0.0, "k_11": 0.0, "k_10": 0.0, "k_00": 0.0, "kl_scale": 0.0, "evaluation_prompt": None}
    unfiltered = {"filter_truncated": False, "filter_zero_advantage": False}
    ours = adapo_trainer(path, tmp_path / "ours", rows, **shared, **plain, **unfiltered)
    ours.train()

    fields = GRPOConfig.__dataclass_fields__
    made = adapo_config(tmp_path / "theirs", **shared)
    given = {name: getattr(made, name) for name in fields if fields[name].init}
    given["generation_batch_size"] = None  # derived from the others
    args, dataset = GRPOConfig(**given), Dataset.from_list(rows)
    theirs = GRPOTrainer(path, reward_funcs=even_reward, args=args, train_dataset=dataset)
    suppress_as_ours(theirs)
    for model in (theirs.model, theirs.ref_model):
        use_matrix_product_for_patches(model)
    theirs.train()
    assert_weights(ours.model, theirs.model, atol=1e-5)


def test_without_a_kl_term_there_is_no_reference(checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, beta=0.0, kl_scale=0.0, max_steps=1)
    before = weights_of(trainer.model)
    trainer.train()
    assert trainer.ref_model is None
    assert changed_weights(trainer.model, before)
    assert not any(name.startswith("kl") for name in trainer.state.log_history[0])


def move_reference(trainer):
    """Away from the policy, or the KL term of the first step would be 0 with gradient 0."""
    with torch.no_grad():
        for weight in trainer.ref_model.parameters():
            weight.add_(0.05)


@pytest.mark.parametrize("loss_type", full_but("dapo", ["dapo", "grpo", "dr_grpo"]))
def test_gradient_accumulation_does_not_change_the_update(checkpoints, rows, tmp_path, loss_type):
    path = checkpoints("qwen2_5_vl")

    def trained(**settings):
        # Adam's first step is the sign of the gradient and would hide its size
        run = {"loss_type": loss_type, "beta": 0.05, "max_steps": 1, "optim": "sgd", "learning_rate": 1.0, **settings}
        trainer = adapo_trainer(path, tmp_path, rows, **run)
        move_reference(trainer)
        trainer.train()
        return trainer

    weights = weights_of(assert_micro_batches_agree(trained)[0].model)
    start = weights_of(load(path)[0])
    assert max((weights[name] - start[name]).abs().max() for name in start) > 1e-3


@pytest.mark.parametrize(
    "loss_type", full_but("dapo", ["dapo", "grpo", "dr_grpo", "bnpo", "luspo", "sapo", "vespo", "cispo"])
)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_a_uniform_coefficient_equals_trls_own(checkpoints, rows, tmp_path, loss_type, level, bias_correction):
    """Off policy, under accumulation, with several steps a generation: the added term is aggregated as TRL's."""
    settings = {"loss_type": loss_type, "importance_sampling_level": level, "use_bias_correction_kl": bias_correction}
    settings |= {"beta": 0.1, "filter_truncated": False}
    batches = {"per_device_train_batch_size": 2, "steps_per_generation": 4, "gradient_accumulation_steps": 2}
    trainer = trainer_with(checkpoints, tmp_path, rows, **settings, **batches)
    trainer.current_gradient_accumulation_steps = 2
    trainer.model.train()
    torch.manual_seed(0)
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    for name, scale in (("ref_per_token_logps", 0.5), ("old_per_token_logps", 0.3)):
        batch[name] = batch[name] + scale * torch.randn_like(batch[name])
    assert (batch["completion_mask"] * batch["tool_mask"]).any()
    batch["kl_coefs"] = torch.full_like(batch["kl_coefs"], 0.4)
    ours = trainer.compute_loss(trainer.model, batch).item()
    del batch["kl_coefs"]
    trainer.beta = 0.4
    assert ours == pytest.approx(trainer.compute_loss(trainer.model, batch).item(), abs=1e-5)


def test_each_coefficient_acts_on_its_turn(checkpoints, rows, tmp_path):
    settings = {"loss_type": "dapo", "filter_truncated": False, "filter_zero_advantage": False}  # mean over tokens
    trainer = trainer_with(checkpoints, tmp_path, rows, beta=0.1, **settings)
    batch = prepared_batch(trainer)
    batch["advantages"] = torch.zeros(8)
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    # the first turn of a row ends where its user's turn begins, or where the row ends
    asked = (batch["completion_mask"] == 1) & (batch["tool_mask"] == 0)
    first = mask & (asked.cumsum(dim=1) == 0)
    second = mask & ~first
    assert first.any()
    assert second.any()
    reference = logps_of(trainer, batch)
    tokens = mask.sum().item()

    def loss_of(coefficients, shifted):
        inputs = {**batch, "kl_coefs": torch.tensor(coefficients)[batch["turn"] - 1]}
        inputs["ref_per_token_logps"] = reference - 0.7 * shifted
        trainer._metrics["train"].clear()
        return trainer.compute_loss(trainer.model, inputs).item()

    k3 = math.exp(-0.7) + 0.7 - 1  # of every shifted token; the others have none
    assert loss_of([1.0, 0.0], first) == pytest.approx(k3 * first.sum().item() / tokens, abs=1e-5)
    assert trainer._metrics["train"]["kl_t1"][0] == pytest.approx(k3, abs=1e-5)
    assert trainer._metrics["train"]["kl_t2"][0] == pytest.approx(0, abs=1e-5)
    assert loss_of([1.0, 0.0], second) == pytest.approx(0, abs=1e-5)
    assert loss_of([0.0, 1.0], second) == pytest.approx(k3 * second.sum().item() / tokens, abs=1e-5)
    # the mean over the answer's tokens, the user's words before it not counted
    assert trainer._metrics["train"]["kl_t2"][0] == pytest.approx(k3, abs=1e-5)


@pytest.mark.parametrize("loss_type", full_but("dapo", ["grpo", "sapo", "dr_grpo", "luspo", "dapo"]))
def test_the_kept_share_the_weight_of_the_dropped(checkpoints, rows, tmp_path, loss_type):
    """Losses that average over sequences count the kept ones N / #kept times; dapo counts tokens and needs nothing."""
    trainer = trainer_with(checkpoints, tmp_path, rows, loss_type=loss_type, max_completion_length=4)
    outcome, batch = scored_batch(trainer)
    keep = outcome.keep
    assert 0 < keep.sum() < 8
    weight = 1.0 if loss_type == "dapo" else 8 / keep.sum().item()
    rewards = outcome.rewards[:, 0].view(2, 4)
    raw = (rewards - rewards.nanmean(dim=1, keepdim=True)) / (nanstd(rewards, dim=1, keepdim=True) + 1e-4)
    expected = raw.flatten()[keep] * weight
    torch.testing.assert_close(batch["advantages"][keep], expected)
    expected = outcome.kl_coefs.gather(1, batch["turn"] - 1) * weight
    torch.testing.assert_close(batch["kl_coefs"][keep], expected[keep])


def test_reward_weights_decide_which_groups_are_alike(checkpoints, rows, tmp_path):
    added = {"reward_funcs": lambda completions, **_: [0.0] * len(completions)}
    trainer = trainer_with(checkpoints, tmp_path, rows, trainer_kwargs=added, reward_weights=[1.0, 0.0])
    trainer.types = types_of([3] * 8)
    assert not trainer.score_groups(
        torch.tensor([[0.0, number] for number in range(4)] * 2)
    ).keep.any()  # they differ only where the weight is 0


def test_one_kept_trajectory_is_no_group(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows, filter_zero_advantage=False)
    outcome, _ = score(trainer, [0.0, 4.0, 4.0, 4.0], [0.0, 3.0, 4.0, 4.0])
    assert outcome.keep.tolist() == [False] * 4 + [True, True, False, False]


def test_dropped_groups_do_not_move_a_std_over_the_batch(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows, scale_rewards="batch")
    kept = [0.0, 3.0, 3.0, 1.0]
    right, _ = score(trainer, kept, [3.0] * 4)
    wrong, _ = score(trainer, kept, [0.0] * 4)
    assert right.rewards[4:].isnan().all()
    torch.testing.assert_close(right.rewards, wrong.rewards, equal_nan=True)


def test_a_micro_batch_without_kept_tokens_logs_nothing(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows)
    batch = prepared_batch(trainer)
    trainer._metrics["train"].clear()
    loss = trainer.compute_loss(trainer.model, {**batch, "tool_mask": torch.zeros_like(batch["tool_mask"])})
    assert loss.item() == 0
    assert not any(trainer._metrics["train"].values())


def test_one_turn_that_is_cut_is_dropped_too(checkpoints, rows, tmp_path):
    trainer = trainer_with(checkpoints, tmp_path, rows, evaluation_prompt=None)
    eos = trainer.eos_token_ids[0]
    completions = [[{"role": "assistant", "content": "b"}]] * 2
    assert trainer.adapo(completions, [[eos], [100]], answer=["x", "x"]) == [0, 0]
    assert trainer.types == types_of([3, 7])


def test_ordinary_mistakes_are_named(checkpoints, rows, tmp_path):
    from trl_mmreason import AdaPOTrainer
    from trl_mmreason.data.row_loading import LoadedRows

    path, args = checkpoints("qwen2_5_vl"), adapo_config(tmp_path)
    dataset = Dataset.from_list(rows)
    with pytest.raises(TypeError, match=r"pass its `.dataset`"):
        AdaPOTrainer(path, args=args, train_dataset=LoadedRows(dataset, []))
    with pytest.raises(ValueError, match="'solution'.*expected `prompt` and `answer`"):
        AdaPOTrainer(path, args=args, train_dataset=dataset.rename_column("answer", "solution"))
    with pytest.raises(TypeError, match="GRPOConfig, expected AdaPOConfig"):
        AdaPOTrainer(path, args=GRPOConfig(str(tmp_path), use_cpu=True, bf16=False), train_dataset=dataset)
    with pytest.raises(TypeError, match="^AdaPOTrainer: grader is a function, expected .* Fix: subclass Grader"):
        AdaPOTrainer(path, args=args, train_dataset=dataset, grader=lambda completion, gold: True)
    with pytest.raises(FileNotFoundError, match="no folder .*/nowhere"):
        AdaPOTrainer(str(tmp_path / "nowhere"), args=args, train_dataset=dataset)


def test_it_has_two_turns_or_one(checkpoints, rows, tmp_path):
    for turns, settings, expected in ((3, {}, 2), (1, {}, 2), (2, {"evaluation_prompt": None}, 1)):
        told = f"^AdaPOTrainer: got max_turns={turns}, expected {expected}, .* GroupGRPOTrainer whose `next_message`"
        with pytest.raises(ValueError, match=told):
            trainer_with(checkpoints, tmp_path, rows, trainer_kwargs={"max_turns": turns}, **settings)
    for turns, settings in ((2, {}), (1, {"evaluation_prompt": None})):
        given = {"max_turns": turns, "grader": ParityGrader()}
        assert trainer_with(checkpoints, tmp_path, rows, trainer_kwargs=given, **settings).max_turns == turns


def test_a_batch_that_teaches_nothing_is_said_aloud(checkpoints, rows, tmp_path, caplog):
    trainer = trainer_with(checkpoints, tmp_path, rows)
    with caplog.at_level("WARNING", logger="trl_mmreason"):
        score(trainer, [7.0] * 4, [NAN] * 4)
    assert "not one of 8 trajectories" in caplog.text
    assert "4 hit the length limit" in caplog.text


def test_a_batch_that_is_mostly_cut_is_said_aloud(checkpoints, rows, tmp_path, caplog):
    trainer = trainer_with(checkpoints, tmp_path, rows)
    with caplog.at_level("WARNING", logger="trl_mmreason"):
        logging.warning_once.cache_clear()  # another test may have made it say so
        score(trainer, [3.0] * 4, [7.0] * 4)
        assert "hit the length limit" not in caplog.text
        score(trainer, [3.0] * 3 + [7.0], [7.0] * 4)
        score(trainer, [7.0] * 3 + [3.0], [7.0] * 4)
    assert caplog.text.count("more than half of the trajectories of a batch hit the length limit") == 1


def test_where_cut_answers_train_it_is_silent(checkpoints, rows, tmp_path, caplog):
    trainer = trainer_with(checkpoints, tmp_path, rows, filter_truncated=False)
    with caplog.at_level("WARNING", logger="trl_mmreason"):
        logging.warning_once.cache_clear()
        score(trainer, [7.0] * 4, [7.0] * 4)
    assert "hit the length limit" not in caplog.text
