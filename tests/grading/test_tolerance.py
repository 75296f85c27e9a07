"""Tolerances on top of the grader: what counts as a number, what is near enough, and what never is."""

import time

import pytest

from trl_mmreason.grading import Grader, JudgeGrader, Verdict
from trl_mmreason.grading.reward import grade_answers
from trl_mmreason.grading.tolerance import Tolerance, within

FIVE_PERCENT = Tolerance(relative=0.05)


def row(answer, tolerance=None, **columns):
    prompt = [{"role": "user", "content": "How many?"}]
    return {"prompt": prompt, "answer": answer, "tolerance": tolerance, "id": "q", **columns}


def boxed(answer):
    return f"So it is \\boxed{{{answer}}}."


@pytest.mark.parametrize(
    ("answer", "gold", "tolerance", "expected"),
    [
        ("105", "100", FIVE_PERCENT, True),
        ("95", "100", FIVE_PERCENT, True),
        ("105.1", "100", FIVE_PERCENT, False),
        ("-100", "100", FIVE_PERCENT, False),
        ("-104", "-100", FIVE_PERCENT, True),
        ("-106", "-100", FIVE_PERCENT, False),
        ("105", "100", Tolerance(relative=0.05, absolute=1.0), True),  # the wider counts, not the sum
        ("105.5", "100", Tolerance(relative=0.05, absolute=1.0), False),
        ("11", "10", Tolerance(relative=0.05, absolute=1.0), True),
        ("11.4", "10", Tolerance(relative=0.05, absolute=1.0), False),
        ("1,240", "1234", FIVE_PERCENT, True),
        ("$5.1", "5", FIVE_PERCENT, True),
        ("1.21 \\times 10^{3}", "1.2e3", FIVE_PERCENT, True),
        ("1/2", "0.49", FIVE_PERCENT, True),
        ("\\frac{1}{2}", "0.6", FIVE_PERCENT, False),
        ("12 %", "0.118", FIVE_PERCENT, True),  # a percent sign divides by 100
        ("12\\%", "12.1%", FIVE_PERCENT, True),
        ("12%", "12", FIVE_PERCENT, False),
        ("about 98", "100", FIVE_PERCENT, True),
        ("x = 3.15", "3.14", Tolerance(absolute=0.01), True),
        ("3.152", "3.14", Tolerance(absolute=0.01), False),
        ("0.3", "0.2", Tolerance(absolute=0.1), True),  # 0.3 - 0.2 is a little more than 0.1 in floating point
        ("0", "0", FIVE_PERCENT, True),
        ("0.001", "0", FIVE_PERCENT, False),
        ("5 cm", "5.1", FIVE_PERCENT, True),  # the gold says nothing of a unit
        ("51 mm", "5 cm", FIVE_PERCENT, True),
        ("25 °C", "77 °F", FIVE_PERCENT, True),  # 77 °F = (77 - 32)·5/9 °C = 25 °C
        ("77 °F", "25 °C", FIVE_PERCENT, True),
        ("298.15 K", "25 °C", FIVE_PERCENT, True),
        ("25 K", "25 °C", FIVE_PERCENT, False),
        ("5 m", "5 cm", FIVE_PERCENT, False),
        ("5 kg", "5 cm", FIVE_PERCENT, False),
        ("5 apples", "5 pears", FIVE_PERCENT, False),
        ("red", "red", FIVE_PERCENT, False),  # texts are the grader's business
        ("100 or 200", "100", FIVE_PERCENT, False),
        ("-6", "18-24", FIVE_PERCENT, False),  # a range is no number
        ("-6", "18–24 years", FIVE_PERCENT, False),
        ("3 + 4", "7.1", FIVE_PERCENT, False),
        ("1.2e-3", "0.00121", FIVE_PERCENT, True),
        ("10^{-3}", "0.00101", FIVE_PERCENT, True),
        ("1 + \\sqrt{2}", "2.41", FIVE_PERCENT, True),
        ("2 1/2", "2.51", FIVE_PERCENT, True),
        ("nan", "100", FIVE_PERCENT, False),
        ("∞", "100", FIVE_PERCENT, False),
        ("i", "1", FIVE_PERCENT, False),
        ("1/0", "1", FIVE_PERCENT, False),
        ("", "1", FIVE_PERCENT, False),
        ("2.1, 1.0", "1, 2", Tolerance(absolute=0.1), True),  # in any order
        ("1.0, 1.1", "1, 2", Tolerance(absolute=0.1), False),  # each gold once
        ("1, 1", "1, 2", Tolerance(absolute=0.1), False),
        ("1, 5", "1, 1.05", Tolerance(absolute=0.1), False),  # one answer is near both golds, and is one
        ("1.0, 1.1", "1.05, 0.95", Tolerance(absolute=0.1), True),  # 1.1 for 1.05, so that 1.0 is left for 0.95
        ("2, 1", "1.9, 2.0", Tolerance(absolute=[0.2, 0.05]), False),  # 1 is near neither
        ("1, 2, 3", "1.5, 2.5, 0.5", Tolerance(absolute=0.5), True),  # 1 for 0.5, which moves 1.5 and then 2.5 on
        ("1", "1, 2", Tolerance(absolute=0.1), False),
        ("1.05, 2.5", "1, 2", Tolerance(absolute=[0.1, 0.5]), True),
        ("1.5, 2.05", "1, 2", Tolerance(absolute=[0.1, 0.5]), False),
        ("1, 2", "1, 2", Tolerance(absolute=[0.1]), False),  # errors for another number of answers
        ("1, x", "1, 2", Tolerance(absolute=2.0), False),
    ],
)
def test_numbers_within_a_tolerance(answer, gold, tolerance, expected):
    assert within(answer, gold, tolerance) is expected


