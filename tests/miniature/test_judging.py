"""What a judge of known truth says of a response, and that self-evolution reads it."""

import json

import pytest

from trl_mmreason.miniature.corpus import corpus
from trl_mmreason.miniature.judging import JUDGE, verdict
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import ERRORS, boxed_thoughts, solve
from trl_mmreason.miniature.tasks import CATEGORIES, LEVELS, make_problem
from trl_mmreason.self_evolution.prompts import judge_message, read_score

PROBLEM = make_problem("adding", 4)  # 8+1
THOUGHT = "The first digit is 8. The second digit is 1. 8+1=9"


def scores(problem, response):
    written = verdict(problem, response).split("[BEGIN SCORES]")[1].removesuffix("[END SCORES]")
    return tuple(json.loads(written).values())


def test_a_verdict_works_the_problem_out_and_scores_the_response():
    assert verdict(PROBLEM, r"<think>4+1=5</think>\boxed{5}") == (
        f"[BEGIN THOUGHT]{THOUGHT} Wrong.[END THOUGHT][BEGIN SCORES]"
        '{"answer_correctness":0,"reasoning_quality":1,"visual_grounding":0.5,"overall_score":0.4}[END SCORES]'
    )


@pytest.mark.parametrize(
    ("response", "answer", "reasoning", "grounding", "overall"),
    [
        (r"<think>8+1=9</think>\boxed{9}", 1, 1, 1, 1),
        (r"<think> 8 + 1 = 9 </think> \boxed{9}", 1, 1, 1, 1),
        (r"<think>7+1=8</think>\boxed{8}", 0, 1, 0.5, 0.4),  # one digit misread: 0.3 + 0.2 / 2
        (r"<think>7+3=10</think>\boxed{10}", 0, 1, 0, 0.3),  # both
        (r"<think>5+4=9</think>\boxed{9}", 1, 1, 0, 0.8),  # both, and right by chance
        (r"<think>8+1=11</think>\boxed{11}", 0, 0, 1, 0.2),  # a slip
        (r"<think>8+1=9</think>\boxed{8}", 0, 0, 1, 0.2),  # off by one: the answer is not what was worked out
        (r"<think>7+1=9</think>\boxed{9}", 1, 0, 0.5, 0.6),  # misread, and a slip that makes up for it
        (r"<think>I guess.</think>\boxed{9}", 1, 0, 0, 0.5),
        (r"<think>18+1=19</think>\boxed{19}", 0, 0, 0, 0),  # no two digits give this
        ("<think>8+1=9</think>", 0, 0, 0, 0),  # no answer
        (r"<think>8+1=9</think>\boxed{", 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
    ],
)
def test_scores_of_a_response(response, answer, reasoning, grounding, overall):
    assert scores(PROBLEM, response) == (answer, reasoning, grounding, overall)
    assert read_score(verdict(PROBLEM, response)) == pytest.approx(overall)


def test_it_says_right_of_a_right_answer():
    assert f"[BEGIN THOUGHT]{THOUGHT} Right.[END THOUGHT]" in verdict(PROBLEM, r"<think>I guess.</think>\boxed{9}")


def test_a_choice_is_read_as_what_it_stands_for():
    chosen = make_problem("adding", 4, multiple_choice=True)
    wrong = next(letter for letter, text in chosen.choices.items() if text != "9")
    assert scores(chosen, boxed_thoughts(solve(chosen))) == (1, 1, 1, 1)
    assert scores(chosen, rf"<think>8+1=9</think>\boxed{{{wrong}}}") == (0, 0, 1, 0.2)
    assert scores(chosen, r"<think>8+1=9</think>\boxed{9}") == (0, 0, 1, 0.2)  # no letter


@pytest.mark.full
@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("multiple_choice", [False, True])
def test_every_solver_is_judged_in_every_category(category, level, multiple_choice):
    for seed in range(4):
        problem = make_problem(category, seed, level=level, multiple_choice=multiple_choice)
        assert read_score(verdict(problem, boxed_thoughts(solve(problem)))) == pytest.approx(1)
        for error in ERRORS:
            response = boxed_thoughts(solve(problem, error=error))
            assert scores(problem, response)[0] == 0
            assert read_score(verdict(problem, response)) <= 0.5  # what reasoning and grounding count together


def test_a_judge_s_words_are_few_tokens():
    response = r"<think>8+1=9</think>\boxed{9}"
    reply = verdict(PROBLEM, response)
    request = judge_message(JUDGE, PROBLEM.question, response)
    judging, usual = (build_model("qwen2_5_vl", judging=known)[1].tokenizer for known in (True, False))
    for text in (reply, request, response):
        ids = judging(text)["input_ids"]
        assert judging.decode(ids) == text
        assert len(ids) < len(usual(text)["input_ids"])
    # 22 of the thoughts, as each word, digit, sign, full stop and space before a digit is one; 37 of tags and scores
    assert len(judging(reply)["input_ids"]) == 59


def test_other_tokenizers_do_not_hear_of_judges():
    for in_steps in (False, True):
        without, judging = (list(corpus(in_steps=in_steps, judging=known)) for known in (False, True))
        assert not any("[BEGIN" in text or text == JUDGE for text in without)
        added = [text for text in judging if "[BEGIN THOUGHT]" in text]
        assert len(added) == len(CATEGORIES) * len(LEVELS) * 4
        # request (three texts), response and reply: nothing else is new, and what was there stands in the same order
        assert len(judging) == len(without) + 5 * len(added)
        rest = iter(judging)
        assert all(text in rest for text in without)
