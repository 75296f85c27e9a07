"""SRPOTrainer: real policies of every family, rewards as they reach the advantages, options and ablations."""

import math

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from support import (
    assert_micro_batches_agree,
    assert_weights,
    changed_weights,
    ids_of,
    load,
    recorded_batches,
    srpo_trainer,
    train_on_anything,
    weights_of,
    written_by_hand,
)
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from trl_mmreason import SRPOTrainer
from trl_mmreason.evaluation.curves import all_panels, draw_curves
from trl_mmreason.grading import Verdict, accuracy_reward

RIGHT = "<think>3+4=7</think> <answer>7</answer>"
WRONG = "<think>3+4=8</think> <answer>8</answer>"
CHECK = " <reflection>I check it.</reflection> "
KEPT, CORRECTED = RIGHT + CHECK + RIGHT, WRONG + CHECK + RIGHT
FAILED, SPOILT = WRONG + CHECK + WRONG, RIGHT + CHECK + WRONG
ROW = {"prompt": [{"role": "user", "content": "What is 3+4?"}], "answer": "7", "images": []}


@pytest.fixture
def trainer_on(checkpoints, tmp_path):
    """Make trainers of one family, by default on two copies of `ROW`."""

    def make(rows=None, **settings):
        return srpo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows or [ROW] * 2, **settings)

    return make


def step(trainer, texts):
    """One training step on these texts, and what was logged."""
    written_by_hand(trainer, texts)
    train_on_anything(trainer)
    return trainer.state.log_history[0]


def test_a_step_with_every_family(family, checkpoints, rows, tmp_path):
    """An image, two images or none a row; what is sampled is random, so the form is what earns."""
    trainer = srpo_trainer(checkpoints(family), tmp_path, rows, max_completion_length=24, max_steps=2)
    before = weights_of(trainer.model)
    texts = [KEPT, WRONG, "8", CORRECTED] * 2
    logged = step(trainer, texts)
    assert logged["response/complete"] == 0.5
    assert logged["response/missing"] == 0.5
    assert changed_weights(trainer.model, before)


def test_sampling_for_real(rows, trainer_on):
    trainer = trainer_on(rows, max_completion_length=8)
    train_on_anything(trainer)
    logged = trainer.state.log_history[0]
    assert logged["response/complete"] == 0  # a random policy
    assert 1 <= logged["length_response"] <= 8


def test_advantages_follow_the_total(trainer_on):
    """Totals without brevity: kept 1.5, corrected 1.25, failed 0.75, spoilt 1.0; their mean is 1.125."""
    trainer = trainer_on(brevity_coef=0.0, scale_rewards="none")
    batches = recorded_batches(trainer)
    logged = step(trainer, [KEPT, CORRECTED, FAILED, SPOILT] * 2)
    expected = [0.375, 0.125, -0.375, -0.125] * 2
    assert sorted(batches[0]["advantages"].tolist()) == pytest.approx(sorted(expected))
    assert logged["reward"] == pytest.approx(1.125)
    assert logged["rewards/effectiveness_reward/mean"] == pytest.approx(0.125)
    for name in ("kept_share", "correction_share", "failed_share", "misjudgment_share"):
        assert logged[name] == 0.25
    assert logged["acc_t1"] == 0.5
    assert logged["acc_t2"] == 0.5


def test_brevity_is_part_of_the_total(checkpoints, trainer_on):
    """KEPT and its end are T_target tokens, f_len = 1; RIGHT is (T_max - T_target) / 2 shorter, exp(-1/2)² = 1/e."""
    processor = load(checkpoints("qwen2_5_vl"))[1]
    long, short = (len(ids_of(processor, text)) + 1 for text in (KEPT, RIGHT))
    lengths = {"target_response_tokens": long, "max_response_tokens": long + 2 * (long - short)}
    trainer = trainer_on(brevity_coef=0.4, scale_rewards="none", **lengths)
    batches = recorded_batches(trainer)
    logged = step(trainer, [KEPT, KEPT, RIGHT, RIGHT] * 2)
    kept, alone = 1.5 + 0.4, 1.0 + 0.4 / math.e
    assert logged["reward"] == pytest.approx((kept + alone) / 2)
    half = (kept - alone) / 2
    assert sorted(batches[0]["advantages"].tolist()) == pytest.approx([-half] * 4 + [half] * 4, abs=1e-5)


