"""One process and two give the same rewards, advantages, coefficients and update, with a group that straddles them."""

import hashlib

import pytest
import torch
from judged import judge_by
from judged import trainer_for as self_evolution_trainer
from processes import one_and_two, outcomes
from support import (
    SMALL_RUN,
    ParityGrader,
    assert_weights,
    drawn_rows,
    ids_of,
    maker,
    recorded_batches,
    sft_trainer,
    srpo_trainer,
    untimed,
    weights_of,
)
from test_resume import SAVED, assert_same, outcome, trainer_for
from trl import GRPOTrainer

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.baselines.two_turns import SCoReConfig, SCoReTrainer
from trl_mmreason.training import sampled_turns

LOGGED = ["acc_t1", "acc_t2", "error_rate", "beta_1", "beta_2", "length_t1", "length_t2", "kl_t1", "dropped_truncated"]
SGD = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1}
BY_LETTER = {"filter_zero_advantage": True, "zero_advantage_criterion": "correctness"}
TWO_TURNS = {  # method → trainer, configuration, its settings, and a salt: other salts, other answers
    "adapo": (AdaPOTrainer, AdaPOConfig, {}, ""),
    "tokens": (AdaPOTrainer, AdaPOConfig, {"max_tokens_per_micro_batch": 160}, ""),
    "correctness": (AdaPOTrainer, AdaPOConfig, BY_LETTER, " 16"),  # in one group all second answers are right
    "score": (SCoReTrainer, SCoReConfig, {"stage_one_share": 0.0}, ""),  # each turn has an advantage of its own
}


def two_turns(model, folder, rows_a_process, loss_type, method):
    """One step of two turns on given completions.

    What is sampled does not depend on the number of processes: the first answer of a row follows from its place among
    all rows, the second from the prompt that leads to it.
    """
    trainer_class, config, own, salt = TWO_TURNS[method]
    own = {"beta": 0.05, "loss_type": loss_type, "filter_zero_advantage": False, **SGD, **own}
    make = maker(trainer_class, config, arguments={"grader": ParityGrader()}, **{**SMALL_RUN, **own})
    trainer = make(model, folder, drawn_rows(24), per_device_train_batch_size=rows_a_process)
    with torch.no_grad():  # away from the policy, or the KL term of the first step would be 0
        for weight in trainer.ref_model.parameters():
            weight.add_(0.05)
    process = trainer.accelerator.process_index
    vocabulary = [t for t in range(20, 200) if t not in trainer.eos_token_ids]

    def answer(key):
        """A made-up answer of one to five tokens; one in four does not end."""
        digest = hashlib.sha256(f"{key}{salt}".encode()).digest()
        tokens = [vocabulary[byte % len(vocabulary)] for byte in digest[: 1 + digest[0] % 5]]
        return tokens if digest[1] % 4 == 0 else [*tokens, trainer.eos_token_ids[0]]

    def generate(self, prompt_ids, images, fields, num_generations):
        if num_generations == 1:  # second turn
            keys = [f"second {ids}" for ids in prompt_ids]
        else:
            keys = [f"first {process * len(prompt_ids) + row}" for row in range(len(prompt_ids))]
        return [answer(key) for key in keys], None

    sampled_turns.can_share_prompts = lambda *_: False  # a row's answer follows from its place
    GRPOTrainer._generate_single_turn = generate  # below ours, which tells the grader of answers
    scored, score_groups = [], trainer.score_groups
    trainer.score_groups = lambda rewards: scored.append(score_groups(rewards)) or scored[-1]
    batches = recorded_batches(trainer)
    trainer.train()
    masks = batches[0]["completion_mask"] > 0
    by_row = zip(batches[0]["advantages"], masks, strict=True)  # one a row, or, where turns have their own, one a token
    return {
        "world_size": trainer.accelerator.num_processes,
        "rewards": scored[0].rewards,
        "kl_coefs": scored[0].kl_coefs,
        "keep": scored[0].keep,
        "advantages": [(row[mask] if row.ndim else row.unsqueeze(0)).tolist() for row, mask in by_row],
        "kept_tokens": batches[0]["num_items_in_batch"],
        "logged": {k: v for k, v in trainer.state.log_history[0].items() if isinstance(v, float)},
        "weights": weights_of(trainer.model),
    }


