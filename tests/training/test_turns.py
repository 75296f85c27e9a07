"""Rollouts of several turns: messages that differ by trajectory and hold pictures, and credit for single tokens."""

import pytest
import torch
from datasets import Dataset
from several_turns import TURNS, AsksAgain, corner, length_reward
from support import SMALL_RUN, drawn_rows, full_but, load, logps_of, maker, prepared_batch
from test_second_turn import SAID, SaysByHeart

from trl_mmreason import GroupGRPOTrainer, RolloutConfig
from trl_mmreason.data.images import pictures_of
from trl_mmreason.functional import turn_of_token
from trl_mmreason.generation import Request, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.generation.turn_after_turn import sample_turns
from trl_mmreason.generation.vllm_engine import prompt_of
from trl_mmreason.training.credit import GroupOutcome

SETTINGS = {**SMALL_RUN, "max_completion_length": 4, "beta": 0.1, "warmup_steps": 0}


def make(model, folder, rows, cls=AsksAgain, **settings):
    arguments = {"reward_funcs": [length_reward], "max_turns": TURNS}
    return maker(cls, RolloutConfig, arguments=arguments, **SETTINGS)(model, folder, rows, **settings)


def test_a_conversation_goes_on_by_what_was_answered(checkpoints, family, rows, tmp_path):
    trainer = make(checkpoints(family), tmp_path, rows, max_completion_length=8, per_device_train_batch_size=48)
    batch = prepared_batch(trainer, [row for row in rows[:12] for _ in range(4)])
    seen = set()
    for place, each in enumerate(trainer.trajectories):
        prompt, ids = each.prompt.ids, each.completion_ids
        assert batch["prompt_ids"][place][batch["prompt_mask"][place].bool()].tolist() == prompt
        assert batch["completion_ids"][place][batch["completion_mask"][place].bool()].tolist() == ids
        answers = []
        for number, turn in enumerate(each.turns):
            answers.append(turn.text)
            goes_on = turn.ended and number + 1 < TURNS and trainer.next_message(each.row, answers) is not None
            assert (number < len(each.said)) == goes_on == (number + 1 < len(each.turns))
        own = pictures_of(each.row)
        assert len(each.images) == batch["num_images"][place] == len(own) + sum(len(said.images) for said in each.said)
        seen |= {(len(each.turns), bool(own), any(said.images for said in each.said))}
        sampled = batch["completion_mask"][place].bool() & batch["tool_mask"][place].bool()
        assert sampled.sum() == sum(len(turn.ids) for turn in each.turns)
    assert {turns for turns, *_ in seen} == {1, 2, 3}
    assert {(own, said) for _, own, said in seen} == {(own, said) for own in (True, False) for said in (True, False)}


def test_what_is_trained_on_is_what_was_sampled(checkpoints, family, rows, tmp_path):
    """Log-probabilities of the training pass over whole conversations are those of sampling turn after turn."""
    trainer = make(checkpoints(family), tmp_path, rows, max_completion_length=8, per_device_train_batch_size=24)
    batch = prepared_batch(trainer, [row for row in rows[:6] for _ in range(4)])
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert (turn_of_token(batch["tool_mask"])[mask] == TURNS).any()
    assert any(said.images for each in trainer.trajectories for said in each.said)
    found = logps_of(trainer, batch)[mask]
    torch.testing.assert_close(found, batch["sampling_per_token_logps"][mask], atol=1e-5, rtol=0)


