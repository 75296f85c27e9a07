"""SelfEvolutionTrainer: rewards without labels on real tiny models, the judge's memory, and what the loss receives."""

import inspect

import pytest
import torch
from datasets import Dataset
from judged import ADVANTAGES, REWARDS, SCORES, WORKED, candidate, judge_by, reply, trainer_for
from peft import LoraConfig, get_peft_model
from scripted import Scripted
from support import (
    assert_resumes,
    assert_weights,
    changed_weights,
    drawn_rows,
    full_but,
    load,
    logps_of,
    prepared_batch,
    weights_of,
    written_by_hand,
)

from study.self_evolution import LOGGED
from trl_mmreason import SelfEvolutionConfig
from trl_mmreason.generation import Failure, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.grading import Verdict
from trl_mmreason.replies import UnsuitableEngine
from trl_mmreason.self_evolution import rewards as rewards_module
from trl_mmreason.self_evolution.objective import judge_modulation, log_sum_exp_advantages
from trl_mmreason.self_evolution.response import read_response
from trl_mmreason.self_evolution.rewards import Group
from trl_mmreason.training.logged_questions import read_questions

LORA = {"peft_config": LoraConfig(r=4, target_modules=r".*(q_proj|v_proj)")}


def received_by_the_loss(trainer):
    """The advantages that `compute_loss` is given, in the order of the micro-batches."""
    received, compute = [], trainer.compute_loss

    def spy(model, inputs, *args, **kwargs):
        received.append(inputs["advantages"].clone())
        return compute(model, inputs, *args, **kwargs)

    trainer.compute_loss = spy
    trainer.train()
    return torch.cat(received)


@pytest.fixture
def answering(checkpoints, tmp_path):
    """Makes a trainer of one step whose policy writes these texts; its judge gives `SCORES`, or is another."""

    def make(texts=WORKED * 2, rows=None, *, judge=None, trainer_kwargs=None, **settings):
        kwargs = {} if judge is False else {"judge": judge or judge_by(SCORES)}
        settings = {"max_steps": 1, "judge": judge is not False, **settings}
        kwargs |= trainer_kwargs or {}
        trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rows, trainer_kwargs=kwargs, **settings)
        written_by_hand(trainer, texts)
        return trainer

    return make


@pytest.fixture
def logged(answering):
    """What such a trainer logs of its step."""

    def log(*args, **settings):
        trainer = answering(*args, **settings)
        trainer.train()
        return trainer.state.log_history[0]

    return log


# ------------------------------------------------------------------------------------------------ rewards, advantages


def test_the_worked_numbers_reach_the_loss(answering):
    """As they are: nothing has centred or scaled them (PITFALLS 18)."""
    trainer = answering(shuffle_dataset=False)
    received = received_by_the_loss(trainer)
    assert sorted(received.tolist()) == pytest.approx(sorted(ADVANTAGES * 2), abs=1e-5)
    assert list(trainer._logs["rewards"]["agreement_reward"])[-8:] == pytest.approx(REWARDS * 2, abs=1e-5)
    assert list(trainer._logs["advantages"])[-8:] == pytest.approx(ADVANTAGES * 2, abs=1e-5)


def test_the_loss_is_that_of_equation_12(answering):
    """While the policy is the one that sampled, all ratios are 1 and the KL is 0: each response adds −A for each token.

    Divided by the responses and by `max_completion_length`, a constant, and by no response's own length.
    """
    trainer = answering()
    assert trainer.loss_type == "dr_grpo"
    batch = prepared_batch(trainer)
    tokens = batch["completion_mask"].sum(dim=1)
    assert len(tokens.unique()) > 1
    expected = -(batch["advantages"] * tokens).mean().item() / trainer.args.max_completion_length
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(expected, rel=1e-5)
    assert trainer._metrics["train"]["kl"][-1] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("loss_type", ["dr_grpo", "grpo"])
