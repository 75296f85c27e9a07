"""OffPolicyRewardTrainer: the equation's loss on every family, TRL's SFT as a special case, and what is refused."""

import copy

import pytest
import torch
from datasets import Dataset, IterableDataset
from peft import LoraConfig
from processes import one_and_two
from support import (
    SUPERVISED_RUN,
    assert_micro_batches_agree,
    assert_weights,
    changed_weights,
    drawn_rows,
    full_but,
    load,
    maker,
    untimed,
    weights_of,
)
from transformers import AutoModelForImageTextToText, Qwen3VLMoeConfig
from trl import SFTConfig, SFTTrainer
from trl.trainer.utils import create_model_from_path

from trl_mmreason import OffPolicyRewardConfig, OffPolicyRewardTrainer
from trl_mmreason.compat.model_parts import parts_of
from trl_mmreason.compat.patch_embedding import use_matrix_product_for_patches
from trl_mmreason.miniature.solutions import plain, solve
from trl_mmreason.miniature.tasks import make_problems

RUN = {**SUPERVISED_RUN, "warmup_steps": 0, "num_train_epochs": 1, "max_steps": -1}
trainer_for = maker(OffPolicyRewardTrainer, OffPolicyRewardConfig, **RUN)
REWARDS = [1.0, -0.5, 2.0, 0.25]
EVERYTHING = ["vision", "projector", "language"]


def rewarded(n=8, **columns):
    """Rows with one image, two images or none, and rewards of both signs."""
    problems = make_problems(["adding", "counting"], n)
    rows = [
        {"prompt": row["prompt"], "images": row["images"], "completion": plain(solve(problem))}
        for row, problem in zip(drawn_rows(n), problems, strict=True)
    ]
    return [
        {**row, "reward": REWARDS[k % 4], **{name: values[k] for name, values in columns.items()}}
        for k, row in enumerate(rows)
    ]


@pytest.fixture
def trainer_on(checkpoints, tmp_path):
    """Make trainers of one family on given rows."""
    return lambda rows, **settings: trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rows, **settings)


def token_logps(trainer, model, rows):
    """Log-probabilities of each completion's tokens, from the logits, one row at a time and by no code of ours."""
    found = []
    for row in rows:
        batch = trainer.data_collator([row])
        labels = batch["labels"][:, 1:]
        inputs = {
            name: value
            for name, value in batch.items()
            if name not in ("labels", "rewards", "behavior_logps", "shift_labels")
        }
        with torch.no_grad():
            logits = model(**inputs).logits[:, :-1].double()
        logps = logits.log_softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        found.append(logps[labels != -100])
    return found


def test_the_loss_is_the_equation(family, checkpoints, tmp_path):
    """−1/B Σ R Σ log π, from the model's own logits row by row."""
    trainer = trainer_for(checkpoints(family), tmp_path, rewarded(4))
    rows = list(trainer.train_dataset)
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows))
    sums = [logps.sum().item() for logps in token_logps(trainer, trainer.model, rows)]
    expected = -sum(reward * total for reward, total in zip(REWARDS, sums, strict=True)) / 4
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_rewards_of_one_and_the_mean_are_supervised_training(checkpoints, tmp_path):
    """After three steps every parameter equals that of TRL's SFTTrainer on completions."""
    rows = [{**row, "reward": 1.0} for row in rewarded(12)]
    path = checkpoints("qwen2_5_vl")
    run = {**RUN, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 3, "seed": 3}
    run["adam_epsilon"] = 1e-3  # ours sorts rows, and Adam makes rounding of gradients near zero visible
    plain_rows = [{name: row[name] for name in ("prompt", "images")} for row in rows]
    for row, rewarded_row in zip(plain_rows, rows, strict=True):
        row["completion"] = [{"role": "assistant", "content": rewarded_row["completion"]}]
    config = SFTConfig(str(tmp_path / "sft"), **run, max_length=None, completion_only_loss=True)
    supervised = SFTTrainer(path, args=config, train_dataset=Dataset.from_list(plain_rows))
    use_matrix_product_for_patches(supervised.model)
    supervised.model_accepts_loss_kwargs = True  # of this family Trainer thinks otherwise, and averages micro-batches
    supervised.train()
    plain = {"weight_decay": 0.0, "lr_scheduler_type": "linear"}  # TRL's defaults; ours are the paper's
    run |= {**plain, "sequence_reduction": "mean", "trainable_parts": EVERYTHING}
    ours = trainer_for(path, tmp_path, rows, **run)
    ours.train()
    assert_weights(ours.model, supervised.model, atol=1e-6)
    base, _ = load(str(path))
    assert changed_weights(ours.model, weights_of(base)) == set(dict(base.named_parameters()))


