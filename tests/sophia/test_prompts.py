"""SOPHIA's prompts: what is filled in where, and under which system message a completion is trained."""

import re

import pytest
from support import words_and_digest

from trl_mmreason.grading import Grader
from trl_mmreason.sophia.prompts import (
    CAPTION_PROMPT,
    EXAMPLE,
    THINKING_PROMPT,
    opened,
    prompt_for,
    reasoning_prompt,
)

ASKED = [{"role": "user", "content": "How many?"}]
BRIEF = {"role": "system", "content": "Be brief."}
THINKING = {"role": "system", "content": THINKING_PROMPT}


def test_the_reasoning_prompt_shows_the_example_and_ends_in_question_and_caption():
    prompt = reasoning_prompt("How many?", "Three cats.")
    question, caption, response = EXAMPLE.values()
    assert prompt.startswith(
        f"Please read the following example carefully.\n\n<Begin of example>\nQuestion: {question}\nVisual information:"
        f"\n{caption}\n\nYour response:\n{response}\n<End of example>\n\nOffer a comprehensive breakdown"
    )
    assert prompt.endswith("\n\nQuestion: How many?\nVisual information:\nThree cats.\n\nYour response:")
    assert 'after "**Final answer**" and wrapped with \\boxed{}. You should assume' in prompt


@pytest.mark.parametrize(
    "text", [r"\frac{1}{2}", "{0}", "{", "{caption}", "{question}", "{example_response}", r"\g<1>"]
)
def test_whatever_stands_in_question_and_caption_stays(text):
    prompt = reasoning_prompt(f"a {text}", f"b {text}")
    assert prompt.endswith(f"Question: a {text}\nVisual information:\nb {text}\n\nYour response:")
    assert EXAMPLE["example_response"] in prompt


def test_the_example_is_right_and_looks_at_the_image_again():
    assert EXAMPLE["example_response"].endswith("**Final answer** \\boxed{9}")
    assert Grader().grade(EXAMPLE["example_response"], "9").correct
    assert len(re.findall("look at the image again", EXAMPLE["example_response"])) == 1


@pytest.mark.parametrize(
    ("prompt", "words", "digest"),
    [(CAPTION_PROMPT, 550, "ff1907838c3551fc"), (THINKING_PROMPT, 335, "66811468baf67143")],
    ids=["Fig. A2", "Fig. A4"],
)
def test_the_prompts_are_the_paper_s_word_for_word(prompt, words, digest):
    """Words and digest of the figures' text; white space does not count."""
    assert words_and_digest(prompt) == (words, digest)


@pytest.mark.parametrize(
    ("prompt", "completion", "trained_under"),
    [
        (ASKED, "<think>3</think> 3", [THINKING, *ASKED]),
        (ASKED, "hm</think> 3", [THINKING, *ASKED]),
        (ASKED, "3", ASKED),
        ([BRIEF, *ASKED], "<think>3</think>", [THINKING, *ASKED]),
        ([BRIEF, *ASKED], "3", [BRIEF, *ASKED]),
    ],
)
def test_what_thinks_in_tags_is_trained_under_the_thinking_prompt(prompt, completion, trained_under):
    assert prompt_for(prompt, completion, THINKING_PROMPT) == trained_under
    assert prompt_for(prompt, completion, None) == prompt


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("hm</think> 3", "<think>\nhm</think> 3"),
        ("<think>hm</think> 3", "<think>hm</think> 3"),
        ("3, and no thought", "3, and no thought"),
    ],
)
def test_thoughts_that_a_template_opened_are_opened_in_the_text(text, whole):
    assert opened(text) == whole