def test_without_the_reflection_reward_only_the_first_solution_pays(trainer_on):
    trainer = trainer_on(reflection_reward=False)
    logged = step(trainer, [KEPT, CORRECTED, FAILED, SPOILT] * 2)
    assert logged["reward"] == pytest.approx(0.75)  # 1, 0.5, 0.5, 1
    assert "rewards/effectiveness_reward/mean" not in logged
    assert logged["correction_share"] == 0.25  # measured all the same


@pytest.mark.full
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"])
def test_every_loss_of_trl(trainer_on, loss_type):
    """The updates of TRL's own trainer with the totals of `test_advantages_follow_the_total` as rewards."""
    totals = {KEPT: 1.5, CORRECTED: 1.25, FAILED: 0.75, SPOILT: 1.0}
    settings = {"importance_sampling_level": "sequence"} if loss_type == "luspo" else {}
    ours = trainer_on(loss_type=loss_type, brevity_coef=0.0, optim="sgd", learning_rate=0.1, **settings)
    fields = GRPOConfig.__dataclass_fields__
    given = {name: getattr(ours.args, name) for name in fields if fields[name].init}
    theirs = GRPOTrainer(
        ours.model.name_or_path,
        reward_funcs=lambda completions, **_: [totals[said[0]["content"]] for said in completions],
        args=GRPOConfig(**given | {"generation_batch_size": None}),  # derived from the others
        train_dataset=Dataset.from_list([ROW] * 2),
    )
    logged, expected = (step(trainer, list(totals) * 2) for trainer in (ours, theirs))
    for name in ("loss", "reward", "grad_norm"):
        assert logged[name] == pytest.approx(expected[name], abs=1e-5)
    assert_weights(ours.model, theirs.model, atol=1e-6)


def test_an_unusable_gold_trains_nothing(trainer_on):
    rows = [{**ROW, "answer": " "}] * 2
    trainer = trainer_on(rows)
    logged = step(trainer, [KEPT, "7", FAILED, SPOILT] * 2)
    assert logged["grad_norm"] == 0
    assert logged["grading/unusable_gold"] == 1


def test_an_added_reward_counts(trainer_on):
    trainer = trainer_on(
        brevity_coef=0.0,
        reward_weights=[1.0] * 5 + [10.0],
        trainer_kwargs={"reward_funcs": lambda completions, **_: [1.0] * len(completions)},
    )
    assert step(trainer, [KEPT] * 8)["reward"] == pytest.approx(11.5)


def test_the_prompt_asks_for_the_format_and_the_rows_stay_as_they_are(rows, trainer_on):
    trainer = trainer_on(rows, reflection_prompt="Reflect.")
    prompts = []
    tokenize = trainer._tokenize_prompts
    trainer._tokenize_prompts = lambda given: prompts.extend(given) or tokenize(given)
    step(trainer, [KEPT] * 8)
    assert all(
        [message["role"] for message in prompt] == ["system", "user"]
        and "Reflect." in str(prompt[0]["content"])
        and "Reflect." not in str(prompt[1])
        for prompt in prompts
    )
    assert [message["role"] for message in trainer.train_dataset[0]["prompt"]] == ["user"]


def test_a_system_message_of_the_row_is_not_overwritten(checkpoints, tmp_path):
    row = {**ROW, "prompt": [{"role": "system", "content": "Be brief."}, *ROW["prompt"]]}
    with pytest.raises(ValueError, match="system message of its own, 'Be brief.'"):
        srpo_trainer(checkpoints("qwen2_5_vl"), tmp_path / "a", [row] * 2, reflection_prompt="Reflect.")
    kept = srpo_trainer(checkpoints("qwen2_5_vl"), tmp_path / "b", [row] * 2, reflection_prompt=None)
    assert step(kept, [KEPT] * 8)["acc_t1"] == 1


