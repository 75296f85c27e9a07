import pytest

from trl_mmreason import Grader
from trl_mmreason.grading import accuracy_reward, extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"3+4=\boxed{7}", "7"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        ("<answer> B </answer>", "B"),
        (r"<answer>1</answer> then \boxed{2}", "2"),
        (r"<think>\boxed{3}</think> 4", "4"),
        ("42", "42"),
        (r"\boxed{}", None),
        (r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{" * 20000, None),
        ("", None),
        ("I think that it may be seven, but I would not bet on it.", None),
    ],
)
def test_extraction(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("completion", "gold", "choices", "correct"),
    [
        (r"\boxed{7}", "7", None, True),
        (r"\boxed{7.0}", "7", None, True),
        (r"\boxed{8}", "7", None, False),
        (r"\boxed{Red}", "red", None, True),
        (r"\boxed{2}", ["1", "2"], None, True),
        (r"\boxed{(B)}", "B", {"A": "3", "B": "4"}, True),
        (r"\boxed{4}", "B", {"A": "3", "B": "4"}, True),
        (r"\boxed{3}", "B", {"A": "3", "B": "4"}, False),
        (r"\boxed{a hat}", "A", {"A": "cat", "B": "hat"}, False),
        ("no idea at all, and this is a long way of saying so", "7", None, False),
        (r"\boxed{B}", "square", {"A": "circle", "B": "square"}, True),
        (r"\boxed{A}", "square", {"A": "circle", "B": "square"}, False),
        (r"\boxed{4}", r"\boxed{4}", None, True),
        (r"\boxed{4}", "<answer> 4 </answer>", None, True),
        (r"\boxed{4}", "$4$", None, True),
        (r"\boxed{4}", 4, None, True),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", None, True),
        (r"\boxed{7}", "", None, None),
        (r"\boxed{7}", [], None, None),
        (r"\boxed{}", "", None, None),
    ],
)
def test_verdicts(completion, gold, choices, correct):
    verdict = Grader().grade(completion, gold, choices=choices)
    assert verdict.correct is correct
    assert verdict.reason


def test_many_at_once():
    items = [{"completion": r"\boxed{7}", "gold": "7"}, {"completion": "8", "gold": "7"}]
    assert [verdict.correct for verdict in Grader().grade_batch(items)] == [True, False]


def test_as_a_reward_function():
    completions = [[{"role": "assistant", "content": text}] for text in (r"\boxed{7}", "8", "8")]
    assert accuracy_reward(completions, answer=["7", "7", ""]) == [1.0, 0.0, None]
