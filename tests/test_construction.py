"""What trainers check and correct in their arguments, where no trainer is needed to see it."""

import pytest
from peft import LoraConfig, get_peft_model

from trl_mmreason.construction import all_rewards
from trl_mmreason.messages import completion_text
from trl_mmreason.miniature.models import build_model
from trl_mmreason.parts import freeze_vision_encoder, keep_adapters_frozen


def own_reward(completions):
    return [1.0] * len(completions)


def length_reward(completions):
    return [float(len(text)) for text in completions]


def test_added_rewards_come_behind_the_methods_own():
    assert all_rewards("T", [own_reward], None) == [own_reward]
    assert all_rewards("T", [own_reward], length_reward) == [own_reward, length_reward]
    assert all_rewards("T", [own_reward], [length_reward, "a model"]) == [own_reward, length_reward, "a model"]


def test_an_added_reward_with_a_name_of_the_methods_own_is_refused():
    def same_name(completions):
        return [0.0] * len(completions)

    same_name.__name__ = "own_reward"
    with pytest.raises(ValueError, match=r"T: added .* names of its own, \['own_reward'\], .* Rename them"):
        all_rewards("T", [own_reward], [length_reward, same_name])


def test_the_text_of_a_completion():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert completion_text("ab", "row 1") == "ab"
    assert completion_text([{"role": "assistant", "content": "ab"}], "row 1") == "ab"
    assert completion_text([{"role": "assistant", "content": parts}], "row 1") == "ab"


@pytest.mark.parametrize("roles", [[], ["user"], ["assistant"] * 2])
def test_a_completion_that_is_not_one_message_of_the_assistant_is_refused(roles):
    messages = [{"role": role, "content": "a"} for role in roles]
    with pytest.raises(ValueError, match="completion of row 1 is .* expected a string or one message of the assistant"):
        completion_text(messages, "row 1")


def test_a_completion_with_a_picture_is_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "image"}]
    with pytest.raises(ValueError, match="completion of row 1 is .* expected text alone, no pictures"):
        completion_text([{"role": "assistant", "content": parts}], "row 1")


def adapted(family, **settings):
    return get_peft_model(build_model(family, "test")[0], LoraConfig(r=2, target_modules="all-linear", **settings))


def trained(model):
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def test_a_frozen_vision_encoder_s_adapters_stay_frozen_when_peft_switches_adapters(family):
    model = adapted(family)
    language = {name for name in trained(model) if "visual." not in name and "vision_tower." not in name}
    assert language < trained(model)
    model.add_adapter("ref", model.peft_config["default"])  # as TRL does for a policy that comes with an adapter
    freeze_vision_encoder(model)
    assert trained(model) == language
    with model.disable_adapter():
        assert not trained(model)
    assert trained(model) == language
    model.set_adapter("ref")
    model.set_adapter("default")
    assert trained(model) == language


def test_adapter_layers_that_are_frozen_now_stay_so():
    model = adapted("qwen2_5_vl")
    before = trained(model)
    frozen = {name for name in before if ".q_proj." in name}
    assert frozen
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    keep_adapters_frozen(model)
    with model.disable_adapter():
        pass
    assert trained(model) == before - frozen


def test_a_module_that_an_adapter_saves_cannot_stay_frozen():
    model = adapted("qwen2_5_vl", modules_to_save=["merger"])
    with pytest.raises(ValueError, match="has a Qwen2_5_VLPatchMerger trained, .* Take it out of modules_to_save"):
        freeze_vision_encoder(model)
