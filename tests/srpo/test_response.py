"""Reading SRPO's format: every part, and the name of everything that can be wrong with it."""

import random

import pytest
from support import assert_linear

from trl_mmreason.grading.extraction import extract_answer
from trl_mmreason.srpo.objective import parse_reflection_response as parse
from trl_mmreason.srpo.response import RESPONSE_PROBLEMS

FIRST = "<think>3+4=8</think> <answer>8</answer>"
REFLECTION = "<reflection>Not so.</reflection>"
NOTHING = ()
ONE = ("3+4=8", "8")
AGAIN = ("Not so.", "3+4=7", "7")
ALL = (*ONE, *AGAIN)
SECOND = "<think>3+4=7</think> <answer>7</answer>"
FULL = f"{FIRST} {REFLECTION} {SECOND}"


def parts(response):
    return (
        response.first_think,
        response.first_answer,
        response.reflection,
        response.second_think,
        response.second_answer,
    )


def test_a_full_response():
    response = parse(FULL)
    assert parts(response) == ALL
    assert response.has_solution_format
    assert response.has_reflection_format
    assert response.problem is None
    assert FULL[: response.first_end] == FIRST
    start, end = response.reflection_span
    assert FULL[start:end] == REFLECTION


def test_white_space_between_the_blocks_is_free():
    response = parse(f"\n {FIRST}\n\n{REFLECTION}{SECOND} \n".replace("> <", ">\n<"))
    assert response.has_solution_format
    assert response.has_reflection_format
    assert response.problem is None


# text, the parts up to the last there is, solution format, reflection format, problem
CASES = [
    # Parts that are missing cost themselves only.
    ("", NOTHING, False, False, "missing <think> of the first solution"),
    ("7", NOTHING, False, False, "missing <think> of the first solution"),
    (FIRST, ONE, True, False, "missing <reflection>"),
    ("<answer>8</answer>", (None, "8"), False, False, "missing <think> of the first solution"),
    ("<think>a</think>", ("a",), False, False, "missing <answer> of the first solution"),
    (f"{FIRST} {REFLECTION}", (*ONE, "Not so."), True, True, "missing <think> of the second solution"),
    # the SFT template without a second thought
    (
        f"{FIRST}\n{REFLECTION}\n<answer>7</answer>",
        (*ONE, "Not so.", None, "7"),
        True,
        True,
        "missing <think> of the second solution",
    ),
    (
        f"{FIRST} {REFLECTION} <think>b</think>",
        (*ONE, "Not so.", "b"),
        True,
        True,
        "missing <answer> of the second solution",
    ),
    (f"{FIRST} {SECOND}", (*ONE, None, "3+4=7", "7"), True, False, "missing <reflection>"),
    (
        f"<answer>8</answer> {REFLECTION} {SECOND}",
        (None, "8", *AGAIN),
        False,
        True,
        "missing <think> of the first solution",
    ),
    # The first answer is the first there is; a reflection before it reflects on nothing.
    (f"<think>a</think> {REFLECTION} {SECOND}", ("a", "7"), False, False, "misplaced <reflection> at character 17"),
    (
        "<think>a <reflection>hm</reflection> b</think> <answer>7</answer>",
        (None, "7"),
        False,
        False,
        "unclosed <think> before <reflection>",
    ),
    # No second reflection may begin, even if it never ends.
    (f"{FULL} <reflection>", ALL, True, False, "unclosed <reflection> at the end"),
    (f"{FULL} </reflection>", ALL, True, False, "unopened </reflection>"),
    # Doubled and misplaced.
    (f"{FIRST} {REFLECTION} {REFLECTION} {SECOND}", ALL, True, False, "doubled <reflection> at character 73"),
    (f"{FIRST} <answer>9</answer> {REFLECTION} {SECOND}", ALL, True, False, "doubled <answer> at character 40"),
    (f"{FULL} <answer>9</answer>", ALL, True, True, "doubled <answer> at character 113"),
    (f"<think>a</think> {FULL}", ("a", "8", *AGAIN), False, True, "doubled <think> at character 17"),
    (
        f"<answer>8</answer> <think>a</think> {REFLECTION} {SECOND}",
        (None, "8", *AGAIN),
        False,
        False,
        "misplaced <think> at character 19",
    ),
    # Tags without a partner.
    ("<think>a <answer>8</answer>", NOTHING, False, False, "unclosed <think> before <answer>"),
    (
        "<think>a <answer>8</answer></think> <answer>7</answer>",
        (None, "7"),
        False,
        False,
        "unclosed <think> before <answer>",
    ),
    # as a policy wrote it that had lost 45 points: `</answer>` in the place of `</think>`
    (
        f"{FIRST} {REFLECTION} <think>3+4=7</answer> <answer>7</answer>",
        (*ONE, "Not so."),
        True,
        True,
        "unopened </answer> inside <think>",
    ),
    ("a</think> <answer>8</answer>", (None, "8"), False, False, "unopened </think>"),
    (
        "<think>a</answer> b</think> <answer>8</answer>",
        ("a</answer> b", "8"),
        False,
        False,
        "unopened </answer> inside <think>",
    ),
    (f"{FIRST} <reflection>No", ONE, True, False, "unclosed <reflection> at the end"),
    # Cut in the middle of a tag.
    (f"{FIRST} <reflection>No</refl", ONE, True, False, "cut in the middle of a tag: '</refl'"),
    (f"{FIRST} <ref", ONE, True, False, "cut in the middle of a tag: '<ref'"),
    ("<think>a</think> <answer>8</answer", ("a",), False, False, "cut in the middle of a tag: '</answer'"),
    # Empty.
    (
        f"{FIRST} <reflection> \n</reflection> <answer>7</answer>",
        (*ONE, " \n", None, "7"),
        True,
        False,
        "empty <reflection> at character 40",
    ),
    (
        f"<think></think> <answer>8</answer> {REFLECTION} {SECOND}",
        ("", "8", *AGAIN),
        False,
        True,
        "empty <think> at character 0",
    ),
    # Text outside.
    (f"Well. {FULL}", ALL, False, True, "stray text outside the tags at character 0"),
    (f"{FIRST} so {REFLECTION} {SECOND}", ALL, True, False, "stray text outside the tags at character 39"),
    (f"{FULL} Done.", ALL, True, True, "stray text outside the tags at character 112"),
]


