import math

import pytest
from PIL import Image

from trl_mmreason.evaluation.curves import draw_curves, plot_curves, running_mean


def test_running_mean_is_trailing_and_leaves_nan_out():
    assert running_mean([1.0, 3.0, math.nan, 5.0, 7.0], window=2) == [1.0, 2.0, 3.0, 5.0, 6.0]
    assert math.isnan(running_mean([math.nan, 1.0], window=2)[0])


def test_panels_follow_the_data():
    history = [
        {"step": 1, "acc_t1": 0.5, "acc_t2": 0.25, "loss": 1.0, "correction_rate": math.nan},
        {"step": 2, "eval_reward": 9.0},
        {"step": 3, "acc_t1": 1.0, "acc_t2": math.nan, "loss": 3.0, "correction_rate": math.nan},
        {"step": 3, "train_loss": 2.0},
    ]
    axes = draw_curves(history).axes
    assert [panel.get_title() for panel in axes] == ["Accuracy", "Loss"]  # transitions hold NaN alone
    assert [panel.get_ylabel() for panel in axes] == ["share right", "loss"]
    assert {panel.get_xlabel() for panel in axes} == {"training step"}
    raw, mean = axes[1].lines
    assert raw.get_xydata().tolist() == [[1.0, 1.0], [3.0, 3.0]]
    assert mean.get_linewidth() > raw.get_linewidth()
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["first turn", "second turn"]


def test_length_is_drawn_for_every_method_and_the_judge_s_failures():
    history = [{"step": step, "completions/mean_length": 9.0 * step, "judge/neutral": 0.5} for step in (1, 2)]
    judge, length = draw_curves(history).axes
    assert judge.get_title() == "Replies without a score"
    assert length.lines[0].get_xydata().tolist() == [[1.0, 9.0], [2.0, 18.0]]


def test_bold_line_is_the_mean_over_a_tenth_of_the_run():
    history = [{"step": step, "reward": float(step)} for step in range(1, 21)]  # 20 values: a window of 2
    _, mean = draw_curves(history).axes[0].lines
    assert mean.get_ydata().tolist() == [1.0] + [step - 0.5 for step in range(2, 21)]


def test_image_grows_with_its_panels(tmp_path):
    # a panel is 4.2 x 2.9 inches at 120 dots an inch, and the caption takes 0.3 inches below
    names = ["reward", "acc_t1", "correction_rate", "kl_t1"]
    for count, size in ((1, (504, 384)), (4, (1512, 732))):
        plot_curves([{"step": step, **dict.fromkeys(names[:count], 0.5)} for step in (1, 2)], tmp_path / "curves.png")
        with Image.open(tmp_path / "curves.png") as image:
            assert (image.format, image.size) == ("PNG", pytest.approx(size, abs=1))  # matplotlib rounds, or cuts


def test_a_run_that_logged_no_step_ends_with_a_warning(tmp_path, caplog):
    """Such as one of a single step with `logging_steps` above 1, whose results are not to be lost."""
    plot_curves([{"step": 1, "train_runtime": 3.0}], tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())
    assert "curves.png is not drawn: no step was logged" in caplog.text