def test_training_is_the_same_in_micro_batches(checkpoints, family, rows, tmp_path):
    def trained(size):
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 8 // size, "max_steps": 1}
        settings["adam_epsilon"] = 1e-2  # or rounding errors of gradients near zero become whole steps
        torch.manual_seed(0)
        trainer = make(checkpoints(family), tmp_path / str(size), rows, max_completion_length=8, **settings)
        trainer.train()
        return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])

    whole, *parts = (trained(size) for size in (8, 4, 2))
    for part in parts:
        torch.testing.assert_close(part, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("says", ["words", "pictures"])
def test_evaluation_reads_the_same_tokens(checkpoints, family, tmp_path, says):
    model, processor = load(checkpoints(family))
    said = [*processor.tokenizer(SAID, add_special_tokens=False)["input_ids"], processor.tokenizer.eos_token_id]
    by_heart, rows = SaysByHeart(model, said), drawn_rows(3)  # with one picture, two and none

    class Shows(GroupGRPOTrainer):
        def next_message(self, row, answers):
            text = f"Look at {len(answers)}."
            if says == "words":
                return {"role": "user", "content": text}
            image = {"type": "image", "image": corner(row, answers)}
            return {"role": "user", "content": [image, {"type": "text", "text": text}]}

    settings = {"max_completion_length": len(said) + 2, "per_device_train_batch_size": 12}
    settings["trainer_kwargs"] = {"processing_class": processor}
    trainer = make(model, tmp_path, rows, Shows, **settings)
    trainer.model.train()
    batch = trainer._generate_and_score_completions([dict(row) for row in rows for _ in range(4)])
    trained = by_heart.read_since()

    model.eval()
    engine, bound = TransformersEngine(model, processor), SamplingParams(len(said) + 2, temperature=0.0)
    answers = sample_turns(rows, engine, bound, trainer.next_message, [0, 1, 2], turns=TURNS)
    assert [len(each) for each in answers] == [TURNS] * 3
    assert by_heart.read_since() == trained
    assert len(trained) == 3 * TURNS
    contexts = [each.context.ids[: -len(said)] for each in trainer.trajectories[::4]]  # without the last answer
    assert {tuple(ids) for ids in contexts} <= set(trained)

    # vLLM is given them with a placeholder per picture, and the pictures in order
    for row, each in zip(rows, trainer.trajectories[::4], strict=True):
        behind, ids = each.messages[:-1], [turn.ids for turn in each.turns[:-1]]
        request = Request([*row["prompt"], *behind], pictures_of(row), answer_ids=ids)
        given = prompt_of(processor, request, {}, trainer.eos_token_ids)
        assert [image.size for image in given.get("multi_modal_data", {}).get("image", [])] == [
            image.size for image in each.images
        ]
        ends = [*each.turns[-2].ids, *each.said[-1].unexpanded_ids]
        assert given["prompt_token_ids"][-len(ends) :] == ends
    assert batch["num_images"] == [len(each.images) for each in trainer.trajectories]


class PaysTokens(AsksAgain):
    """An advantage and a KL coefficient for each token: its number."""

    def score_groups(self, rewards):
        rows = [torch.arange(1.0, 1 + len(each.completion_ids)) for each in self.trajectories]
        credit = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=torch.nan)
        return GroupOutcome(rewards, torch.ones(len(rows), dtype=torch.bool), credit / 100, credit)


@pytest.mark.parametrize("loss_type", full_but("dapo", ["dapo", "grpo"]))
def test_credit_of_single_tokens(checkpoints, rows, tmp_path, loss_type):
    """At the first step the ratio is 1 and the reference the policy: the loss is −mean(advantage) over tokens."""
    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, rows, PaysTokens, loss_type=loss_type)
    batch = prepared_batch(trainer)
    mask = (batch["completion_mask"] * batch["tool_mask"]).float()
    numbers = torch.arange(1.0, 1 + mask.shape[1]) * batch["completion_mask"]
    assert torch.equal(batch["advantages"], numbers)
    torch.testing.assert_close(batch["kl_coefs"], numbers / 100)
    by_row = (numbers * mask).sum(1)
    expected = by_row.sum() / mask.sum() if loss_type == "dapo" else (by_row / mask.sum(1)).mean()
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(-expected.item(), abs=1e-4)
    logged = list(trainer._logs["advantages"])
    lengths = [len(each.completion_ids) for each in trainer.trajectories]
    assert logged == pytest.approx([(1 + length) / 2 for length in lengths])


def test_credit_that_fits_neither_turns_nor_tokens_is_refused(checkpoints, rows, tmp_path):
    class Short(PaysTokens):
        def score_groups(self, rewards):
            outcome = super().score_groups(rewards)
            return GroupOutcome(outcome.rewards, outcome.keep, advantages=outcome.advantages[:, : TURNS + 1])

    with pytest.raises(ValueError, match=rf"Credit per token has {TURNS + 1} columns, and a trajectory has \d+ tokens"):
        prepared_batch(make(checkpoints("qwen2_5_vl"), tmp_path, rows, Short))


def test_a_picture_for_a_text_only_policy_is_refused(tmp_path):
    from trl_mmreason.compat.chat_template import tokenizer_of
    from trl_mmreason.generation.batch import next_turn
    from trl_mmreason.miniature.models import build_model

    _, processor = build_model("qwen2_5_vl", "test")
    tokenizer = tokenizer_of(processor)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"
    message = {"role": "user", "content": [{"type": "image", "image": drawn_rows(1)[0]["images"][0]}]}
    with pytest.raises(ValueError, match="1 picture"):
        next_turn(tokenizer, message, eos_token_ids=[tokenizer.eos_token_id])


def test_reward_functions_do_not_see_hidden_columns_in_trajectories(checkpoints, rows, tmp_path):
    class Hides(AsksAgain):
        hidden_columns = frozenset({"answer"})

    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, Dataset.from_list(rows), Hides)
    prepared_batch(trainer)
    assert all("answer" not in each.row for each in trainer.trajectories)