def test_a_lost_image_of_a_raw_data_set_is_named(checkpoints, tmp_path):
    rows = [{**ROW, "images": [str(tmp_path / "lost.png")]}] * 2
    trainer = srpo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    with pytest.raises(FileNotFoundError, match=r"lost\.png' does not exist here .*load_rows, which checks all rows"):
        trainer.train()


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_vision_encoder_can_be_frozen(family, checkpoints, rows, tmp_path, lora):
    lora_config = LoraConfig(
        r=2, target_modules="all-linear", exclude_modules=["lm_head"], init_lora_weights="gaussian"
    )
    trainer = srpo_trainer(
        checkpoints(family),
        tmp_path,
        [{**rows[0], "answer": "7"}] * 8,  # with an image
        freeze_vision_encoder=True,
        trainer_kwargs={"peft_config": lora_config if lora else None},
    )
    trained = [name for name, weight in trainer.model.named_parameters() if weight.requires_grad]
    assert trained
    assert not [name for name in trained if "visual." in name or "vision_tower." in name]
    before = weights_of(trainer.model)
    step(trainer, [KEPT, CORRECTED, FAILED, SPOILT] * 2)
    changed = changed_weights(trainer.model, before)
    assert changed
    assert changed <= set(trained)
    assert [name for name, weight in trainer.model.named_parameters() if weight.requires_grad] == trained


def test_gradient_accumulation_does_not_change_the_update(checkpoints, rows, tmp_path):
    def trained(**settings):
        run = {"optim": "sgd", "learning_rate": 0.1, "loss_type": "grpo", **settings}
        trainer = srpo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, **run)
        step(trainer, [KEPT, CORRECTED, FAILED, SPOILT, WRONG, KEPT, "8", RIGHT])
        return trainer

    assert_micro_batches_agree(trained)


def test_evaluate_logs_the_same_metrics(trainer_on):
    trainer = trainer_on(per_device_eval_batch_size=8, trainer_kwargs={"eval_dataset": Dataset.from_list([ROW] * 2)})
    written_by_hand(trainer, [KEPT, CORRECTED, FAILED, SPOILT] * 2)
    logged = trainer.evaluate()
    assert logged["eval_acc_t2"] == 0.5
    assert logged["eval_correction_share"] == 0.25


def test_another_grader(trainer_on):
    class Generous:
        def grade_batch(self, items):
            return [Verdict(True, None, "") for _ in items]

    trainer = trainer_on(brevity_coef=0.0, trainer_kwargs={"grader": Generous()})
    assert step(trainer, [FAILED] * 8)["reward"] == pytest.approx(1.5)


@pytest.mark.full
def test_the_lengths_of_the_configuration_reach_the_reward(checkpoints, tmp_path):
    """KEPT and the end of its turn are L tokens; with T_target = L + 5 and T_max = L + 15, f_len = exp(-1/2)²."""
    model = checkpoints("qwen2_5_vl")
    tokens = len(ids_of(load(model)[1], KEPT)) + 1
    settings = {"target_response_tokens": tokens + 5, "max_response_tokens": tokens + 15, "brevity_coef": 1.0}
    logged = step(srpo_trainer(model, tmp_path / "a", [ROW] * 2, **settings), [KEPT] * 8)
    assert logged["rewards/brevity_reward/mean"] == pytest.approx(math.exp(-1), abs=1e-4)
    first = len(ids_of(load(model)[1], RIGHT))
    settings = {"target_ratio": tokens / first, "max_ratio": tokens / first + 1, "brevity_coef": 1.0}
    logged = step(srpo_trainer(model, tmp_path / "b", [ROW] * 2, **settings), [KEPT] * 8)
    assert logged["rewards/brevity_reward/mean"] == pytest.approx(1, abs=1e-4)


def test_an_unusable_gold_stays_out_of_the_others_deviation(trainer_on):
    """One question's gold is unusable; an added reward pays its rows 100, which must move nothing."""
    rows = [ROW, {**ROW, "answer": ""}]
    trainer = trainer_on(
        rows,
        scale_rewards="batch",
        loss_type="dapo",  # a mean over trajectories would count the kept ones twice, as only half are kept
        brevity_coef=0.0,
        trainer_kwargs={"reward_funcs": lambda answer, **_: [0.0 if gold else 100.0 for gold in answer]},
    )
    batches = recorded_batches(trainer)
    step(trainer, [KEPT, CORRECTED, FAILED, SPOILT] * 2)
    # 1.5, 1.25, 0.75, 1.0 around 1.125; their deviation is sqrt((2 * 0.375² + 2 * 0.125²) / 3) = 0.3227
    advantages = sorted(value for value in batches[0]["advantages"].tolist() if value)
    assert advantages == pytest.approx([d / 0.3227 for d in (-0.375, -0.125, 0.125, 0.375)], abs=2e-3)


