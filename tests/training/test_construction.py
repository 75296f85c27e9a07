"""What trainers check and correct in their arguments, where no trainer is needed to see it."""

import inspect

import pytest
from datasets import ClassLabel, Dataset
from every_trainer import TRAINERS
from peft import LoraConfig, get_peft_model

import trl_mmreason
from trl_mmreason.baselines.two_turns import SCoReTrainer
from trl_mmreason.compat.model_parts import freeze_vision_encoder, keep_adapters_frozen
from trl_mmreason.data.folders import NoSuchFolder
from trl_mmreason.data.row_loading import load_rows
from trl_mmreason.messages import completion_text
from trl_mmreason.miniature.models import build_model
from trl_mmreason.training.construction import all_rewards, check_rows
from trl_mmreason.training.grpo import GroupGRPOTrainer

SCORED = ("IterativeDPOTrainer", "ChainOfStepGRPOTrainer")  # by a process reward model, which may come by position


@pytest.mark.parametrize("name", TRAINERS)
def test_arguments_by_position_are_said_in_a_sentence(name, tmp_path):
    trainer = getattr(trl_mmreason, name)
    config = getattr(trl_mmreason, name.replace("Trainer", "Config"))(str(tmp_path), use_cpu=True)
    rows = Dataset.from_list([{"prompt": "p", "answer": "a"}])
    kind = type(config).__name__
    names = "model, process_reward_model" if name in SCORED else "model"
    fix = rf"Fix: {name}\({names}, args=…, train_dataset=…\)\.$"
    for given, came in (
        (("base", config, rows), f"str, {kind}, Dataset"),
        ((config, "base"), f"{kind}, str"),
        ((rows,), "Dataset"),
    ):
        with pytest.raises(TypeError, match=f"^{name}: got {came} without names, expected {names}. {fix}"):
            trainer(*given)


def test_the_order_of_a_trainer_that_takes_its_arguments_by_position_is_checked_too(tmp_path):
    config = trl_mmreason.AdaPOConfig(str(tmp_path), use_cpu=True)
    with pytest.raises(TypeError, match="^GroupGRPOTrainer: got str, AdaPOConfig without names, expected model, rewar"):
        GroupGRPOTrainer("base", config)
    with pytest.raises(TypeError, match="^SCoReTrainer: got str, AdaPOConfig without names, expected model. Fix:"):
        SCoReTrainer("base", config)
    assert "model" in inspect.signature(GroupGRPOTrainer).parameters  # as `help` shows them


def test_a_folder_without_a_model_is_refused(tmp_path):
    config = trl_mmreason.AdaPOConfig(str(tmp_path / "out"), use_cpu=True)
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "p"}], "answer": "a"}])
    with pytest.raises(NoSuchFolder, match=f"^the folder {tmp_path} holds no model: it has no config.json"):
        trl_mmreason.AdaPOTrainer(str(tmp_path), args=config, train_dataset=rows)


def test_a_data_set_without_rows_is_refused():
    """TRL trains no step on it, and says nothing."""
    rows = Dataset.from_list([{"prompt": "p", "answer": "a"}])
    check_rows("T", rows, None, {"prompt"})
    with pytest.raises(ValueError, match="^T: train_dataset has no rows"):
        check_rows("T", rows.select([]), None, {"prompt"})
    with pytest.raises(ValueError, match=r"^T: eval_dataset\['own'\] has no rows"):
        check_rows("T", rows, {"own": rows.select([])}, {"prompt"})


@pytest.mark.parametrize(
    ("columns", "fix"),
    [
        (
            {"prompt", "answer"},
            r"trl_mmreason\.data\.row_loading\.load_rows\(\.\.\., columns={'answer': \.\.\.}\) brings",
        ),
        (
            {"prompt", "completion"},
            r"`mmreason reflect` \(SRPO\), `steps` \(Chain-of-Step\), `trajectories` \(SOPHIA\)",
        ),
        (
            {"prompt", "completion", "step_labels", "answer_label"},
            "`mmreason annotate` makes such rows; `dataset.rename",
        ),
        ({"prompt", "completion", "reward"}, "`mmreason trajectories` makes such rows; `dataset.rename_columns` helps"),
    ],
)
def test_missing_columns_are_named_with_what_makes_them(columns, fix):
    """`load_rows` knows nothing of completions."""
    rows = Dataset.from_list([{"question": "p"}])
    with pytest.raises(ValueError, match=rf"^T: train_dataset has the columns \['question'\], expected .* Fix: {fix}"):
        check_rows("T", rows, None, columns)


def test_a_first_prompt_that_cannot_be_asked_is_refused_before_training():
    asked = {"role": "user", "content": "p"}
    messages = Dataset.from_list([{"prompt": [asked]}])
    own = Dataset.from_list([{"prompt": [{"role": "system", "content": "Be brief."}, asked]}])
    text = Dataset.from_list([{"prompt": "p"}])
    check_rows("T", messages, {"own": messages}, {"prompt"}, system_prompt="Think.", followup="Sure?")
    check_rows("T", own, text, {"prompt"})
    with pytest.raises(ValueError, match="^A row has a system message of its own, 'Be brief.'; drop it, or set"):
        check_rows("T", messages, own, {"prompt"}, system_prompt="Think.")
    with pytest.raises(ValueError, match="^T: a second turn needs conversational prompts .*, got str. Pass"):
        check_rows("T", text, None, {"prompt"}, followup="Sure?")


@pytest.mark.parametrize("missing", [None, ""])
def test_rows_without_any_answer_are_refused_where_answers_are_needed(missing):
    rows = Dataset.from_list([{"prompt": "p", "answer": missing}] * 2)
    with pytest.raises(ValueError, match="^T: no row of train_dataset has an answer, .* SelfEvolutionTrainer"):
        check_rows("T", rows, None, {"prompt", "answer"})
    check_rows("T", rows, None, {"prompt"})
    some = Dataset.from_list([{"prompt": "p", "answer": missing}, {"prompt": "p", "answer": "a"}])
    check_rows("T", some, None, {"prompt", "answer"})


def test_numbers_of_classes_are_no_answers():
    rows = Dataset.from_list([{"prompt": "p", "answer": 1}]).cast_column("answer", ClassLabel(names=["no", "yes"]))
    with pytest.raises(ValueError, match=r"^T: the answers of train_dataset are numbers of classes .*Fix: load_rows"):
        check_rows("T", rows, None, {"prompt", "answer"})
    check_rows("T", load_rows(rows).dataset, None, {"prompt", "answer"})


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
    with pytest.raises(ValueError, match=r"T: added .* names of built-in rewards, \['own_reward'\], .* Rename them"):
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


def test_a_completion_with_an_image_is_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "image"}]
    with pytest.raises(ValueError, match="completion of row 1 is .* expected text alone, no images"):
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