def test_off_policy_ratios_are_clipped_and_the_kl_is_k3(answering, loss_type):
    """Eq. 12: ratios are clipped at 0.8 and 1.2, the KL term is β k3; summed over the tokens of a response.

    `loss_type: grpo`, which is not the paper's, takes the mean over its tokens.
    """
    trainer = answering(beta=0.1, loss_type=loss_type)
    batch = prepared_batch(trainer)
    logps, advantages = logps_of(trainer, batch), batch["advantages"].unsqueeze(1)
    torch.manual_seed(0)
    for name in ("old_per_token_logps", "ref_per_token_logps"):
        batch[name] = logps + 0.5 * torch.randn_like(logps)
    ratio, log_gap = (logps - batch["old_per_token_logps"]).exp(), batch["ref_per_token_logps"] - logps
    clipped = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    divergence = log_gap.exp() - log_gap - 1

    def over_responses(per_token):
        mask = batch["completion_mask"]
        tokens = trainer.args.max_completion_length if loss_type == "dr_grpo" else mask.sum(dim=1)
        return ((per_token * mask).sum(dim=1) / tokens).mean().item()

    assert abs(over_responses(ratio * advantages) - over_responses(clipped)) > 1e-3
    assert 0.1 * over_responses(divergence) > 1e-3
    loss = trainer.compute_loss(trainer.model, batch).item()
    assert loss == pytest.approx(0.1 * over_responses(divergence) - over_responses(clipped), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"loss_type": "grpo"}, "loss_type='grpo' divides by a number of tokens, which pays for longer responses"),
        ({"loss_type": "dapo"}, "loss_type='dapo' divides by a number of tokens"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions=True spares cut responses"),
        ({}, None),
        ({"loss_type": "luspo"}, None),
        ({"loss_type": "grpo", "centre_advantages": True}, None),
        ({"loss_type": "grpo", "advantages": "grpo", "mask_truncated_completions": True}, None),
    ],
)
def test_what_pays_for_length_is_warned_of(answering, caplog, settings, why):
    """`test_length.py` enumerates the gradients that say so."""
    answering(judge=False, **settings)
    said = [one.getMessage() for one in caplog.records if "log-sum-exp advantages" in one.getMessage()]
    assert len(said) == (why is not None)
    assert why is None or why in said[0]


def normalised(rewards):
    rewards = torch.tensor(rewards).float()
    return ((rewards - rewards.mean()) / (rewards.std() + 1e-4)).tolist()


@pytest.mark.parametrize(
    ("settings", "rewards"),
    [
        ({"vote": "majority", "judge": False}, [1, 1, 1, 0]),
        ({"judge": False}, [0.75, 0.75, 0.75, 0.25]),
        ({"vote": "none"}, [1.0, 1.0, 0.4, 0.0]),
        ({"vote": "majority"}, [1.03163, 1.03163, 0.97317, 0.0]),
        ({}, REWARDS),
    ],
    ids=["MV", "SC", "judge", "MV+JS", "SC+JS"],
)
@pytest.mark.parametrize("advantages", full_but("log_sum_exp", ["grpo", "log_sum_exp", "centred"]))
def test_the_ablations(settings, rewards, advantages, answering):
    """The rows of Tables 2 and 6."""
    shape = {"advantages": "log_sum_exp", "centre_advantages": True} if advantages == "centred" else {}
    shape = {"alpha": 2.0, **shape} if advantages != "grpo" else {"advantages": advantages}
    received = received_by_the_loss(answering(**settings, **shape))
    expected = {
        "grpo": normalised(rewards),
        "log_sum_exp": log_sum_exp_advantages(torch.tensor([rewards]).float(), 2.0)[0].tolist(),
        "centred": [2 * (reward - sum(rewards) / 4) for reward in rewards],
    }[advantages]
    assert sorted(received.tolist()) == pytest.approx(sorted(expected * 2), abs=1e-4)


def test_a_violated_format_costs_half(logged):
    """(0.75·g(1), …) − 0.5 where a word stands before the thoughts; no answer gets 0, votes for nothing, and −0.5."""
    texts = [WORKED[0], WORKED[1], f"So: {WORKED[0]}", "I cannot tell what it is."]
    judge = judge_by(SCORES)
    log = logged(texts * 2, judge=judge)
    paid = 0.75 * judge_modulation(torch.tensor(1.0)).item()
    assert log["rewards/agreement_reward/mean"] == pytest.approx(3 * paid / 4, abs=1e-5)
    assert log["rewards/format_reward/mean"] == pytest.approx(-0.25)
    assert log["format_violations"] == 0.5
    assert log["no_answer"] == 0.25
    assert log["judge/score"] == 1.0  # of the three that it was asked about
    assert len(judge.asked) == 6  # nobody asks about what has no answer