@pytest.mark.parametrize("reduction", full_but("mean", ["sum", "mean"]))
def test_any_micro_batch_is_the_same_update(reduction, checkpoints, tmp_path):
    def trained(**settings):
        run = {"sequence_reduction": reduction, "optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0, **settings}
        trainer = trainer_for(checkpoints("internvl"), tmp_path, rewarded(4), **run)
        trainer.train()
        return trainer

    trainers = assert_micro_batches_agree(trained, (4, 2, 1), rtol=1e-4, atol=1e-6)
    losses = [trainer.state.log_history[0]["loss"] for trainer in trainers]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def two_steps(model, folder, rows_a_process):
    rows = rewarded(8, behavior_logps=[[-45.0 - 5 * k] for k in range(8)])
    settings = {"importance_sampling": "sequence", "importance_clip_high": 3.0, "beta": 0.1}
    settings |= {"optim": "sgd", "learning_rate": 1e-4, "max_grad_norm": 0.0, "max_steps": 2}
    settings |= {"trainer_kwargs": {"eval_dataset": Dataset.from_list(rows[:3])}, "per_device_eval_batch_size": 2}
    trainer = trainer_for(model, folder, rows, per_device_train_batch_size=rows_a_process, **settings)
    trainer.train()
    trainer.evaluate()
    logged = {
        f"{name}/{step}": value
        for step, entry in enumerate(trainer.state.log_history)
        for name, value in untimed(entry).items()
    }
    return {"world_size": trainer.accelerator.num_processes, "logged": logged, "weights": weights_of(trainer.model)}


@pytest.mark.full
def test_two_processes_are_one(checkpoints, tmp_path):
    """Loss, metrics and weights, with importance weights and a KL term; completions of one process are longer.

    In evaluation one of two processes has one row less, and is given another one again.
    """
    alone, pair = one_and_two(two_steps, checkpoints("qwen2_vl"), tmp_path, 4)
    for shared in pair:
        assert shared["logged"] == pytest.approx(alone["logged"], rel=1e-3)
        assert_weights(shared["weights"], alone["weights"], rtol=1e-3, atol=1e-6)


def test_rows_without_reward_cost_nothing(trainer_on):
    """Of six rows with rewards 1, 0, 1, 0, 0, 1 the model sees three, and the update is that of the three alone."""
    rows = rewarded(6)
    for row, reward in zip(rows, (1.0, 0, 1.0, 0, 0, 1.0), strict=True):
        row["reward"] = reward
    updated = []
    for given in (rows, [row for row in rows if row["reward"]]):
        trainer = trainer_on(given, per_device_train_batch_size=3, optim="sgd")
        seen = []

        def count(_, args, kwargs, seen=seen):
            seen.append(len(kwargs["input_ids"]))

        trainer.model.register_forward_pre_hook(count, with_kwargs=True)
        trainer.train()
        assert seen == [3]
        updated.append(weights_of(trainer.model))
    assert_weights(*updated)


@pytest.mark.parametrize("chosen", ["vision", "projector", "language"])
def test_exactly_the_chosen_part_moves(chosen, family, checkpoints, tmp_path, caplog):
    trainer = trainer_for(checkpoints(family), tmp_path, rewarded(4), trainable_parts=[chosen], learning_rate=1e-2)
    said = next(record.getMessage() for record in caplog.records if "trains of" in record.getMessage())
    assert all(f"{name}: {part}" in said for name, part in trainer.parts.items())
    before, place = weights_of(trainer.model), parts_of(trainer.model)
    trainer.train()
    moved = changed_weights(trainer.model, before)
    assert {place[name] for name in moved} == {chosen}
    unused = {name for name in place if place[name] == chosen} - moved
    # LLaVA-NeXT takes its features before the encoder's last layer.
    assert all("post_layernorm" in name or ".layers.2." in name for name in unused), unused


def test_a_negative_reward_makes_a_completion_less_likely(checkpoints, tmp_path):
    rows = rewarded(2)
    rows[0]["reward"], rows[1]["reward"] = 1.0, -1.0
    trainer = trainer_for(
        checkpoints("llava_next"), tmp_path, rows, optim="sgd", learning_rate=1e-3, num_train_epochs=2
    )
    before = [logps.sum() for logps in token_logps(trainer, trainer.model, list(trainer.train_dataset))]
    trainer.train()
    after = [logps.sum() for logps in token_logps(trainer, trainer.model.eval(), list(trainer.train_dataset))]
    assert after[0] > before[0]
    assert after[1] < before[1]


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_importance_weights_of_the_policy_itself_are_one(level, family, checkpoints, tmp_path):
    """With its own log-probabilities, end of turn included: weights 1, and as many samples as there are."""
    rows, folder = rewarded(3), checkpoints(family)
    probe = trainer_for(folder, tmp_path, rows)
    own = token_logps(probe, probe.model, list(probe.train_dataset))
    eos = probe.processing_class.tokenizer.eos_token_id
    for row, logps in zip(rows, own, strict=True):
        labels = probe.data_collator([{**row, "completion": [{"role": "assistant", "content": row["completion"]}]}])
        ids = labels["labels"][labels["labels"] != -100].tolist()
        row["behavior_logps"] = logps[: ids.index(eos) + 1].tolist()
    trainer = trainer_for(folder, tmp_path, rows, importance_sampling=level, learning_rate=0.0)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["importance_weight/mean"] == pytest.approx(1, abs=1e-3)
    assert logged["importance_weight/max"] == pytest.approx(1, abs=1e-3)
    assert logged["importance_weight/truncated_frac"] == 0
    samples = 3 if level == "sequence" else sum(map(len, own))
    assert logged["importance_weight/effective_sample_size"] == pytest.approx(samples, rel=1e-3)
    assert logged["loss"] == pytest.approx(
        -sum(row["reward"] * logps.sum().item() for row, logps in zip(rows, own, strict=True)) / 3, rel=1e-3
    )


@pytest.mark.full
def test_importance_weights_scale_the_loss_and_are_truncated(checkpoints, tmp_path):
    """Three rows whose behaviour was 2, 1/2 and 1/16 times as likely: weights, truncated, ¾, 2 and 4."""
    rows, folder = rewarded(3), checkpoints("qwen3_vl")
    probe = trainer_for(folder, tmp_path, rows)
    own = [logps.sum().item() for logps in token_logps(probe, probe.model, list(probe.train_dataset))]
    for row, total, ratio in zip(rows, own, (0.5, 2.0, 16.0), strict=True):
        # In any number of parts: another tokenizer may have written it. What the template writes behind counts as 1.
        row["behavior_logps"] = [total / 2, total / 2 - torch.tensor(ratio).log().item()]
    trainer = trainer_for(
        folder,
        tmp_path,
        rows,
        importance_sampling="sequence",
        importance_clip_low=0.75,
        importance_clip_high=4.0,
        learning_rate=0.0,
    )
    tail = [_behind_the_turn(trainer, row) for row in trainer.train_dataset]
    ratios = [ratio / torch.tensor(t).exp().item() for ratio, t in zip((0.5, 2.0, 16.0), tail, strict=True)]
    weights = [min(max(ratio, 0.75), 4.0) for ratio in ratios]
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["importance_weight/mean"] == pytest.approx(sum(weights) / 3, rel=1e-3)
    assert logged["importance_weight/max"] == pytest.approx(max(weights), rel=1e-3)
    assert logged["importance_weight/truncated_frac"] == pytest.approx(sum(w in (0.75, 4.0) for w in weights) / 3)
    squares = sum(weight**2 for weight in weights)
    assert logged["importance_weight/effective_sample_size"] == pytest.approx(sum(weights) ** 2 / squares, rel=1e-3)
    loss = -sum(row["reward"] * w * total for row, w, total in zip(rows, weights, own, strict=True)) / 3
    assert logged["loss"] == pytest.approx(loss, rel=1e-3)


def _behind_the_turn(trainer, row):
    """Log-probability of what the template writes behind the end of the turn."""
    labels = trainer.data_collator([row])["labels"]
    ids = labels[labels != -100].tolist()
    eos = trainer.processing_class.tokenizer.eos_token_id
    return token_logps(trainer, trainer.model, [row])[0][ids.index(eos) + 1 :].sum().item()


def test_the_kl_term(checkpoints, tmp_path):
    """0 at the first step, and positive behind it; the reference is the initial policy, changed in memory or not."""
    model, processor = load(str(checkpoints("qwen2_5_vl")))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.1)  # as it was never saved
    trainer = trainer_for(
        copy.deepcopy(model),
        tmp_path,
        rewarded(4),
        trainer_kwargs={"processing_class": processor},
        beta=0.5,
        num_train_epochs=2,
        optim="sgd",
        learning_rate=0.1,
    )
    assert_weights(trainer.reference, model)
    trainer.train()
    first, second = (entry for entry in trainer.state.log_history if "kl" in entry)
    assert first["kl"] == pytest.approx(0, abs=1e-9)
    assert second["kl"] > 1e-6
    assert_weights(trainer.reference, model)


