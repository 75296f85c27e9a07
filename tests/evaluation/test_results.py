"""Every metric of an evaluation from samples whose verdicts are written out, and the files that hold them."""

import json
import math

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from written_samples import sample, samples

from trl_mmreason.data.rows import DataError
from trl_mmreason.evaluation.benchmarks import BENCHMARKS
from trl_mmreason.evaluation.files import format_results, read_evaluation, results_as_json, write_evaluation
from trl_mmreason.evaluation.metrics import metric_of, two_turn_metrics
from trl_mmreason.evaluation.results import compare_results, summarise
from trl_mmreason.generation import Failure
from trl_mmreason.grading import Grader


def values(found, **settings):
    return {name: estimate.value for name, estimate in summarise(found, **settings).metrics.items()}


def test_one_sample_a_question():
    found = samples([sample(True)], [sample(False, tokens=20, finish_reasons=["length"])], [sample(True)])
    assert values(found) == {"accuracy": 2 / 3, "truncated": 1 / 3, "tokens": pytest.approx(40 / 3)}


@pytest.mark.full
@settings(deadline=None, max_examples=30)  # each draws its bootstraps
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_two_turns_are_those_of_the_metrics(outcomes):
    found = values(samples(*([sample(*outcome)] for outcome in outcomes)))
    first, second = zip(*outcomes, strict=True)
    expected = two_turn_metrics(first, second)
    assert {name: found[name] for name in expected} == pytest.approx(expected, nan_ok=True)
    assert found["accuracy"] == found["acc_t2"]


def test_two_turns_of_several_samples():
    # 0→1 and 1→1; 1→0 and 0→0: one of two first wrong is corrected, one of two first right is spoiled
    found = values(samples([sample(False, True), sample(True, True)], [sample(True, False), sample(False, False)]))
    assert found["acc_t1"] == found["acc_t2"] == 1 / 2
    assert found["correction_rate"] == found["misjudgment_rate"] == 1 / 2
    assert found["correction_share"] == found["misjudgment_share"] == 1 / 4
    assert found["pass_at_2"] == 1 / 2  # the first question's second answers are both right, the other's both wrong


def test_a_second_turn_that_was_never_given_is_wrong():
    found = values(samples([sample(True)], [sample(True, True)]))
    assert (found["acc_t1"], found["acc_t2"]) == (1.0, 0.5)


def test_several_samples():
    # 2 of 4 are right; 7 is said three times; the best scored of each pair: the first, the second
    one = [sample(True, score=0.9), sample(False, answer="8", score=0.1)]
    one += [sample(True, answer="7.0", score=0.2), sample(False, answer="9", score=0.4)]
    # 1 of 4 is right, and has no score; 3 and 1/2 and 0.5 and nothing
    other = [sample(False, answer="3", score=0.5), sample(True, answer="1/2")]
    other += [sample(False, answer="0.5", score=0.2), sample(False, answer=None, score=0.1)]
    found = values(samples(one, other))
    assert found["accuracy"] == (2 / 4 + 1 / 4) / 2
    assert found["distinct_answers"] == (3 + 2) / 2  # 7 = 7.0, 8, 9; 3, 1/2 = 0.5, and nothing
    assert found["pass_at_2"] == pytest.approx(((1 - 1 / 6) + (1 - 3 / 6)) / 2)
    assert found["pass_at_4"] == 1
    # pairs: 7 before 8, 7 before 9; 3 before 1/2, 0.5 alone. Fours: 7 = 7.0; 1/2 = 0.5, whose first is right
    assert found["self_consistency_at_2"] == ((1 + 1) / 2 + (0 + 0) / 2) / 2
    assert found["self_consistency_at_4"] == (1 + 1) / 2
    # pairs: 0.9 (right), 0.4 (wrong); 0.5 (wrong), 0.2 (wrong). Fours: 0.9 (right), 0.5 (wrong)
    assert found["best_of_2"] == (1 / 2 + 0) / 2
    assert found["best_of_4"] == (1 + 0) / 2