def test_a_response_without_one_clear_answer_is_scored_0_unseen(logged):
    """Appendix D's validity rule: two boxes that say 4 vote for 4, with g(0) = 1 + 0.2 σ(−0.95) − 0.2 σ(0.4).

    σ(−0.95) = 0.27889 and σ(0.4) = 0.59869, so that g(0) = 1 + 0.05578 − 0.11974 = 0.93604; g(1) is 1.03163.
    """
    twice = r"<think>x</think>\boxed{4} \boxed{4}"
    judge = judge_by(SCORES)
    log = logged([WORKED[0], twice, twice, twice] * 2, judge=judge)
    assert log["distinct_answers"] == 1  # r is 1 for each
    assert log["rewards/agreement_reward/mean"] == pytest.approx((1.03163 + 3 * 0.93604) / 4, abs=1e-5)
    assert log["rewards/format_reward/mean"] == pytest.approx(-0.5 * 3 / 4)
    assert {candidate(request) for request in judge.asked} == {WORKED[0]}


def test_the_judge_sees_question_image_and_response_and_no_answer(answering):
    rows = [{**row, "answer": "314159"} for row in drawn_rows(2)]
    judge = judge_by(SCORES)
    trainer = answering(rows=rows, judge=judge, actor_prompt="Think!")
    trainer.train()
    assert {candidate(request) for request in judge.asked} == set(WORKED)
    assert trainer.system_prompt == "Think!"
    for request in judge.asked:
        (message,) = request.messages
        assert message["content"].startswith("Judge.\n\nQuestion:\n")
        assert any(row["prompt"][0]["content"] in message["content"] for row in rows)
        assert not any(word in message["content"] for word in ("314159", "Think!"))
    assert sorted({len(request.images) for request in judge.asked}) == sorted({len(row["images"]) for row in rows})


def test_the_judge_sees_an_image_inside_the_prompt(answering):
    """Where a transform of the data set puts it, and no column holds it."""
    (image,), judge = drawn_rows(1)[0]["images"], judge_by(SCORES)
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "3+4?"}]
    rows = Dataset.from_list(drawn_rows(2)).select_columns("prompt")
    asked = rows.with_transform(
        lambda batch: {"prompt": [[{"role": "user", "content": parts}] for _ in batch["prompt"]]}
    )
    trainer = answering(rows=asked, judge=judge, log_completions=True)
    trainer.train()
    assert {len(request.images) for request in judge.asked} == {1}
    assert {len(question.images) for question in read_questions(trainer.args.output_dir, 1)} == {1}  # of the report


def test_a_reply_that_cannot_be_read_is_asked_for_once_more(logged):
    """ "one" is read the second time, "two" never, "three" fails: these two are neutral, g = 1."""

    def said(request, times):
        response = candidate(request)
        if "three" in response:
            return Failure("gone")
        if "two" in response or ("one" in response and times % 2 == 0):
            return "I like it."
        return reply(SCORES["one" if "one" in response else "five"])

    judge = Scripted(said)
    log = logged(WORKED, judge=judge, per_device_train_batch_size=4)
    times = {name: sum(name in candidate(request) for request in judge.asked) for name in SCORES}
    assert times == {"one": 2, "two": 2, "three": 2, "five": 1}
    seeds = [request.seed for request in judge.asked if "two" in candidate(request)]
    assert seeds[0] != seeds[1]
    assert log["judge/neutral"] == 0.5
    assert log["judge/score"] == 0.5  # of those read: 1 and 0
    expected = [0.75 * 1.03163, 0.75, 0.75, 0.25 * 0.93604]
    assert log["rewards/agreement_reward/mean"] == pytest.approx(sum(expected) / 4, abs=1e-5)


@pytest.mark.parametrize("advantages", ["grpo", "log_sum_exp"])
def test_what_the_judge_alone_cannot_pay_is_left_out(advantages, answering):
    """Without a vote an unread reply is no reward: the others' advantages are those of a group of three."""
    judge = Scripted(
        lambda request, _: "?" if "three" in candidate(request) else reply(0.9 * ("one" in candidate(request)))
    )
    trainer = answering(judge=judge, vote="none", advantages=advantages, loss_type="dapo")
    received = received_by_the_loss(trainer)
    known = [0.9, 0.0, 0.0]
    expected = normalised(known) if advantages == "grpo" else log_sum_exp_advantages(torch.tensor([known]))[0].tolist()
    assert sorted(received.tolist()) == pytest.approx(sorted([*expected, 0.0] * 2), abs=1e-4)


