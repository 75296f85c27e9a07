"""ChainOfStepGRPOTrainer: what chains earn as it reaches the advantages, in process and through a server."""

import re
from statistics import mean, stdev

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from pooling_stub import pooling_stub
from processes import one_and_two
from short_chains import STEP, chain
from support import (
    SMALL_RUN,
    assert_micro_batches_agree,
    assert_resumes,
    assert_weights,
    changed_weights,
    drawn_rows,
    ids_of,
    load,
    maker,
    recorded_batches,
    train_on_anything,
    untimed,
    weights_of,
)
from trl import GRPOConfig

from trl_mmreason import ChainOfStepGRPOConfig, ChainOfStepGRPOTrainer
from trl_mmreason.chain_of_step.grpo import ChainRewards
from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel, Scores
from trl_mmreason.chain_of_step.process_reward_client import ProcessRewardClient, ProcessRewardServerError
from trl_mmreason.chain_of_step.template import STEP_END
from trl_mmreason.chain_of_step.tokens import trainable_token_indices
from trl_mmreason.compat.model_parts import parts_of
from trl_mmreason.grading import accuracy_reward
from trl_mmreason.messages import text_messages

STEP_PATTERN = re.escape(STEP).replace(re.escape("{}"), "(.*?)")
QUESTION = {"prompt": [{"role": "user", "content": "What is 3+4?"}], "answer": "7", "images": []}
MODEL = "qwen2_5_vl"
RUN = {**SMALL_RUN, "max_steps": 1, "max_completion_length": 256}
make = maker(ChainOfStepGRPOTrainer, ChainOfStepGRPOConfig, **RUN)


class ThoughtScorer:
    """Scores a step as its thought says, an answer of one digit as a tenth of it; remembers what it was asked."""

    settings = {"kind": "thoughts"}

    def __init__(self):
        self.rows = []

    def score(self, rows):
        self.rows += rows
        return [self._score(row["completion"]) for row in rows]

    def _score(self, text):
        thoughts = [float(thought.split()[0]) for thought in re.findall(STEP_PATTERN, text)]
        answer = text.partition("<|answer_start|>")[2].partition("<|answer_end|>")[0]
        return Scores(torch.tensor(thoughts), float(answer) / 10 if answer else None)


def trainer_for(model, folder, process_reward, rows, *, trainer_kwargs=None, **settings):
    """One step on two questions of four chains, in fp32 on a CPU; `settings` override."""
    own = {"process_reward_model": process_reward, **(trainer_kwargs or {})}
    return make(model, folder, rows, trainer_kwargs=own, **settings)


def let_write(trainer, texts):
    """Let the policy write these texts instead of sampling; what looks like a special token is spelt out in pieces."""
    tokenizer = trainer.processing_class.tokenizer
    ids = [tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] for text in texts]
    ids = [[*row, tokenizer.eos_token_id] for row in ids]
    trainer._generate_single_turn = lambda prompt_ids, *_, **__: (ids[: len(prompt_ids)], None)


def step(trainer, texts):
    """One training step on these texts: what was logged, and the batch."""
    batches = recorded_batches(trainer)
    let_write(trainer, texts)
    train_on_anything(trainer)
    return trainer.state.log_history[0], batches[0]


WORKED = chain("0.9", "0.7", "0.8", answer="6")  # 0.2 · 0.8 + 0.8 · 0.6 = 0.64
PARTIAL = chain("1", "0.5", answer=None)  # 0.2 · 0.75
CUT = chain("0.5", "1", answer="9")[: -len("<|answer_end|>")]  # 0.2 · 0.75: the answer is not closed
STEPLESS = "<|answer_start|>5<|answer_end|>"  # 0.8 · 0.5
BROKEN = chain("0.5", "1").replace(STEP_END, "", 2)  # no whole step before the fault
SPELT = chain("1 <|im_end|><|image_pad|>", answer="7")  # as text: 0.2 · 1 + 0.8 · 0.7
TEXTS = [WORKED, PARTIAL, CUT, STEPLESS, BROKEN, "It is 7.", SPELT, chain("0", answer="7")]


