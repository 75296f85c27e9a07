"""Reasoners of known quality: what they read, how often they err, and that one can be taught by the other."""

import pytest
import torch
from support import plain_sum
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_mmreason.generation.engine import Failure, Request, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature import reasoner as module
from trl_mmreason.miniature.captions import NOT_SHOWN, SECOND_LOOK, caption
from trl_mmreason.miniature.reasoner import REASON, RuleReasoner, reasoner_path
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


def test_the_rule_teaches_on_right_captions_and_on_some_that_lack_a_fact(monkeypatch):
    monkeypatch.setattr(module, "_LESSONS", 320)
    problems = make_problems(["adding"], 40)
    rows = module._lessons(problems, RuleReasoner(problems, slip_rate=0.0, second_look_rate=0.0), seed=0)
    right = {
        reason(caption(problem)): rf"<think>{caption(problem)} {plain_sum(problem)}={problem.answer}</think> "
        rf"\boxed{{{problem.answer}}}"
        for problem in problems
    }
    lacking = [row for row in rows if row["prompt"][0]["content"] not in right]
    assert len(lacking) == 320 / 16
    assert {row["completion"][0]["content"] for row in lacking} == {NOT_SHOWN}
    for row in rows:
        if row not in lacking:
            assert row["completion"][0]["content"] == right[row["prompt"][0]["content"]]


@pytest.mark.full
def test_a_taught_reasoner_is_saved_as_any_language_model_and_not_taught_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TARGET_ACCURACY", 0.0)  # the real target is reached in hundreds of steps
    monkeypatch.setattr(module, "_LESSONS", 320)
    monkeypatch.setattr("trl_mmreason.miniature.cold_start._MAX_STEPS", 4)
    path = reasoner_path(tmp_path, "adding", seed=1)
    assert path == tmp_path / "reasoner-adding-1-slips0.1-looks0.3-seed1"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "3+4?"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|im_start|>user\n3+4?<|im_end|>\n<|im_start|>assistant\n"
    untaught = module._build(tokenizer, seed=1)
    assert not torch.equal(model.lm_head.weight, untaught.lm_head.weight)
    assert module._accuracy(untaught, tokenizer=tokenizer, problems=make_problems(["adding"], 4)) == 0.0
    assert not list(tmp_path.glob("*.unfinished"))
    made = (path / "model.safetensors").stat().st_mtime_ns
    assert reasoner_path(tmp_path, "adding", seed=1) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == made


@pytest.mark.slow
def test_a_taught_reasoner_is_right_greedily_and_errs_and_rambles_when_sampled(tmp_path):
    """About two minutes. It looks twice at the rule's rate, within four standard deviations of 200 draws; it errs at
    that rate at least, as a tiny model is unsure of its sums too."""
    engine = TransformersEngine(str(reasoner_path(tmp_path, "adding")), batch_size=100)
    problems = make_problems(["adding"], 200, split="heldout", seed=1)
    said = [[{"role": "user", "content": reason(caption(problem))}] for problem in problems]

    def write(temperature):
        requests = [Request(messages, seed=number) for number, messages in enumerate(said)]
        texts = [sample.text for (sample,) in engine.sample(requests, SamplingParams(96, temperature=temperature))]
        right = [rf"\boxed{{{problem.answer}}}" in text for problem, text in zip(problems, texts, strict=True)]
        return sum(right) / 200, sum(SECOND_LOOK in text for text in texts) / 200

    assert write(temperature=0)[0] > 0.9
    right, looked = write(temperature=1)
    assert 0.6 < right < 0.9
    assert looked == pytest.approx(0.3, abs=0.13)