def test_a_response_sampled_twice_is_judged_once(logged):
    judge = judge_by(SCORES)
    logged([WORKED[0]] * 3 + [WORKED[3]], judge=judge, per_device_train_batch_size=4)
    assert sorted(candidate(request) for request in judge.asked) == sorted([WORKED[0], WORKED[3]])


def test_a_judge_of_which_nothing_can_be_read_ends_the_run(logged):
    texts = [rf"<think>{number}</think>\boxed{{4}}" for number in range(64)]
    with pytest.raises(UnsuitableEngine, match="The judge: 64 replies in a row could not be read, the last is 'Good.'"):
        logged(texts, drawn_rows(16), judge=Scripted(lambda *_: "Good."), per_device_train_batch_size=64)
    with pytest.raises(UnsuitableEngine, match="The judge: 64 requests in a row .* because: refused"):
        logged(texts, drawn_rows(16), judge=Scripted(lambda *_: Failure("refused")), per_device_train_batch_size=64)


def test_the_winner_of_the_judge():
    """By the mean of an answer's scores, of what was read; nobody where all are equal or nobody was asked."""
    answers, nan = ["4", "4", "5", None], float("nan")
    assert Group(0, answers, [1.0, 0.2, 0.7, 0.0], [True] * 4).winners(str.__eq__) == (0, 2)
    assert Group(0, answers, [nan, 0.8, 0.7, 0.0], [False, True, True, False]).winners(str.__eq__) == (0, 0)
    assert Group(0, answers, [0.5, 0.5, 0.5, 0.0], [True] * 4).winners(str.__eq__) == (0, None)
    assert Group(0, answers, [0.0, 0.0, 0.0, 0.0], [False] * 4).winners(str.__eq__) == (0, None)
    assert Group(0, ["4", "4"], [0.0, 0.0], [False] * 2).winners(str.__eq__) == (0, None)
    assert Group(0, [None], [0.0], [False]).winners(str.__eq__) == (None, None)


def test_a_letter_and_what_it_stands_for_are_one_answer(logged):
    rows = [{**row, "choices": {"A": "4", "B": "5"}, "answer": "A"} for row in drawn_rows(2)]
    texts = [rf"<think>x</think>\boxed{{{said}}}" for said in ("A", "4", "(a)", "5")]
    log = logged(texts * 2, rows, judge=False)
    assert log["distinct_answers"] == 2
    assert log["rewards/agreement_reward/mean"] == pytest.approx((0.75 * 3 + 0.25) / 4)
    assert log["accuracy"] == 0.75


def test_every_way_of_naming_a_choice_is_one_answer(logged):
    rows = [{**row, "choices": {"A": "24 cm", "B": "30 cm", "C": None}, "answer": "A"} for row in drawn_rows(1)]
    named = ["A", "A. 24 cm", r"\text{A}", "24 cm", "Option A", "(a)", "A: 24 cm"]
    texts = [rf"<think>x</think>\boxed{{{said}}}" for said in [*named, "30 cm"]]
    shared = {"num_generations": 8, "per_device_train_batch_size": 8}
    log = logged(texts, rows, judge=False, **shared)
    assert log["distinct_answers"] == 2
    assert log["rewards/agreement_reward/mean"] == pytest.approx((7 * 7 / 8 + 1 / 8) / 8)
    assert log["accuracy"] == 7 / 8


def test_the_judge_is_asked_as_the_settings_say(logged):
    """Decoding; seeds that differ from step to step, and with the seed of the run."""
    seeds = {}
    for seed in (0, 1):
        judge, decodings = judge_by(SCORES), []
        sample = judge.sample
        judge.sample = lambda requests, sampling_params, sample=sample, seen=decodings: (
            seen.append(sampling_params) or sample(requests, sampling_params)
        )
        settings = {"judge_sampling_temperature": 0.7, "judge_top_p": 0.8, "judge_max_tokens": 33, "seed": seed}
        logged(judge=judge, max_steps=2, **settings)
        assert set(decodings) == {SamplingParams(33, 0.7, 0.8)}
        seeds[seed] = [request.seed for request in judge.asked]
    assert len(set(seeds[0])) == len(seeds[0]) == 16  # two steps, two questions, four responses
    assert not set(seeds[0]) & set(seeds[1])


