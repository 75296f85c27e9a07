"""Which first solutions are reflected on."""

import pytest

from trl_mmreason.srpo.selection import select_mix


@pytest.mark.parametrize(
    ("right", "wrong", "size", "share", "counts"),
    [
        (50, 50, 10, 0.3, (3, 7)),
        (50, 50, None, 0.3, (22, 50)),  # 21.6 of 72 are 22; of 73, 51 would have to be wrong
        (2, 50, 10, 0.3, (2, 6)),  # of 9, 2.7 ≈ 3 would have to be right
        (50, 3, 10, 0.3, (2, 3)),  # 1.5 of 5 are 2; of 6, 4 would have to be wrong
        (0, 5, None, 0.0, (0, 5)),
        (5, 5, 4, 1.0, (4, 0)),
        (0, 5, None, 0.5, (0, 1)),  # half of 1 is rounded down
        (0, 0, None, 0.3, (0, 0)),
    ],
)
def test_the_mix_stays(right, wrong, size, share, counts):
    correct = [True] * right + [False] * wrong
    chosen = select_mix(correct, [None] * len(correct), size=size, right_share=share)
    rights = sum(correct[k] for k in chosen)
    assert (rights, len(chosen) - rights) == counts


def test_the_best_rated_are_selected_and_among_equals_the_first():
    correct = [True, False, True, False, False, True]
    ratings = [5, 9, 8, 2, 9, 8]
    assert select_mix(correct, ratings, size=2, right_share=0.5) == [1, 2]
    assert select_mix(correct, ratings, size=4, right_share=0.5) == [1, 2, 4, 5]
    assert select_mix(correct, [None] * 6, size=4, right_share=0.5) == [0, 1, 2, 3]
    for wrong in ({"right_share": 1.5}, {"size": 0}):
        with pytest.raises(ValueError, match="expected 0 ≤ right_share ≤ 1, and size ≥ 1"):
            select_mix(correct, ratings, **wrong)