@pytest.mark.parametrize(
    "hostile",
    [
        "9" * 1_000_000,
        "1," * 500_000,
        "10^{10^{10}}",
        "(" * 150,
        "-" * 199 + "1",
        "1e99999",
        "__import__('os')",
        "2!!!!",
    ],
)
def test_hostile_texts_are_no_numbers_and_cost_nothing(hostile):
    started = time.process_time()
    assert within(hostile, "1", FIVE_PERCENT) is False
    assert time.process_time() - started < 1


def test_a_wrong_number_gets_a_second_look_and_nothing_else_changes():
    rows = [
        row("100", {"relative": 0.05}),
        row("100", {"relative": 0.05}),
        row("100"),
        row("100", {"relative": 0.05}),
        row(["7", "100"], {"relative": 0.05}),
        row("100", {"relative": 0.05}),
    ]
    answers = ["104", "100", "104", "110", "104"]
    verdicts = grade_answers(Grader(), rows, [*map(boxed, answers), "no idea"])
    assert [verdict.correct for verdict in verdicts] == [True, True, False, False, True, False]
    assert [verdict.decided_by for verdict in verdicts] == [
        "tolerance",
        "rules",
        "rules",
        "rules",
        "tolerance",
        "rules",
    ]
    assert verdicts[0] == Verdict(True, "104", "within the tolerance of the gold answer '100'", decided_by="tolerance")


def test_rows_without_the_column_are_graded_as_ever():
    plain = {"prompt": [{"role": "user", "content": "?"}], "answer": "100"}
    assert [v.correct for v in grade_answers(Grader(), [plain, plain], [boxed("100"), boxed("104")])] == [True, False]


def test_an_unusable_gold_stays_without_verdict():
    assert grade_answers(Grader(), [row("{", {"relative": 0.05})], [boxed("1")])[0].correct is None
    assert grade_answers(Grader(), [row("", {"as_text": True})], [boxed("1")])[0].correct is None