def test_weights_of_rewards_and_the_grader_count(answering):
    """2·r·g − 0.5·δ; a grader that finds everything right."""

    class Kind:
        def grade_batch(self, items):
            assert all("question" in item and "id" in item for item in items)
            return [Verdict(True, None, "") for _ in items]

    trainer = answering(trainer_kwargs={"grader": Kind()}, reward_weights=[2.0, 1.0])
    received = received_by_the_loss(trainer)
    expected = log_sum_exp_advantages(2 * torch.tensor([REWARDS]))[0].tolist()
    assert sorted(received.tolist()) == pytest.approx(sorted(expected * 2), abs=1e-4)
    assert trainer.state.log_history[0]["accuracy"] == 1.0


def test_a_template_that_opens_the_thoughts(checkpoints, answering):
    """What it wrote belongs to the response; a prompt of text, which it never saw, has none of it."""
    _, processor = load(str(checkpoints("qwen2_5_vl")))
    processor.chat_template += "{% if add_generation_prompt %}<think>{% endif %}"
    texts = [text.removeprefix("<think>") for text in WORKED]
    trainer = answering(texts * 2, trainer_kwargs={"processing_class": processor})
    trainer.train()
    assert trainer.state.log_history[0]["format_violations"] == 0
    ids = [processor.tokenizer(WORKED[0]).input_ids]
    assert trainer.rewards.texts(ids, ["3+4?"]) == WORKED[:1]


def test_metrics_of_the_winners(logged):
    """Three say 4 with scores 0.1, one says 5 with 0.9, and 5 is right: they disagree, and the judge is right."""
    rows = [{**row, "answer": "5"} for row in drawn_rows(2)]
    log = logged(WORKED + [WORKED[0]] * 3 + [WORKED[1]], rows, judge=judge_by({"five": 0.9, "": 0.1}))
    assert log["agreement"] == 0.5  # the second question has one answer, which is everybody's best
    assert log["judge/neutral"] == 0
    assert log["distinct_answers"] == 1.5
    assert log["accuracy"] == 1 / 8
    assert log["sc_winner_accuracy"] == 0.0
    assert log["judge_winner_accuracy"] == 0.5
    assert {*LOGGED, "time/judge", "time/generation"} <= log.keys()  # what the study reads for Table 7


# --------------------------------------------------------------------------------------------------------- no labels


@pytest.mark.full
def test_no_label_is_read(checkpoints, tmp_path, caplog):
    """Permuted, wrong or removed answers change no parameter, bit for bit; only the accuracy that is logged.

    Some of what is written is right, so that a label that was paid for would move the policy.
    """
    answers, results = ["4", "5", "5", "4"], []
    rows = [{**row, "answer": answer} for row, answer in zip(drawn_rows(4), answers, strict=True)]
    permuted = answers[1:] + answers[:1]
    given = [
        rows,
        [{**row, "answer": answer} for row, answer in zip(rows, permuted, strict=True)],
        [{name: value for name, value in row.items() if name != "answer"} for row in rows],
        [{**row, "answer": None} for row in rows],
    ]
    for number, one in enumerate(given):
        trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path / str(number), one)
        written_by_hand(trainer, WORKED * 2)
        trainer.train()
        results.append(weights_of(trainer.model))
        assert ("accuracy" in trainer.state.log_history[0]) == (number < 2)
        assert_weights(results[-1], results[0])
    assert "cannot be used" not in caplog.text  # rows without labels are no bad rows
    start, _ = load(str(checkpoints("qwen2_5_vl")))
    assert changed_weights(start, results[0])


def test_no_reward_function_gets_the_answers(checkpoints, tmp_path):
    seen = []

    def nosy(completions, **columns):
        seen.append(columns)
        return [0.0] * len(completions)

    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"reward_funcs": nosy}, max_steps=1)
    trainer.train()
    assert seen
    assert all("answer" not in columns and "id" in columns for columns in seen)
    assert "answer" not in inspect.signature(trainer.rewards._read).parameters


# ---------------------------------------------------------------------------------------------------------- the judge


def bytes_of_weights(trainer):
    """Bytes that the weights of all models of a trainer take, shared ones once."""
    models = [trainer.model, trainer.ref_model, trainer._judging_copy]
    storages = {
        weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes()
        for model in models
        if model is not None
        for weight in model.parameters()
    }
    return sum(storages.values())


