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


@pytest.mark.parametrize("threshold", [-0.1, 1.1])
def test_threshold_is_a_share(tmp_path, threshold):
    with pytest.raises(ValueError, match="threshold"):
        config(tmp_path, threshold=threshold)


def test_kl_scale_is_not_negative(tmp_path):
    with pytest.raises(ValueError, match="kl_scale=-0.1 is out of range"):
        config(tmp_path, kl_scale=-0.1)


def test_a_kl_scale_without_a_reference_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Set beta > 0, or kl_scale=0"):
        config(tmp_path, beta=0.0)
    assert config(tmp_path, beta=0.0, kl_scale=0.0).beta == 0.0


def test_a_criterion_of_zero_advantages_is_known_and_used(tmp_path):
    assert config(tmp_path).zero_advantage_criterion == "reward"
    with pytest.raises(ValueError, match="zero_advantage_criterion='C', expected one of .'reward', 'correctness'."):
        config(tmp_path, zero_advantage_criterion="C")
    with pytest.raises(ValueError, match="says which groups filter_zero_advantage drops, but that is False"):
        config(tmp_path, zero_advantage_criterion="correctness", filter_zero_advantage=False)


def test_trls_own_truncation_mask_is_refused(tmp_path):
    with pytest.raises(ValueError, match="filter_truncated"):
        config(tmp_path, mask_truncated_completions=True)


@pytest.mark.parametrize("text", ["null", "None"])
def test_the_command_line_can_ask_for_one_turn(tmp_path, text):
    assert config(tmp_path, evaluation_prompt=text).evaluation_prompt is None


@pytest.mark.parametrize(
    ("name", "value"), [("evaluation_prompt", " "), ("max_completion_length", None), ("beta", -1.0)]
)
def test_values_that_cannot_train_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=name):
        config(tmp_path, **{name: value})
