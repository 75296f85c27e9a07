"""The text of messages with images and without."""

import math

import pytest
from support import png

from trl_mmreason.data.images import images_of
from trl_mmreason.messages import plain_messages, question_text, quoted, text_messages, text_of, with_image_parts

PARTS = [{"type": "image"}, {"type": "text", "text": "How long"}, {"type": "text", "text": "in cm?"}]


def test_the_text_of_a_content():
    assert text_of("How long?") == "How long?"
    assert text_of(PARTS) == "How longin cm?"
    assert text_of(PARTS, between="\n") == "How long\nin cm?"
    assert text_of(PARTS[:1]) == ""


def test_the_question_is_all_that_was_asked():
    system, question = {"role": "system", "content": "in km"}, {"role": "user", "content": PARTS}
    answer, second = {"role": "assistant", "content": "7"}, {"role": "user", "content": "And in m?"}
    assert question_text([system, question]) == "How long in cm?"
    assert question_text([system, question, answer, second]) == "User: How long in cm?\nAssistant: 7\nUser: And in m?"
    call = {"role": "assistant", "content": None, "tool_calls": []}
    assert question_text([question, call]) == "How long in cm?"
    assert question_text("How long?") == "How long?"
    assert question_text([system]) == ""


def test_the_images_of_a_row_are_a_list(tmp_path):
    (tmp_path / "one.png").write_bytes(png())
    path, link = str(tmp_path / "one.png"), "https://example.org/one.png"  # a link is for transformers to fetch
    assert [one if one == link else one.size for one in images_of({"images": [path, link]})] == [(2, 2), link]
    assert images_of({"image": path})[0].mode == "RGB"
    for value in (None, [], [None], "", [""], math.nan, [math.nan], {"bytes": None, "path": None}):
        assert images_of({"images": value}) == images_of({"image": value}) == images_of({}) == []


@pytest.mark.parametrize("row", [{"images": ["pictures/lost.png"]}, {"image": "pictures/lost.png"}])
def test_an_image_that_is_not_there_is_named(row, tmp_path, monkeypatch):
    """transformers takes its path for base64: "Incorrect image source"."""
    monkeypatch.chdir(tmp_path)
    expected = rf"^The image 'pictures/lost.png' does not exist here \(looked from {tmp_path}\). Fix the path, or load"
    with pytest.raises(FileNotFoundError, match=expected):
        images_of(row)


BRIEF = {"role": "system", "content": "Be brief."}


def test_messages_become_plain():
    plain = [BRIEF, {"role": "user", "content": "How longin cm?"}]
    assert plain_messages(plain, "row 1") == plain
    assert plain_messages("How long?", "row 1") == [{"role": "user", "content": "How long?"}]
    in_parts = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]
    assert plain_messages([*in_parts, {"role": "user", "content": PARTS}], "row 1") == plain
    two = [{"type": "image"}, *PARTS]
    assert plain_messages([BRIEF, {"role": "user", "content": two}], "row 1") == plain


def test_keys_and_parts_that_arrow_fills_up_are_none():
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "How long?", "image": None}]
    message = {"role": "user", "content": parts, "tool_calls": None}
    assert plain_messages([message], "row 1") == [{"role": "user", "content": "How long?"}]


@pytest.mark.parametrize(
    "prompt",
    [
        [{"role": "user", "content": [{"type": "image", "image": "a.png"}, PARTS[1]]}],  # the image itself
        [{"role": "user", "content": [{"text": "How long?"}]}],
        [{"role": "system", "content": PARTS}, {"role": "user", "content": "How long?"}],
        [{"role": "assistant", "content": PARTS}, {"role": "user", "content": "How long?"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": "How long?", "name": "Ann"}],
        [{"role": "user", "content": None}],
        [{"content": "How long?"}],
        ["How long?"],
        [],
        None,
    ],
)
def test_what_would_be_lost_in_plain_messages_is_refused(prompt):
    with pytest.raises(
        ValueError, match="^row 1 has the prompt .*Fix: move images themselves into the column `images`"
    ):
        plain_messages(prompt, "row 1")


# ---- images inside the text ----

IMAGE = {"type": "image"}
SHOWN = {"type": "image", "image": "the image itself"}


def text(words):
    return {"type": "text", "text": words}


def user(content):
    return {"role": "user", "content": content}


INSIDE = {  # in parts → as text
    "inside": ([user([text("Look at "), IMAGE, text(". Colour?")])], ["Look at <image>. Colour?"]),
    "at the end": ([user([text("Colour?"), IMAGE])], ["Colour?<image>"]),
    "first and inside": ([user([IMAGE, text("\nas in "), IMAGE, IMAGE])], ["<image>\nas in <image><image>"]),
    "in a later message": (
        [BRIEF, user([text("Colour?")]), {"role": "assistant", "content": "Red."}, user([IMAGE, text("And this?")])],
        ["Be brief.", "Colour?", "Red.", "<image>And this?"],
    ),
}


@pytest.mark.parametrize(("parts", "texts"), INSIDE.values(), ids=INSIDE)
def test_images_inside_the_text_are_marks_in_it_and_parts_for_trl(parts, texts):
    plain = [{**message, "content": words} for message, words in zip(parts, texts, strict=True)]
    shown = [
        {**one, "content": [SHOWN if part == IMAGE else part for part in one["content"]]}
        if one["role"] == "user"
        else one
        for one in parts
    ]
    count = sum(words.count("<image>") for words in texts)
    assert with_image_parts(plain, count) == parts
    assert text_messages(parts) == text_messages(shown) == text_messages(plain) == plain
    assert plain_messages(parts, "row 1") == plain_messages(plain, "row 1") == plain
    assert question_text(parts) == question_text(shown) == question_text(plain)
    for message in plain:
        assert (message["content"] in question_text(plain)) == (message["role"] != "system")


def test_images_that_come_first_leave_no_mark():
    assert text_messages([user([SHOWN, IMAGE, text("Colour?")])]) == [user("Colour?")]
    assert text_messages([BRIEF, user([IMAGE])]) == [BRIEF, user("")]
    assert text_messages("Colour?") == [user("Colour?")]


def test_another_number_of_marks_than_images_is_text():
    asked = [user("Is <image> a tag?"), {"role": "assistant", "content": "<image>"}, user([text("<image>")])]
    for count in (0, 2, 3):
        assert with_image_parts(asked, count) == asked
    assert with_image_parts(asked, 1) == [user([text("Is "), IMAGE, text(" a tag?")]), *asked[1:]]
    assert with_image_parts([user("<image>"), user("")], 1) == [user([IMAGE]), user([text("")])]


def test_quoted_text_holds_no_place():
    assert quoted("See <image>.") == "See < image>."
    assert quoted("See it.") == "See it."