@pytest.mark.parametrize(
    ("gold", "answer", "expected", "decided_by"),
    [
        ("Q1 2019", "q1 2019", True, "text"),
        ("G7", "\\text{ g7 }", True, "text"),
        (["FY20", "G7"], "g7", True, "text"),
        ("Q1 2019", "q1 2018", False, "rules"),
        ("US", "us", True, "rules"),  # the grader finds it right by itself
        ("100", "104", True, "tolerance"),
        ("18-24", "-6", False, "rules"),
        ("65+", "65+", True, "text"),  # what the grader cannot use
        ("65+", "65", False, "text"),
        ("N/A", "n/a", True, "text"),
        ("N/A", "0", False, "text"),
        (["N/A", "100"], "n/a", True, "text"),
        (["N/A", "100"], "104", True, "tolerance"),
    ],
)
def test_what_is_no_number_is_compared_as_text(gold, answer, expected, decided_by):
    graded = row(gold, {"relative": 0.05, "as_text": True})
    (verdict,) = grade_answers(Grader(), [graded], [boxed(answer)])
    assert (verdict.correct, verdict.extracted, verdict.decided_by) == (expected, answer.strip(), decided_by)


def test_only_where_the_benchmark_says_so_are_texts_compared():
    rows = [row("Q1 2019", {"relative": 0.05}), row("65+", {"relative": 0.05})]
    verdicts = grade_answers(Grader(), rows, [boxed("q1 2019"), boxed("65+")])
    assert [verdict.correct for verdict in verdicts] == [False, None]


def test_verdicts_on_texts_say_why():
    said = [boxed("g7"), boxed("65"), "I cannot tell which of them it is, sorry.", boxed("6" * 3000)]
    verdicts = grade_answers(Grader(), [row(gold, {"as_text": True}) for gold in ("G7", "65+", "65+", "65+")], said)
    assert verdicts == [
        Verdict(True, "g7", "the same text as the gold answer 'G7'", "text"),
        Verdict(False, "65", "another text than the gold answer '65+'", "text"),
        Verdict(False, None, "no answer found", "text"),
        Verdict(False, "6" * 80 + "…", "another text than the gold answer '65+'", "text"),
    ]


def test_a_judge_is_asked_first():
    asked = []

    def chat(prompts):
        asked.extend(prompts)
        return ["0"] * len(prompts)

    grader = JudgeGrader(chat)
    texts = [boxed("104"), boxed("200")]
    verdicts = grade_answers(grader, [row("100", {"relative": 0.05})] * 2, texts)
    assert [(verdict.correct, verdict.decided_by) for verdict in verdicts] == [(True, "tolerance"), (False, "judge")]
    assert asked


def test_a_grader_with_a_share_takes_numbers_that_are_near():
    grader = Grader(tolerance=0.05)
    near = [("104", "100"), ("2.9", "3.0"), ("$95", "$100"), ("x = 104", "100")]
    far = [("106", "100"), ("blue", "red"), ("104 kg", "100 m"), ("18-24", "18-25")]
    items = [{"completion": boxed(answer), "gold": gold} for answer, gold in near + far]
    verdicts = grader.grade_batch(items)
    assert [verdict.correct for verdict in verdicts] == [True] * len(near) + [False] * len(far)
    assert verdicts[0].decided_by == "tolerance"
    choices = {"A": "100", "B": "104"}
    assert not grader.grade(boxed("104"), "A", choices=choices).correct
    assert not grader.grade(boxed("104"), "100", choices=choices).correct


@pytest.mark.parametrize(
    "question",
    ["How much, approximately?", "How much? Round to two decimal places.", "How much?\nGive it to 3 decimal places."],
)
def test_what_a_question_says_of_rounding_does_not_widen_a_tolerance(question):
    """DynaMath's hint asks for 3 decimal places, so that 3.90 was right for 3.8971, which its authors hold to 0.001."""
    asked = {"prompt": [{"role": "user", "content": question}]}
    texts = [boxed("3.90"), boxed("3.897")]
    exact = [row("3.8971", {"absolute": 0.001}, **asked)] * 2
    assert [verdict.correct for verdict in grade_answers(Grader(), exact, texts)] == [False, True]
    rounded = [row("3.8971", **asked)] * 2  # without a tolerance the question decides
    assert [verdict.correct for verdict in grade_answers(Grader(), rounded, texts)] == [True, True]


@pytest.mark.parametrize("tolerance", ["loose", 0, 1, 1.5, -0.1, None])
def test_a_tolerance_is_a_name_or_a_share(tolerance):
    with pytest.raises(ValueError, match="strict.*lenient.*share"):
        Grader(tolerance=tolerance)