@pytest.mark.full
def test_the_judge_takes_no_memory(checkpoints, tmp_path):
    """With LoRA, and beside the reference; without either it has to have a copy."""
    path, sizes = checkpoints("qwen2_5_vl"), {}
    for name, kwargs, beta in (("lora", LORA, 0.1), ("lora, no KL", LORA, 0.0), ("KL", {}, 0.1), ("neither", {}, 0.0)):
        sizes[name] = [
            bytes_of_weights(trainer_for(path, tmp_path, trainer_kwargs=dict(kwargs), beta=beta, judge=judge))
            for judge in (True, False)
        ]
    moving = trainer_for(path, tmp_path, beta=0.1, sync_ref_model=True, ref_model_sync_steps=1)
    assert moving._judging_copy is not None  # a reference that follows the policy cannot judge as it was
    assert all(sizes[name][0] == sizes[name][1] for name in ("lora", "lora, no KL", "KL"))
    assert sizes["neither"][0] == sizes["KL"][0] == 2 * sizes["neither"][1]


@pytest.mark.parametrize("kind", ["full", "copy", "lora", "adapter"])
def test_the_judge_is_the_policy_as_it_came(kind, family, checkpoints, tmp_path):
    """After training, by its logits on a question; and training continues as before behind it."""
    model, processor = load(str(checkpoints(family)))
    if kind == "adapter":  # one that has learnt something already
        model = get_peft_model(model, LoraConfig(r=4, target_modules=r".*(q_proj|v_proj)"))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.05, generator=torch.Generator().manual_seed(0))
    kwargs = {"processing_class": processor, **(LORA if kind == "lora" else {})}
    trainer = trainer_for(model, tmp_path, trainer_kwargs=kwargs, beta=0.0 if kind in ("copy", "lora") else 0.1)
    ids = torch.tensor([processor.tokenizer("What is 3+4?").input_ids])

    def logits():
        with trainer.judging() as judge, torch.no_grad():
            return judge.model.eval()(input_ids=ids).logits

    before = logits()
    trainable = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    trainer.train()
    torch.testing.assert_close(logits(), before, rtol=0, atol=1e-6)
    with torch.no_grad():
        assert (trainer.model.eval()(input_ids=ids).logits - before).abs().max() > 1e-4
    assert trainable == {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}


@pytest.fixture
def asked_about_everything(monkeypatch):
    """A random model boxes nothing; let the judge be asked about each of its responses all the same."""
    monkeypatch.setattr(rewards_module, "read_response", lambda text: read_response(text)._replace(is_single=True))


@pytest.mark.parametrize("kind", full_but("lora", ["full", "copy", "lora"]))
def test_asking_the_own_judge_changes_nothing_else(kind, family, checkpoints, tmp_path, asked_about_everything):
    """With factors of 1 the weights are those of a run without a judge: it draws from no stream of the policy's."""
    trained = []
    for judge in ({"high_weight": 0.0, "low_weight": 0.0}, {"judge": False}):
        trainer = trainer_for(
            checkpoints(family),
            tmp_path,
            drawn_rows(3),
            trainer_kwargs=dict(LORA) if kind == "lora" else {},
            beta=0.1 if kind == "full" else 0.0,
            judge_batch_size=3,
            **judge,
        )
        trainer.train()
        trained.append(weights_of(trainer.model))
        if judge != {"judge": False}:
            # of 6 tokens no reply can be read, but each was asked for
            assert [entry["judge/neutral"] for entry in trainer.state.log_history[:-1]] == [1.0, 1.0]
            with trainer.judging() as engine:
                assert engine.batch_size == 3
    assert_weights(*trained)


def test_judging_leaves_checkpointing_and_frozen_adapters_as_they_were(checkpoints, tmp_path):
    trainer = trainer_for(
        checkpoints("qwen2_5_vl"),
        tmp_path,
        trainer_kwargs=dict(LORA),
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": True},
    )
    for name, weight in trainer.model.named_parameters():
        if ".layers.0." in name:
            weight.requires_grad_(False)

    def state():
        layers = [module for module in trainer.model.modules() if getattr(module, "gradient_checkpointing", False)]
        functions = [layer._gradient_checkpointing_func for layer in layers]
        trainable = [name for name, weight in trainer.model.named_parameters() if weight.requires_grad]
        return [function.keywords for function in functions], trainable

    trainer.model.gradient_checkpointing_enable(trainer.args.gradient_checkpointing_kwargs)
    before = state()
    assert before[0]
    with trainer.judging():
        pass
    assert state() == before