@pytest.mark.parametrize(
    ("method", "loss_type"),
    [
        ("adapo", "dapo"),
        ("tokens", "grpo"),
        pytest.param("tokens", "dapo", marks=pytest.mark.full),
        pytest.param("adapo", "grpo", marks=pytest.mark.full),
        pytest.param("score", "dapo", marks=pytest.mark.full),
        pytest.param("correctness", "grpo", marks=pytest.mark.full),
    ],
)
def test_two_processes_equal_one(checkpoints, tmp_path, method, loss_type):
    # three groups of four: with two processes the second group lies half on each
    alone, pair = one_and_two(two_turns, checkpoints("qwen2_5_vl"), tmp_path, 12, loss_type, method)
    assert 0 < alone["keep"].sum() < 12  # some are dropped
    if method == "correctness":
        # 1→1, 0→1, 1→1, 0→1 lie half on each process: P = 1/2, and the letter of A.2 drops them
        assert alone["rewards"][4:8, 0].tolist() == pytest.approx([1.1, 0.9, 1.1, 0.9])
        assert not alone["keep"][4:8].any()
    for part in pair:  # what concerns groups is the same on every process
        torch.testing.assert_close(part["rewards"], alone["rewards"], equal_nan=True)
        torch.testing.assert_close(part["kl_coefs"], alone["kl_coefs"])
        assert torch.equal(part["keep"], alone["keep"])
        assert part["kept_tokens"] == alone["kept_tokens"]
        assert_weights(part["weights"], alone["weights"], atol=1e-5)
    together = [row for part in pair for row in part["advantages"]]
    assert any(len(set(row)) == 2 for row in together) == (method == "score")  # of each turn its own
    for row, expected in zip(together, alone["advantages"], strict=True):
        assert row == pytest.approx(expected, abs=1e-5)
    for name in LOGGED:
        assert pair[0]["logged"][name] == pytest.approx(alone["logged"][name], abs=1e-6), name


def step_on(trainer, text):
    """A step in which the policy writes `text(place)`, by a completion's place among those of all processes."""

    def completions(prompt_ids, *_, **__):
        first = trainer.accelerator.process_index * len(prompt_ids)
        texts = [text(place) for place in range(first, first + len(prompt_ids))]
        end = trainer.processing_class.tokenizer.eos_token_id
        return [[*ids_of(trainer.processing_class, one), end] for one in texts], None

    trainer._generate_single_turn = completions
    batches = recorded_batches(trainer)
    trainer.train()
    return {
        "world_size": trainer.accelerator.num_processes,
        "advantages": batches[0]["advantages"],
        "keep": batches[0].get("tool_mask", batches[0]["completion_mask"]).any(dim=1),
        "logged": untimed(trainer.state.log_history[0]),
        "weights": weights_of(trainer.model),
    }