def test_a_processor_that_is_passed_is_used(checkpoints, tmp_path):
    _, processor = load(checkpoints("qwen2_5_vl"))
    processor.chat_template = "Here comes: " + processor.chat_template
    trainer = srpo_trainer(
        checkpoints("qwen2_5_vl"), tmp_path, [ROW] * 2, trainer_kwargs={"processing_class": processor}
    )
    prompts = []
    tokenize = trainer._tokenize_prompts
    trainer._tokenize_prompts = lambda given: prompts.append(tokenize(given)) or prompts[-1]
    step(trainer, [KEPT] * 8)
    assert processor.decode(prompts[0][0][0]).startswith("Here comes: ")


def test_reward_functions_may_not_share_a_name(trainer_on):
    with pytest.raises(ValueError, match=r"SRPOTrainer: added .* names of built-in rewards, \['accuracy_reward'\]"):
        trainer_on(trainer_kwargs={"reward_funcs": accuracy_reward})


def test_wrong_arguments(checkpoints, tmp_path):
    model, _ = load(checkpoints("qwen2_5_vl"))
    with pytest.raises(TypeError, match="args is of type GRPOConfig, expected SRPOConfig"):
        SRPOTrainer(model, args=GRPOConfig(str(tmp_path), use_cpu=True, bf16=False))
    bad = Dataset.from_list([{"prompt": ROW["prompt"]}])
    with pytest.raises(ValueError, match=r"eval_dataset\['a'\] has the columns \['prompt'\]"):
        srpo_trainer(checkpoints("qwen2_5_vl"), tmp_path, [ROW], trainer_kwargs={"eval_dataset": {"a": bad}})
    with pytest.raises(ValueError, match=r"has the columns \['prompt'\], expected `prompt` and `answer`"):
        srpo_trainer(checkpoints("qwen2_5_vl"), tmp_path, [{"prompt": ROW["prompt"]}])


def test_the_model_card_names_the_paper(checkpoints, rows, tmp_path):
    trainer = srpo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text()
    assert "2506.01713" in card
    assert "wan2025srpo" in card
    assert "srpo" in card.split("tags:")[1]


MIXED, EASY, HARD = (
    [KEPT, CORRECTED, FAILED, SPOILT],
    [KEPT, KEPT, SPOILT, KEPT],
    [FAILED, CORRECTED, FAILED, CORRECTED],
)
FILTER = {"filter_min_accuracy": 0.1, "filter_max_accuracy": 0.9, "shuffle_dataset": False}


def test_groups_too_easy_or_too_hard_and_those_without_a_grade_train_nothing(trainer_on):
    """First answers right: 2, 4 and 0 of 4, and a question whose gold answer is unusable, which is none of these."""
    rows = [ROW, ROW, ROW, {**ROW, "answer": ""}]
    run = {"per_device_train_batch_size": 16, "brevity_coef": 0.0, **FILTER}
    trainer = trainer_on(rows, **run)
    batches = recorded_batches(trainer)
    logged = step(trainer, [*MIXED, *EASY, *HARD, *MIXED])
    assert batches[0]["tool_mask"].any(dim=1).tolist() == [True] * 4 + [False] * 12
    kept = batches[0]["completion_mask"][:4].sum().item()
    assert batches[0]["num_items_in_batch"] == kept
    assert [logged[f"dropped_{reason}"] for reason in ("too_easy", "too_hard", "ungraded")] == [0.25] * 3
    # what is logged of rewards and answers speaks of the dropped too: 1.125, (3 * 1.5 + 1) / 4 and (0.75 + 1.25) / 2
    assert logged["reward"] == pytest.approx((1.125 + 1.375 + 1.0) / 3)
    assert logged["acc_t1"] == 0.5


