"""Turning activation checkpointing off and on, as each rollout does, leaves as many hooks as there were."""

import pickle
from copy import deepcopy

import pytest
from peft import LoraConfig
from support import adapo_trainer, full_but, load
from transformers import TrainerCallback

from trl_mmreason.compat.input_hooks import keep_one_input_hook


def hooks_of(model) -> int:
    return len(model.get_input_embeddings()._forward_hooks)


def off_and_on(model) -> None:
    model.gradient_checkpointing_disable()  # as TRL calls it; transformers 5.17 has no other name
    model.gradient_checkpointing_enable()


class CountHooks(TrainerCallback):
    """Counts the policy's hooks after each step."""

    def __init__(self):
        self.counts = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.counts.append(hooks_of(model))


def test_hooks_pile_up_in_transformers(checkpoints):
    """Where this fails, transformers removes its hooks: compat/input_hooks.py can go."""
    model, _ = load(checkpoints("qwen2_5_vl"))
    for _ in range(3):
        off_and_on(model)
    assert hooks_of(model) == 3


def test_a_model_can_be_pickled(checkpoints):
    model, _ = load(checkpoints("qwen2_5_vl"))
    keep_one_input_hook(model)
    copy = pickle.loads(pickle.dumps(model))
    off_and_on(copy)
    assert (hooks_of(model), hooks_of(copy)) == (0, 1)


def test_a_model_has_one_hook_and_a_copy_looks_after_itself(checkpoints):
    model, _ = load(checkpoints("qwen2_5_vl"))
    keep_one_input_hook(model)
    for _ in range(3):
        off_and_on(model)
    assert hooks_of(model) == 1
    copy = deepcopy(model)
    off_and_on(copy)
    its, register = copy.enable_input_require_grads.args
    assert (its, register.__self__) == (copy, copy)
    assert hooks_of(model) == 1
    model.disable_input_require_grads()
    assert hooks_of(model) == 0


def test_a_method_that_the_user_has_set_is_called(checkpoints):
    model, _ = load(checkpoints("qwen2_5_vl"))
    called = []
    model.enable_input_require_grads = lambda: called.append(model)
    for _ in range(2):  # as for two trainers
        keep_one_input_hook(model)
    model.enable_input_require_grads()
    assert called == [model]


@pytest.mark.parametrize("adapter", full_but(False, [False, True]))
def test_rollouts_and_scoring_add_none(checkpoints, rows, tmp_path, adapter):
    counted = CountHooks()
    more = {"peft_config": LoraConfig(target_modules=["q_proj"])} if adapter else {}
    trainer = adapo_trainer(
        checkpoints("qwen2_5_vl"),
        tmp_path,
        rows,
        trainer_kwargs={"callbacks": [counted], **more},
        gradient_checkpointing=True,
        max_steps=3,
        steps_per_generation=1,
        num_iterations=1,
    )
    trainer.train()
    first, *later = counted.counts
    assert later == [first] * 2
