"""The texts of messages with pictures and without."""

from trl_mmreason.messages import question_text, text_of

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
