"""TRL's tools and environments in rollouts of several turns. What the policy writes is scripted, all else is real."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from support import SMALL_RUN, drawn_rows, images_shown, load, logps_of, maker, prepared_batch
from trl import GRPOTrainer

from trl_mmreason import AdaPOConfig, AdaPOTrainer, GroupGRPOTrainer, RolloutConfig
from trl_mmreason.evaluation.logged_completions import answers_of
from trl_mmreason.generation.batch import collate
from trl_mmreason.grading import accuracy_reward
from trl_mmreason.miniature.models import _trl_template, build_model
from trl_mmreason.training import grpo

SETTINGS = {**SMALL_RUN, "max_completion_length": 200, "beta": 0.1, "max_prompt_length": None}
SURE = "Sure?"


def crop(side: int) -> list:
    """Cut a square from the image.

    Args:
        side: side of the square in pixels.
    """
    image = Image.new("RGB", (side, 56), (side, 0, 0))
    return [{"type": "image", "image": image}, {"type": "text", "text": f"{side} pixels"}]


def add(first: int, second: int) -> int:
    """Add two numbers.

    Args:
        first: the first one.
        second: the second one.
    """
    return first + second


async def fails(what: str) -> str:
    """Fail.

    Args:
        what: what for.
    """
    raise RuntimeError(f"no {what} <|im_end|>")


def called(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def reply(row, said):
    """What the policy writes: row 0 answers at once, the others call tools before the first answer or the second."""
    call = {1: called("crop", side=84), 2: called("add", first=3, second=4), 3: called("fails", what="luck")}
    asked_again, returned = said.count(SURE), said.count("<tool_response>")
    if row == 4:  # it calls again and again
        return called("add", first=returned, second=1)
    if row in call and returned < 1:
        return call[row] if row != 2 else call[2] + "\n" + called("add", first=5, second=6)
    if row == 1 and asked_again and returned < 2:
        return called("crop", side=112)
    return f"answer {asked_again}"


def script(trainer, monkeypatch, write=reply):
    """Let the policy write `write(row, prompt)`; prompts are all that tells which row a conversation is of.

    What ends with "…" is cut there.
    """
    model, tokenizer = trainer.model, trainer._tokenizer

    def generate(input_ids, **_):
        asked = [each.place for each in trainer.trajectories if len(each.said) == len(each.turns)]
        texts = [tokenizer.decode(ids).split("Which")[-1] for ids in input_ids]
        written = [write(row, text) for row, text in zip(asked, texts, strict=True)]
        written = [text if text.endswith("…") else text + "<|im_end|>" for text in written]
        ids = tokenizer(written, padding=True, padding_side="right", return_tensors="pt").input_ids
        return torch.cat([input_ids, ids], dim=1)

    monkeypatch.setattr(trainer, "_rows_can_leave", lambda: False)
    monkeypatch.setattr(model, "generate", generate)


def length_reward(completions, **_):
    return [float(len(str(completion))) for completion in completions]


def make(model, folder, rows, cls=GroupGRPOTrainer, *, tokens=200, **kwargs):
    arguments = {"reward_funcs": [length_reward], "followup": SURE, "tools": [crop, add, fails], **kwargs}
    settings = {**SETTINGS, "num_generations": 8, "max_tool_calling_iterations": 3}
    settings |= {"max_completion_length": tokens}
    return maker(cls, RolloutConfig, arguments=arguments, **settings)(model, folder, rows)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A policy whose template has tools, and whose answers end with the template's token alone."""
    folder = str(tmp_path_factory.mktemp("policy"))
    for part in build_model("qwen3_vl", "test"):
        part.save_pretrained(folder)
    return folder


@pytest.fixture
def rows():
    row = {"prompt": [{"role": "user", "content": "Which?"}], "images": drawn_rows(1)[0]["images"], "answer": "4"}
    return [row] * 8


def test_tools_are_called_before_each_answer(model, rows, tmp_path, monkeypatch):
    trainer = make(model, tmp_path, rows)
    script(trainer, monkeypatch)
    prepared_batch(trainer, rows)
    roles = [[m["role"] for m in each.messages] for each in trainer.trajectories]
    assert roles[0] == ["assistant", "user", "assistant"]
    assert roles[1] == ["assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"]
    assert roles[2] == ["assistant", "tool", "tool", "assistant", "user", "assistant"]
    assert roles[4] == ["assistant", "tool"] * 3 + ["assistant"]  # three rounds, and a fourth that is not run
    assert [each.answers for each in trainer.trajectories[:4]] == [["answer 0", "answer 1"]] * 4
    assert trainer.trajectories[4].answers == []
    results = [[m["content"] for m in each.messages if m["role"] == "tool"] for each in trainer.trajectories]
    assert results[2] == ["7", "11"]
    assert results[3] == ["{'error': 'no luck <|im_end|>'}"]  # as TRL tells it
    assert results[4] == ["1", "2", "3"]
    assert [image.size for image in trainer.trajectories[1].images[1:]] == [(84, 56), (112, 56)]
    metrics = trainer._metrics["train"]
    assert metrics["tools/call_frequency"] == [(2 + 2 + 1 + 3) / 8]
    assert metrics["tools/failure_frequency"] == [1 / 8]