def test_without_scores_there_is_no_best_of_n():
    found = values(samples([sample(True), sample(False)]))
    assert {"pass_at_2", "self_consistency_at_2"} < found.keys()
    assert "best_of_2" not in found


def test_letters_and_texts_of_choices_vote_for_one_answer():
    said = [(False, "B"), (True, "a hat"), (True, "A"), (False, "B"), (True, "(A)")]
    tried = [sample(correct, answer=answer) for correct, answer in said]
    found = values(samples(tried, choices=[{"A": "a hat", "B": "a cat"}]))
    assert found["self_consistency_at_5"] == 1


def test_only_final_answers_vote():
    """Two first answers that were cut, and one whole sample: its second answer is the only vote."""
    cut = sample(False, answer="5")
    whole = sample(False, True)
    whole["turns"][0]["answer"] = "5"
    assert values(samples([cut, cut, whole]))["self_consistency_at_3"] == 1


def test_votes_are_counted_by_the_grader_that_graded():
    """Four opinions, of which the first wins; or two that agree within 1 % and win."""
    said = [(False, "9"), (True, "0.502"), (True, "1/2"), (False, "8")]
    tried = [sample(correct, answer=answer) for correct, answer in said]
    found = samples(tried, answer=["0.5"])
    assert values(found, grader=Grader())["self_consistency_at_4"] == 0
    assert values(found, grader=Grader(tolerance="lenient"))["self_consistency_at_4"] == 1


def test_a_score_that_is_no_number_chooses_nothing():
    found = values(samples([sample(False, score=math.nan), sample(True, score=0.1)]))
    assert found["best_of_2"] == 1


def test_a_score_may_be_any_number():
    """Log-probabilities below -1 were taken for none, so that there was no best of two."""
    found = values(
        samples([sample(False, score=-9.5), sample(True, score=-2.5)], [sample(False), sample(True, score=-7)])
    )
    assert found["best_of_2"] == 1


def test_where_the_engine_counts_no_tokens_there_is_no_mean():
    uncounted = sample(True)
    del uncounted["tokens"]
    assert "tokens" not in values(samples([uncounted], [sample(True)]))


def test_a_failed_sample_is_wrong_and_listed():
    found = summarise(samples([sample(True)], [Failure("the image is torn")]))
    assert found.metrics["accuracy"].value == 1 / 2
    assert found.metrics["tokens"].value == 10  # of those there are
    assert found.failures == [{"id": "q1", "sample": 0, "reason": "the image is torn"}]
    assert found.counts["failed"] == 1


def test_a_question_without_a_usable_gold_counts_nowhere():
    found = summarise(samples([sample(True)], [sample(None)], [sample(False)]))
    assert found.metrics["accuracy"].value == 1 / 2
    assert found.unusable == ["q1"]
    assert found.counts["unusable_gold"] == 1


def test_a_question_whose_first_answer_the_judge_left_open_counts_nowhere():
    """As a first answer without a verdict is none that was wrong and got corrected."""
    silent = sample(True, True)
    silent["turns"][0] |= {"correct": None, "decided_by": "unreadable"}
    found = summarise(samples([silent], [sample(True, True)], [sample(False, True)]))
    rates = {name: found.metrics[name].value for name in ("acc_t1", "acc_t2", "correction_share")}
    assert rates == {"acc_t1": 1 / 2, "acc_t2": 1, "correction_share": 1 / 2}
    assert (found.counts["decided_by_unreadable"], found.counts["unusable_gold"]) == (1, 0)
    assert "1 answers have no verdict" in format_results(found)


def test_when_no_gold_is_usable_nothing_is_claimed():
    found = summarise(samples([sample(None)], category=["bars"]))
    assert math.isnan(found.metrics["accuracy"].value)
    assert results_as_json(found)["metrics"]["accuracy"] == {"value": None, "low": None, "high": None}
    assert "n/a [n/a, n/a]" in format_results(found)


@pytest.mark.parametrize("wrong", [2, 3])
def test_worst_case_over_variants(wrong):
    found = samples(*([sample(k != wrong)] for k in range(5)), group=["p", "p", "q", "q", None])
    with_variants = values(found, benchmark=BENCHMARKS["dynamath"])
    assert with_variants["worst_case"] == 2 / 3  # p and the last one, which is alone
    assert with_variants["accuracy"] == 4 / 5
    assert "worst_case" not in values(found)