def test_rewards_by_hand_reach_the_advantages_and_the_log(bases, tmp_path):
    scorer = ThoughtScorer()
    rows = [QUESTION, {**QUESTION, "prompt": [{"role": "user", "content": "And 4+3?"}]}]
    trainer = trainer_for(bases(MODEL), tmp_path, scorer, rows, scale_rewards="none", shuffle_dataset=False)
    columns, log_extra = {}, trainer._log_completion_extra
    trainer._log_completion_extra = lambda name, values: columns.update({name: values}) or log_extra(name, values)
    logged, batch = step(trainer, TEXTS)

    rewards = [0.64, 0.15, 0.15, 0.4, 0, 0, 0.76, 0.56]
    advantages = [r - sum(group) / 4 for group in (rewards[:4], rewards[4:]) for r in group]
    assert sorted(batch["advantages"].tolist()) == pytest.approx(sorted(advantages), abs=1e-6)
    assert columns["problem"] == ["", "no_answer", "malformed", "no_step", "malformed", "no_chain", "", ""]
    assert columns["correct"] == [False] * 6 + [True] * 2  # 6, none, none, 5, none, none, 7, 7
    assert columns["step_scores"] == ["0.900 0.700 0.800", "1.000 0.500", "0.500 1.000", "", "", "", "1.000", "0.000"]
    assert columns["answer_score"] == ["0.600", "", "", "0.500", "", "", "0.700", "0.700"]
    expected = {
        "reward": sum(rewards) / 8,
        "rewards/trajectory_reward/mean": sum(rewards) / 8,
        "trajectory_score": sum(rewards) / 8,
        "step_score": (0.8 + 0.75 + 0.75 + 1 + 0) / 5,
        "answer_score": (0.6 + 0.5 + 0.7 + 0.7) / 4,
        "steps": (3 + 2 + 2 + 0 + 0 + 0 + 1 + 1) / 8,
        "accuracy": 2 / 8,  # 6, none, none, 5, none, none, 7, 7
        "chain/complete": 3 / 8,
        "chain/no_answer": 1 / 8,
        "chain/malformed": 2 / 8,
        "chain/no_step": 1 / 8,
        "chain/no_chain": 1 / 8,
        "grading/no_answer": 4 / 8,
    }
    assert {name: logged[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    # what has nothing to score is not sent, and the chains are sent as far as they can be read
    sent = [WORKED, PARTIAL, chain("0.5", "1", answer=None), STEPLESS, SPELT, chain("0", answer="7")]
    assert [row["completion"] for row in scorer.rows] == sent
    assert {row["prompt"][0]["content"] for row in scorer.rows} == {"What is 3+4?", "And 4+3?"}


def test_each_step_is_paid_its_own_score(bases, tmp_path):
    rows = [QUESTION, {**QUESTION, "prompt": [{"role": "user", "content": "And 4+3?"}]}]
    trainer = trainer_for(bases(MODEL), tmp_path, ThoughtScorer(), rows, step_credit=True, loss_type="dapo")
    logged, batch = step(trainer, TEXTS)

    def z(score, scores):
        return (score - mean(scores)) / (stdev(scores) + 1e-4)

    steps = [[0.9, 0.7, 0.8, 1, 0.5, 0.5, 1], [1, 0]]  # of the first four texts and of the others
    answers = [[0.6, 0.5], [0.7, 0.7]]
    paid = [
        [*(z(score, steps[0]) for score in (0.9, 0.7, 0.8)), z(0.6, answers[0])],
        *([z(score, steps[0]) for score in pair] for pair in ((1, 0.5), (0.5, 1))),
        [z(0.5, answers[0])],
        *([], []),
        *([z(score, steps[1]), 0] for score in (1, 0)),
    ]
    tokens = trainer.processing_class.tokenizer.convert_tokens_to_ids([STEP_END, "<|answer_end|>"])
    for place, (trajectory, expected) in enumerate(zip(trainer.trajectories, paid, strict=True)):
        ids = trajectory.completion_ids
        by_token, part = [], 0
        for token in ids:
            by_token.append(expected[part] if part < len(expected) else 0)
            part += token in tokens
        if place == 4:  # malformed: nothing is scored, though something is closed
            assert part
        assert batch["advantages"][place][: len(ids)].tolist() == pytest.approx(by_token, abs=1e-4)
    # the first loss is −mean(advantage): the ratio is 1
    mask = batch["completion_mask"] * batch["tool_mask"] if "tool_mask" in batch else batch["completion_mask"]
    assert logged["loss"] == pytest.approx(-(batch["advantages"] * mask).sum().item() / mask.sum().item(), abs=1e-5)
    assert logged["reward"] == pytest.approx(sum([0.64, 0.15, 0.15, 0.4, 0, 0, 0.76, 0.56]) / 8)


@pytest.mark.parametrize(
    ("process_reward", "settings"),
    [(None, {}), (ThoughtScorer(), {"step_weight": 0.5}), (ThoughtScorer(), {"reward_funcs": [accuracy_reward]})],
)
def test_credit_of_steps_needs_their_scores_alone(bases, tmp_path, process_reward, settings):
    added = {"reward_funcs": settings.pop("reward_funcs", None)}
    with pytest.raises(ValueError, match="step_credit=True pays each step's tokens its own score"):
        trainer_for(
            *(bases(MODEL), tmp_path, process_reward, [QUESTION]), trainer_kwargs=added, step_credit=True, **settings
        )


def test_the_worked_example_of_the_specification(bases):
    rewards = ChainRewards(load(bases(MODEL))[1], ThoughtScorer())
    ids = [ids_of(rewards.processing_class, WORKED)]
    assert rewards.function(prompts=[QUESTION["prompt"]], completion_ids=ids) == pytest.approx([0.64])
    for weight, expected in ((0.0, 0.6), (1.0, 0.8)):
        rewards = ChainRewards(rewards.processing_class, ThoughtScorer(), step_weight=weight)
        assert rewards.function(prompts=["What?"], completion_ids=ids) == pytest.approx([expected])


@pytest.mark.full
def test_a_server_pays_what_a_model_in_process_pays(family, bases, tmp_path):
    """A step with two images or none per row, on chains that spell no special token."""
    prm = ProcessRewardModel.from_pretrained(bases(family), device="cpu")
    rows = drawn_rows(6)[1:3]
    texts = [WORKED if text == SPELT else text for text in TEXTS]
    advantages, weights = [], []
    with pooling_stub(prm) as server:
        for number, source in enumerate([prm, server.url]):
            trainer = trainer_for(bases(family), tmp_path / str(number), source, rows, scale_rewards="none")
            before = weights_of(trainer.model)
            logged, batch = step(trainer, texts)
            assert changed_weights(trainer.model, before)
            assert 0 < logged["step_score"] < 1
            advantages.append(batch["advantages"])
            weights.append(weights_of(trainer.model))
    torch.testing.assert_close(*advantages, atol=1e-5, rtol=0)
    assert len(set(advantages[0].tolist())) > 5
    assert_weights(*weights, atol=1e-4)


def test_the_reward_is_the_score_of_the_question_with_its_images(bases, tmp_path):
    """As computed from the rows, before TRL has put the images into the messages."""
    prm = ProcessRewardModel.from_pretrained(bases(MODEL), device="cpu")
    rows = drawn_rows(6)[:2]  # one image, and two
    completion = chain("3", "4")
    expected = []
    for row in rows:
        ((steps, answer),) = prm.score([{**row, "completion": completion}])
        expected.append(0.2 * steps.mean().item() + 0.8 * answer)
    assert abs(expected[0] - expected[1]) > 1e-4
    trainer = trainer_for(bases(MODEL), tmp_path, prm, rows, shuffle_dataset=False)
    paid, calculate = [], trainer._calculate_rewards
    trainer._calculate_rewards = lambda *args: paid.append(calculate(*args)) or paid[-1]
    step(trainer, [completion] * 8)
    assert paid[0].flatten().tolist() == pytest.approx([e for e in expected for _ in range(4)], abs=1e-5)


def test_the_reward_model_sees_an_image_inside_the_prompt(bases, tmp_path):
    """Where a transform of the data set puts it, and no column holds it."""
    ((image,), scorer) = drawn_rows(1)[0]["images"], ThoughtScorer()
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "3+4?"}]
    rows = Dataset.from_list(drawn_rows(2)).select_columns("prompt")
    asked = rows.with_transform(
        lambda batch: {"prompt": [[{"role": "user", "content": parts}] for _ in batch["prompt"]]}
    )
    step(trainer_for(bases(MODEL), tmp_path, scorer, asked), [WORKED] * 8)
    assert {len(row["images"]) for row in scorer.rows} == {1}


