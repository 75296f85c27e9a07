"""Chain-of-Step's prompts, and the replies to them read."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import words_and_digest

from trl_mmreason.chain_of_step.objective import judge_labels
from trl_mmreason.chain_of_step.prompts import (
    JUDGE_PROMPT,
    STEP_DATA_PROMPT,
    read_ratings,
    read_steps,
    step_data_message,
    step_judge_message,
    steps_as_text,
)
from trl_mmreason.chain_of_step.template import SPECIAL_TOKENS, Chain, Step, parse_chain, render_chain
from trl_mmreason.jobs.asking import MalformedReply

REPLY = """### <Step 1: Read the digits>
<Detailed Thinking>: The left digit is 3.

The right digit is 4; 3 < 4 > 2.
<Reflection>: Both are plain to see.

### <Step 2: Add: first > second>
<Detailed Thinking>: 3+4=7
<Reflection>: This follows from step 1.

### <Answer>
The answer
is 7."""
STEPS = [
    Step("Read the digits", "The left digit is 3.\n\nThe right digit is 4; 3 < 4 > 2.", "Both are plain to see."),
    Step("Add: first > second", "3+4=7", "This follows from step 1."),
]


def read(reply, **bounds):
    return read_steps(reply, **{"min_steps": 1, **bounds})


def test_a_reply_in_the_papers_format_is_a_chain():
    chain = read(REPLY)
    assert chain == Chain(STEPS, "The answer\nis 7.")
    assert parse_chain(render_chain(chain)) == chain


@pytest.mark.parametrize(
    "reply",
    [
        f"```\n{REPLY}\n```",
        f"\n\n{REPLY}  \n",
        REPLY.replace("\n", "\r\n").replace(".\r\n\r\nThe right", ".\n\nThe right").replace("answer\r", "answer"),
        REPLY.replace(">\n<Detailed", "> \n\n<Detailed").replace("\n<Reflection>: ", "\n\n<Reflection>:\n"),
    ],
)
def test_fences_line_ends_and_empty_lines_do_not_matter(reply):
    assert read(reply) == Chain(STEPS, "The answer\nis 7.")


words = st.text("abc <>:#é=.", min_size=1).map(str.strip).filter(bool)


@given(st.lists(st.builds(Step, words, words, words), min_size=1, max_size=5), words)
def test_steps_written_as_text_are_read_back(steps, answer):
    assert read(f"{steps_as_text(steps)}\n\n### <Answer>\n{answer}") == Chain(steps, answer)


def step(number, thinking="<Detailed Thinking>: a\n", reflection="<Reflection>: b\n"):
    return f"### <Step {number}: c>\n{thinking}{reflection}"


ANSWER = "### <Answer>\n7"

MALFORMED = [
    ("", "text before the first step"),
    (f"Sure!\n{REPLY}", "text before the first step"),
    (f"# <Step 1: c>\n{ANSWER}", "text before the first step"),
    (step(1), "no answer"),
    (f"{step(1)}### <Answer>\n \n", "the answer is empty"),
    (f"{step(1)}{ANSWER}\n{ANSWER}", "something after the answer"),
    (f"{ANSWER}\n{step(2)}{ANSWER}", "something after the answer"),
    (f"{step(2)}{ANSWER}", "steps not numbered in order"),
    (f"{step(1)}{step(1)}{ANSWER}", "steps not numbered in order"),
    (f"{step(1)}{step('9' * 5000)}{ANSWER}", "steps not numbered in order"),
    (f"{step(1, thinking='')}{ANSWER}", "a step without its two parts"),
    (f"{step(1, reflection='')}{ANSWER}", "a step without its two parts"),
    (f"{step(1, reflection='', thinking='<Reflection>: b' + chr(10))}{ANSWER}", "a step without its two parts"),
    (f"### <Step 1: c>\n<Detailed Thinking>: a <Reflection>: b\n{ANSWER}", "a step without its two parts"),
    (f"{step(1)}<Reflection>: d\n{ANSWER}", "a step with a part twice"),
    (f"{step(1)}<Detailed Thinking>: d\n{ANSWER}", "a step with a part twice"),
    (f"{step(1, thinking='<Detailed Thinking>:' + chr(10))}{ANSWER}", "a step with an empty part"),
    (f"{step(1, reflection='<Reflection>: ' + chr(10))}{ANSWER}", "a step with an empty part"),
    (f"{step(1).replace(': c>', ':  >')}{ANSWER}", "a step with an empty part"),
    (f"{step(1)}{ANSWER}<|answer_end|>", "a special token in the text"),
]


@pytest.mark.parametrize(("reply", "problem"), MALFORMED)
def test_malformed_steps_are_named(reply, problem):
    with pytest.raises(MalformedReply, match=f"^{problem}$"):
        read(reply)


def test_five_to_ten_steps_are_asked_for():
    for count in (5, 10):
        assert len(read_steps("".join(map(step, range(1, count + 1))) + ANSWER).steps) == count
    for count, problem in ((4, "too few steps"), (11, "too many steps")):
        with pytest.raises(MalformedReply, match=problem):
            read_steps("".join(map(step, range(1, count + 1))) + ANSWER)


@pytest.mark.parametrize(
    ("reply", "ratings"),
    [
        ("### Step Label: [1,0,-1]", [1, 0, -1]),
        ("Step 1 is right.\n\n### Step Label: [1, 0,  -1]\n", [1, 0, -1]),
        ("**### Step Label:[1,0,-1]**", [1, 0, -1]),
        # The format is quoted before it is used.
        ("I write ### Step Label: [1,1,0,-1,-1,-1].\n### Step Label: [0,0,0]", [0, 0, 0]),
    ],
)
def test_the_judges_last_list_counts(reply, ratings):
    assert read_ratings(reply, 3) == ratings


def test_ratings_become_labels():
    ratings = read_ratings("### Step Label: [1,0,-1]", 3)
    assert judge_labels(ratings, True).tolist() == [1.0, 1.0, 0.0]
    assert judge_labels(ratings, False).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "no step label list"),
        ("[1,0,-1]", "no step label list"),
        ("### Step Label: 1,0,-1", "no step label list"),
        ("### Step Label: []", "a label is not 1, 0 or -1"),
        ("### Step Label: [1,0,]", "a label is not 1, 0 or -1"),
        ("### Step Label: [Good,Bad,Bad]", "a label is not 1, 0 or -1"),
        ("### Step Label: [1,0,2]", "a label is not 1, 0 or -1"),
        ("### Step Label: [1,0]", "another number of labels than of steps"),
        ("### Step Label: [1,0,1,1]", "another number of labels than of steps"),
    ],
)
def test_malformed_ratings_are_named(reply, problem):
    with pytest.raises(MalformedReply, match=f"^{problem}$"):
        read_ratings(reply, 3)


@pytest.mark.parametrize(
    "piece", ["### <", "### <Step 1: a>", "### <Step 1: a>\n", "<Reflection>:\n", "### Step Label: ", "[", "1,", "\n"]
)
def test_a_megabyte_of_anything_is_read_in_linear_time(piece):
    hostile = piece * (1_000_000 // len(piece))
    started = time.process_time()
    for reply in (hostile, f"{step(1)}{hostile}", f"{step(1)}{hostile}\n{ANSWER}"):
        with pytest.raises(MalformedReply):
            read_steps(reply)
    for opening in ("", "### Step Label: [1"):
        with pytest.raises(MalformedReply):
            read_ratings(opening + hostile, 2)
    assert time.process_time() - started < 5


def test_the_prompts_show_the_formats_that_are_read():
    form = STEP_DATA_PROMPT[STEP_DATA_PROMPT.index("### <Step 1") :].replace("...\n\n", "").replace("Step x", "Step 3")
    assert read(form) == Chain([Step("xxx", "xxx", "xxx")] * 3, "xxx")
    assert read_ratings(JUDGE_PROMPT, 6) == [1, 1, 0, -1, -1, -1]


@pytest.mark.parametrize(
    ("prompt", "words", "digest"),
    [(STEP_DATA_PROMPT, 295, "b9973de0687e897f"), (JUDGE_PROMPT, 215, "37cadc35d2c3a1d1")],
    ids=["Fig. 8", "Fig. 9"],
)
def test_the_prompts_are_the_paper_s_word_for_word(prompt, words, digest):
    """Words and digest of the figures' text without bold type and fences; white space does not count."""
    assert words_and_digest(prompt) == (words, digest)


def test_what_teacher_and_judge_are_told():
    assert step_data_message("3+4=?", "7") == "Question: 3+4=?\nReference answer: 7"
    told = step_judge_message("3+4=?", "7", STEPS)
    assert told.startswith("Question: 3+4=?\nReference answer: 7\nIntermediate answer process:\n### <Step 1: Read the")
    assert told.endswith(REPLY[REPLY.index("### <Step 2") : REPLY.index("\n\n### <Answer>")])
    assert not any(token in told + STEP_DATA_PROMPT + JUDGE_PROMPT for token in SPECIAL_TOKENS)
