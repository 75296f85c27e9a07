"""Inference-time scaling: every point of the curves by hand, and a page of evaluations that have them."""

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from pages import page_of
from written_samples import sample, samples

from trl_mmreason.cli.main import main
from trl_mmreason.evaluation import methods
from trl_mmreason.evaluation.evaluation_report import save_evaluation
from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.evaluation.question_table import best_of_n, group_sizes, pass_at_n, self_consistency_at_n
from trl_mmreason.evaluation.results import summarise
from trl_mmreason.evaluation.scaling import draw_scaling, scaling_curves, scaling_plots, sweep_of_weights
from trl_mmreason.generation import Failure


def chain(right, vote, steps, answer_score):
    """A sample whose one step and answer were scored, with w = 0.2 in its score."""
    score = 0.2 * steps + 0.8 * answer_score
    return sample(right, answer=vote, step_ends=[1], step_scores=[steps], answer_score=answer_score, score=score)


# Two questions of four chains; the gold answers are 7 and 1/2.
SEVEN = [
    chain(True, "7", 0.9, 0.4),
    chain(False, "8", 0.2, 0.6),
    chain(False, "8", 0.5, 0.8),
    chain(True, "7.0", 0.6, 0.72),
]
HALF = [
    chain(False, None, 0.8, 0),
    chain(False, "3", 0.1, 0.92),
    chain(True, "1/2", 0.7, 0.3),
    chain(False, "4", 0.4, 0.2),
]
# Trajectory scores with w = 0.2: 0.50, 0.52, 0.74, 0.696 and 0.16, 0.756, 0.38, 0.24.
CURVES = {
    # 2 and 1 of 4 are right: n=2: 1 - C(2,2)/C(4,2) = 5/6 and 1 - C(3,2)/C(4,2) = 1/2
    "pass@n": {1: (2 / 4 + 1 / 4) / 2, 2: (5 / 6 + 1 / 2) / 2, 4: 1},
    # n=2: 7 before 8, 8 before 7.0; 3, 1/2 before 4. n=4: 7 = 7.0 ties with 8 and was first; 3 was first of three
    "self-consistency": {1: (2 / 4 + 1 / 4) / 2, 2: (1 / 2 + 1 / 2) / 2, 4: (1 + 0) / 2},
    # n=2: chains 1 and 2 (wrong, wrong); chains 1 and 2 (wrong, right). n=4: chains 2 and 1
    "best of n": {1: (2 / 4 + 1 / 4) / 2, 2: (0 + 1 / 2) / 2, 4: 0},
    "step-beam": {1: 0, 2: 1 / 2, 4: 1},
}
# w · steps + (1 - w) · answer is 0.4 + 0.5w, 0.6 - 0.4w, 0.8 - 0.3w, 0.72 - 0.12w: chain 2 leads up to w = 0.44, then 3
# up to 0.52, then 0, both right. And 0.8w, 0.92 - 0.82w, 0.3 + 0.4w, 0.2 + 0.2w: 1 up to 0.51, 2 up to 0.75, then 0.
SWEEP = [0, 0, 0, 0, 0, 1 / 2, 1, 1, 1 / 2, 1 / 2, 1 / 2]