def test_sampling_for_real_and_evaluation(bases, tmp_path):
    """A random policy writes no chain, and earns nothing for it."""
    settings = {"max_completion_length": 8, "per_device_eval_batch_size": 8}
    settings["trainer_kwargs"] = {"eval_dataset": Dataset.from_list(drawn_rows(2))}
    trainer = trainer_for(bases(MODEL), tmp_path, ThoughtScorer(), drawn_rows(6), **settings)
    train_on_anything(trainer)
    logged = trainer.state.log_history[0]
    assert logged["reward"] == logged["chain/complete"] == 0
    evaluated = trainer.evaluate()
    for name in ("steps", "chain/complete", "trajectory_score", "accuracy"):
        assert evaluated[f"eval_{name}"] == 0


@pytest.mark.parametrize(("weight", "worked", "partial"), [(0.5, 0.7, 0.375), (1.0, 0.8, 0.75), (0.0, 0.6, 0.0)])
def test_the_step_weight_reaches_the_rewards(weight, worked, partial, bases, tmp_path):
    """WORKED has steps of 0.8 in the mean and an answer of 0.6, PARTIAL steps of 0.75 and no answer."""
    settings = {"scale_rewards": "none", "step_weight": weight}
    trainer = trainer_for(bases(MODEL), tmp_path, ThoughtScorer(), [QUESTION] * 2, **settings)
    logged, batch = step(trainer, [WORKED, PARTIAL, WORKED, PARTIAL] * 2)
    assert logged["reward"] == pytest.approx((worked + partial) / 2)
    half = (worked - partial) / 2
    assert sorted(batch["advantages"].tolist()) == pytest.approx([-half] * 4 + [half] * 4, abs=1e-6)