def test_resumed_or_not_is_the_same(checkpoints, tmp_path, asked_about_everything):
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    assert_resumes(
        lambda: trainer_for(checkpoints("qwen2_5_vl"), tmp_path, drawn_rows(6), **settings), tmp_path, step=1
    )


def test_evaluation_has_groups_of_its_own_size(answering):
    trainer = answering(
        WORKED,
        trainer_kwargs={"eval_dataset": Dataset.from_list(drawn_rows(4))},
        num_generations_eval=2,
        per_device_eval_batch_size=4,
    )
    measured = trainer.evaluate()
    # 4, 4 and then 4, 5: shares of 1, 1, ½, ½
    expected = [1.03163, 1.03163, 0.5 * 0.97317, 0.5 * 0.93604]
    assert measured["eval_rewards/agreement_reward/mean"] == pytest.approx(sum(expected) / 4, abs=1e-5)
    assert "eval_time/generation" in measured


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vote": "borda"}, "vote='borda'"),
        ({"advantages": "z"}, "advantages='z'"),
        ({"vote": "none", "judge": False}, "leave no reward"),
        ({"alpha": 0.0}, "alpha=0.0"),
        ({"low_temperature": -1.0}, "low_temperature=-1.0"),
        ({"format_penalty": -0.5}, "format_penalty=-0.5"),
        ({"low_weight": 1.5}, "low_weight=1.5"),
        ({"centre_advantages": True, "advantages": "grpo"}, "are 'grpo', which are centred already"),
        ({"refill_attempts": 2}, "log-sum-exp advantages are never 0, and no group would give way"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "scale agreement and format alike"),
        ({"actor_prompt": " "}, "actor_prompt is empty"),
        ({"judge_prompt": "null"}, "judge_prompt is None"),
        ({"judge_prompt": ""}, "judge_prompt is empty"),
        ({"judge_batch_size": 0}, "judge_batch_size=0"),
        ({"judge_max_tokens": 0}, "judge_max_tokens=0"),
        ({"alpha": float("nan")}, "alpha=nan"),
        ({"high_threshold": float("nan")}, "high_threshold=nan"),
        ({"judge": False, "low_threshold": 0.3}, "nothing is modulated"),
        ({"vote": "none", "high_weight": 0.1}, "nothing is modulated"),
        ({"advantages": "grpo", "alpha": 2.0}, "alpha=2.0 is for advantages='log_sum_exp'"),
        ({"scale_rewards": False}, "scale_rewards='none' is for advantages='grpo'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SelfEvolutionConfig("out", use_cpu=True, bf16=False, **settings)


def test_trainers_that_make_no_sense_are_refused(checkpoints, tmp_path):
    path = checkpoints("qwen2_5_vl")
    for judge in (lambda conversations: [], TransformersEngine):
        with pytest.raises(TypeError, match="judge is .*, expected an engine. Fix: ServerEngine"):
            trainer_for(path, tmp_path, trainer_kwargs={"judge": judge})
    with pytest.raises(ValueError, match="args.judge=False"):
        trainer_for(path, tmp_path, trainer_kwargs={"judge": judge_by(SCORES)}, judge=False)
    for option, value in (("followup", "Sure?"), ("tools", [print]), ("environment_factory", dict)):
        with pytest.raises(ValueError, match=f"leave `{option}` out"):
            trainer_for(path, tmp_path, trainer_kwargs={option: value})
    for changed in ({"bias": "all"}, {"init_lora_weights": "pissa"}):
        adapter = LoraConfig(r=4, target_modules=["q_proj"], **changed)
        with pytest.raises(ValueError, match="changes the weights below it"):
            trainer_for(path, tmp_path, trainer_kwargs={"peft_config": adapter})
    model, processor = load(str(path))
    with_adapter = get_peft_model(model, LoraConfig(r=4, target_modules=r".*(q_proj|v_proj)"))
    with pytest.raises(ValueError, match="beta=0 keeps no copy of that for the judge"):
        trainer_for(with_adapter, tmp_path, trainer_kwargs={"processing_class": processor}, beta=0.0)


def test_a_system_message_of_the_row_is_not_overwritten(answering):
    row = drawn_rows(1)[0]
    row["prompt"] = [{"role": "system", "content": "Be brief."}, *row["prompt"]]
    with pytest.raises(ValueError, match="system message of its own, 'Be brief.'"):
        answering(rows=[row] * 2, actor_prompt="Think first.")