def test_the_kl_term_is_k3_summed_over_each_completion(trainer_on):
    trainer = trainer_on(rewarded(2), beta=0.5, sequence_reduction="sum")
    rows = list(trainer.train_dataset)
    reference = token_logps(trainer, trainer.model, rows)
    with torch.no_grad():
        trainer.model.get_output_embeddings().weight.mul_(1.2)
        loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows))
    policy = token_logps(trainer, trainer.model, rows)
    gained = sum(row["reward"] * logps.sum() for row, logps in zip(rows, policy, strict=True)) / 2
    k3 = sum(((r - p).exp() - (r - p) - 1).sum() for p, r in zip(policy, reference, strict=True)) / 2
    assert loss.item() == pytest.approx((-gained + 0.5 * k3).item(), rel=1e-5)


@pytest.mark.parametrize("checkpointing", [True, False])
def test_an_adapter_s_reference_is_the_model_without_it(checkpointing, trainer_on):
    """And the adapter's frozen parts stay frozen, also when its first forward pass is an evaluation's."""
    trainer = trainer_on(
        rewarded(4),
        trainer_kwargs={
            "peft_config": LoraConfig(r=4, target_modules="all-linear"),
            "eval_dataset": Dataset.from_list(rewarded(2)),
        },
        beta=0.5,
        num_train_epochs=2,
        learning_rate=1e-2,
        gradient_checkpointing=checkpointing,
    )
    assert trainer.reference is None
    before = weights_of(trainer.model)
    trainer.evaluate()
    trainer.train()
    first, second = (entry["kl"] for entry in trainer.state.log_history if "kl" in entry)
    assert first == pytest.approx(0, abs=1e-7)
    assert second > 1e-6
    moved = changed_weights(trainer.model, before)
    assert moved
    assert all("lora" in name and "visual" not in name for name in moved)


