"""Groups that teach nothing give way to groups of other questions, until all teach or the attempts are used up."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from processes import outcomes
from support import SMALL_RUN, adapo_trainer, drawn_rows, maker, recorded_batches, weights_of

from trl_mmreason import GroupGRPOTrainer, RolloutConfig
from trl_mmreason.training.refill import other_questions, refilled, teaching_groups


def rows_of(*advantages, width=2):
    """Rows of one answer each, whose only token is their number times 10."""
    ids = torch.arange(len(advantages)).unsqueeze(1) * 10 + torch.arange(width)
    mask = torch.ones(len(advantages), width, dtype=torch.long)
    names = {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": ids, "completion_mask": mask}
    return {**names, "advantages": torch.tensor(advantages), "tool_mask": None, "fields": list(advantages)}


def test_a_group_teaches_if_a_row_with_loss_has_an_advantage():
    rows = rows_of(0.0, 0.0, 1.0, 0.0, 0.0, -1.0)
    assert teaching_groups(rows, 2).tolist() == [False, True, True]
    rows["tool_mask"] = torch.tensor([[1, 1]] * 5 + [[0, 0]])
    assert teaching_groups(rows, 2).tolist() == [False, True, False]
    by_turn = {**rows, "advantages": torch.tensor([[0.0, 0.0], [0.0, 2.0]] + [[0.0, 0.0]] * 4)}
    assert teaching_groups(by_turn, 2).tolist() == [True, False, False]


def refill(first, *others, attempts):
    """The advantages that are left, how many groups each attempt asked for, and what is logged."""
    asked, made = [], list(others)
    trainer = SimpleNamespace(
        num_generations=2,
        accelerator=Accelerator(cpu=True),
        args=SimpleNamespace(refill_attempts=attempts, seed=0),
        state=SimpleNamespace(global_step=3),
        train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(5)]),
        _draws=(-1, 0),
        _metrics={"train": {"refill/attempts": [], "refill/still_silent": []}},
    )

    def sample(questions):
        asked.append(len(questions) // 2)
        return rows_of(*made.pop(0), width=3)

    left = refilled(trainer, rows_of(*first), sample)
    assert left["prompt_ids"].shape[1] == (3 if asked else 2)
    return left["fields"], asked, {name: values[0] for name, values in trainer._metrics["train"].items()}


def test_silent_groups_are_replaced_until_all_teach():
    first, second, third = (0.0, 0.0, 1.0, -1.0, 0.0, 0.0), (0.0, 0.0, 2.0, -2.0), (3.0, -3.0)
    left, asked, logged = refill(first, second, third, attempts=5)
    assert left == [1.0, -1.0, 2.0, -2.0, 3.0, -3.0]
    assert asked == [2, 1]
    assert logged == {"refill/attempts": 2, "refill/still_silent": 0.0}


def test_after_the_last_attempt_silent_groups_stay():
    left, asked, logged = refill((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 2.0, -2.0), attempts=1)
    assert left == [2.0, -2.0, 0.0, 0.0]
    assert (asked, logged) == ([2], {"refill/attempts": 1, "refill/still_silent": 0.5})


def test_nothing_is_asked_where_all_groups_teach():
    assert refill((1.0, -1.0), attempts=3)[1] == []


def with_images_teaches(prompts, completions, **_):
    """Pays longer answers to questions with images more, and all answers to the others alike."""
    seen = ["image" in str(prompt[-1]["content"]) for prompt in prompts]
    return [float(len(each[-1]["content"])) if shown else 1.0 for each, shown in zip(completions, seen, strict=True)]


make = maker(GroupGRPOTrainer, RolloutConfig, arguments={"reward_funcs": with_images_teaches}, **SMALL_RUN)
RUN = {"num_generations": 4, "steps_per_generation": 2, "gradient_accumulation_steps": 2, "refill_attempts": 8}


def one_update(model, folder, rows_a_process):
    trainer = make(model, folder, drawn_rows(24), per_device_train_batch_size=rows_a_process // 2, max_steps=2, **RUN)
    batches = recorded_batches(trainer)
    trainer.train()
    teaching = [teaching_groups(batch, 4).tolist() for batch in batches]
    logged = {name: value for name, value in trainer.state.log_history[0].items() if name.startswith("refill/")}
    return {"teaching": teaching, "logged": logged, "weights": weights_of(trainer.model), "facts": trainer.facts.groups}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_rollout_is_filled_with_groups_that_teach(processes, checkpoints, tmp_path):
    found = outcomes(one_update, processes, checkpoints("qwen2_5_vl"), tmp_path, 12 // processes * 2)
    for process in found:
        assert process["teaching"]
        assert all(all(groups) for groups in process["teaching"])
        assert process["logged"]["refill/attempts"] >= 1
        assert process["logged"]["refill/still_silent"] == 0
        assert process["facts"] > 2 * 6  # one question of three has no image
    for name, weight in found[0]["weights"].items():
        assert torch.equal(weight, found[-1]["weights"][name]), name


def test_the_other_questions_are_those_of_a_resumed_run_and_differ_by_process_and_draw():
    """Also by rollout: with steps_per_generation below gradient_accumulation_steps an update is of several."""

    def asked(process, step=4, draws=1):
        trainer = SimpleNamespace(
            args=SimpleNamespace(seed=1),
            state=SimpleNamespace(global_step=step),
            accelerator=SimpleNamespace(process_index=process),
            train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(50)]),
            num_generations=2,
            _draws=(step - 1, 7),  # of the update before, which a resumed run has not made
        )
        *_, last = [other_questions(trainer, 3) for _ in range(draws)]
        return [row["prompt"] for row in last]

    assert asked(0) == asked(0)
    assert asked(0)[::2] == asked(0)[1::2]
    assert len({*asked(0), *asked(1)}) == 6
    assert asked(0) != asked(0, draws=2) != asked(0, step=5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"scale_rewards": "batch"}, "advantages depend on all groups"),
        ({"entropy_coef": 0.1}, "groups without differences teach, too"),
    ],
)
def test_where_groups_cannot_be_replaced_it_is_said(settings, reason, checkpoints, rows, tmp_path):
    with pytest.raises(ValueError, match=f"^AdaPOTrainer: refill_attempts=2, but {reason}"):
        adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, refill_attempts=2, **settings)
