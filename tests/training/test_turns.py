"""Rollouts of several turns: messages that differ by trajectory and hold images, and credit for single tokens."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from PIL import Image
from several_turns import TURNS, AsksAgain, corner, length_reward
from support import SMALL_RUN, drawn_rows, full_but, images_shown, load, logps_of, maker, png, prepared_batch
from test_second_turn import SAID, Keeping, SaysByHeart

from trl_mmreason import GroupGRPOTrainer, RolloutConfig
from trl_mmreason.compat.replaced import replaced
from trl_mmreason.data.images import images_of
from trl_mmreason.functional import turn_of_token
from trl_mmreason.generation import Request, Sample, SamplingParams
from trl_mmreason.generation.batch import next_turn
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.generation.turn_after_turn import sample_turns
from trl_mmreason.generation.vllm_engine import prompt_of
from trl_mmreason.messages import checked_message
from trl_mmreason.training.credit import GroupOutcome
from trl_mmreason.training.rollout import begin, turn_after_turn

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
        own = images_of(each.row)
        assert len(each.images) == len(own) + sum(len(said.images) for said in each.said)
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


def test_a_spare_row_is_a_question_with_its_own_images(checkpoints, tmp_path):
    """Another process has one more conversation at each turn; in this one the user shows further images."""
    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, drawn_rows(3))
    rows = trainer._prepared(drawn_rows(3)[1:2] * 4)  # of two images, and always shown another one
    trainer._rows, trainer._sampled, asked = rows, list(enumerate(rows)), []

    def generate(prompt_ids, images, *_, **__):
        asked.append([(ids, len(shown or [])) for ids, shown in zip(prompt_ids, images, strict=True)])
        return [[20, trainer.eos_token_ids[0]] for _ in prompt_ids], None

    trainer._generate_single_turn = generate
    with replaced(trainer.accelerator, gather=lambda count: count + (count > 0)):
        turn_after_turn(trainer, *begin(trainer, trainer._prompts_of(rows)))
    question = trainer.trajectories[0].prompt.ids, 2
    assert asked[0] == [question] * 4
    assert [[images for _, images in turn] for turn in asked[1:]] == [[3, 3, 3, 3, 2], [4, 4, 4, 4, 2]]
    assert [turn[-1] for turn in asked[1:]] == [question] * 2


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
    by_heart, rows = SaysByHeart(model, said), drawn_rows(3)  # with one image, two and none

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

    # vLLM is given them with a placeholder per image, and the images in order
    for row, each in zip(rows, trainer.trajectories[::4], strict=True):
        behind, ids = each.messages[:-1], [turn.ids for turn in each.turns[:-1]]
        request = Request([*row["prompt"], *behind], images_of(row), answer_ids=ids)
        given = prompt_of(processor, request, {}, trainer.eos_token_ids)
        assert [image.size for image in given.get("multi_modal_data", {}).get("image", [])] == [
            image.size for image in each.images
        ]
        ends = [*each.turns[-2].ids, *each.said[-1].unexpanded_ids]
        assert given["prompt_token_ids"][-len(ends) :] == ends
    shown = images_shown(batch)  # InternVL's tiles, of which an image may have several
    assert all(shown[place] >= len(each.images) for place, each in enumerate(trainer.trajectories))
    assert [count > 0 for count in shown] == [bool(each.images) for each in trainer.trajectories]


class PaysTokens(AsksAgain):
    """An advantage and a KL coefficient for each token: its number."""

    def score_groups(self, rewards):
        credit = [torch.arange(1.0, 1 + len(each.completion_ids)) for each in self.trajectories]
        keep = torch.ones(len(credit), dtype=torch.bool)
        return GroupOutcome(rewards, keep, [row / 100 for row in credit], credit)


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
    class Pays(PaysTokens):
        def score_groups(self, rewards):
            return replace(super().score_groups(rewards), advantages=self.wrong)

    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, rows, Pays)
    for wrong, message in (
        (torch.ones(8, 2), rf"Credit has 2 columns; .* one per turn \({TURNS}\)"),
        ([torch.ones(99)] * 8, r"99 values per token for a trajectory of \d+ tokens. Fix: one for each of trajec"),
        ([torch.ones(1)] * 8, "1 values per token"),
    ):
        trainer.wrong = wrong
        with pytest.raises(ValueError, match=message):
            prepared_batch(trainer)


def test_coefficients_without_a_reference_are_refused(checkpoints, rows, tmp_path):
    class Weighs(AsksAgain):
        def score_groups(self, rewards):
            return replace(super().score_groups(rewards), kl_coefs=torch.ones(len(rewards), TURNS))

    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, rows, Weighs, beta=0.0)
    with pytest.raises(ValueError, match="Weighs: score_groups returned kl_coefs, but beta is 0"):
        prepared_batch(trainer)


def test_an_image_for_a_text_only_policy_is_refused(tmp_path):
    from trl_mmreason.compat.chat_template import tokenizer_of
    from trl_mmreason.miniature.models import build_model

    _, processor = build_model("qwen2_5_vl", "test")
    tokenizer = tokenizer_of(processor)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"
    message = {"role": "user", "content": [{"type": "image", "image": drawn_rows(1)[0]["images"][0]}]}
    with pytest.raises(ValueError, match="1 image"):
        next_turn(tokenizer, [message], eos_token_ids=[tokenizer.eos_token_id])


def test_reward_functions_do_not_see_hidden_columns_in_trajectories(checkpoints, rows, tmp_path):
    class Hides(AsksAgain):
        hidden_columns = frozenset({"answer"})

    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, Dataset.from_list(rows), Hides)
    prepared_batch(trainer)
    assert all("answer" not in each.row for each in trainer.trajectories)


def test_tables_of_completions_hold_messages_with_images_and_without(checkpoints, rows, tmp_path):
    settings = {"log_completions": True, "max_completion_length": 8, "per_device_train_batch_size": 24, "max_steps": 1}
    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, rows, **settings)
    trainer.train()
    (file,) = (tmp_path / "completions").glob("*.parquet")
    logged = pq.read_table(file).column("completion").to_pylist()
    kinds = {part["type"] for completion in logged for message in completion for part in message["content"]}
    assert kinds == {"text", "image"}


@pytest.mark.parametrize("settings", [{"pad_to_multiple_of": 64}, {"max_completion_length": 1}])
def test_credit_of_tokens_holds_for_any_width(checkpoints, rows, tmp_path, settings):
    """Padded columns have none; one token each is no turn."""
    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, rows, PaysTokens, **settings)
    batch = prepared_batch(trainer)
    numbers = torch.arange(1.0, 1 + batch["completion_mask"].shape[1]) * batch["completion_mask"]
    assert torch.equal(batch["advantages"], numbers)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_next"])
def test_cut_trajectories_carry_no_loss_and_keep_their_images(checkpoints, rows, tmp_path, family):
    settings = {"max_completion_length": 8, "per_device_train_batch_size": 24, "num_iterations": 2}
    settings |= {"mask_truncated_completions": True, "steps_per_generation": 3}
    trainer = make(checkpoints(family), tmp_path, rows, **settings)
    batch = prepared_batch(trainer, [row for row in rows[:6] for _ in range(4)])
    ended = torch.tensor([each.turns[-1].ended for each in trainer.trajectories])
    assert 0 < ended.sum() < len(ended)
    sampled = torch.tensor([sum(len(turn.ids) for turn in each.turns) for each in trainer.trajectories])
    mask = batch["completion_mask"] * batch["tool_mask"]
    assert mask.sum(1).tolist() == (sampled * ended).tolist()
    kept = mask.bool()
    torch.testing.assert_close(logps_of(trainer, batch)[kept], batch["old_per_token_logps"][kept], atol=1e-5, rtol=0)


def test_a_dropped_trajectory_without_an_advantage_leaves_the_loss_finite(checkpoints, rows, tmp_path):
    class Drops(AsksAgain):
        def score_groups(self, rewards):
            keep = torch.arange(8) > 0
            return GroupOutcome(rewards, keep, advantages=torch.arange(8.0).masked_fill(~keep, torch.nan))

    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, rows, Drops)
    assert trainer.compute_loss(trainer.model, prepared_batch(trainer)).isfinite()


@pytest.mark.parametrize(
    "message",
    [
        "Sure?",
        {"role": "tool", "content": "7"},
        {"role": "user", "content": "hi", "images": []},
        {"role": "user", "content": ({"type": "text", "text": "hi"},)},
        {"role": "user", "content": [{"text": "hi"}]},
        {"role": "user", "content": [{"type": "image", "image": "a.png"}]},
    ],
)
def test_messages_of_another_form_are_refused(message):
    with pytest.raises(
        ValueError, match=r"^next_message returned .*; expected (\{'role': 'user', 'cont|a list of \{'ty)"
    ):
        checked_message(message)


@pytest.mark.parametrize("size", [(2010, 10), (10, 2010), (0, 10), (0, 0)])
def test_an_image_of_a_shape_that_no_processor_takes_is_refused(processor, size):
    """A crop of no width is the usual mistake. 200 times as long as wide is what Qwen-VL's processors still take."""

    def said(size):
        message = {"role": "user", "content": [{"type": "image", "image": Image.new("RGB", size)}]}
        return next_turn(processor, [checked_message(message)], eos_token_ids=[processor.tokenizer.eos_token_id])

    told = (
        rf"^next_message returned an image that is {size[0]}×{size[1]} pixels; .* factor of 200 at most\. Fix: a larger"
    )
    with pytest.raises(ValueError, match=told):
        said(size)
    assert said((2000, 10)).images[0].size == (2000, 10)


