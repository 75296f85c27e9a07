"""Verdicts on stored samples: a judge that says nothing."""

from trl_mmreason.grading import JudgeGrader
from trl_mmreason.jobs.verdicts import grade_payloads, judge_is_silent


def graded(texts, extracts):
    """Samples that a judge has graded, of which nobody can read what it says of two answers."""

    def chat(conversations):
        asked = [conversation[0]["content"] for conversation in conversations]
        return [extracts if prompt.endswith("Extracted answer:") else "I would rather not say." for prompt in asked]

    rows = [{"prompt": "How many?", "answer": "3"}] * len(texts)
    return grade_payloads(rows, [{"turns": [{"text": text}]} for text in texts], JudgeGrader(chat))


def test_a_judge_is_silent_beside_answers_that_it_was_not_asked_about():
    """Of an empty one, as a cut or malformed sample has, the rules alone know that it is wrong."""
    wrong = [r"\boxed{4}", r"\boxed{5}"]
    samples = graded([*wrong, ""], "Extracted answer:")
    assert [sample["turns"][0]["decided_by"] for sample in samples] == ["unreadable", "unreadable", "rules"]
    assert judge_is_silent(samples)
    samples = graded([*wrong, "I cannot see it."], "Extracted answer:")
    assert samples[2]["turns"][0] | {"reason": ""} == {
        "answer": None,
        "correct": False,
        "reason": "",
        "decided_by": "judge",
    }
    assert not judge_is_silent(samples)  # it finds no answer either, which is a reply
