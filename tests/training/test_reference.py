"""The KL reference is the policy that was passed, and LoRA trains the adapter only."""

import pytest
import torch
from peft import LoraConfig
from support import adapo_trainer, assert_weights, changed_weights, ends_often, load, weights_of

from trl_mmreason.miniature.models import build_model


def assert_reference_is(trainer, policy):
    assert_weights(trainer.accelerator.unwrap_model(trainer.ref_model), policy)


def test_a_policy_changed_in_memory_is_its_own_reference(family, checkpoints, rows, tmp_path):
    model, processor = load(checkpoints(family))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    name = model.config._name_or_path
    trainer = adapo_trainer(model, tmp_path, rows, trainer_kwargs={"processing_class": processor})
    assert_reference_is(trainer, model)
    assert model.config._name_or_path == name


def test_a_policy_that_was_never_saved_works(rows, tmp_path):
    model, processor = build_model("qwen2_5_vl", "test")
    ends_often(model, processor.tokenizer)
    start = weights_of(model)
    trainer = adapo_trainer(
        model, tmp_path, rows, trainer_kwargs={"processing_class": processor}, filter_zero_advantage=False
    )
    assert_reference_is(trainer, start)
    trainer.train()
    assert trainer.facts.changed
    assert_reference_is(trainer, start)  # the reference stays while the policy moves


def test_a_policy_named_by_path_is_its_own_reference(checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints("internvl"), tmp_path, rows)
    assert_reference_is(trainer, trainer.model)
    assert not (tmp_path / "_reference").exists()


@pytest.mark.parametrize("instance", [False, True])
def test_lora_trains_the_adapter_and_its_reference_is_the_base(family, checkpoints, rows, tmp_path, instance):
    path = checkpoints(family)
    base, processor = load(path)
    lora = LoraConfig(r=4, target_modules=r".*language_model.*\.(q|v)_proj")
    settings = {"filter_zero_advantage": False, "filter_truncated": False, "max_steps": 2, "beta": 0.05}
    settings["trainer_kwargs"] = {"processing_class": processor, "peft_config": lora}
    trainer = adapo_trainer(load(path)[0] if instance else path, tmp_path, rows, **settings)
    assert trainer.ref_model is None
    before = weights_of(trainer.model)
    trainer.train()
    # every adapter tensor, and nothing else
    assert changed_weights(trainer.model, before) == {name for name in before if "lora_" in name}

    # with the adapter off it is the base, and that is what the logged KL is taken against
    with trainer.model.disable_adapter():
        off = dict(trainer.model.get_base_model().named_parameters())
    for name, weight in base.named_parameters():
        module, _, kind = name.rpartition(".")
        found = off.get(name, off.get(f"{module}.base_layer.{kind}"))
        torch.testing.assert_close(found, weight, atol=0, rtol=0)
    first, second = (entry["kl"] for entry in trainer.state.log_history[:2])
    assert abs(first) < 1e-7
    assert second > 1e-6