def test_step_tokens_are_those_from_opening_to_closing_token(bases, tmp_path):
    trainer = trainer_for(bases(MODEL), tmp_path, ThoughtScorer(), [QUESTION] * 2)
    long = "1 for I have looked twice"
    logged, _ = step(trainer, [chain("1", long), "It is 7."] * 4)
    lengths = [len(ids_of(trainer.processing_class, STEP.format(thought))) for thought in ("1", long)]
    assert lengths[1] > lengths[0] > 8  # eight tokens of the template, and the texts
    assert logged["step_tokens"] == pytest.approx(sum(lengths) / 2)


def test_the_reward_by_outcome(bases, tmp_path):
    rows = [{**QUESTION, "answer": ["7"], "id": "a"}, {**QUESTION, "answer": ["8", "7"], "id": "b"}]
    trainer = trainer_for(bases(MODEL), tmp_path, None, rows, scale_rewards="none", shuffle_dataset=False)
    right, wrong = chain("1"), chain("1", answer="9")
    logged, batch = step(trainer, [right, wrong, "It is 7.", STEPLESS, right, right, right, chain("1", answer="8")])
    assert sorted(batch["advantages"].tolist()) == pytest.approx(sorted([0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0]))
    assert logged["reward"] == logged["accuracy"] == logged["rewards/outcome_reward/mean"] == 5 / 8
    assert logged["chain/complete"] == 6 / 8
    assert "trajectory_score" not in logged


def test_an_unusable_gold_trains_nothing_by_outcome_and_trains_by_scores(bases, tmp_path):
    rows = [{**QUESTION, "answer": " "}] * 2
    texts = [WORKED, PARTIAL, CUT, STEPLESS] * 2
    logged, _ = step(trainer_for(bases(MODEL), tmp_path / "a", None, rows), texts)
    assert logged["grad_norm"] == 0
    assert logged["grading/unusable_gold"] == 1
    logged, _ = step(trainer_for(bases(MODEL), tmp_path / "b", ThoughtScorer(), rows), texts)
    assert logged["grad_norm"] > 0
    assert "accuracy" not in logged


def test_an_unusable_gold_stays_out_of_the_others_deviation(bases, tmp_path):
    """An added reward pays the rows of the unusable one 100, which must move nothing."""
    rows = [QUESTION, {**QUESTION, "answer": ""}]
    added = {"reward_funcs": lambda answer, **_: [0.0 if gold else 100.0 for gold in answer]}
    # with the loss of the equation, the kept would share the weight of the unusable
    settings = {"scale_rewards": "batch", "shuffle_dataset": False, "loss_type": "dapo", "trainer_kwargs": added}
    right, wrong = chain("1"), chain("1", answer="9")
    logged, batch = step(trainer_for(bases(MODEL), tmp_path, None, rows, **settings), [right, wrong, wrong, wrong] * 2)
    # 1, 0, 0, 0 around 0.25; their deviation is sqrt((0.75² + 3 · 0.25²) / 3) = 0.5
    assert sorted(batch["advantages"].tolist()) == pytest.approx([-0.5] * 3 + [0] * 4 + [1.5], abs=1e-3)
    assert logged["accuracy"] == 0.25
    assert logged["grading/unusable_gold"] == 0.5