def test_a_long_trajectory_is_kept_whole(checkpoints, tmp_path):
    """More than 32 K tokens, all of which carry loss."""
    rows = rewarded(1)
    rows[0]["completion"] = f"<think>{'3+4=7 ' * 9000}</think> 7"
    trainer = trainer_for(checkpoints("internvl"), tmp_path, rows)
    (row,) = trainer.train_dataset
    labels = trainer.data_collator([row])["labels"]
    ids = trainer.processing_class.tokenizer(rows[0]["completion"], add_special_tokens=False)["input_ids"]
    learnt = labels[labels != -100].tolist()
    assert len(ids) > 32768
    assert learnt[: len(ids)] == ids


def test_a_template_that_drops_thoughts_is_refused(checkpoints, tmp_path):
    _, processor = load(checkpoints("qwen2_5_vl"))
    said = "{{ message['content'][-1]['text'].split('</think>')[-1] }}"
    processor.chat_template = "{% for message in messages %}<|im_start|>" + said + "<|im_end|>{% endfor %}"
    with pytest.raises(ValueError, match="the chat template changes the assistant's text"):
        trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rewarded(1), trainer_kwargs={"processing_class": processor})


def test_a_reference_from_a_path_is_read_as_the_policy(trainer_on, monkeypatch):
    """With its settings, in evaluation mode; under several processes whole on each."""
    read = []
    monkeypatch.setattr(
        "trl_mmreason.training.reference.create_model_from_path",
        lambda path, **settings: read.append(settings) or create_model_from_path(path, **settings),
    )
    settings = {"model_init_kwargs": {"dtype": "bfloat16"}, "trust_remote_code": True}
    trainer = trainer_on(rewarded(2), beta=0.1, **settings)
    assert read == [{"dtype": "bfloat16", "trust_remote_code": True}]
    assert {weight.dtype for weight in trainer.reference.parameters()} == {torch.bfloat16}
    assert not any(module.training for module in trainer.reference.modules())
    assert not any(weight.requires_grad for weight in trainer.reference.parameters())