def test_a_conversation_is_what_the_template_writes(model, rows, tmp_path, monkeypatch):
    """But for marks in what a tool returned, which end no turn; and the messages of rewards are those of the tokens."""
    trainer = make(model, tmp_path, rows)
    script(trainer, monkeypatch)
    prepared_batch(trainer, rows)
    prompt = rows[0]["prompt"]
    for each in [*trainer.trajectories[:3], *trainer.trajectories[5:]]:
        spoken = [{**m, "content": m["content"] if isinstance(m["content"], list) else parts(m)} for m in each.messages]
        first = [{"type": "image", "image": each.images[0]}, *parts(prompt[0])]
        whole = trainer.processing_class.apply_chat_template(
            [{"role": "user", "content": first}, *spoken], tools=trainer.tools, tokenize=True, return_dict=True
        )
        assert whole["input_ids"][0][: len(each.context.ids)] == each.context.ids
    quoted = trainer._tokenizer.decode(trainer.trajectories[3].completion_ids)
    assert "no luck < |im_end|>" in quoted
    assert quoted.count("<|im_end|>") == 5  # call, result, two answers, question


def parts(message):
    return [{"type": "text", "text": message["content"]}] if message["content"] else []


def test_what_is_trained_on_is_what_was_read(model, rows, tmp_path, monkeypatch):
    """Log-probabilities of whole conversations, with images that tools returned, against a plain model row by row."""
    trainer = make(model, tmp_path, rows)
    script(trainer, monkeypatch)
    batch = prepared_batch(trainer, rows)
    found, (plain, _) = logps_of(trainer, batch), load(model)
    for place, each in enumerate(trainer.trajectories):
        with torch.no_grad():
            logits = plain.eval()(**collate([each.context], 0)).logits[0] / trainer.temperature
        ids = torch.tensor(each.context.ids[1:])
        expected = logits[:-1].log_softmax(-1).gather(1, ids[:, None])[len(each.prompt.ids) - 1 :, 0]
        torch.testing.assert_close(found[place, : len(expected)], expected, atol=1e-5, rtol=0)
        mask = batch["tool_mask"][place][: len(expected)].bool()
        sampled = [token for turn in each.turns for token in turn.ids]
        assert batch["completion_ids"][place][: len(expected)][mask].tolist() == sampled


def test_a_call_gets_the_credit_of_the_answer_that_comes_of_it(model, rows, tmp_path, monkeypatch):
    class Pays(GroupGRPOTrainer):
        def score_groups(self, rewards):
            return replace(super().score_groups(rewards), advantages=torch.tensor([[1.0, 2.0]] * len(rewards)))

    trainer = make(model, tmp_path, rows, cls=Pays)
    script(trainer, monkeypatch)
    batch = prepared_batch(trainer, rows)
    for each, paid in zip(trainer.trajectories, batch["advantages"], strict=True):
        expected = [
            float(number) for number, turn in zip(each.answer_of_turn, each.turns, strict=True) for _ in turn.ids
        ]
        mask = torch.tensor(each.env_mask).bool()
        assert paid[: len(mask)][mask].tolist() == expected
    assert trainer.trajectories[1].answer_of_turn == [1, 1, 2, 2]
    assert trainer.trajectories[4].answer_of_turn == [1, 1, 1, 1]


def test_each_conversation_has_an_environment_of_its_own(model, rows, tmp_path, monkeypatch):
    class Counter:
        def reset(self, **_):
            self.count = 0

        def increase(self, by: int) -> int:
            """Increase the counter.

            Args:
                by: by how much.
            """
            self.count += by
            return self.count

    def write(row, said):
        returned = said.count("<tool_response>")
        return called("increase", by=row) if returned < 2 else f"answer {said.count(SURE)}"

    trainer = make(model, tmp_path, rows, tools=None, environment_factory=Counter)
    script(trainer, monkeypatch, write)
    prepared_batch(trainer, rows)
    assert [each.count for each in trainer.environments] == [2 * row for row in range(8)]
    for row, each in enumerate(trainer.trajectories):
        assert [m["content"] for m in each.messages if m["role"] == "tool"] == [str(row), str(2 * row)]
        assert each.answers == ["answer 0", "answer 1"]


