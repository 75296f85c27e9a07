"""What is measured of n sampled answers, and the table and picture of several seeds."""

import math

import pytest

from trl_mmreason.self_evolution.report import Result, format_results, plot_histories, result_of


def answer(text, correct, tokens=3):
    return {"text": rf"\boxed{{{text}}}" if text else "I do not know it.", "correct": correct, "tokens": tokens}


def test_results():
    """Two questions, three answers each: the vote is wrong on the first (4, 1/2, 0.5) and right on the second."""
    answers = [
        [answer("4", True), answer("1/2", False), answer("0.5", False)],
        [answer("7", True, 9), answer("7", True, 9), answer("", False, 9)],
        [answer("1", None)] * 3,  # its gold answer cannot be used
    ]
    result = result_of(answers)
    assert result == pytest.approx(Result(accuracy=0.5, pass_at_n=1.0, majority=0.5, distinct=1.5, tokens=6.0))
    assert math.isnan(result_of([[answer("4", True, None)]]).tokens)
    with pytest.raises(ValueError, match="none of the 1 questions can be graded"):
        result_of([[answer("1", None)]])
    assert result_of([[answer("", False)] * 2]).majority == 0.0


def test_the_table_has_each_seed_and_means():
    results = {
        "before": [Result(0.5, 0.75, 0.625, 3.0, 15.0), Result(0.25, 0.5, 0.375, 4.0, 15.5)],
        "self-evolution": [Result(0.75, 0.8, 0.8, 2.0, 15.0), Result(0.5, 0.6, 0.6, 2.5, 16.0)],
    }
    assert format_results(results, [3, 5], 10) == "\n".join(
        [
            "accuracy in percent  seed 3  seed 5  mean  pass@10  maj@10  distinct  tokens",
            "before                 50.0    25.0  37.5     62.5    50.0      3.50   15.25",
            "self-evolution         75.0    50.0  62.5     70.0    70.0      2.25   15.50",
        ]
    )


def test_the_picture_draws_what_was_logged(tmp_path):
    """Also if a method has no judge, and where a metric was not logged."""
    history = [{"step": step, "accuracy": 0.1 * step, "entropy": 1.0} for step in range(1, 5)]
    judged = [{**entry, "agreement": 0.5, "judge/score": 0.4} for entry in history] + [{"step": 4, "train_loss": 1.0}]
    plot_histories({"self-evolution": [judged, judged], "majority-vote": [history]}, tmp_path / "training.png")
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
