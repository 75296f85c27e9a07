"""Which responses keep the format, which vote, and which the judge may score."""

import pytest
from support import assert_linear

from trl_mmreason.self_evolution.response import read_response

GOOD = r"<think>3+4=7</think>\boxed{7}"


@pytest.mark.parametrize(
    ("text", "answer", "is_well_formed", "is_single"),
    [
        (GOOD, "7", True, True),
        (f"\n{GOOD}\n", "7", True, True),
        ("<think>\na < b, \\boxed{6}?\n</think>\n\n\\boxed{\\frac{1}{2}}", r"\frac{1}{2}", True, True),
        (r"<think></think>\boxed{\{1, 2\}}", r"\{1, 2\}", True, True),
        (r"3+4=\boxed{7}", "7", False, True),
        (rf"So: {GOOD}", "7", False, True),
        (rf"{GOOD}.", "7", False, True),
        (r"<think>a</think><think>b</think>\boxed{7}", "7", False, True),
        (r"<think>a</think>\boxed{7}}", "7", False, True),
        (r"<think>a</think>\boxed{6} or \boxed{7}", "6, 7", False, False),
        (r"<think>a</think>\boxed{6}, \boxed{7}", "6, 7", False, False),
        (r"<think>a</think>\boxed{7}<answer>9</answer>", "9", False, False),
        (r"<think>a</think>\boxed7", r"\boxed7", False, False),
        (r"<think>a</think>\boxed{}", None, False, False),
        (r"<think>a</think>\boxed{7", None, False, False),
        (r"<think>3+4=\boxed{7}", None, False, False),
        (r"<think>3+4=\boxed{7}</think>", None, False, False),
        ("<think>a</think> The answer is 7.", "7", False, False),
        ("", None, False, False),
    ],
)
def test_responses(text, answer, is_well_formed, is_single):
    response = read_response(text)
    assert (response.is_well_formed, response.is_single) == (is_well_formed, is_single)
    assert response.answer == answer


def test_long_responses_are_read_in_linear_time():
    assert_linear(lambda thought: read_response(f"<think>{thought}</think>{GOOD}"), "a{", 200_000)
    assert_linear(lambda boxes: read_response(f"<think></think>{boxes}"), r"\boxed{", 200_000)
