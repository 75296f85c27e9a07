"""A reasoner of known quality: what it reads, and how often it errs."""

import pytest

from trl_mmreason.generation.engine import Failure, Request, SamplingParams
from trl_mmreason.miniature.captions import NOT_SHOWN
from trl_mmreason.miniature.reasoner import REASON, RuleReasoner
from trl_mmreason.miniature.tasks import make_problem, make_problems

PROBLEM = make_problem("adding", 4)  # 8+1
QUESTION = "What is the sum of the digits?"
FACTS = "The first digit is 3. The second digit is 4."


def ask(said, *, n=1, seed=0, reasoner=None, **rates):
    reasoner = reasoner or RuleReasoner([PROBLEM], **rates)
    (result,) = reasoner.sample([Request([{"role": "user", "content": said}], n=n, seed=seed)], SamplingParams())
    return result if isinstance(result, Failure) else [sample.text for sample in result]


def reason(description, question=QUESTION):
    return REASON.format(question=question, caption=description)


def test_it_works_out_the_caption_and_not_the_image():
    never = {"slip_rate": 0.0, "second_look_rate": 0.0}
    assert ask(reason(FACTS), **never) == [rf"<think>{FACTS} 3+4=7</think> \boxed{{7}}"]
    assert ask(reason("A red square."), **never) == [NOT_SHOWN]
    (always,) = ask(reason(FACTS), slip_rate=0.0, second_look_rate=1.0)
    assert always == rf"<think>{FACTS} 3+4=7 Wait, let me look at the image again. 3+4=7</think> \boxed{{7}}"


def test_the_last_question_of_a_prompt_is_meant_not_the_example():
    example = f"{reason('The first digit is 9. The second digit is 9.', 'How many apples?')}\nTen.\n<End of example>"
    asked = f"{example}\n\nPlease take your time.\n\n{reason(FACTS)}"
    assert ask(asked, slip_rate=0.0, second_look_rate=0.0) == [rf"<think>{FACTS} 3+4=7</think> \boxed{{7}}"]


def test_choices_are_known_from_the_question():
    problem = make_problem("adding", 4, multiple_choice=True)
    asked = reason("The first digit is 8. The second digit is 1.", problem.prompt[0]["content"])
    (text,) = ask(asked, reasoner=RuleReasoner([problem], slip_rate=0.0, second_look_rate=0.0))
    assert text.endswith(rf"8+1=9</think> \boxed{{{problem.answer}}}")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (QUESTION, "does not end as SOPHIA's prompt"),
        (f"{reason(FACTS)} 7. So what?", "does not end as SOPHIA's prompt"),
        (reason(FACTS, "What is the product of the digits?"), "does not know the question 'What is the product"),
    ],
)
def test_what_it_does_not_understand_fails(said, reason):
    failure = ask(said)
    assert isinstance(failure, Failure)
    assert reason in failure.reason


@pytest.mark.parametrize("name", ["slip_rate", "second_look_rate"])
@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_rates_are_probabilities(name, rate):
    with pytest.raises(ValueError, match=rf"got {name}={rate}, expected a probability from 0 to 1"):
        RuleReasoner([PROBLEM], **{name: rate})


def test_slips_and_second_looks_come_at_their_rates_and_independently():
    texts = ask(reason(FACTS), n=4000, slip_rate=0.2, second_look_rate=0.4)
    slipped = [r"\boxed{7}" not in text for text in texts]
    looked = ["Wait" in text for text in texts]
    both = [slip and look for slip, look in zip(slipped, looked, strict=True)]
    # 0.2, 0.4 and 0.2 · 0.4, each ± four standard deviations of a share of 4000
    assert sum(slipped) / 4000 == pytest.approx(0.2, abs=0.026)
    assert sum(looked) / 4000 == pytest.approx(0.4, abs=0.031)
    assert sum(both) / 4000 == pytest.approx(0.08, abs=0.018)


def test_a_sample_follows_from_its_request_and_number_alone():
    ten, other = ask(reason(FACTS), n=10), ask(reason(FACTS), n=10, seed=1)
    assert ask(reason(FACTS), n=4) == ten[:4]
    assert other != ten
    reasoner = RuleReasoner([PROBLEM])
    more = [Request([{"role": "user", "content": reason(text)}], n=10) for text in (FACTS[:20], FACTS)]
    samples = reasoner.sample(more, SamplingParams())[1]
    assert [sample.text for sample in samples] == ten
    assert all(sample.token_ids is None and sample.logprobs is None for sample in samples)


def test_its_settings_tell_what_determines_its_answers():
    settings = RuleReasoner([PROBLEM], slip_rate=0.2).settings
    assert settings == RuleReasoner(make_problems(["adding"], 5), slip_rate=0.2).settings  # the same one question
    assert settings != RuleReasoner([PROBLEM]).settings
    assert settings != RuleReasoner([make_problem("clock", 0)], slip_rate=0.2).settings
