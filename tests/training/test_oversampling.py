"""Which groups make an update, and which go on; tests/engines/test_vllm_oversampled.py samples with a vLLM."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from support import SMALL_RUN, ParityGrader, adapo_trainer, drawn_rows

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.generation.batch import NextTurn, Prompt
from trl_mmreason.training.oversampling import (
    Flight,
    _answered,
    _begun,
    _fly,
    chosen_and_waiting,
    is_enough,
    kept,
    restored,
    why_not_oversampled,
    without_begun_stop,
)
from trl_mmreason.training.read_once import numbered
from trl_mmreason.training.rollout import Trajectory, Turn


def group(*ended, begun=0):
    return [Flight({}, Trajectory({}, 0, Prompt([], {}, {}), []), [], begun, ended=each) for each in ended]


def test_what_is_complete_comes_first_come_first_served():
    groups = [group(True, False), group(True, True), group(True, True), group(True, True)]
    chosen, waiting = chosen_and_waiting(groups, 2)
    assert chosen == groups[1:3]
    assert waiting == [groups[0], groups[3]]


@pytest.mark.parametrize(
    ("ended", "begun", "enough"),
    [
        ([(True, True), (True, False)], [5, 5], True),
        ([(True, False), (True, False)], [5, 5], False),
        ([(True, True), (True, False)], [5, 3], False),  # asked two rollouts ago: it is waited for
        ([(True, True), (True, True)], [5, 3], True),
    ],
)
def test_an_update_needs_so_many_groups_and_all_that_are_old(ended, begun, enough):
    groups = [group(*each, begun=update) for each, update in zip(ended, begun, strict=True)]
    assert is_enough(groups, 1, rollout=5, max_age=2) is enough


def test_what_goes_on_is_all_that_was_read_and_said():
    """An image is two placeholders for the model, and one for vLLM, which expands it."""
    said = NextTurn([], Prompt([8, 7, 7], {}, {}), [8, 7], [None])
    trajectory = Trajectory({}, 0, Prompt([1, 7, 7], {}, {}), [None], [Turn([2, 3], True, "")], [said])
    flight = Flight({}, trajectory, [1, 7], 0, ids=[4], logprobs=[-1.0])
    assert flight.prompts() == ([1, 7, 7, 2, 3, 8, 7, 7, 4], [1, 7, 2, 3, 8, 7, 4])
    assert flight.tokens == 3


def test_a_process_that_waits_for_others_asks_a_question_again():
    """With a server: its own conversations have ended, and one fills the context, after which nothing can be said."""
    said = NextTurn([], Prompt([8, 7], {}, {}), [8, 7], ["shown later"])
    trajectory = Trajectory({}, 0, Prompt([1, 7], {}, {}), ["first", "shown later"], [Turn([2], True, "")], [said])
    trajectory.turns.append(Turn([3] * 15, False, ""))
    waiting = Flight({}, trajectory, [], begun=0, ended=True)
    others = iter([[0, 1, -8], [1, 1, -4]])  # has it enough, how many are asked, how many tokens may they say
    generation = SimpleNamespace(max_completion_length=16, context=20)
    asked = []

    def generate(prompt_ids, images, fields, num_generations):
        asked.append((prompt_ids, images, generation.longest_prompt))
        return [[5, 5]], [[-1.0, -1.0]]

    trainer = SimpleNamespace(
        vllm_mode="server",
        vllm_generation=generation,
        accelerator=SimpleNamespace(device="cpu", gather=lambda own: torch.cat([own, torch.tensor([next(others)])])),
        args=SimpleNamespace(oversampling_max_age=3),
        _rollouts=1,
        _generate_single_turn=generate,
    )
    generation.longest_prompt = 4
    _fly(trainer, [[waiting]], needed=1)
    assert len(trajectory.context.ids) == 20
    assert asked == [([[1, 7]], [["first"]], 18)]
    assert (waiting.ids, waiting.logprobs) == ([], [])


def test_a_vllm_that_has_nothing_to_do_sleeps_while_an_update_is_made():
    asleep = []
    generation = SimpleNamespace(let_sleep=lambda: asleep.append(True))
    trainer = SimpleNamespace(vllm_mode="colocate", vllm_generation=generation, _rollouts=1)
    trainer.args = SimpleNamespace(oversampling_max_age=3)
    _fly(trainer, [group(True, True), group(True, False)], needed=1)
    assert asleep == [True]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("3 + 4 = 7</ans", "3 + 4 = 7"),
        ("3 + 4 = 7<", "3 + 4 = 7"),
        ("7</answer", "7"),
        ("7\n</", "7"),
        ("7\n\n\n", "7"),
        ("</answ 7", "</answ 7"),
        ("7\ufffd", "7"),  # amid a character
        ("</", ""),
    ],
)
def test_what_may_begin_a_stop_string_is_written_anew(said, left):
    stops = ["</answer>", "\n\n"]
    assert without_begun_stop([*map(ord, said)], stops, lambda ids: "".join(map(chr, ids))) == [*map(ord, left)]
    assert without_begun_stop([*map(ord, said)], [], lambda ids: "") == [*map(ord, said)]


def in_flight(trainer, places):
    """Groups of these rows: of each the first conversation has answered once, and has begun its second answer."""
    trainer.vllm_mode, trainer._rollouts = "server", 4
    rows = [numbered(trainer.train_dataset, place) for place in places for _ in range(trainer.num_generations)]
    groups = _begun(trainer, trainer._prepared(rows))
    for first, *_ in groups:
        first.ids, first.logprobs = [7, trainer.eos_token_ids[0]], [-0.5, -1.0]
        _answered(trainer, [first])
        first.ids, first.logprobs = [8], [-2.0]
    return groups


def test_a_checkpoint_keeps_what_waits(checkpoints, tmp_path):
    """Of rows 5 and 2, which have images; each is as it was, with what it has read."""
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, drawn_rows(8))
    groups = in_flight(trainer, [5, 2])
    torch.save(kept(groups), tmp_path / "kept.pt")
    trainer._rollouts = 9
    found = restored(trainer, torch.load(tmp_path / "kept.pt", weights_only=True))
    assert kept(found) == kept(groups)
    assert [group[0].row["prompt"] for group in found] == [group[0].row["prompt"] for group in groups]
    first = found[0][0]
    assert (first.begun, first.ended, first.tokens) == (4, False, 3)
    assert first.trajectory.said[0].messages == [{"role": "user", "content": trainer.followup}]


def test_what_reads_otherwise_after_a_resume_is_asked_no_more(checkpoints, tmp_path, caplog):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, drawn_rows(8))
    saved = kept(in_flight(trainer, [5, 2, 1, 0]))
    saved[1]["place"] = 3
    saved[2]["place"] = 8  # of eight rows
    saved[3]["flights"].pop()
    (left,) = restored(trainer, saved)
    assert kept([left]) == saved[:1]
    assert "of 4 questions whose answers waited in the checkpoint 3 read otherwise now" in caplog.text


def test_answers_that_cannot_wait_are_refused(checkpoints, tmp_path):
    args, rows = AdaPOConfig(str(tmp_path), **SMALL_RUN, oversampling=0.5), Dataset.from_list(drawn_rows(8))
    with pytest.raises(ValueError, match="oversampling=0.5, but answers are not sampled by vLLM"):
        AdaPOTrainer(checkpoints("qwen2_5_vl"), args=args, train_dataset=rows, grader=ParityGrader())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"args.vllm_importance_sampling_correction": False}, "nothing corrects for older weights"),
        ({"args.sampled_as_old": True}, "nothing corrects for older weights"),
        ({"tools": [len]}, "tools, environments or a rollout of your own cannot wait"),
        ({"rollout_func": len}, "tools, environments or a rollout of your own cannot wait"),
        ({"num_generations": 3}, "a process has 8 rows of a rollout, no whole groups of num_generations=3"),
        ({"args.vllm_structured_outputs_regex": "x"}, "structured outputs and generation_kwargs, but for stops"),
        (
            {"args.generation_kwargs": {"min_tokens": 6, "stop": ["x"]}},
            "generation_kwargs, but for stops of a colocated",
        ),
        ({"vllm_mode": "server"}, "generation_kwargs, but for stops of a colocated vLLM"),
        ({"args.refill_attempts": 1}, "refill_attempts asks other questions within a rollout"),
        ({"args.vllm_tensor_parallel_size": 2}, "a colocated one of each process alone"),
        ({"train_dataset": iter([])}, "the rows are a stream"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(other, message):
    args = {
        "per_device_train_batch_size": 4,
        "steps_per_generation": 2,
        "vllm_tensor_parallel_size": 1,
        "vllm_importance_sampling_correction": True,
        "sampled_as_old": False,
        "refill_attempts": 0,
        "vllm_structured_outputs_regex": None,
        "generation_kwargs": {"stop": ["x"]},
    }
    own = {"use_vllm": True, "vllm_mode": "colocate", "tools": None, "environment_factories": None}
    own |= {"rollout_func": None, "num_generations": 4, "train_dataset": drawn_rows(2)}
    args |= {name.removeprefix("args."): value for name, value in other.items() if name.startswith("args.")}
    own |= {name: value for name, value in other.items() if not name.startswith("args.")}
    assert message in why_not_oversampled(SimpleNamespace(args=SimpleNamespace(**args), **own))
