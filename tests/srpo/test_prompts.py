"""SRPO's prompts are whole, and replies that are not what was asked for say why."""

import pytest
from support import words_and_digest

from trl_mmreason.jobs.asking import MalformedReply
from trl_mmreason.srpo import prompts
from trl_mmreason.srpo.prompts import read_rating, read_reflection
from trl_mmreason.srpo.response import parse_reflection_response


def test_the_paper_s_prompts_are_whole():
    """The text of the paper at hand was damaged: dollars escaped, a tail repeated, a quotation not closed."""
    example = prompts.REFLECTION_PROMPT.split("Format Example:\n")[1].split("\n\n")[0]
    assert parse_reflection_response(example).problem is None
    assert prompts.REFLECTION_PROMPT.endswith("<reflection>...</reflection> <think>...</think> <answer>...</answer>.")
    assert r"\$" not in prompts.REFLECTION_PROMPT
    assert prompts.COT_PROMPT.count("\n- ") == 6
    asked = prompts.teacher_prompt("How {many}?", "I count {cot}.", "8", "7")
    assert asked.endswith(
        'Only return a valid JSON object with a "reflection" field.\n\n-- Input --\nQuestion: How {many}?\n'
        "Original Chain of Thought: I count {cot}.\nPredicted Answer (Based on CoT): 8\n"
        "Correct Answer (ground truth): 7"
    )
    assert '"think"' not in asked
    assert '\n2. "think": ' in prompts.teacher_prompt("q", "c", "8", "7", second_thought=True)


@pytest.mark.parametrize(
    ("prompt", "words", "digest"),
    [
        (prompts.COT_PROMPT, 81, "2b51750e44065066"),
        (prompts.SFT_PROMPT, 43, "18fc0aae0ae4cd70"),
        (prompts.TEACHER_SYSTEM_PROMPT, 12, "a5670ddf356a5d18"),
        (prompts.teacher_prompt("{query}", "{cot}", "{answer}", "{ground_truth}"), 117, "08c4f4696e004929"),
        (prompts.REFLECTION_PROMPT, 217, "9b2b213edd8d28db"),
    ],
    ids=["CoT", "SFT", "teacher, system", "teacher", "RL"],
)
def test_the_prompts_are_the_paper_s_word_for_word(prompt, words, digest):
    """Words and digest of B.3's text without bold type; white space does not count.

    Two places differ: the teacher is not told the image's address, and two full stops stand where the text at hand
    has a damaged "...</think>...".
    """
    assert words_and_digest(prompt) == (words, digest)


@pytest.mark.parametrize(
    "reply",
    [
        '{"reflection": "It is 7."}',
        ' \n{"reflection": " It is 7.\\n"}\n',
        '```json\n{"reflection": "It is 7."}\n```',
        '```\n{"reflection": "It is 7."}```\n',
    ],
)
def test_a_reflection_is_read(reply):
    assert read_reflection(reply) == {"reflection": "It is 7."}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "no JSON"),
        ("It is 7.", "no JSON"),
        ('Here: {"reflection": "a"}', "no JSON"),
        ('{"reflection": "a"', "no JSON"),
        ("```json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("9" * 10_000, "no JSON"),
        ('"reflection"', "no JSON object"),
        ('[{"reflection": "a"}]', "no JSON object"),
        ("{}", "other fields than asked for"),
        ('{"Reflection": "a"}', "other fields than asked for"),
        ('{"reflection": "a", "answer": "7"}', "other fields than asked for"),
        ('{"think": "a"}', "other fields than asked for"),
        ('{"reflection": 7}', "reflection is empty or no text"),
        ('{"reflection": null}', "reflection is empty or no text"),
        ('{"reflection": ["a"]}', "reflection is empty or no text"),
        ('{"reflection": " \\n"}', "reflection is empty or no text"),
        ('{"reflection": "a", "think": ""}', "think is empty or no text"),
        ('{"reflection": "a </reflection> b"}', "a tag in reflection"),
        ('{"reflection": "a", "think": "b <answer>"}', "a tag in think"),
    ],
)
def test_a_malformed_reflection_says_why(reply, reason):
    with pytest.raises(MalformedReply) as caught:
        read_reflection(reply)
    assert str(caught.value) == reason


def test_a_second_thought_may_come_and_must_come_when_asked_for():
    both = '{"reflection": "a", "think": "b"}'
    assert read_reflection(both) == read_reflection(both, second_thought=True) == {"reflection": "a", "think": "b"}
    with pytest.raises(MalformedReply, match="other fields"):
        read_reflection('{"reflection": "a"}', second_thought=True)


def test_a_score_is_read():
    assert read_rating('{"score": 10}') == {"score": 10.0}
    assert read_rating('```json\n{"score": 1}\n```') == {"score": 1.0}
    for reply in ('{"score": 0}', '{"score": 11}', '{"score": "7"}', '{"score": true}', '{"score": NaN}'):
        with pytest.raises(MalformedReply, match="score is no number from 1 to 10"):
            read_rating(reply)
    for reply in ('{"score": 7, "why": "good"}', "{}"):
        with pytest.raises(MalformedReply, match="other fields"):
            read_rating(reply)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\frac{1}{2} \times \theta", r"\frac{1}{2} \times \theta"),
        (r"\neq \nu \nabla \notin \beta \rho", r"\neq \nu \nabla \notin \beta \rho"),
        (r"\( x \) \sqrt{2} \%", r"\( x \) \sqrt{2} \%"),
        (r"\\frac \"so\" \/", '\\frac "so" /'),  # rightly escaped
        (r"one\ntwo\nNow\n\n3\t4 \u00e9", "one\ntwo\nNow\n\n3\t4 é"),
    ],
)
def test_latex_in_a_reply_stays_latex(written, meant):
    assert prompts.read_reflection('{"reflection": "' + written + '"}') == {"reflection": meant}
