import pytest

from trl_mmreason import AdaPOConfig


def config(tmp_path, **settings):
    return AdaPOConfig(str(tmp_path), use_cpu=True, bf16=False, **settings)


def test_the_prompt_is_the_papers(tmp_path):
    assert config(tmp_path).evaluation_prompt == (
        "There might be an error in the solution, please evaluate the previous solution and provide a final answer."
    )


@pytest.mark.parametrize(("name", "value"), [("k_01", -1.0), ("k_11", 1.0), ("k_10", -0.5), ("k_00", 0.5)])
def test_the_signs_of_table_4_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=rf"{name}={value} is out of range, expected {name} [<>]= 0"):
        config(tmp_path, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "ends"),
    [
        ("k_01", 2.0, "-0.2 .* 1.8"),  # 1 + 2 * (0 - 0.6) = -0.2
        ("k_11", -3.0, "2.8 .* -0.2"),  # 1 - 3 * 0.4 = -0.2
        ("k_10", 1.0, "-1 .* 0"),  # -1 + 1 = 0 is not negative
        ("base_incorrect", 0.1, "0.1 .* 0.6"),  # then 1→0 earns more than nothing
    ],
)
def test_rewards_that_change_sign_within_p_are_refused(tmp_path, name, value, ends):
    with pytest.raises(ValueError, match=rf"{name}={value}.*gives rewards from {ends}"):
        config(tmp_path, **{name: value})


def test_the_criterion_of_zero_advantages_is_the_reward_and_without_kl_there_need_be_no_reference(tmp_path):
    assert config(tmp_path).zero_advantage_criterion == "reward"
    assert config(tmp_path, beta=0.0, kl_scale=0.0).beta == 0.0


@pytest.mark.parametrize("text", ["null", "None"])
def test_the_command_line_can_ask_for_one_turn(tmp_path, text):
    assert config(tmp_path, evaluation_prompt=text).evaluation_prompt is None


UNUSED = {"zero_advantage_criterion": "correctness", "filter_zero_advantage": False}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"threshold": -0.1}, "threshold"),
        ({"threshold": 1.1}, "threshold"),
        ({"kl_scale": -0.1}, "kl_scale=-0.1 is out of range"),
        ({"beta": 0.0}, "Set beta > 0, or kl_scale=0"),  # a KL scale needs the reference
        ({"beta": -1.0}, "beta"),
        ({"zero_advantage_criterion": "C"}, "zero_advantage_criterion='C', expected one of .'reward', 'correctness'."),
        (UNUSED, "says which groups filter_zero_advantage drops, but that is False"),
        ({"mask_truncated_completions": True}, "filter_truncated"),  # TRL's own
        ({"evaluation_prompt": " "}, "evaluation_prompt"),
        ({"max_completion_length": None}, "max_completion_length"),
        (
            {"eval_strategy": "steps", "eval_steps": 1, "num_generations": 4, "per_device_eval_batch_size": 6},
            "AdaPOConfig: per_device_eval_batch_size=6 on 1 processes, expected whole groups of num_generations_eval=4",
        ),
    ],
)
def test_settings_that_cannot_train_are_refused(tmp_path, settings, problem):
    with pytest.raises(ValueError, match=problem):
        config(tmp_path, **settings)