@pytest.mark.parametrize(("text", "expected", "solution", "reflection", "problem"), CASES)
def test_parts_and_problems(text, expected, solution, reflection, problem):
    response = parse(text)
    assert parts(response) == (*expected, *[None] * (5 - len(expected)))
    assert (response.has_solution_format, response.has_reflection_format) == (solution, reflection)
    assert response.problem == problem


def test_the_grader_finds_every_second_answer_that_is_read():
    """Or training would reward what evaluation cannot see; unless a later answer or thought takes its place."""
    rng, seen = random.Random(0), 0
    pieces = ["<think>", "</think>", "<answer>", "</answer>", "<reflection>", "</reflection>", "5", "7"]
    for _ in range(20000):
        text = f"{FIRST} {REFLECTION} " + "".join(rng.choices(pieces, k=rng.randint(1, 9)))
        second = parse(text).second_answer
        if second is None or not second.isdigit():
            continue
        behind = text.rindex(f"<answer>{second}</answer>") + len(f"<answer>{second}</answer>")
        if "<answer>" not in text[behind:] and "think>" not in text[behind:]:
            assert extract_answer(text) == second, text
            seen += 1
    assert seen > 50


def test_case_does_not_matter():
    assert parts(parse(FULL.replace("answer", "Answer").replace("<think>", "<THINK>"))) == ALL
    assert parse(f"{FIRST} <REF").problem == "cut in the middle of a tag: '<REF'"


def test_the_cases_show_every_kind_of_problem():
    assert {problem.split()[0] for *_, problem in CASES} == set(RESPONSE_PROBLEMS)


def test_a_less_than_sign_at_the_end_of_words_is_no_cut_tag():
    assert parse(f"{FULL} a <b").problem.startswith("stray")


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<think></think>", "<", "</", "<answer>7</answer>", " \n"])
def test_a_megabyte_of_anything_is_read_in_linear_time(piece):
    assert_linear(lambda text: parse(text).problem, piece, 1_000_000)
    assert parse(piece * 1_000).problem
