"""Answers of other origin: test suites and public reports of other graders, and textbooks, labelled by hand.

`outside` was written by people who had not seen the rules, and graded once before it was learnt from (docs/grading.md);
`unseen` is the last such set: its first grading is in the docs, and kinds that it showed were learnt since. Answers
with `"protocol": "prose"` declare nothing. The other files have origins of their own. The rules were written with
`view` in sight, `stop` said by its totals when to stop, and `sealed` was opened once, afterwards. Single cases of these
two are not to be looked at: a rule that is written for one of them takes away what they tell. Of `view`, what an
outsider found later is part, too.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from trl_mmreason.grading import Grader

KNOWN = {  # of `view`, by completion and gold
    (r"\boxed{Fd\cos\alpha}", r"F\cos\alpha\, d"): "a function takes the whole product behind it",
    (r"$\frac{1}{2006!}$", r"$\frac{1}{2004!}$"): "factorials beyond 300 are not computed",
}


def load(name):
    lines = (Path(__file__).parent / "origins" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def verdict(case):
    return Grader(prose=case.get("protocol") == "prose").grade(
        case["completion"], case["gold"], choices=case.get("choices"), question=case.get("question")
    )


@pytest.mark.parametrize("case", load("view"))
def test_cases_in_view(case, request):
    if reason := KNOWN.get((case["completion"], str(case["gold"]))):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    found = verdict(case)
    told = f"{case['completion']!r} against {case['gold']!r}: read {found.extracted!r}, {found.reason}"
    assert found.correct is case["expected"], told


@pytest.mark.parametrize("name", ["stop", "sealed"])
def test_of_cases_that_nobody_looked_at_nearly_all_are_decided_rightly(name):
    """At least 98 % of each file, 90 % of each category; of wrong answers at most 1 % are paid."""
    right, cases, paid, wrong = Counter(), Counter(), 0, 0
    for case in load(name):
        found = verdict(case).correct
        cases[case["category"]] += 1
        right[case["category"]] += found is case["expected"]
        paid += found is True and case["expected"] is not True
        wrong += case["expected"] is not True
    assert right.total() >= 0.98 * cases.total()
    assert paid <= 0.01 * wrong
    for category, number in cases.items():
        assert right[category] >= 0.9 * number, category


@pytest.mark.parametrize(
    ("name", "declared", "prose", "most"), [("outside", 0.98, 0.94, 0.01), ("unseen", 0.98, 0.98, 0.01)]
)
def test_answers_of_outsiders(name, declared, prose, most):
    """Shares of what is declared and of prose that are decided rightly, and of the wrong ones that are paid at most."""
    right, cases, paid, wrong = Counter(), Counter(), 0, 0
    for case in load(name):
        found = verdict(case).correct
        cases[case["protocol"]] += 1
        right[case["protocol"]] += found is case["expected"]
        paid += found is True and case["expected"] is not True
        wrong += case["expected"] is not True
    assert right["strict"] >= declared * cases["strict"]
    assert right["prose"] >= prose * cases["prose"]
    assert paid <= most * wrong