def srpo(model, folder, rows_a_process):
    """A step of SRPO's cold start, and one of its RL."""
    completion = "<think>a</think> <answer>7</answer> <reflection>{}</reflection> <answer>7</answer>"
    rows = drawn_rows(24)
    demonstrations = [
        {"prompt": row["prompt"], "images": row["images"], "completion": completion.format("so " * (1 + number))}
        for number, row in enumerate(rows[:12])
    ]
    sorting = {"per_device_train_batch_size": rows_a_process // 3, "gradient_accumulation_steps": 3}
    sft = sft_trainer(model, folder, demonstrations, **sorting, **SGD)
    sft.train()
    rows = [{**row, "answer": "1"} for row in rows]
    bounds = {"filter_min_accuracy": 0.1, "filter_max_accuracy": 0.9}
    trainer = srpo_trainer(model, folder, rows, per_device_train_batch_size=rows_a_process, **bounds, **SGD)

    def text(place):
        """Right or wrong, complete or not, long or short.

        All first answers of the second group, which two processes share, are right: the accuracy filter drops it.
        """
        first, second = 1 if 4 <= place < 8 else place % 3, place % 5
        text = f"<think>{'so ' * place}</think> <answer>{first}</answer>"
        if place % 4:
            text += f" <reflection>{'hm ' * (place % 7 + 1)}</reflection> <answer>{second}</answer>"
        return text if place % 6 else text[:-3]

    return {"sft": weights_of(sft.model), **step_on(trainer, text)}


@pytest.mark.full
def test_srpo_in_two_processes_equals_one_in_both_stages(checkpoints, tmp_path):
    alone, pair = one_and_two(srpo, checkpoints("qwen2_5_vl"), tmp_path, 12)
    together = torch.cat([part["advantages"] for part in pair])
    torch.testing.assert_close(together, alone["advantages"])
    assert len(set(alone["advantages"].tolist())) > 4
    # first answers are right in 1, 4 and 1 of 4; the second group is dropped on both processes
    assert alone["keep"].tolist() == [True] * 4 + [False] * 4 + [True] * 4
    assert torch.equal(torch.cat([part["keep"] for part in pair]), alone["keep"])
    assert alone["logged"]["dropped_too_easy"] == pytest.approx(1 / 3)
    for part in pair:
        for stage in ("sft", "weights"):
            assert_weights(part[stage], alone[stage], atol=1e-5)
    logged = pair[0]["logged"]
    assert logged.keys() == alone["logged"].keys()
    for name, value in alone["logged"].items():
        assert logged[name] == pytest.approx(value, abs=1e-6), name
    assert {"acc_t1", "length_reflection", "response/cut", "rewards/brevity_reward/mean"} <= logged.keys()


def self_evolution(model, folder, rows_a_process):
    """Groups of four, of which one stands on both processes."""
    judge = judge_by({"a a": 0.9, "b": 0.5, "": 0.2})
    settings = {"trainer_kwargs": {"judge": judge}, "per_device_train_batch_size": rows_a_process, **SGD}
    trainer = self_evolution_trainer(model, folder, [{**row, "answer": "3"} for row in drawn_rows(6)], **settings)

    def text(place):
        thought = "a " * (place % 3) + "b " * (place % 2)
        return rf"<think>{thought}</think>\boxed{{{3 + (place % 4) // 2}}}" if place % 5 else "I do not know it."

    return step_on(trainer, text)


@pytest.mark.full
def test_self_evolution_in_two_processes_is_that_in_one(checkpoints, tmp_path):
    """Rewards, advantages, metrics and weights, where a group stands on both."""
    alone, shares = one_and_two(self_evolution, checkpoints("qwen2_vl"), tmp_path, 12)
    assert len(set(alone["advantages"].tolist())) > 4
    torch.testing.assert_close(torch.cat([share["advantages"] for share in shares]), alone["advantages"])
    for share in shares:
        assert share["logged"] == pytest.approx(alone["logged"], rel=1e-3)
        assert_weights(share["weights"], alone["weights"], rtol=1e-3, atol=1e-6)


def resumed(model, folder):
    settings = {"num_iterations": 4, "per_device_train_batch_size": 4}
    whole = outcome(trainer_for(model, folder, drawn_rows(24), **settings))
    resumed = trainer_for(model, folder, drawn_rows(24), **settings)
    assert resumed.accelerator.num_processes == 2
    assert_same(whole, outcome(resumed, resume_from_checkpoint=f"{folder}/checkpoint-{SAVED}"))


@pytest.mark.full
def test_two_processes_resume_amid_their_rollouts(checkpoints, tmp_path):
    outcomes(resumed, 2, checkpoints("internvl"), tmp_path)
    kept = sorted(file.name for file in (tmp_path / "checkpoint-2").glob("rollouts_*"))
    assert kept == ["rollouts_0_of_2.pt", "rollouts_1_of_2.pt"]