def updated(model, folder, texts, **settings):
    """The weights after a step on these texts, four a question, with a KL term that is not 0."""
    run = {"optim": "sgd", "learning_rate": 1.0, "beta": 0.05, "max_grad_norm": 1e9, **FILTER, **settings}
    run = {"per_device_train_batch_size": len(texts), **run}
    trainer = srpo_trainer(model, folder, [ROW] * (len(texts) // 4), **run)
    with torch.no_grad():
        for weight in trainer.ref_model.parameters():
            weight.add_(0.02)
    step(trainer, texts)
    return weights_of(trainer.model)


@pytest.mark.parametrize(
    ("loss_type", "scale"), [("grpo", "group"), pytest.param("dapo", "batch", marks=pytest.mark.full)]
)
def test_a_dropped_group_leaves_no_trace(checkpoints, tmp_path, loss_type, scale):
    """A step on three groups of which one is too easy is the step on the two others, in any micro-batches."""
    model, run = checkpoints("qwen2_5_vl"), {"loss_type": loss_type, "scale_rewards": scale}
    other = [FAILED, WRONG, KEPT, FAILED]
    without = updated(model, tmp_path / "without", [*MIXED, *other], **run)
    small = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4}
    for number, batches in enumerate(({}, small)):
        dropped = updated(model, tmp_path / str(number), [*MIXED, *EASY, *other], **run, **batches)
        assert_weights(dropped, without, atol=2e-6)
    everything = updated(model, tmp_path / "all", [*MIXED, *EASY, *other], **run, filter_max_accuracy=1.0)
    assert max((everything[name] - weight).abs().max() for name, weight in without.items()) > 1e-3


def test_evaluation_drops_nothing(trainer_on):
    trainer = trainer_on(
        **FILTER, per_device_eval_batch_size=8, trainer_kwargs={"eval_dataset": Dataset.from_list([ROW] * 2)}
    )
    batches = recorded_batches(trainer)
    written_by_hand(trainer, [*EASY, *HARD])
    logged = trainer.evaluate()
    assert batches[0]["tool_mask"].all()
    assert logged["eval_acc_t1"] == 0.5
    assert not [name for name in logged if "dropped" in name]


def test_a_batch_that_teaches_nothing_is_said_aloud(trainer_on, caplog):
    trainer = trainer_on(**FILTER)
    with caplog.at_level("WARNING", logger="trl_mmreason"):
        logging.warning_once.cache_clear()  # another test may have made it say so
        logged = step(trainer, [*EASY, *HARD])
    assert "SRPO: not one of 8 responses can be trained on. Of 2 groups 1 have fewer right first answers" in caplog.text
    assert logged["grad_norm"] == 0


def test_what_a_missing_second_answer_earns_is_a_setting(checkpoints, tmp_path):
    """Half of the responses are right and reflect without a second answer: -0.25 each, or 0."""
    texts = [RIGHT + CHECK, WRONG + CHECK] * 4
    for missing_is_wrong, mean in ((True, -0.125), (False, 0.0)):
        run = {"missing_second_is_wrong": missing_is_wrong}
        trainer = srpo_trainer(checkpoints("qwen2_5_vl"), tmp_path / str(missing_is_wrong), [ROW] * 2, **run)
        assert step(trainer, texts)["rewards/effectiveness_reward/mean"] == mean


def test_curves_of_the_paper_are_drawn_from_what_is_logged(trainer_on):
    """Fig. 4 and 7: reward, lengths in all and of right and wrong first answers, clipped ratios on both sides, loss."""
    trainer = trainer_on()
    texts = [KEPT, CORRECTED.replace("check", "check and check"), FAILED, SPOILT]  # by the second answer it is another
    logged = step(trainer, texts * 2)
    lengths = [len(ids_of(trainer.processing_class, text)) + 1 for text in texts]
    assert lengths[1] > max(lengths[0], lengths[3])
    assert logged["length_correct"] == pytest.approx((lengths[0] + lengths[3]) / 2)
    assert logged["length_incorrect"] == pytest.approx((lengths[1] + lengths[2]) / 2)
    names = {"reward", "length_response", "length_correct", "length_incorrect", "acc_t1", "loss"}
    names |= {"clip_ratio/low_mean", "clip_ratio/high_mean"}
    drawn = {name for panel in all_panels() for name in panel.series}
    assert names <= logged.keys() & drawn
    titles = [axes.get_title() for axes in draw_curves(trainer.state.log_history).axes]
    assert {"Length by the first answer", "Clipped tokens", "Dropped by the accuracy filter"} <= set(titles)
