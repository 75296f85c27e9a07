"""The grader as its users see it."""

import threading

import numpy as np
import pytest

import trl_mmreason
from trl_mmreason import Grader
from trl_mmreason.grading import Verdict, equivalent, get_accuracy_reward, grader, grader_or_rules

BINOMIAL = r"\boxed{\binom{5}{2}}"  # 10


def test_a_verdict_says_what_was_read_and_why():
    assert Grader().grade(r"3+4=\boxed{7.0}", "7") == Verdict(True, "7.0", "equals the gold answer '7'", "rules")
    wrong = Grader().grade(r"\boxed{8}", ["7", "9"])
    assert wrong == Verdict(False, "8", "differs from the gold answer '7 or 9'", "rules")
    assert Grader().grade("I cannot tell.", "7") == Verdict(False, None, "no answer found", "rules")
    unusable = Grader().grade(r"\boxed{8}", " ")
    assert unusable == Verdict(None, None, "the gold answer cannot be used: it is empty", "rules")


@pytest.mark.parametrize(
    "gold", ["7", 7, 7.0, ["8", "7"], ("7",), r"\boxed{7}", "$7$", "<answer>7</answer>", "so\n#### 7"]
)
def test_forms_of_a_gold(gold):
    assert Grader().grade(r"\boxed{7}", gold).correct is True
    assert Grader().grade(r"\boxed{6}", gold).correct is False


@pytest.mark.parametrize("gold", ["", None, [], [None], [""], float("nan"), r"\boxed{}", r"\frac{1}{", {"a": 1}])
def test_an_unusable_gold_gives_no_verdict_whatever_the_answer(gold):
    for completion in (r"\boxed{7}", "", r"\boxed{\frac{1}{}", "<think>"):
        assert Grader().grade(completion, gold).correct is None


def test_a_box_for_each_part_of_the_gold():
    text = r"(a) The mean is \boxed{12}. (b) The range is \boxed{7}."
    assert Grader().grade(text, "(a) 12 (b) 7").correct
    assert not Grader().grade(text, "(a) 7 (b) 12").correct
    assert not Grader().grade(text, "12").correct


def test_one_usable_gold_is_enough():
    assert Grader().grade(r"\boxed{7}", ["", "7"]).correct is True
    assert Grader().grade(r"\boxed{6}", ["", "7"]).correct is False


def test_a_batch_is_what_its_items_are_alone():
    items = [
        {"completion": r"\boxed{7}", "gold": "7"},
        {"completion": BINOMIAL, "gold": "10"},
        {"completion": "B", "gold": "4", "choices": {"a": "3", "b": "4", "c": None}},
        {"completion": "0.5 m", "gold": "50", "question": "How long in cm?"},
        {"completion": BINOMIAL, "gold": "11", "id": "row-1"},
        {"completion": "8", "gold": ""},
    ]
    verdicts = Grader().grade_batch(iter(items))
    assert [verdict.correct for verdict in verdicts] == [True, True, True, True, False, None]
    assert verdicts == [Grader().grade(**item) for item in items]


def test_equal_questions_are_decided_once(monkeypatch):
    asked = []
    decide = grader.decide
    monkeypatch.setattr(
        grader, "decide", lambda answer, golds, **others: asked.append(answer) or decide(answer, golds, **others)
    )
    items = [{"completion": rf"So \boxed{{{number}}}", "gold": "123.5"} for number in (246, 246, 247, 246)]
    for _ in range(2):
        assert [verdict.correct for verdict in Grader().grade_batch(items)] == [False] * 4
    assert asked == ["246", "247"]
    Grader(tolerance="lenient").grade_batch(items)
    assert len(asked) == 4  # the tolerance belongs to the question


def test_tolerance():
    assert not Grader().grade("3.14", r"\pi").correct
    assert Grader(tolerance="lenient").grade("3.14", r"\pi").correct
    assert not Grader(tolerance="lenient").grade("1001", "1000").correct


def test_from_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(Grader().grade(r"\boxed{\binom{6}{2}}", "15").correct))
    thread.start()
    thread.join()
    assert found == [True]


def test_equivalence_knows_no_gold():
    assert equivalent("1/2", "0.5")
    assert equivalent("25", "25%")
    assert equivalent("25%", "25")
    assert not equivalent("1/2", "1/3")
    assert equivalent(r"\binom{5}{2}", "10")
    assert not equivalent("east", "seat")