def test_what_does_not_fit_ends_the_conversation_as_in_trl(model, rows, tmp_path, monkeypatch):
    def long(row: int) -> str:
        """Say much.

        Args:
            row: of the call.
        """
        return "much " * 2000

    trainer = make(model, tmp_path, rows, tools=[long])
    script(trainer, monkeypatch, lambda row, said: called("long", row=row))
    batch = prepared_batch(trainer, rows)
    assert [len(each.turns) for each in trainer.trajectories] == [1] * 8
    assert not any(each.said for each in trainer.trajectories)
    assert all(each.left_no_room for each in trainer.trajectories)
    assert trainer._metrics["train"]["no_room_t1"] == [1.0]
    assert torch.equal(batch["tool_mask"], batch["completion_mask"])
    assert trainer._metrics["train"]["tools/call_frequency"] == [1.0]  # each was run, though nobody reads its result


def test_in_one_turn_tools_are_called_alike_and_rewards_see_them(model, rows, tmp_path, monkeypatch):
    """TRL's own loop stops at processors that return numpy arrays."""
    trainer = make(model, tmp_path, rows, followup=None, tokens=600)
    script(trainer, monkeypatch)
    batch = prepared_batch(trainer, rows)
    assert [each.answers for each in trainer.trajectories[:5]] == [["answer 0"]] * 4 + [[]]
    assert [each.calls_run for each in trainer.trajectories] == [0, 1, 2, 1, 3, 0, 0, 0]
    assert [m["content"] for m in trainer.trajectories[2].messages if m["role"] == "tool"] == ["7", "11"]
    assert [len(each.images) for each in trainer.trajectories[:3]] == [1, 2, 1]
    for place, each in enumerate(trainer.trajectories):
        trained = (batch["completion_mask"] * batch["tool_mask"])[place].bool()
        assert batch["completion_ids"][place][trained].tolist() == [i for turn in each.turns for i in turn.ids]


def test_a_cut_answer_behind_an_image_of_a_tool_carries_no_loss(model, rows, tmp_path, monkeypatch):
    """It stays in attention, as the image is in it."""
    trainer = make(model, tmp_path, rows, followup=None, tokens=600)
    trainer.mask_truncated_completions = True
    script(
        trainer, monkeypatch, lambda row, said: "cut…" if row == 1 and "<tool_response>" in said else reply(row, said)
    )
    batch = prepared_batch(trainer, rows)
    assert [each.turns[-1].ended for each in trainer.trajectories] == [True, False, *[True] * 6]
    assert images_shown(batch)[:3] == [1, 2, 1]
    carried = (batch["completion_mask"] * batch["tool_mask"]).sum(dim=1).tolist()
    sampled = [sum(each.env_mask) for each in trainer.trajectories]
    assert carried == [sampled[0], 0, *sampled[2:]]


def returns(what: str) -> list:
    """Return something.

    Args:
        what: its name.
    """
    wide = Image.new("RGB", (900, 3))
    return {"image": drawn_rows(1)[0]["images"][0], "strings": ["a", "b"], "wide": wide, "nothing": []}[what]


def test_what_a_tool_returns_becomes_parts_text_or_an_error(model, rows, tmp_path, monkeypatch):
    calls = [called("returns", what=what) for what in ("image", "strings", "wide", "nothing")]
    calls += [f'<tool_call>\n{{"name": "returns", "arguments": {given}}}\n</tool_call>' for given in ("[1]", '"{}"')]
    calls += ["<think>\nhm\n</think>\n\nSo:\n" + called("returns", what="strings")]

    def write(row, said):
        return calls[row] if row < len(calls) and "<tool_response>" not in said else "done"

    trainer = make(model, tmp_path, rows, tools=[returns], followup=None, tokens=600)
    script(trainer, monkeypatch, write)
    prepared_batch(trainer, rows)
    told = [each.messages[1]["content"] for each in trainer.trajectories[: len(calls)]]
    assert [part["type"] for part in told[0]] == ["image"]
    assert told[1] == "['a', 'b']"
    assert "A tool returned an image that is 900×3 pixels" in told[2]
    assert told[3] == "[]"
    assert all("must be a mapping" in text for text in told[4:6])
    assert [each.failed_calls for each in trainer.trajectories] == [0, 0, 1, 0, 1, 1, 0, 0]
    assert trainer.trajectories[6].messages[0]["content"].startswith("<think>\nhm\n</think>\n\nSo:")


def test_tools_count_among_the_tokens_of_a_prompt(model, rows, tmp_path):
    with pytest.raises(ValueError, match=r"8 of 8 prompts have more than max_prompt_length=100 tokens"):
        maker(GroupGRPOTrainer, RolloutConfig, arguments={"reward_funcs": [length_reward], "tools": [add]}, **SETTINGS)(
            model, tmp_path, rows, max_prompt_length=100
        )
    make_plain = maker(GroupGRPOTrainer, RolloutConfig, arguments={"reward_funcs": [length_reward]}, **SETTINGS)
    make_plain(model, tmp_path, rows, max_prompt_length=100)


