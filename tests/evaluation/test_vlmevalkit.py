"""200 answers written by hand to four benchmarks: our verdicts beside those of VLMEvalKit's published rules.

`vlmevalkit.jsonl` has one question per line, in the columns of its data set, and answers to it with

- right: what the answer is, by hand, numbers as near as the benchmark's authors ask for;
- ours: our verdict;
- kit: verdict of VLMEvalKit's rules on the completion; null where they leave it to a language model;
- extract, kit_on_extract: what a careful person extracts for that model, and the verdict of the kit's rules on it; null
  where a language model judges that too;
- why: the reason where ours differs from right or from the kit.

The kit's verdicts are a record of its code, which docs/benchmarks.md names.
"""

import json
from pathlib import Path

import pytest
from benchmark_rows import LAYOUTS
from benchmark_rows.layout import IMAGE, RED, saved

from trl_mmreason.evaluation.benchmarks import BENCHMARKS, load_benchmark
from trl_mmreason.grading import Grader
from trl_mmreason.grading.reward import grade_answers

LINES = Path(__file__).with_name("vlmevalkit.jsonl").read_text(encoding="utf-8").splitlines()
NAMES = ("mathvista", "mathverse", "mathvision", "mmmu")
PAGE = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")


def answers_of(name):
    """Pairs of a question's row and one answer to it."""
    cases = [case for case in map(json.loads, LINES) if case["benchmark"] == name]
    return [(case["row"], answer) for case in cases for answer in case["answers"]]


def of_kit(answer):
    return answer["kit_on_extract"] if answer["kit"] is None else answer["kit"]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", NAMES)
def test_verdicts_are_those_recorded(name, tmp_path):
    rows, answers = zip(*answers_of(name), strict=True)
    benchmark, layout = BENCHMARKS[name], LAYOUTS[name]
    images = {column: RED for column, kind in layout.features.items() if kind == IMAGE}
    rows = [{**row, **images, benchmark.id_column: str(number)} for number, row in enumerate(rows)]
    loaded = load_benchmark(name, saved(layout, tmp_path, rows))
    grader = Grader(prose=benchmark.answers_in_prose)
    verdicts = grade_answers(grader, list(loaded), [answer["completion"] for answer in answers])
    found = {answer["completion"]: verdict.correct for answer, verdict in zip(answers, verdicts, strict=True)}
    assert found == {answer["completion"]: answer["ours"] for answer in answers}


@pytest.mark.parametrize("name", NAMES)
def test_each_difference_has_a_reason_and_the_page_has_the_scores(name):
    answers = [answer for _, answer in answers_of(name)]
    for answer in answers:
        others = {answer["right"], of_kit(answer)} - {None}
        assert (others != {answer["ours"]}) == ("why" in answer), answer["completion"]
    told = [(one["right"], one["ours"], one["kit"], of_kit(one)) for one in answers]
    right, ours, kit, in_the_end = zip(*told, strict=True)
    counts = [len(answers), right.count(True), ours.count(True), kit.count(True), kit.count(None)]
    counts += [in_the_end.count(True), in_the_end.count(None)]
    assert f"| `{name}` | {' | '.join(map(str, counts))} |" in PAGE
