"""Answers as models write them, labelled by hand from the rules of grading, not from what the grader says.

`labelled.jsonl` is the set that accuracy is printed for. `examined.jsonl` was written by a second examiner who had seen
neither the grader nor the first set; what is still decided otherwise is marked there with `gap`.
"""

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from trl_mmreason.grading import Grader


def load(name):
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


CASES, EXAMINED = load("labelled.jsonl"), load("examined.jsonl")
FIELDS = {"category", "completion", "gold", "choices", "question", "tolerance", "expected", "note"}


def names(cases):
    seen = Counter()
    for case in cases:
        seen[case["category"]] += 1
        yield f"{case['category']}-{seen[case['category']]}"


@cache
def grader(tolerance):
    return Grader(tolerance=tolerance)


@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_label(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.full if case["category"] == "limits" else ()) for case in EXAMINED],
    ids=names(EXAMINED),
)
def test_examined_label(case, request):
    if "gap" in case:
        request.applymarker(pytest.mark.xfail(reason=case["gap"], strict=True))
    check(case)


def check(case):
    verdict = grader(case.get("tolerance", "strict")).grade(
        case["completion"], case["gold"], choices=case.get("choices"), question=case.get("question")
    )
    told = f"{case['completion'][-80:]!r} against {case['gold']!r}: read {verdict.extracted!r}, {verdict.reason}"
    assert verdict.correct is case["expected"], told


def test_no_case_stands_twice():
    asked = [{name: case[name] for name in FIELDS & case.keys() - {"category", "expected", "note"}} for case in CASES]
    twice = [text for text, times in Counter(json.dumps(each, sort_keys=True) for each in asked).items() if times > 1]
    assert not twice