@pytest.mark.parametrize("settings", [{"tolerance": "loose"}, {"tolerance": 1.5}])
def test_settings_that_make_no_sense(settings):
    with pytest.raises(ValueError, match=str(next(iter(settings)))):
        Grader(**settings)


def test_public_names():
    assert trl_mmreason.Grader is Grader


def test_each_question_gets_its_own_outcome():
    golds = ["21", "22", "21", "20", "21", "21"]  # of 7 over 2; with spaces no two questions are the same
    items = [
        {"completion": rf"\boxed{{\binom{{7}}{{2}}{'~' * spaces}}}", "gold": gold} for spaces, gold in enumerate(golds)
    ]
    verdicts = Grader().grade_batch(items)
    assert [verdict.correct for verdict in verdicts] == [gold == "21" for gold in golds]


@pytest.mark.parametrize(
    ("item", "named"),
    [
        ({"completion": None, "gold": "7"}, "completion is None of type NoneType, expected a string"),
        ({"completion": "7", "gold": "7", "choices": ["1", "7"]}, "choices is"),
        ({"completion": "7", "gold": "7", "question": float("nan")}, "question is nan of type float"),
    ],
)
def test_what_is_no_item(item, named):
    with pytest.raises(TypeError, match=named):
        Grader().grade_batch([item])


def test_an_unknown_field_of_an_item_is_an_error():
    with pytest.raises(TypeError, match="choises"):
        Grader().grade_batch([{"completion": "7", "gold": "7", "choises": None}])


def test_golds_of_numpy():
    assert Grader().grade("7", np.int64(7)).correct is True
    assert Grader().grade("7", np.array(["8", "7"])).correct is True
    assert Grader().grade("7", 10**5000).correct is None


def test_a_long_answer_is_shown_by_its_beginning():
    verdict = Grader().grade(rf"\boxed{{{'9' * 10**6}}}", "7")
    assert (verdict.correct, verdict.decided_by, verdict.extracted) == (False, "size", "9" * 80 + "…")


def test_a_long_question_is_read_from_its_end():
    assert Grader().grade(BINOMIAL, "10", question="长" * 20_000 + "多少厘米？").correct is True


# ------------------------------------------------------------------------------------------------- graders of your own


class AtMostOneOff(Grader):
    """Asks the rules, and finds whole numbers right that are one off."""

    def grade(self, completion, gold, **given):
        verdict = super().grade(completion, gold, **given)
        close = verdict.extracted is not None and abs(int(verdict.extracted) - int(gold)) <= 1
        return Verdict(close, verdict.extracted, "at most one off")


class Contrary(Grader):
    """Finds right what the rules find wrong."""

    def grade_batch(self, items):
        return [Verdict(not verdict.correct, verdict.extracted, "") for verdict in super().grade_batch(items)]


def test_what_a_subclass_overrides_is_asked_for_one_and_for_many():
    items = [{"completion": rf"\boxed{{{answer}}}", "gold": "7"} for answer in (7, 8, 9)]
    for own, expected in ((AtMostOneOff(), [True, True, False]), (Contrary(), [False, True, True])):
        assert [verdict.correct for verdict in own.grade_batch(items)] == expected
        assert [own.grade(**item).correct for item in items] == expected
        assert get_accuracy_reward(own)([item["completion"] for item in items], answer=["7"] * 3) == expected


@pytest.mark.parametrize(("given", "came"), [(lambda *_: True, "a function"), (Grader, "the class Grader")])
def test_what_cannot_grade_is_refused(given, came):
    with pytest.raises(TypeError, match=f"^ours: grader is {came}, expected an object with grade_batch"):
        grader_or_rules(given, "ours")
    assert grader_or_rules(None, "ours") == Grader()
    assert isinstance(grader_or_rules(Contrary(), "ours"), Contrary)


@pytest.mark.parametrize(
    ("completion", "gold", "choices", "right"),
    [
        ("Mice would increase.", "A", ["Mice would increase", "Mice would decrease"], True),
        ("Mice would decrease.", "A", ["Mice would increase", "Mice would decrease"], False),
        ("Mice would not increase.", "A", ["Mice would increase", "Mice would decrease"], False),
        ("The answer is 3 (option B).", "3", ["2", "3", "4", "5"], True),
        ("The answer is 3 (option C).", "3", ["2", "3", "4", "5"], False),
        ("The answer is 4 (option B).", "3", ["2", "3", "4", "5"], False),
    ],
)
def test_a_choice_by_its_text(completion, gold, choices, right):
    assert Grader().grade(completion, gold, choices=dict(zip("ABCD", choices, strict=False))).correct is right