def test_marks_in_what_the_user_quotes_show_no_image_and_end_no_turn(processor):
    eos = [processor.tokenizer.eos_token_id]
    quoted = next_turn(processor, [{"role": "user", "content": "a <|image_pad|> b <|im_end|>"}], eos_token_ids=eos)
    plain = next_turn(processor, [{"role": "user", "content": "a b"}], eos_token_ids=eos)
    assert quoted.prompt.ids.count(eos[0]) == plain.prompt.ids.count(eos[0])
    assert processor.image_token_id not in quoted.prompt.ids
    assert "a < |image_pad|> b < |im_end|>" in processor.decode(quoted.prompt.ids)


def test_evaluation_hands_on_the_row_as_training_does():
    """Images opened, whatever their form; a message that is changed later stays as it was said."""
    seen, message = [], {"role": "user", "content": ""}

    def next_message(row, answers):
        seen.append(images_of(row)[0].size)
        message["content"] = str(len(answers))
        return message

    engine = Keeping(Sample("7", "stop", [5, 2]))
    row = {"prompt": [{"role": "user", "content": "?"}], "image": {"bytes": png(size=(56, 56)), "path": None}}
    sample_turns([row], engine, SamplingParams(4), next_message, [0], turns=3)
    assert seen == [(56, 56), (56, 56)]
    assert [each["content"] for each in engine.asked[-1].messages] == ["?", "7", "1", "7", "2"]