def test_the_benchmark_s_own_scores():
    """We-Math: one problem mastered, one whose steps are right and whole is wrong: strictly (1 + 0.5·1) / 2."""
    ids = [f"2steps_{k}/{step}" for k in (1, 2) for step in ("1", "2", "multi")]
    found = samples(*([sample(k < 5)] for k in range(6)), group=["2steps_1"] * 3 + ["2steps_2"] * 3, id=ids)
    scores = summarise(found, BENCHMARKS["we_math"]).metrics
    assert scores["score_strict"].value == (1 + 0.5) / 2
    assert scores["score_strict"].interval == (0.5, 1.0)  # both draws are one of the two
    assert scores["accuracy"].value == 5 / 6


def test_tasks_of_blink_weigh_alike():
    """Three of four, and none of one: (3/4 + 0) / 2, though three of five answers are right."""
    found = samples(*([sample(k < 3)] for k in range(5)), category=["Jigsaw"] * 4 + ["Counting"])
    metrics = summarise(found, BENCHMARKS["blink"]).metrics
    assert (metrics["mean_over_tasks"].value, metrics["accuracy"].value) == (3 / 8, 3 / 5)
    one_task = samples([sample(True)], [sample(False)], category=["Jigsaw"] * 2)
    assert "mean_over_tasks" not in summarise(one_task, BENCHMARKS["blink"]).metrics


def test_variants_of_one_problem_are_drawn_together():
    """Of two problems with ten variants each, one all right and one all wrong, a draw holds 0, 1 or 2 right ones."""
    tried = [[sample(k < 10)] for k in range(20)]
    alone = summarise(samples(*tried)).metrics["accuracy"]
    together = summarise(samples(*tried, group=["p"] * 10 + ["q"] * 10)).metrics["accuracy"]
    assert alone.value == together.value == 1 / 2
    assert together.interval == (0.0, 1.0)
    assert 0.2 < alone.interval[0] < 0.4  # 20 coin tosses: 1/2 ± 1.96 · sqrt(1/4 / 20) = 1/2 ± 0.22
    assert 0.6 < alone.interval[1] < 0.8


def test_categories():
    tried = samples([sample(True)], [sample(False)], [sample(True)], category=["bars", "bars", "dots"])
    found = summarise(tried).categories
    right = {name: (questions, metrics["accuracy"].value) for name, (questions, metrics) in found.items()}
    assert right == {"bars": (2, 1 / 2), "dots": (1, 1.0)}


def test_what_went_wrong_is_counted():
    timeout = sample(False)
    timeout["turns"][0]["decided_by"] = "timeout"
    found = summarise(samples([sample(False, answer=None)], [timeout], [sample(True, problem="missing <think>")]))
    cut = summarise(samples([sample(False, answer=None)], [sample(False, True)]))
    assert (cut.counts["no_second_turn"], cut.counts["no_answer"]) == (1, 0)
    assert "1 samples have no second answer" in format_results(cut)
    expected = {"questions": 3, "samples": 3, "no_answer": 1, "malformed": 1}
    expected |= {"decided_by_rules": 2, "decided_by_timeout": 1}
    assert {name: count for name, count in found.counts.items() if count} == expected
    text = format_results(found)
    assert "1 final answers could not be found" in text
    assert "1 answers could not be compared in time" in text


def test_the_change_is_paired():
    """Each question that was right stays right, and one more becomes right: the change is never below zero."""
    before = samples(*([sample(k < 5)] for k in range(10)))
    after = samples(*([sample(k < 6)] for k in range(10)))
    change = compare_results(summarise(before), summarise(after))["accuracy"]
    assert (change.before.value, change.after.value) == (0.5, 0.6)
    assert change.change.value == pytest.approx(0.1)
    assert change.change.interval[0] == 0
    assert change.before.interval[0] < 0.3  # which the accuracies by themselves would not show


