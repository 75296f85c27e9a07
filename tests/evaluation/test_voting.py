"""The majority's answer: by what answers say, not by how they are written."""

import pytest

from trl_mmreason.evaluation.voting import cluster_answers, winning_position


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (["7", "8", "8"], 1),
        (["3", "1/2", "0.5"], 1),  # one opinion twice, not three opinions
        ([r"\frac{1}{2}", "3", "0.50", "3", "1/2"], 0),
        ([None, None, "3"], 2),  # who says nothing is no majority
        (["4", "5", "5", "4"], 0),  # a tie goes to the answer that came first
        ([None, "5", "4", None], 1),
        ([None, None], None),
        ([], None),
    ],
)
def test_majority_vote(answers, winner):
    assert winning_position(answers) == winner


def test_clusters_keep_the_order_of_their_first_members():
    assert cluster_answers(["1/2", None, "3", "0.5", "2"]) == [[0, 3], [2], [4]]


def test_equality_is_the_caller_s():
    def same_first_letter(first, second):
        return first[0] == second[0]

    answers = ["apple", "berry", "banana", "avocado", "blueberry"]
    assert cluster_answers(answers, same_first_letter) == [[0, 3], [1, 2, 4]]
    assert winning_position(answers, same_first_letter) == 1
    assert winning_position(answers, str.__eq__) == 0


def test_an_equality_that_is_not_transitive_asks_first_members_only():
    # 0 ~ 1 ~ 2 but not 0 ~ 2: 1 joins 0, and 2 asks 0 alone
    assert cluster_answers(["0", "1", "2"], lambda a, b: abs(int(a) - int(b)) <= 1) == [[0, 1], [2]]


def test_answers_that_are_written_alike_are_one_without_asking():
    def never(first, second):
        raise AssertionError(f"asked about {first!r} and {second!r}")

    assert winning_position(["x", "x", None], never) == 0
