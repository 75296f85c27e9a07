"""What TRL's own GRPOTrainer takes and does, ours takes and does; found with its test suite (`make test-trl`)."""

import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from support import (
    SMALL_RUN,
    adapo_trainer,
    assert_weights,
    changed_weights,
    load,
    losses_of,
    suppress_as_ours,
    weights_of,
)
from trl import GRPOConfig, GRPOTrainer

from trl_mmreason.training.grpo import GroupGRPOTrainer
from trl_mmreason.training.vllm_config import RolloutConfig


def length(completions, **_):
    return [float(len(completion[-1]["content"])) for completion in completions]


def train(kind, model, folder, rows, **settings):
    policy, processor = load(model)
    args = GRPOConfig(str(folder), **{**SMALL_RUN, "model_init_kwargs": None, **settings})
    data = Dataset.from_list(rows)
    trainer = kind(policy, reward_funcs=length, args=args, train_dataset=data, processing_class=processor)
    suppress_as_ours(trainer)
    before = weights_of(trainer.model)
    torch.manual_seed(0)
    trainer.train()
    assert changed_weights(trainer.model, before)
    return trainer


def test_top_entropy_quantile_makes_trls_updates(checkpoints, rows, tmp_path):
    """Under SGD to 1e-6. Adam divides a gradient by its size, and so makes rounding errors of gradients near 0 as large
    as the learning rate. There are many of them when few tokens carry loss; after some steps other tokens are sampled.
    """
    settings = {"top_entropy_quantile": 0.2, "max_completion_length": 12, "max_steps": 3}
    with_images = [row for row in rows if len(row["images"]) == 1]
    ours, theirs = (
        train(kind, checkpoints("qwen2_5_vl"), tmp_path, with_images, optim="sgd", learning_rate=0.1, **settings)
        for kind in (GroupGRPOTrainer, GRPOTrainer)
    )
    assert_weights(ours.model, theirs.model, atol=1e-6)
    assert losses_of(ours) == pytest.approx(losses_of(theirs), abs=1e-6)
    assert max(map(abs, losses_of(ours))) > 0.01


class Asks:
    """An environment that brings the question."""

    question = "What is 1+1?"

    def reset(self, **row):
        assert not row.get("prompt", [{"content": ""}])[-1]["content"]
        return self.question

    def look(self) -> str:
        """Look.

        Returns:
            What is there.
        """
        return "two"


class Tells(Asks):
    question = "Say something."


@pytest.mark.parametrize("system_prompt", [None, "Be brief."])
def test_environments_may_bring_the_prompts(system_prompt, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    policy, processor = load(checkpoints("qwen3_vl"))
    settings = {**SMALL_RUN, "model_init_kwargs": None, "log_completions": True, "max_steps": 1}
    trainer = GroupGRPOTrainer(
        policy,
        length,
        RolloutConfig(str(tmp_path), **settings, max_prompt_length=1),
        train_dataset=Dataset.from_list([{"environment": name} for name in ("asks", "tells") * 4]),
        processing_class=processor,
        environment_factory={"asks": Asks, "tells": Tells},
        system_prompt=system_prompt,
    )
    trainer.train()
    table = pq.read_table(next((tmp_path / "completions").glob("*.parquet"))).to_pylist()
    asked = [[message["content"] for message in row["prompt"]] for row in table]
    assert {messages[-1] for messages in asked} <= {Asks.question, Tells.question}
    assert [messages[:-1] for messages in asked] == [[] if system_prompt is None else [system_prompt]] * 8


def test_log_probabilities_are_asked_for_by_name(checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    ids = torch.arange(100, 112).view(2, 6)
    named = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "logits_to_keep": 3}
    logps, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, **named)
    expected, _, _ = GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.model, **named)
    torch.testing.assert_close(logps, expected)