def test_rows_from_a_stream(trainer_on):
    rows = IterableDataset.from_generator(lambda: iter(rewarded(4)))
    trainer = trainer_on(rows, max_steps=1, per_device_train_batch_size=4)
    trainer.train()
    assert trainer.state.log_history[0]["reward"] == pytest.approx(sum(REWARDS) / 4)


def test_metrics(trainer_on):
    """Over the rows that were learnt from, and no others; evaluation has its own."""
    evaluated = rewarded(8)[5:7]
    trainer = trainer_on(
        rewarded(4),
        trainer_kwargs={"eval_dataset": Dataset.from_list(evaluated)},
        learning_rate=0.0,
        eval_strategy="steps",
        eval_steps=1,
        logging_steps=2,
        per_device_train_batch_size=2,
    )
    trainer.evaluate()
    trainer.predict(Dataset.from_list(rewarded(1)))
    trainer.train()
    logs = trainer.state.log_history
    for rows, logged, prefix in (
        (trainer.train_dataset, next(entry for entry in logs if "reward" in entry), ""),
        (trainer.eval_dataset, next(entry for entry in logs if "eval_reward" in entry), "eval_"),
        (trainer.eval_dataset, [entry for entry in logs if "eval_reward" in entry][-1], "eval_"),
    ):
        expected = _metrics_of(trainer, list(rows))
        assert {name: logged[f"{prefix}{name}"] for name in expected} == pytest.approx(expected, rel=1e-4)
        assert "kl" not in logged
        assert not any("importance" in name for name in logged)


def _metrics_of(trainer, rows):
    """From the logits, one row at a time."""
    rewards, logps, entropies, right = [], [], [], []
    for row in rows:
        batch = trainer.data_collator([row])
        rewards.append(batch.pop("rewards").item())
        labels = batch.pop("labels")[0, 1:]
        batch.pop("shift_labels")
        with torch.no_grad():
            distributions = trainer.model.eval()(**batch).logits[0, :-1].double().log_softmax(-1)[labels != -100]
        labels = labels[labels != -100]
        logps.append(distributions.gather(1, labels.unsqueeze(1)).squeeze(1))
        entropies.append(-(distributions.exp() * distributions).sum(1))
        right.append(distributions.argmax(1) == labels)
    return {
        "reward": sum(rewards) / len(rewards),
        "completion_tokens": sum(map(len, logps)) / len(rows),
        "logps": torch.cat(logps).mean().item(),
        "entropy": torch.cat(entropies).mean().item(),
        "mean_token_accuracy": torch.cat(right).double().mean().item(),
    }


@pytest.mark.full
def test_evaluation_is_the_mean_over_completions(trainer_on):
    """Whatever the batch, and of rows that are given then, or in prediction, as well."""
    losses, given = [], Dataset.from_list(rewarded(3))
    for size in (1, 3):
        trainer = trainer_on(rewarded(4), trainer_kwargs={"eval_dataset": given}, per_device_eval_batch_size=size)
        losses.append(trainer.evaluate()["eval_loss"])
    own = token_logps(trainer, trainer.model.eval(), list(trainer.eval_dataset))
    expected = -sum(reward * logps.sum().item() for reward, logps in zip(REWARDS, own, strict=False)) / 3
    losses += [
        trainer.evaluate(given)["eval_loss"],
        trainer.evaluate({"new": given})["eval_new_loss"],
        trainer.predict(given).metrics["test_loss"],
    ]
    assert losses == pytest.approx([expected] * 5, rel=1e-4)


