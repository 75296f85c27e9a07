"""A language model is taught to reason by a rule: its lessons, and what it has learnt."""

import pytest
import torch
from support import plain_sum
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_mmreason.generation.engine import Request, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature.captions import NOT_SHOWN, SECOND_LOOK, caption
from trl_mmreason.miniature.reasoner import RuleReasoner, ask_miniature
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.sophia import miniature as module
from trl_mmreason.sophia.miniature import reasoner_path

QUESTION = "What is the sum of the digits?"


def reason(description):
    return ask_miniature(QUESTION, description)


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
    monkeypatch.setattr("trl_mmreason.scripts.cold_start._MAX_STEPS", 4)
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
