import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from support import plain_sum

from trl_mmreason.adapo.recipe import quick_then_worked, two_answers
from trl_mmreason.chain_of_step.miniature import PLAIN_ANSWERS
from trl_mmreason.miniature.captions import DESCRIBE, caption
from trl_mmreason.miniature.judging import JUDGE, verdict
from trl_mmreason.miniature.lessons import Lessons, demonstrations
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import boxed_thoughts, plain, solve, tagged, tagged_in_words
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.self_evolution.prompts import judge_message, read_score
from trl_mmreason.self_evolution.recipe import judged_answers
from trl_mmreason.sophia.recipe import CAPTIONS_AND_ANSWERS
from trl_mmreason.srpo.recipe import QUICK_TAGGED_ANSWERS, TAGGED_ANSWERS, TAGGED_IN_WORDS

FOLLOWUP = "Check it."
TWO_ANSWERS = two_answers(FOLLOWUP)
JUDGED_ANSWERS = judged_answers(partial(judge_message, JUDGE))


def test_only_right_answers_are_learnt_and_both_kinds_of_first_answers_are_read():
    problems = make_problems(["adding"], 40)
    right = {plain(solve(problem)) for problem in problems}
    rows = demonstrations(problems, TWO_ANSWERS)
    with_images = [row for row in rows if row["images"]]
    assert {row["completion"][0]["content"] for row in with_images} <= right
    checked = [row for row in with_images if len(row["prompt"]) == 3]
    assert len(with_images) == 50  # every problem, and every fourth a second time
    assert len(checked) == 10
    assert all(row["prompt"][2] == {"role": "user", "content": FOLLOWUP} for row in checked)
    first_right = [row["prompt"][1]["content"] == row["completion"][0]["content"] for row in checked]
    assert 0 < sum(first_right) < 10


def test_answers_at_a_glance_are_worked_out_when_they_are_checked():
    problems = make_problems(["adding"], 40)
    rows = demonstrations(problems, quick_then_worked(FOLLOWUP))
    checked = [row for row in rows if len(row["prompt"]) == 3]
    first = [row["completion"][0]["content"] for row in rows if row["images"] and row not in checked]
    assert sorted(first) == sorted(rf"\boxed{{{problem.answer}}}" for problem in problems)
    worked = sorted(plain(solve(problem)) for problem in problems)  # every problem, so that checking is the easier part
    assert sorted(row["completion"][0]["content"] for row in checked) == worked
    said = [row["prompt"][1]["content"] for row in checked]
    assert all(text.startswith(r"\boxed{") for text in said)


def test_answers_at_a_glance_in_tags():
    problems = make_problems(["adding"], 8)
    rows = demonstrations(problems, QUICK_TAGGED_ANSWERS)
    written = {row["completion"][0]["content"] for row in rows if row["prompt"] == problems[0].prompt}
    assert written == {f"<think>{p.answer}</think> <answer>{p.answer}</answer>" for p in problems}


def test_sums_in_words_are_right():
    rows = demonstrations(make_problems(["adding"], 40), TWO_ANSWERS)
    sums = [row for row in rows if not row["images"]]
    assert len(sums) == 10
    for row in sums:
        a, b = row["prompt"][0]["content"].removeprefix("What is ").rstrip("?").split("+")
        assert row["completion"][0]["content"] == f"{a}+{b}=\\boxed{{{int(a) + int(b)}}}"


def test_answers_in_tags_are_learnt_alone():
    problems = make_problems(["adding"], 40)
    rows = demonstrations(problems, TAGGED_ANSWERS)
    assert len(rows) == 50  # every problem once, and a sum in words for every fourth
    assert {len(row["prompt"]) for row in rows} == {1}
    written = {row["completion"][0]["content"] for row in rows if row["images"]}
    assert written == {f"<think>{plain_sum(p)}={p.answer}</think> <answer>{p.answer}</answer>" for p in problems}
    for row in rows:
        if not row["images"]:
            a, b = row["prompt"][0]["content"].removeprefix("What is ").rstrip("?").split("+")
            total = int(a) + int(b)
            assert row["completion"][0]["content"] == f"<think>{a}+{b}={total}</think> <answer>{total}</answer>"


def test_every_second_answer_is_in_words():
    problems = make_problems(["adding", "counting"], 16)
    rows = demonstrations(problems, TAGGED_IN_WORDS)
    known = {problem.image.tobytes(): problem for problem in problems}
    in_words = Counter()
    for row in rows:
        if row["images"]:
            problem = known[row["images"][0].tobytes()]
            written, brief = row["completion"][0]["content"], tagged(solve(problem))
            said = " ".join(step.thought for step in problem.steps[:-2])
            assert written in (brief, brief.replace("<think>", f"<think>{said} "))
            in_words[problem.category] += written != brief
    assert in_words == {"adding": 4, "counting": 4}  # of eight


def test_lengths_of_solutions_in_words_differ_from_brief_ones():
    """What follows a first solution has some 40 tokens, so that one in words has the paper's share of the response."""
    _, processor = build_model("qwen2_5_vl", "test", **TAGGED_IN_WORDS.vocabulary)
    for category, brief, in_words in (("adding", 19, 35), ("counting", 20, 47)):
        for problem in make_problems([category], 10):
            tokens = [
                len(processor.tokenizer(write(solve(problem)))["input_ids"]) for write in (tagged, tagged_in_words)
            ]
            assert tokens == pytest.approx([brief, in_words], abs=1)


