"""The arms of Table 4 without steps: their rows, what their supervised training learns, their DPO by outcome."""

import json

import pytest
import torch
from datasets import Dataset
from support import SUPERVISED_RUN, drawn_rows, load, maker

from trl_mmreason import ChainOfStepSFTConfig, IterativeDPOConfig, IterativeDPOTrainer
from trl_mmreason.baselines.patterns import STEP_BY_STEP, PatternSFTTrainer, in_pattern
from trl_mmreason.chain_of_step.template import Chain, Step, render_chain
from trl_mmreason.generation.engine import Sample
from trl_mmreason.grading import Grader

STEPS = [Step("Look", "I see 3 and 4.", "I looked twice."), Step("Add", "3+4=7", "So it is.")]
CHAIN = render_chain(Chain(STEPS, "The answer is 7."))
WRITTEN = {"no_reason": "The answer is 7.", "direct_prompt": "I see 3 and 4.\n3+4=7\n<answer>7</answer>"}
ASKED = {"no_reason": "Add.", "direct_prompt": "Add.\nLet's think step by step."}
RUN = {**SUPERVISED_RUN, "warmup_steps": 0}


def rows(completion=CHAIN, n=3):
    """Questions with one image, with two, and without any."""
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add."}]
    return [{**row, "prompt": asked, "answer": "7", "completion": completion} for row in drawn_rows(n)]


@pytest.mark.parametrize("pattern", WRITTEN)
def test_the_rows_of_a_pattern(pattern):
    """No Reason keeps question and answer; Direct Prompt asks for steps and has all thoughts in one text."""
    given = Dataset.from_list(rows())
    made = in_pattern(given, pattern)
    assert made["completion"] == [WRITTEN[pattern]] * 3
    contents = [[message["content"] for message in prompt] for prompt in made["prompt"]]
    assert contents == [["Be brief.", ASKED[pattern]]] * 3
    assert [len(images) for images in made["images"]] == [1, 2, 0]
    assert made["answer"] == given["answer"]
    questions = in_pattern(given.remove_columns("completion"), pattern)
    assert questions["prompt"] == made["prompt"]
    assert "completion" not in questions.column_names
    assert Grader().grade(WRITTEN[pattern], "7").correct
    assert not Grader().grade(WRITTEN[pattern], "8").correct


def test_chains_stay_as_they_are_and_a_completion_may_be_a_message():
    given = Dataset.from_list(rows())
    assert in_pattern(given, "chain_of_step") is given
    messages = Dataset.from_list(rows([{"role": "assistant", "content": CHAIN}]))
    assert in_pattern(messages, "no_reason")["completion"] == [WRITTEN["no_reason"]] * 3
    texts = Dataset.from_list([{"prompt": "Add."}])
    assert in_pattern(texts, "direct_prompt")["prompt"] == [f"Add.\n{STEP_BY_STEP}"]


@pytest.mark.parametrize(
    ("pattern", "completion", "problem"),
    [
        ("steps", CHAIN, "unknown pattern 'steps'; expected one of chain_of_step, direct_prompt, no_reason"),
        ("no_reason", "7", "row 0 is not a chain: malformed chain at character 0"),
        ("direct_prompt", render_chain(Chain(STEPS)), "the chain of row 0 has no answer"),
    ],
)
def test_what_is_no_pattern_or_no_chain_is_refused(pattern, completion, problem):
    with pytest.raises(ValueError, match=problem):
        in_pattern(Dataset.from_list(rows(completion, 1)), pattern)


@pytest.mark.parametrize("pattern", WRITTEN)
def test_supervised_training_learns_the_completion_alone_with_the_recipe_of_chains(pattern, checkpoints, tmp_path):
    args = ChainOfStepSFTConfig(str(tmp_path), **{**RUN, "per_device_train_batch_size": 1, "max_steps": 3})
    path = checkpoints("qwen2_5_vl")
    trainer = PatternSFTTrainer(path, args=args, train_dataset=in_pattern(Dataset.from_list(rows()), pattern))
    tokenizer = trainer.processing_class.tokenizer
    for batch in trainer.get_train_dataloader():
        learnt = tokenizer.decode(batch["labels"][batch["labels"] != -100], skip_special_tokens=True)
        assert learnt.strip() == WRITTEN[pattern]
        assert ASKED[pattern] in tokenizer.decode(batch["input_ids"][0])
    before, vision = load(path)[0], {n for n, weight in trainer.model.named_parameters() if not weight.requires_grad}
    assert len(tokenizer) == len(load(path)[1].tokenizer)  # no token of the template is added
    trainer.train()
    same = {name for name, kept in before.named_parameters() if torch.equal(trainer.model.get_parameter(name), kept)}
    assert vision
    assert same == vision


class Writers:
    """A sampler whose engine writes right and wrong answers in turn, none of them a chain."""

    settings = {"kind": "writers"}
    texts = ("I see 3.\n<answer>7</answer>", "I see 4.\n<answer>8</answer>")

    def __init__(self):
        self.asked = []

    def sample(self, requests, sampling_params):
        first = len(self.asked)
        self.asked += requests
        return [[Sample(self.texts[(first + k) % 2], "stop", token_ids=[1])] for k in range(len(requests))]


def test_dpo_by_outcome_on_answers_that_are_no_chains(checkpoints, tmp_path):
    """The policy knows no token of the template; of two paths a question one is right."""
    writers = Writers()
    questions = in_pattern(Dataset.from_list(rows()).remove_columns("completion"), "direct_prompt")
    run = {**RUN, "per_device_train_batch_size": 1, "max_steps": -1, "num_train_epochs": 1, "rounds": 1, "num_paths": 2}
    parties = {"process_reward_model": None, "sampler": lambda _: writers}
    make = maker(IterativeDPOTrainer, IterativeDPOConfig, arguments=parties, chains=False, **run)
    trainer = make(checkpoints("qwen2_5_vl"), tmp_path, questions)
    trainer.train()
    pairs = Dataset.from_parquet(str(tmp_path / "round-1/pairs.parquet"))
    assert [chosen[0]["content"] for chosen in pairs["chosen"]] == [Writers.texts[0]] * 3
    assert [rejected[0]["content"] for rejected in pairs["rejected"]] == [Writers.texts[1]] * 3
    assert {request.messages[-1]["content"] for request in writers.asked} == {ASKED["direct_prompt"]}
    measured = {"accuracy": 0.5, "chosen_accuracy": 1, "rejected_accuracy": 0, "pairs": 3}
    assert json.loads((tmp_path / "rounds.json").read_text()) == [{"round": 0, "train": measured}]
    assert trainer.state.global_step == 3
