"""What training logged, as the numbers of claims."""

import math

import numpy as np

from study import self_evolution
from study.claims import judge
from study.logged import quarters, with_logged
from trl_mmreason.evaluation.question_table import QuestionTable

LOG = [{"step": step, "agreement": value} for step, value in enumerate([0.2, 0.4, 0.5, 0.5, 0.5, 0.5, 0.6, 0.9])]


def test_a_quarter_is_of_the_entries_that_have_the_value():
    """Two of eight: (0.2 + 0.4) / 2 and (0.6 + 0.9) / 2; entries of evaluations, and the last one of all, have none."""
    first, last = quarters([{"step": 0, "loss": 1.0}, *LOG, {"train_loss": 2.0, "agreement": None}], "agreement")
    assert (round(first, 9), round(last, 9)) == (0.3, 0.75)
    assert quarters(LOG[:1], "agreement") == (0.2, 0.2)
    assert all(math.isnan(value) for value in quarters(LOG, "judge/score"))


def test_claims_compare_what_was_logged():
    """Seed 0 rises by 0.75 − 0.3 = 0.45, seed 1 by 0.1: 0.275, with a standard error of half of their distance."""
    over = np.array([[1.0], [0.0], [1.0]])
    table = QuestionTable(("accuracy",), over, np.ones_like(over))
    outcomes = {seed: {"before": table, "ours": table, "majority": table} for seed in (0, 1)}
    slower = [{"agreement": 0.3}, {"agreement": 0.4}]
    found = with_logged(outcomes, {"ours": [LOG, slower], "majority": [[], []]}, ["agreement"])
    (claim,) = [one for one in self_evolution.CLAIMS if one.paper.startswith("Agree@1")]
    judged = judge(claim, found)
    assert np.allclose(judged.by_seed, [0.45, 0.1])
    assert np.allclose(judged.measured.interval, (0.275 - 12.7062 * 0.175, 0.275 + 12.7062 * 0.175), atol=1e-4)
    assert judged.verdict == "undecided"
    assert found[0]["ours"].values()["accuracy"] == 2 / 3
    assert math.isnan(found[0]["majority"].values()["last_agreement"])
    assert found[0]["before"] is table