def test_a_call_and_its_result_are_no_answers():
    """Neither for the reward nor on the page of a run."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
    result, answer = {"role": "tool", "name": "add", "content": "4"}, {"role": "assistant", "content": "\\boxed{4}"}
    assert accuracy_reward([[call, result], [call], [call, result, answer]], ["4"] * 3) == [0.0, 0.0, 1.0]
    written = {"completion": [answer, {"role": "user", "content": SURE}, call, result, answer]}
    assert answers_of(written) == [answer["content"]] * 2


def test_a_template_that_rewrites_thoughts_is_told(model, rows, tmp_path, caplog):
    make(model, tmp_path, rows)
    assert "rewrites the thoughts" not in caplog.text
    _, processor = load(model)
    processor.chat_template = _trl_template("qwen3_5_think")
    make(model, tmp_path, rows, tools=None, processing_class=processor)
    assert "GroupGRPOTrainer: the chat template rewrites the thoughts of earlier answers" in caplog.text


def test_adapo_grades_answers_and_no_calls(model, rows, tmp_path, monkeypatch):
    settings = {**SETTINGS, "num_generations": 8, "max_tool_calling_iterations": 3, "log_completions": True}
    asked = []

    class Grader:
        def grade_batch(self, items):
            from trl_mmreason.grading import Verdict

            asked.append([item["completion"] for item in items])
            return [Verdict(item["completion"] == "answer 1", None, "") for item in items]

    make_adapo = maker(
        AdaPOTrainer, AdaPOConfig, arguments={"tools": [crop, add, fails], "grader": Grader()}, **settings
    )
    trainer = make_adapo(model, tmp_path, rows)
    trainer.followup = SURE
    script(trainer, monkeypatch)
    prepared_batch(trainer, rows)
    assert {text for items in asked for text in items} == {"answer 0", "answer 1", ""}
    kinds = [kind and (kind.first_correct, kind.second_correct, kind.truncated) for kind in trainer.types]
    assert kinds[:4] == [(False, True, False)] * 4
    assert kinds[4] == (False, False, True)  # it never answered


def test_a_rollout_of_the_user_s_own_is_refused(model, rows, tmp_path):
    with pytest.raises(ValueError, match="^GroupGRPOTrainer: several turns are a rollout_func themselves"):
        make(model, tmp_path, rows, tools=None, rollout_func=lambda *_: None)


def test_rows_whose_fields_only_trl_can_tell_apart_stay_together(model, rows, tmp_path, monkeypatch):
    """Those of a rollout of the user's own: TRL processes the images of the rows by itself."""

    def own(prompts, trainer):
        ids, _, _ = GRPOTrainer._tokenize_prompts(trainer, prompts)
        return {"prompt_ids": ids, "completion_ids": [[9, 8, 2]] * len(ids), "logprobs": None}

    trainer = make(model, tmp_path, rows, followup=None, tools=None, rollout_func=own)
    monkeypatch.setattr(grpo, "sort_by_length", None)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._prepare_inputs([dict(row) for row in rows])
    assert "fields" not in batch
    assert len(batch["image_grid_thw"]) == len(batch["completion_ids"])
    assert trainer.compute_loss(trainer.model, batch).isfinite()


def test_images_of_rows_with_an_environment_are_in_the_fields_alone(model, rows, tmp_path, monkeypatch):
    class Remembers:
        def reset(self, images, **_):
            self.images = images

        def count(self) -> int:
            """Count the images."""
            return len(self.images)

    def write(row, said):
        return called("count") if said.count("<tool_response>") < 1 else f"answer {said.count(SURE)}"

    trainer = make(model, tmp_path, rows, tools=None, environment_factory=Remembers)
    script(trainer, monkeypatch, write)
    batch = prepared_batch(trainer, rows)
    assert "pixel_values" not in batch
    assert images_shown(batch) == [1] * len(rows)
    assert [each.messages[1]["content"] for each in trainer.trajectories] == ["1"] * len(rows)


def test_an_environment_without_tools_is_sampled_alike_in_one_turn(model, rows, tmp_path, monkeypatch):
    class Silent:
        def reset(self, **_):
            return None

    trainer = make(model, tmp_path, rows, followup=None, tools=None, environment_factory=Silent)
    script(trainer, monkeypatch)
    batch = prepared_batch(trainer, rows)
    assert images_shown(batch) == [1] * len(rows)
    assert [each.answers for each in trainer.trajectories[5:]] == [["answer 0"]] * 3
