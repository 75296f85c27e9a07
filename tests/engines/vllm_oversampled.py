"""A training run with more questions in flight than an update takes: METHOD FAMILY FOLDER RATE are its arguments.

Run by test_vllm_oversampled.py. RATE is the learning rate.
"""

import sys
from dataclasses import asdict
from pathlib import Path

import torch
from vllm_cpu import let_cpus_take_vllm
from vllm_policies import random_policy, rollout_of, rule_out_placeholders, save, scored, trainer_for, write

from trl_mmreason.compat.replaced import replaced
from trl_mmreason.training import grpo

let_cpus_take_vllm()
method, family, folder, rate = *sys.argv[1:3], Path(sys.argv[3]), float(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(0)
SETTINGS = {
    "oversampling": 1.0,
    "oversampling_max_age": 2,
    "max_completion_length": 16,
    "learning_rate": rate,
    "max_steps": 6,
}


def main():
    model, processor = random_policy(family)
    rule_out_placeholders(model)
    trainer = trainer_for(method, save(model, processor, folder / "policy"), folder / "run", **SETTINGS)
    rollouts, batches = [], []
    prepare = trainer._generate_and_score_completions

    def keep(inputs):
        batch = prepare(inputs)
        batches.append(rollout_of(batch))
        return batch

    trainer._generate_and_score_completions = keep

    def record(trainer, rows):
        asked = len(trainer._waiting)
        rows, trajectories = oversampled(trainer, rows)
        rollouts.append(
            [
                {
                    "question": str(row["prompt"][-1]["content"]),
                    "sampled": torch.tensor(each.logprobs),
                    "own": scored(trainer.accelerator.unwrap_model(trainer.model), each),
                    "mask": torch.tensor(each.env_mask).bool(),
                    "older": each.older_tokens,
                    "turns": [len(turn.ids) for turn in each.turns],
                    "images": len(each.images),
                    "waited": (asked, len(trainer._waiting)),
                }
                for row, each in zip(rows, trajectories, strict=True)
            ]
        )
        return rows, trajectories

    oversampled = grpo.oversampled
    with replaced(grpo, oversampled=record):
        trainer.train()
    write(
        folder / "results.pt",
        rollouts=rollouts,
        batches=batches,
        history=trainer.state.log_history,
        facts=asdict(trainer.facts),
    )


main()
