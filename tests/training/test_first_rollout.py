"""Which rows of a first rollout are compared, and over which tokens; tests/engines/test_vllm.py does so with a vLLM."""

import math
import re

import pytest
import torch

from trl_mmreason.generation.batch import Prompt
from trl_mmreason.training.first_rollout import _row_of, another_policy, logps_among_kept, rows_to_compare
from trl_mmreason.training.rollout import Trajectory, Turn

LOGITS = torch.tensor([[8.0, 4.0, 2.0, 1.0, 1.0]]).log()  # of 16


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({}, [8, 4, 2, 1, 1]),
        ({"never": [0]}, [0, 4, 2, 1, 1]),  # of 8
        ({"temperature": 0.5}, [64, 16, 4, 1, 1]),
        ({"top_k": 2}, [8, 4, 0, 0, 0]),
        ({"top_p": 0.8}, [8, 4, 2, 0, 0]),  # 12/16 is less than 0.8, 14/16 more
        ({"min_p": 0.2}, [8, 4, 2, 0, 0]),  # at least a fifth of 8
        ({"never": [0], "temperature": 0.5, "top_p": 0.8}, [0, 16, 4, 0, 0]),  # 16/22 is less than 0.8
    ],
)
def test_tokens_that_are_not_left_have_no_probability(settings, weights):
    options = {"never": [], "temperature": 1.0, **settings}
    found = [logps_among_kept(LOGITS, torch.tensor([token]), **options).item() for token in range(5)]
    expected = [math.log(weight / sum(weights)) if weight else -math.inf for weight in weights]
    assert found == pytest.approx(expected, abs=1e-6)


def trajectory(images, tokens, logprobs=True):
    turn = Turn(list(range(tokens)), True, "", [-1.0] * tokens if logprobs else None)
    return Trajectory({}, 0, Prompt([1, 2], {}, {}), [None] * images, [turn])


def test_the_longest_answer_of_each_number_of_images_is_compared():
    chosen = rows_to_compare([trajectory(*each) for each in [(1, 3), (0, 5), (1, 7), (0, 2), (2, 1), (3, 1)]], {3})
    assert [None if each is None else (len(each.images), len(each.completion_ids)) for each in chosen] == [
        *((0, 5), (1, 7), (2, 1)),
        None,
    ]


def test_tokens_of_older_weights_are_left_out():
    old, newer = trajectory(1, 9), trajectory(1, 5)
    old.older_tokens, newer.older_tokens = 7, 2
    assert rows_to_compare([old, newer], set())[0] is newer
    assert _row_of(newer)[1] == [4, 5, 6]  # behind two of the prompt and two that are older
    newer.older_tokens = 5
    old.older_tokens = 9
    assert rows_to_compare([old, newer], set()) == [None] * 4


def test_answers_without_tokens_or_log_probabilities_are_not():
    assert rows_to_compare([trajectory(0, 0), trajectory(1, 3, logprobs=False)], set()) == [None] * 4


@pytest.mark.parametrize(
    ("found", "outside", "said"),
    [
        ({0: 0.5}, 0.25, "mean of an answer: 0.5 nats with 0 images; 25% of the sampled .* Fix: save the model to its"),
        ({1: 0.5}, 0, "Fix: save the model to its folder"),
        ({0: 1e-6, 2: 0.5}, 0, "1e-06 nats with 0 images, 0.5 nats with 2 images.*Fix: save the trainer's processor"),
        ({0: 1e-6, 1: 0.0}, 0.5, "Fix: save the model to its folder"),  # text may be what is ruled out
        ({0: 1e-6, 1: math.nan}, 0, "vLLM computes NaN for Some. Fix"),
    ],
)
def test_what_is_said_depends_on_which_rows_differ(found, outside, said):
    assert re.search(said, another_policy("Some", found, 1e-3, outside=outside, exact=True))