def test_other_questions_are_not_compared():
    two, one = (summarise(samples(*([sample(True)] for _ in range(n)))) for n in (2, 1))
    with pytest.raises(ValueError, match="2 questions before and 1 after, of which 1 are the same"):
        compare_results(two, one)
    other_gold = summarise(samples([sample(True)], answer=["8"]))
    with pytest.raises(ValueError, match="1 questions before and 1 after, of which 0 are the same"):
        compare_results(one, other_gold)


def test_only_what_can_be_graded_on_both_sides_is_compared():
    before = summarise(samples([sample(True)], [sample(None)], [sample(False)]))
    after = summarise(samples([sample(None)], [sample(True)], [sample(True)]))
    change = compare_results(before, after)["accuracy"]
    assert (change.before.value, change.after.value, change.change.value) == (0, 1, 1)
    nothing = compare_results(summarise(samples([sample(None)])), summarise(samples([sample(True)])))["accuracy"]
    assert math.isnan(nothing.change.value)


def test_the_worst_case_is_compared_over_variants_that_both_sides_have():
    """Of p the second variant alone has a verdict on both sides: it was wrong, and p with it, and became right."""
    groups = {"group": ["p", "p", "q", "q"]}
    before = samples(*([sample(k != 1)] for k in range(4)), **groups)
    after = samples([sample(None)], *([sample(True)] for _ in range(3)), **groups)
    change = compare_results(*(summarise(each, BENCHMARKS["dynamath"]) for each in (before, after)))["worst_case"]
    assert (change.before.value, change.after.value, change.change.value) == (1 / 2, 1, 1 / 2)


def test_variants_of_one_problem_are_compared_together():
    """One problem of ten variants became right, another wrong: a draw of problems gives -1, 0 or 1."""
    groups = {"group": ["p"] * 10 + ["q"] * 10}
    before = summarise(samples(*([sample(k < 10)] for k in range(20)), **groups))
    after = summarise(samples(*([sample(k >= 10)] for k in range(20)), **groups))
    assert compare_results(before, after)["accuracy"].change.interval == (-1.0, 1.0)


def test_files_hold_all_of_it(tmp_path):
    found = samples([sample(True, False), Failure("torn")], [sample(True), sample(None, None)], category=["a", None])
    image = Image.new("RGB", (3, 2), "red")
    images = Dataset.from_list([{"id": "q0", "images": [image]}, {"id": "q1", "images": []}])
    about = {"benchmark": {"name": "mine"}, "command": "mmreason"}
    write_evaluation(tmp_path / "run", found, summarise(found), about, images)
    saved = read_evaluation(tmp_path / "run")
    whole = summarise(found)
    assert saved.results.metrics.keys() == whole.metrics.keys()
    assert saved.results.counts == whole.counts
    assert saved.results.questions == whole.questions
    assert np.array_equal(saved.results.table.numerator, whole.table.numerator)
    assert np.array_equal(saved.results.table.denominator, whole.table.denominator)
    assert saved.samples.samples == found.samples
    rows = [{name: value for name, value in row.items() if value is not None} for row in found.rows]
    assert saved.samples.rows == rows
    assert (saved.samples.n, saved.samples.turns) == (2, 2)
    assert saved.about["benchmark"] == {"name": "mine"}
    assert np.array_equal(np.asarray(saved.images["q0"][0]), np.asarray(image))
    assert saved.images["q1"] == []
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["metrics"]["acc_t1"]["value"] == 0.5  # of q0: one right, one failed; q1 cannot be graded
    assert results["unusable"] == ["q1"]


def test_an_unfinished_folder_is_no_evaluation(tmp_path):
    with pytest.raises(DataError, match="no results.json and no samples.jsonl and no questions.jsonl"):
        read_evaluation(tmp_path)


def test_names_of_metrics():
    named = ("accuracy", "pass_at_16", "self_consistency_at_4", "best_of_8", "acc_t1", "tokens")
    labels = [metric_of(name).label for name in named]
    assert labels == ["accuracy", "pass@16", "self-consistency@4", "best of 8", "acc@t1", "tokens a sample"]