def test_every_image_is_described_and_every_fourth_answered():
    problems = make_problems(["adding"], 40)
    rows = demonstrations(problems, CAPTIONS_AND_ANSWERS)
    described = [row for row in rows if row["prompt"][0]["content"] == "Describe the picture."]
    answered = [row for row in rows if row["images"] and row not in described]
    assert len(described) == 40
    assert len(answered) == 10
    assert len(rows) == 60  # and a sum in words for every fourth
    captions = {problem.image.tobytes(): caption(problem) for problem in problems}
    for row in described:
        assert row["completion"] == [{"role": "assistant", "content": captions[row["images"][0].tobytes()]}]
    # the answers are those that are taught without captions, and the sums too
    plain_rows = demonstrations(problems, PLAIN_ANSWERS)
    completions = [row["completion"][0]["content"] for row in plain_rows]
    assert {row["completion"][0]["content"] for row in rows if row not in described} <= set(completions)


def test_every_image_is_described_every_second_has_a_response_judged_and_every_eighth_is_answered():
    problems = make_problems(["adding"], 160)
    rows = demonstrations(problems, JUDGED_ANSWERS)
    judged = [row for row in rows if row["prompt"][0]["content"].startswith(JUDGE)]
    described = [row for row in rows if row["prompt"][0]["content"] == DESCRIBE]
    answered = [row for row in rows if row["prompt"] == problems[0].prompt]
    with_images = [row for row in judged if row["images"]]
    assert [len(each) for each in (described, judged, with_images, answered, rows)] == [160, 160, 80, 20, 340]
    right = {boxed_thoughts(solve(problem)) for problem in problems[::8]}
    assert {row["completion"][0]["content"] for row in answered} == right
    known = {problem.image.tobytes(): problem for problem in problems}
    for row in with_images:
        problem = known[row["images"][0].tobytes()]
        question, _, response = row["prompt"][0]["content"].partition("\n\nCandidate solution:\n")
        assert question == f"{JUDGE}\n\nQuestion:\n{problem.question}"
        assert row["completion"] == [{"role": "assistant", "content": verdict(problem, response)}]
    # of eight responses three are right, three have a mistake, one solves another problem and one is empty
    correct = sum('"answer_correctness":1' in row["completion"][0]["content"] for row in judged)
    empty = sum(row["prompt"][0]["content"].endswith("Candidate solution:\n") for row in judged)
    assert 45 < correct < 75  # 60, give or take 6, and the other problem's answer may be right by chance
    assert 8 < empty < 32  # 20, give or take 4


def test_sums_in_words_are_judged_without_an_image():
    rows = demonstrations(make_problems(["adding"], 160), JUDGED_ANSWERS)
    for row in rows:
        if not row["images"]:
            said, reply = row["prompt"][0]["content"], row["completion"][0]["content"]
            a, b = said.split("What is ")[1].split("?")[0].split("+")
            is_right = said.endswith(rf"\boxed{{{int(a) + int(b)}}}")
            word = "Right." if is_right else "Wrong."
            assert reply.startswith(f"[BEGIN THOUGHT]{a}+{b}={int(a) + int(b)} {word}[END THOUGHT]")
            assert (read_score(reply) >= 0.5) == is_right


@pytest.mark.parametrize("lessons", [TWO_ANSWERS, TAGGED_ANSWERS, CAPTIONS_AND_ANSWERS, JUDGED_ANSWERS])
def test_categories_that_alternate_are_taught_alike(lessons):
    problems = make_problems(["adding", "counting"], 64)
    categories = {problem.image.tobytes(): problem.category for problem in problems}
    questions = {problem.prompt[0]["content"] for problem in problems}
    taught = {"adding": Counter(), "counting": Counter()}
    for row in demonstrations(problems, lessons):
        if row["images"]:
            first_line, *_ = (said := row["prompt"][-1]["content"]).splitlines()
            taught[categories[row["images"][0].tobytes()]]["answer" if said in questions else first_line] += 1
    assert taught["adding"] == taught["counting"]
    assert taught["adding"]["answer"] in (4, 8, 32)  # of 32


def test_what_other_lessons_draw_is_as_it_was():
    # Of eight problems two have a sum beside them, and nothing else is drawn but the order.
    drawn = random.Random(0)
    sums = [f"What is {drawn.randrange(10)}+{drawn.randrange(10)}?" for _ in range(2)]
    for lessons in (PLAIN_ANSWERS, TAGGED_ANSWERS, CAPTIONS_AND_ANSWERS):
        rows = demonstrations(make_problems(["adding"], 8), lessons)
        assert {row["prompt"][0]["content"] for row in rows if not row["images"]} == set(sums)


def test_lessons_that_differ_have_names_that_differ():
    lessons = [
        PLAIN_ANSWERS,
        TAGGED_ANSWERS,
        CAPTIONS_AND_ANSWERS,
        TWO_ANSWERS,
        two_answers("Check again."),
        replace(TWO_ANSWERS, again_every=1),
        TAGGED_IN_WORDS,
        JUDGED_ANSWERS,
        judged_answers(partial(judge_message, FOLLOWUP)),
        judged_answers(partial(judge_message, JUDGE), answers_every=4),
        Lessons(plain, answer_tokens=16, in_steps=True, answers_every=2),
        Lessons(boxed_thoughts, answer_tokens=32),
        Lessons(plain, answer_tokens=16, in_steps=True, describe="What is there?"),
        Lessons(plain, answer_tokens=16, in_steps=True, describe=FOLLOWUP),
        Lessons(plain, answer_tokens=16, in_steps=True, followup=FOLLOWUP),
    ]
    assert len({each.name for each in lessons}) == 15
    assert PLAIN_ANSWERS.name == "plain-in-steps"  # of checkpoints that exist
    assert TAGGED_ANSWERS.name == "tagged"


def test_a_model_knows_the_words_of_what_it_is_taught():
    assert JUDGED_ANSWERS.vocabulary == {"in_steps": False, "judging": True}
    assert PLAIN_ANSWERS.vocabulary == {"in_steps": True, "judging": False}
