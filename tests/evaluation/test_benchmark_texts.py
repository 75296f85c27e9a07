"""Choices that stand inside a question, and images by name."""

import pytest

from trl_mmreason.evaluation.benchmarks.options import read_options, split_semicolons
from trl_mmreason.evaluation.benchmarks.prompt import images_named, name_images

ONE_TWO = {"A": "one", "B": "two"}


@pytest.mark.parametrize(
    ("question", "answer", "stem", "choices"),
    [
        ("Why?\nA. one\nB. two", "B", "Why?", {"A": "one", "B": "two"}),
        ("Why?\nChoices:\nA:1\nB:2\nC:3", "C", "Why?", {"A": "1", "B": "2", "C": "3"}),
        ("Why?\n\n(A) one\n\n(B) two\n", "A", "Why?", {"A": "one", "B": "two"}),
        ("Why?\nA.\n\n<image_1>\nB.\n\n<image_2>", "A", "Why?", {"A": "<image_1>", "B": "<image_2>"}),
        ("Why? choice: (A) one (B) two", "B", "Why?", {"A": "one", "B": "two"}),
        ("Which? (A) 1 m, (B) 2 m; (C) 3 m", "C", "Which?", {"A": "1 m", "B": "2 m", "C": "3 m"}),
        ("Which?\n(A) 1 (B) 2 (C) 3\n", "C", "Which?", {"A": "1", "B": "2", "C": "3"}),
        ("The angle is ( ) (A) 40° (B) 50°", "A", "The angle is ( )", {"A": "40°", "B": "50°"}),
        ("Take A, B or C. (A) 33% (B) 1.7% (C) 2.", "B", "Take A, B or C.", {"A": "33%", "B": "1.7%", "C": "2."}),
        ("How?\nOptions: A: x, y, B: z", "B", "How?", {"A": "x, y", "B": "z"}),
        ("How?\nOptions: A: x and y, B: z", "B", "How?", {"A": "x and y", "B": "z"}),
        ("Why?\nChoices:\n(A) 1 (B) 2\n(C) 3 (D) 4", "D", "Why?", {"A": "1", "B": "2", "C": "3", "D": "4"}),
        ("Why?\nChoices\n(A) 1 (B) 2", "A", "Why?", {"A": "1", "B": "2"}),
        ("Is (A) on (B)? Options: (A) yes (B) no", "A", "Is (A) on (B)?", {"A": "yes", "B": "no"}),
        ("Two circles (A) and (B) touch. Why?\nA. one\nB. two", "A", "Two circles (A) and (B) touch. Why?", ONE_TWO),
        ("Choose the best option:\nA. one\nB. two", "A", "Choose the best option:", {"A": "one", "B": "two"}),
        ("Which two?\nA. one\nB. two\nC. three", "A, C", "Which two?", {"A": "one", "B": "two", "C": "three"}),
    ],
)
def test_choices_are_read_out_of_a_question(question, answer, stem, choices):
    assert read_options(question, answer) == (stem, choices)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Why?\nA. one\nC. three", "A"),  # a gap
        ("Why?\nA. one\nB. two\nA. three", "A"),  # a label twice
        ("Why?\nA. one\nB. two", "C"),  # the answer is none of them
        ("Why?\nA. one\nB. two", "two"),  # no letter
        ("A. one\nB. two", "A"),  # no question
        ("Why?\nA. one\nB. two\n\n## 3", "A"),  # something follows
        ("Why?\nA. one\nB.\nC. three", "A"),  # a choice without text
        ("Is point (A) or point (C) higher?", "A"),
        ("In triangle (A) of (A) and (B), why?", "A"),
        ("Which image, (A) or (B), shows a red ball?", "A"),  # a sentence about them
        ("Which is larger: (A) or (B)?", "A"),
        ("Which of the options: (A) or (B) is red?", "A"),
        ("Which option: (A) red or (B) blue", "A"),
        ("Look! (A) a man and (B) a dog", "A"),
        ("Compare image (A) on the left with image (B) on the right", "A"),
        ("Look. (A) is a man, (B) is a dog. Who is older", "A"),
        ("Look. (A) is a man, (B) is a dog, who is older?", "A"),
        ("Why? (A) 1 (B) 2 Answer with the letter", "A"),
        ("Why?\n(A) 1\n(B) 2\n(C) 3\n(D) 4\nGive the letter only.", "D"),  # a line behind the last choice
        ("Why? (A) 1 (B) 2\nGive the letter only.", "A"),
        ("Why?\nChoices:\n(A) 1 (B) 2\nGive the letter only.", "A"),
        ("Why?\nOptions: A: 1, B: 2\nGive the letter only.", "A"),
        ("Why?\n(A) 1\n(B) 2\n(C)\nGive the letter only.", "A"),
        ("Why?\n(A) 1 (B) 2\n(C) 3 (D) 4", "D"),  # neither a line each nor one line
        ("Choices:\n(A) 1 (B) 2", "A"),  # no question
        ("How?\nOptions: A: 1, B 2, C: 3", "A"),
        ("What is (A)?", "A"),
        ("Why?", "A"),
    ],
)
def test_what_could_mean_something_else_is_left_alone(question, answer):
    assert read_options(question, answer) == (question, None)


def test_choices_between_semicolons():
    expected = {"A": "3, 5, 4", "B": "3.", "C": "A", "D": "none", "E": "No correct answer"}
    assert split_semicolons("A. 3, 5, 4; B. 3.;C. A;    D. none; E. No correct answer") == expected
    assert split_semicolons("A. 1; C. 2") is None
    assert split_semicolons("one; two") is None


@pytest.mark.parametrize(
    ("question", "numbers", "expected"),
    [
        ("<image 1> and <image_2> or <image3>?", [1, 2, 3], "image 1 and image 2 or image 3?"),
        ("<image>\n<image>\nWhich?", [1, 2], "image 1\nimage 2\nWhich?"),
        ("Is <image 2> or <image 4> larger?", [2, 4], "Is image 1 or image 2 larger?"),  # as they are given
        ("<image>Which?", [1], "Which?"),
        ("<image 1>\nWhich? <image 1>", [1], "Which?"),
        ("Look.\n<image1>\nWhich?", [1], "Look.\nWhich?"),
        ("What is opposite to <image3>?", [1], "What is opposite to image 3?"),
        ("As <image 1> shows, why?", [1], "As image 1 shows, why?"),
        ("Which?", [], "Which?"),
        ("Is 1 <image2 or 3>2?", [1, 2], "Is 1 <image2 or 3>2?"),
    ],
)
def test_tags_become_names(question, numbers, expected):
    assert name_images(question, None, "", numbers) == [expected, None, ""]


def test_tags_in_choices_and_hints():
    named = name_images("<image 1>?", {"A": "<image 2>", "B": "none"}, "See <image 1>", [1, 2])
    assert named == ["image 1?", {"A": "image 2", "B": "none"}, "See image 1"]
    # a choice that is the one image keeps its name, a hint that only shows it goes
    assert name_images("Why?", {"A": "<image 1>"}, "<image 1>", [1]) == ["Why?", {"A": "image 1"}, ""]
    assert images_named(["<image 1> <image_12>", "<image>", "image 3"]) == {1, 12}
