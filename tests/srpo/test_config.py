import pytest

from trl_mmreason import ReflectionSFTConfig, SRPOConfig
from trl_mmreason.srpo.prompts import REFLECTION_PROMPT


def config(tmp_path, **settings):
    return SRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **settings)


def sft_config(tmp_path, **settings):
    return ReflectionSFTConfig(str(tmp_path), use_cpu=True, bf16=False, **settings)


def test_the_defaults_are_the_papers(tmp_path):
    made = config(tmp_path)
    assert made.reflection_prompt == REFLECTION_PROMPT
    assert made.reflection_reward
    assert made.missing_second_is_wrong
    assert made.beta == 0.01  # OpenRLHF's; see tests/project/test_paper_values.py for the numbers of the paper


def test_null_on_the_command_line_means_no_prompt(tmp_path):
    assert config(tmp_path, reflection_prompt="null").reflection_prompt is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"brevity_coef": -0.1}, "brevity_coef=-0.1 is out of range, expected 0 or more"),
        ({"target_ratio": 2.5}, r"target is 2.5 and the maximum 2.5, expected 0 < target < maximum"),
        (
            {"target_response_tokens": 100},
            "target_response_tokens=100 and max_response_tokens=None, expected both or neither",
        ),
        ({"target_response_tokens": 100, "max_response_tokens": 50}, "target is 100 and the maximum 50"),
        ({"reflection_prompt": "  "}, "reflection_prompt is empty"),
        ({"max_completion_length": None}, "max_completion_length=None, expected the token limit"),
        ({"brevity_coef": float("nan")}, "brevity_coef=nan is out of range"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "which may reward failing first"),
        ({"filter_min_accuracy": 0.9, "filter_max_accuracy": 0.1}, "0 and 1 switch the filter off"),
        ({"filter_max_accuracy": 1.5}, "filter_min_accuracy=0.1 and filter_max_accuracy=1.5, expected 0 <= "),
        ({"filter_min_accuracy": float("nan")}, "filter_min_accuracy=nan"),
        ({"remove_unused_columns": True}, "removes images and answers"),
        ({"target_response_tokens": 100, "max_response_tokens": 200, "max_ratio": 3.0}, "max_ratio=3.0 were set too"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **settings)


def test_the_cold_start_is_one_epoch_on_whole_rows(tmp_path):
    made = sft_config(tmp_path)
    assert made.num_train_epochs == 1
    assert made.max_length is None
    assert made.completion_only_loss


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_length": 1024}, "max_length=1024 would cut"), ({"completion_only_loss": False}, "on the questions too")],
)
def test_a_cold_start_never_cuts_and_never_trains_on_questions(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        sft_config(tmp_path, **settings)