def test_a_prompt_may_be_a_text_and_other_columns_are_left_alone(checkpoints, tmp_path):
    """Even such as TRL would take for the conversation."""
    rows = [row for row in rewarded(6) if len(row["images"]) == 1]
    others = [{**row, "prompt": row["prompt"][0]["content"], "text": "no", "messages": [], "id": "7"} for row in rows]
    batches = []
    for given in (rows, others):
        trainer = trainer_for(checkpoints("qwen2_vl"), tmp_path, given)
        batches.append(trainer.data_collator(list(trainer.train_dataset)))
    assert torch.equal(batches[0]["input_ids"], batches[1]["input_ids"])
    assert torch.equal(batches[0]["labels"], batches[1]["labels"])


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Dataset.from_list([{**row, "reward": 0.0} for row in rewarded(3)]), "the reward of all 3 rows is 0"),
        (Dataset.from_list(rewarded(1)).select([]), "train_dataset has no rows"),
        (Dataset.from_list(rewarded(2)).remove_columns("reward"), "expected .*`reward`"),
    ],
)
def test_rows_that_teach_nothing_are_refused(rows, message, trainer_on):
    with pytest.raises(ValueError, match=message):
        trainer_on(rows)


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), "1", [1.0]])
def test_a_missing_reward_is_named(reward, trainer_on):
    rows = rewarded(3)
    others = type(reward)() if isinstance(reward, str | list) else 1.0
    for number, row in enumerate(rows):
        row["reward"] = reward if number == 1 else others
    row = 0 if isinstance(reward, str | list) else 1  # in a column of such, the first is one
    with pytest.raises(ValueError, match=f"the reward of row {row} is .*expected a finite number"):
        trainer_on(rows)


def test_a_mixture_of_experts_with_its_auxiliary_loss_is_refused(checkpoints, tmp_path):
    _, processor = load(checkpoints("qwen3_vl"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    text = {**sizes, "vocab_size": len(processor.tokenizer), "num_experts": 2, "moe_intermediate_size": 8}
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 16, "patch_size": 14}
    vision["deepstack_visual_indexes"] = []
    image = {"image_token_id": processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")}
    text |= {"head_dim": 8, "num_experts_per_tok": 1}
    config = Qwen3VLMoeConfig(text_config=text, vision_config=vision, **image)
    config.text_config.output_router_logits = False  # transformers 5.17 has no such field for this family
    with pytest.raises(ValueError, match="router_aux_loss_coef=0.0"):
        trainer_for(
            AutoModelForImageTextToText.from_config(config),
            tmp_path,
            rewarded(2),
            trainer_kwargs={"processing_class": processor},
        )


@pytest.mark.parametrize(
    ("logps", "level", "message"),
    [
        (None, "sequence", "row 1 has no behavior_logps"),
        ([-1.0, 0.7], "sequence", "row 1 hold 0.7, expected natural logarithms"),
        ([-1.0, float("-inf")], "token", "row 1 hold -inf"),
        ([-1.0, -1.0], "token", r"row 1 has 2 behavior_logps, and \d+ tokens"),
    ],
)
def test_behavior_logps_that_cannot_be_used_are_named(logps, level, message, trainer_on):
    rows = rewarded(2, behavior_logps=[[-1.0], logps])
    if level == "token":
        rows = rows[::-1]
        message = message.replace("row 1", "row 0")
    with pytest.raises(ValueError, match=message):
        trainer_on(rows, importance_sampling=level)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"importance_sampling": "turn"}, "importance_sampling='turn'"),
        ({"sequence_reduction": "max"}, "sequence_reduction='max'"),
        ({"beta": -0.1}, "beta=-0.1"),
        ({"importance_clip_high": float("inf")}, "importance_clip_high=inf"),
        ({"importance_clip_low": 1.5}, "importance_clip_low=1.5"),
        ({"importance_clip_high": 5.0}, "importance_clip_high=5.0 are for importance_sampling='sequence' or 'token'"),
        ({"trainable_parts": ["vision", "audio"]}, "trainable_parts=.*audio"),
        ({"trainable_parts": []}, "trainable_parts="),
        ({"freeze_vision_encoder": True}, "say it with trainable_parts"),
        ({"packing": True}, "packing=True"),
        ({"prediction_loss_only": False}, "prediction_loss_only=False"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1"),
        ({"max_length": 100}, "max_length=100"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        OffPolicyRewardConfig("out", use_cpu=True, bf16=False, **settings)


def test_its_own_collator_cannot_be_replaced(trainer_on):
    with pytest.raises(TypeError, match="leave `data_collator` out"):
        trainer_on(rewarded(2), trainer_kwargs={"data_collator": list})