def save(folder, found, **protocol):
    """An evaluation of these samples by a protocol, in a folder."""
    for row, gold in zip(found.rows, ("7", "1/2"), strict=False):
        row["answer"] = gold
    rows = Dataset.from_list([{**row, "images": []} for row in found.rows])
    about = {"command": "", "benchmark": {"title": "Mine"}, "settings": {"protocol": protocol, "n": found.n}}
    save_evaluation(folder, rows, found, summarise(found), about)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Four chains a question, and searches with 4, 1 and 2 candidates; the one with 2 finds the first answer alone."""
    root = tmp_path_factory.mktemp("scaling")
    searches = {4: (True, True), 1: (False, False), 2: (True, False)}
    folders = [save(root / "chains", samples(SEVEN, HALF), name="best-of-n")]
    for n, right in searches.items():
        found = samples(*([sample(each, tokens=9 * n)] for each in right))
        folders.append(save(root / f"beam-{n}", found, name="step-beam", candidates=n))
    return folders


@pytest.fixture(scope="module")
def evaluations(folders):
    return {folder.name: read_evaluation(folder) for folder in folders}


def test_every_point_of_the_curves(evaluations):
    found = scaling_curves(evaluations)
    assert list(found) == list(CURVES)
    for name, curve in CURVES.items():
        assert list(found[name]) == [1, 2, 4]
        assert {n: one.right.value for n, one in found[name].items()} == pytest.approx(curve), name


def test_intervals_are_over_questions(evaluations):
    # two questions: a resample has the first twice, both, or the second twice, in 1, 2 and 1 of 4 cases
    found = scaling_curves(evaluations)
    assert found["step-beam"][2].right.interval == (0, 1)
    assert found["step-beam"][4].right.interval == (1, 1)
    assert found["pass@n"][2].right.interval == pytest.approx((1 / 2, 5 / 6))


def test_tokens(evaluations):
    """A chain has 10, and the searches with n candidates 9 n, all candidates together."""
    found = scaling_curves(evaluations)
    for name, curve in found.items():
        each = 9 if name == "step-beam" else 10
        assert {n: one.tokens for n, one in curve.items()} == {1: each, 2: 2 * each, 4: 4 * each}


def test_the_sweep_of_the_step_weight_rises_and_falls(evaluations):
    found = sweep_of_weights(evaluations["chains"])
    assert list(found) == [tenths / 10 for tenths in range(11)]
    assert [one.value for one in found.values()] == SWEEP
    assert sweep_of_weights(evaluations["beam-4"]) == {}
    # what a search kept has scores of steps, and none of its own
    assert methods.weighted_scores(sample(True, step_ends=[1], step_scores=[0.5])) is None


def test_a_failed_sample_is_not_chosen_and_a_gold_answer_that_cannot_be_used_does_not_count(tmp_path):
    unknown = [{**one, "turns": [{**one["turns"][0], "correct": None}]} for one in SEVEN]
    found = samples([SEVEN[0], Failure("torn"), *SEVEN[2:]], unknown, [Failure("torn")] * 4)
    sweep = sweep_of_weights(read_evaluation(save(tmp_path, found, name="best-of-n")))
    assert [one.value for one in sweep.values()] == [0, 0, 0, 0, 0, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 1 / 2]


@pytest.mark.full
def test_curves_that_differ_in_more_than_n_are_told_apart(evaluations, tmp_path):
    chains = save(tmp_path / "a", samples(SEVEN, HALF), name="direct")
    right = samples([sample(True)], [sample(True)])
    search = save(tmp_path / "b", right, name="step-beam", candidates=2, max_steps=3)
    others = {"other chains": read_evaluation(chains), "other search": read_evaluation(search)}
    labels = ["pass@n", "self-consistency", "best of n"]
    of_chains = [f"{name}, {label}" for name in ("chains", "other chains") for label in labels]
    of_searches = ["beam-4, step-beam", "other search, step-beam"]
    assert list(scaling_curves({**evaluations, **others})) == [*of_chains, *of_searches]


def test_the_image(evaluations, folders):
    over_n, over_tokens, over_weight = draw_scaling(scaling_plots(evaluations)).axes
    assert [line.get_label() for line in over_n.lines] == list(CURVES)
    for line, curve in zip(over_n.lines, CURVES.values(), strict=True):
        assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == pytest.approx(curve)
    assert over_n.get_xscale() == "log"
    assert [label.get_text() for label in over_n.get_xticklabels()] == ["1", "2", "4"]
    assert [list(line.get_xdata()) for line in over_tokens.lines] == [[10, 20, 40]] * 3 + [[9, 18, 36]]
    (line,) = over_weight.lines
    assert list(line.get_ydata()) == SWEEP
    searches = {folder.name: read_evaluation(folder) for folder in folders[1:]}
    assert [len(axes.lines) for axes in draw_scaling(scaling_plots(searches)).axes] == [1, 1]
    for each in searches.values():
        del each.results.metrics["tokens"]  # as where a server does not count them
    assert [len(axes.lines) for axes in draw_scaling(scaling_plots(searches)).axes] == [1]
    assert scaling_plots({"beam-4": evaluations["beam-4"]}) == []


@pytest.mark.full
def test_the_command_shows_it(folders, tmp_path):
    main(["report", *map(str, folders), "--output", str(tmp_path / "all.html")])
    page = page_of(tmp_path / "all.html")
    assert "Inference-time scaling" in [heading["text"] for heading in page.with_tag("h2")]
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_equality_of_votes_is_the_caller_s():
    correct, votes = np.array([[True, False, False, True]]), [["7", "8", "8", "7.0"]]
    assert self_consistency_at_n(correct, votes, 4, str.__eq__).tolist() == [0]  # 8 has two votes, 7 and 7.0 one each


def test_groups_that_are_not_whole_do_not_count():
    correct, scores = np.array([[True, False, False, False, True]]), np.array([[0.1, 0.2, 0.2, 0.1, 0.9]])
    assert best_of_n(correct, scores, 2).tolist() == [0]
    assert best_of_n(correct, scores, 5).tolist() == [1]
    assert self_consistency_at_n(correct, [["1", "2", "3", "3", "1"]], 2).tolist() == [1 / 2]  # 1 before 2; 3 twice


def test_of_equal_scores_the_earliest_sample_is_chosen():
    assert best_of_n(np.array([[False, True, False]]), np.array([[0.1, 0.6, 0.6]]), 3).tolist() == [1]


@given(
    st.integers(1, 9).flatmap(lambda n: st.lists(st.tuples(st.booleans(), st.sampled_from([0, 0.5, 1])), min_size=n))
)
def test_pass_at_n_never_falls_and_nothing_chosen_beats_it(drawn):
    correct, scores = np.array([[right for right, _ in drawn]]), np.array([[score for _, score in drawn]])
    rising = [pass_at_n(correct, n)[0] for n in range(1, len(drawn) + 1)]
    assert all(later >= earlier - 1e-12 for earlier, later in zip(rising, rising[1:], strict=False))
    assert rising[0] == pytest.approx(correct.mean())
    assert best_of_n(correct, scores, 1)[0] == pytest.approx(rising[0])
    assert best_of_n(correct, scores, len(drawn))[0] <= rising[-1]
    assert best_of_n(correct, correct.astype(float), len(drawn))[0] == rising[-1]  # who knows the truth reaches it


def test_sizes_of_groups():
    assert [group_sizes(n) for n in (1, 2, 3, 8, 10)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 10]]