def test_answers_are_not_needed_with_a_process_reward(bases, tmp_path):
    rows = [{name: QUESTION[name] for name in ("prompt", "images")}] * 2
    logged, _ = step(trainer_for(bases(MODEL), tmp_path, ThoughtScorer(), rows), [WORKED] * 8)
    assert logged["reward"] == pytest.approx(0.64)
    assert "accuracy" not in logged


def test_an_added_reward_counts_and_needs_a_name_of_its_own(bases, tmp_path):
    added = {"reward_funcs": lambda completions, **_: [1.0] * len(completions)}
    settings = {"reward_weights": [1.0, 10.0], "trainer_kwargs": added}
    trainer = trainer_for(bases(MODEL), tmp_path, ThoughtScorer(), [QUESTION] * 2, **settings)
    assert step(trainer, [WORKED] * 8)[0]["reward"] == pytest.approx(10.64)

    def outcome_reward(completions, **_):
        return [0.0] * len(completions)

    with pytest.raises(ValueError, match=r"names of built-in rewards, \['outcome_reward'\]"):
        trainer_for(bases(MODEL), tmp_path, None, [QUESTION], trainer_kwargs={"reward_funcs": outcome_reward})
    trainer_for(bases(MODEL), tmp_path, None, [QUESTION] * 2, trainer_kwargs={"reward_funcs": accuracy_reward})


def test_gradient_accumulation_does_not_change_the_update(bases, tmp_path):
    def trained(**settings):
        run = {"optim": "sgd", "learning_rate": 0.1, "loss_type": "grpo", **settings}
        trainer = trainer_for(bases(MODEL), tmp_path, ThoughtScorer(), drawn_rows(6), **run)
        step(trainer, TEXTS)
        return trainer

    assert_micro_batches_agree(trained, (8, 2))


def test_lora_trains_and_leaves_the_base_and_the_frozen_encoder(bases, tmp_path):
    lora = {"r": 2, "target_modules": "all-linear", "exclude_modules": ["lm_head"], "init_lora_weights": "gaussian"}
    lora["trainable_token_indices"] = trainable_token_indices(load(bases(MODEL))[0])
    settings = {"freeze_vision_encoder": True, "trainer_kwargs": {"peft_config": LoraConfig(**lora)}}
    settings["beta"] = 0.1  # the reference pass switches the adapter off and on
    trainer = trainer_for(bases(MODEL), tmp_path, ThoughtScorer(), drawn_rows(6)[:2], **settings)
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    place = parts_of(trainer.model)
    assert {place[name] for name in trained} == {"projector", "language"}
    before = weights_of(trainer.model)
    step(trainer, TEXTS)
    changed = changed_weights(trainer.model, before)
    assert changed
    assert changed <= trained
    assert {name for name, weight in trainer.model.named_parameters() if weight.requires_grad} == trained


@pytest.mark.full
def test_a_resumed_run_is_on_course(bases, tmp_path):
    def trainer():
        settings = {"save_steps": 1, "save_strategy": "steps", "max_steps": 2}
        made = trainer_for(bases("internvl"), tmp_path, ThoughtScorer(), drawn_rows(6), **settings)
        let_write(made, TEXTS)
        return made

    assert_resumes(trainer, tmp_path, step=1)


def written(place):
    """Three groups of four; whole, partial, stepless or no chains of one to three steps."""
    thoughts = [f"0.{(place * k) % 10} {'so ' * (place % 4)}" for k in range(1, 2 + place % 3)]
    whole = chain(*thoughts, answer=place % 10)
    return [whole, whole, chain(*thoughts, answer=None), whole[:-7], "<|answer_start|>3<|answer_end|>", "hm"][place % 6]


