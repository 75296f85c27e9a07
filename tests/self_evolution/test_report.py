"""The table and picture of several seeds."""

from trl_mmreason.self_evolution.report import format_results, plot_histories


def metrics(accuracy, best, vote, distinct, tokens):
    """Of an evaluation with ten answers a question; it has more than the table shows."""
    return {
        "accuracy": accuracy,
        "pass_at_2": 0.0,
        "pass_at_10": best,
        "self_consistency_at_10": vote,
        "distinct_answers": distinct,
        "tokens": tokens,
    }


def test_the_table_has_each_seed_and_means():
    results = {
        "before": [metrics(0.5, 0.75, 0.625, 3.0, 15.0), metrics(0.25, 0.5, 0.375, 4.0, 15.5)],
        "self-evolution": [metrics(0.75, 0.8, 0.8, 2.0, 15.0), metrics(0.5, 0.6, 0.6, 2.5, 16.0)],
    }
    assert format_results(results, [3, 5], 10) == "\n".join(
        [
            "accuracy in percent  seed 3  seed 5  mean  pass@10  maj@10  distinct  tokens",
            "before                 50.0    25.0  37.5     62.5    50.0      3.50    15.2",
            "self-evolution         75.0    50.0  62.5     70.0    70.0      2.25    15.5",
        ]
    )


def test_one_answer_a_question_has_no_votes():
    found = {"before": [{"accuracy": 0.5, "tokens": 15.0}]}
    assert format_results(found, [3], 1).splitlines()[0].split() == "accuracy in percent seed 3 mean tokens".split()


def test_the_picture_draws_what_was_logged(tmp_path):
    """Also if a method has no judge, and where a metric was not logged."""
    history = [{"step": step, "accuracy": 0.1 * step, "entropy": 1.0} for step in range(1, 5)]
    judged = [{**entry, "agreement": 0.5, "judge/score": 0.4} for entry in history] + [{"step": 4, "train_loss": 1.0}]
    plot_histories({"self-evolution": [judged, judged], "majority-vote": [history]}, tmp_path / "training.png")
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