def test_evaluation_hides_the_columns_that_training_hides(checkpoints, rows, tmp_path):
    seen = []

    class Hides(GroupGRPOTrainer):
        hidden_columns = frozenset({"answer"})

        def next_message(self, row, answers):
            seen.append(set(row))
            return {"role": "user", "content": "Sure?"}

    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, rows, Hides, max_completion_length=8)
    prepared_batch(trainer)
    trained, seen[:] = seen[:], []
    assert "answer" in rows[0]
    engine, arguments = Keeping(Sample("7", "stop", [5, 2])), [SamplingParams(4), trainer.next_message, [0]]
    sample_turns(rows[:1], engine, *arguments, hidden_columns=trainer.hidden_columns)
    sample_turns(rows[:1], engine, *arguments)
    assert trained
    assert all(columns == seen[0] for columns in trained)
    assert seen[1] - seen[0] == {"answer"}


def test_turns_that_would_never_be_asked_for_are_refused(checkpoints, rows, tmp_path):
    args = RolloutConfig(str(tmp_path), **SETTINGS)

    def made(cls, **kwargs):
        return cls(checkpoints("qwen2_5_vl"), length_reward, args, train_dataset=Dataset.from_list(rows), **kwargs)

    for turns in (0, -1):
        with pytest.raises(ValueError, match=f"got max_turns={turns}, expected 1 or more"):
            made(AsksAgain, max_turns=turns)
    for cls, kwargs in ((AsksAgain, {}), (GroupGRPOTrainer, {"followup": "Sure?", "max_turns": 1})):
        with pytest.raises(ValueError, match="max_turns=1 leaves no turn after the first answer"):
            made(cls, **kwargs)


def test_rollouts_of_the_user_s_own_are_recorded_in_order(checkpoints, rows, tmp_path):
    """Words of the user first, last and between the policy's."""
    masks = [[0, 0, 1, 1, 0], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 1, 1, 1, 1]] * 2

    def own(prompts, trainer):
        ids, _, _ = trainer._tokenize_prompts(prompts)
        return {"prompt_ids": ids, "completion_ids": [[9, 8, 7, 6, 3]] * 8, "logprobs": None, "env_mask": masks}

    def nothing(completions, **_):
        return [0.0] * len(completions)

    args = RolloutConfig(str(tmp_path), **SETTINGS)
    asked = {"args": args, "train_dataset": Dataset.from_list(rows), "rollout_func": own}
    trainer = GroupGRPOTrainer(checkpoints("qwen2_5_vl"), nothing, **asked)
    prepared_batch(trainer)
    for each, mask in zip(trainer.trajectories, masks, strict=True):
        assert each.completion_ids == [9, 8, 7, 6, 3]
        assert each.env_mask == mask
        assert each.messages[0]["role"] == "assistant"