def one_share(model, folder, rows_a_process):
    """A step on chains that follow from their place among those of all processes."""
    scorer = ThoughtScorer()
    settings = {"per_device_train_batch_size": rows_a_process, "optim": "sgd", "learning_rate": 1.0}
    trainer = trainer_for(model, folder, scorer, drawn_rows(24), **settings)
    first = trainer.accelerator.process_index * rows_a_process
    logged, batch = step(trainer, [written(place) for place in range(first, first + rows_a_process)])
    return {
        "world_size": trainer.accelerator.num_processes,
        "advantages": batch["advantages"],
        "scored": len(scorer.rows),
        "logged": untimed(logged),
        "weights": weights_of(trainer.model),
    }


@pytest.mark.full
def test_two_processes_equal_one(bases, tmp_path):
    alone, pair = one_and_two(one_share, bases(MODEL), tmp_path, 12)
    together = torch.cat([part["advantages"] for part in pair])
    torch.testing.assert_close(together, alone["advantages"])
    assert len(set(alone["advantages"].tolist())) > 4
    for part in pair:
        assert_weights(part["weights"], alone["weights"], atol=1e-5)
    assert pair[0]["logged"] == pytest.approx(alone["logged"], abs=1e-6)
    assert {"steps", "step_tokens", "step_score", "answer_score", "accuracy", "chain/no_step"} <= alone["logged"].keys()
    scored = [part["scored"] for part in pair]
    assert scored[0] + scored[1] == alone["scored"]  # each scores its own share
    assert 0 < scored[0] < alone["scored"]


def test_prompts_are_messages_with_texts():
    parts = [{"type": "image", "image": "…"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    assert text_messages(prompt) == [{"role": "system", "content": "s"}, {"role": "user", "content": "ab"}]
    assert text_messages("a") == [{"role": "user", "content": "a"}]


# ---------------------------------------------------------------------------------------------------------- arguments


def test_the_defaults_that_the_paper_leaves_open(tmp_path):
    config = ChainOfStepGRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    assert (config.beta, config.temperature, config.top_p, config.max_completion_length) == (0, 1, 1, 1024)
    assert config.generation_batch_size % config.num_generations == 0
    epochs = ChainOfStepGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, num_train_epochs=1, max_steps=-1)
    assert (epochs.num_train_epochs, epochs.max_steps) == (1, -1)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"step_weight": 1.5}, "step_weight is 1.5, expected 0 to 1"),
        ({"num_train_epochs": 1}, "num_train_epochs=1 has no effect beside max_steps=100, .* or set max_steps=-1"),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path, settings, problem):
    with pytest.raises(ValueError, match=problem):
        ChainOfStepGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **settings)


def test_wrong_arguments(bases, checkpoints, tmp_path):
    with pytest.raises(ValueError, match=r"lacks the tokens .* Train it with ChainOfStepSFTTrainer first"):
        trainer_for(checkpoints(MODEL), tmp_path, ThoughtScorer(), [QUESTION])
    with pytest.raises(TypeError, match="args is of type GRPOConfig, expected ChainOfStepGRPOConfig"):
        ChainOfStepGRPOTrainer(bases(MODEL), None, args=GRPOConfig(str(tmp_path), use_cpu=True, bf16=False))
    with pytest.raises(ValueError, match=r"has the columns \['prompt'\], expected `prompt` and `answer`"):
        trainer_for(bases(MODEL), tmp_path, None, [{"prompt": QUESTION["prompt"]}])
    with pytest.raises(ValueError, match="step_weight=0.5 weighs the scores of a process reward model, and there is"):
        trainer_for(bases(MODEL), tmp_path, None, [QUESTION], step_weight=0.5)
    with pytest.raises(TypeError, match="got a int, expected a ProcessRewardModel"):
        trainer_for(bases(MODEL), tmp_path, 3, [QUESTION])


def test_an_address_without_a_server_shows_before_training(bases, tmp_path):
    client = ProcessRewardClient("http://127.0.0.1:9", retries=0)
    with pytest.raises(ProcessRewardServerError, match="no answer from http://127.0.0.1:9/v1/models"):
        trainer_for(bases(MODEL), tmp_path, client, [QUESTION])


def test_the_model_card_names_the_paper(bases, tmp_path):
    trainer = trainer_for(bases(MODEL), tmp_path, bases(MODEL), [QUESTION] * 2)
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text()
    assert "2509.19003" in card
    assert "chain-of-step" in card.split("tags:")[1]
