"""Results of work that was begun ahead of time are those of the same work done when it is asked for."""

from __future__ import annotations

import threading

import pytest

from trl_mmreason.grading.async_rewards import Ahead

SECONDS = 10  # until a test that waits has failed


class Squares:
    """Squares numbers, in its thread only when it is let; keeps each call and whether the main thread made it."""

    works_elsewhere = True

    def __init__(self):
        self.calls = []
        self.entered, self.released = threading.Event(), threading.Event()

    def __call__(self, numbers):
        here = threading.current_thread() is threading.main_thread()
        self.calls.append((here, numbers))
        if not here:
            self.entered.set()
            assert self.released.wait(SECONDS)
        if 13 in numbers:
            raise ValueError("13 is unlucky")
        return [number**2 for number in numbers]


def begun(*numbers):
    """Squares, of which the first of these is under way and the others wait."""
    work = Squares()
    ahead = Ahead(work, work)
    ahead.begin(numbers[:1])
    assert work.entered.wait(SECONDS)
    ahead.begin(numbers[1:])
    return ahead, work


def test_what_is_under_way_is_waited_for_and_the_rest_done_meanwhile():
    ahead, work = begun(2, 3, 4)
    threading.Timer(0.05, work.released.set).start()
    assert ahead.finish([3, 2, 5, 3]) == [9, 4, 25, 9]
    assert work.calls == [(False, [2]), (True, [3, 5])]  # 4 was asked for by nobody


def test_what_came_during_a_call_is_done_together_by_the_next_and_only_once():
    ahead, work = begun(2, 3, 4)
    ahead.begin([2, 4, 5])
    work.released.set()
    while ahead._is_working:
        pass
    assert ahead.finish([5, 4, 3, 2]) == [25, 16, 9, 4]
    assert work.calls == [(False, [2]), (False, [3, 4, 5])]


def test_an_error_comes_where_its_result_is_asked_for_and_the_next_call_tries_again():
    ahead, work = begun(2, 13)
    work.released.set()
    while ahead._is_working:
        pass
    for _ in range(2):
        with pytest.raises(ValueError, match="13 is unlucky"):
            ahead.finish([13])
    assert work.calls == [(False, [2]), (False, [13]), (True, [13])]


def test_a_batch_that_is_finished_leaves_nothing_behind():
    ahead, work = begun(2, 3)
    work.released.set()
    while ahead._is_working:
        pass
    assert ahead.finish([2]) == [4]
    assert ahead.finish([3]) == [9]
    assert work.calls == [(False, [2]), (False, [3]), (True, [3])]


@pytest.mark.parametrize("party", [None, object(), Squares.__call__])
def test_nothing_is_begun_with_who_does_not_work_elsewhere(party):
    work = Squares()
    ahead = Ahead(work, party)
    ahead.begin([2])
    assert ahead.finish([2, 2]) == [4, 4]
    assert work.calls == [(True, [2, 2])]


def test_too_few_results_are_an_error():
    ahead = Ahead(lambda numbers: numbers[1:], Squares)
    ahead.begin([1, 2])
    while ahead._is_working:
        pass
    with pytest.raises(ValueError, match="shorter"):
        ahead.finish([1, 2])
