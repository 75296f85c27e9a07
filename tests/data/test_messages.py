"""The text of messages with images and without."""

import math

import pytest
from support import png

from trl_mmreason.data.images import images_of
from trl_mmreason.messages import plain_messages, question_text, text_of

PARTS = [{"type": "image"}, {"type": "text", "text": "How long"}, {"type": "text", "text": "in cm?"}]


def test_the_text_of_a_content():
    assert text_of("How long?") == "How long?"
    assert text_of(PARTS) == "How longin cm?"
    assert text_of(PARTS, between="\n") == "How long\nin cm?"
    assert text_of(PARTS[:1]) == ""


def test_the_question_is_the_first_user_message():
    system, followup = {"role": "system", "content": "in km"}, {"role": "user", "content": "Check it."}
    assert question_text([system, {"role": "user", "content": PARTS}, followup]) == "How long in cm?"
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
        [{"role": "user", "content": [PARTS[1], PARTS[0]]}],  # the image comes behind the text
        [{"role": "user", "content": [{"type": "image", "image": "a.png"}, PARTS[1]]}],  # the image itself
        [{"role": "user", "content": [{"text": "How long?"}]}],
        [{"role": "system", "content": PARTS}, {"role": "user", "content": "How long?"}],
        [{"role": "user", "content": "How long?"}, {"role": "user", "content": PARTS}],  # images go into the first
        [{"role": "user", "content": "How long?", "name": "Ann"}],
        [{"role": "user", "content": None}],
        [{"content": "How long?"}],
        ["How long?"],
        [],
        None,
    ],
)
def test_what_would_be_lost_in_plain_messages_is_refused(prompt):
    with pytest.raises(ValueError, match="^row 1 has the prompt .* and images themselves, into the column `images`"):
        plain_messages(prompt, "row 1")
