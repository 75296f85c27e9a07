"""A training run with more questions in flight than an update takes: METHOD FAMILY FOLDER RATE are its arguments.

Run by test_vllm_oversampled.py. RATE is the learning rate; `adapters` behind it trains an adapter that
vLLM gets as it is.
"""

import sys
from dataclasses import asdict
from pathlib import Path

import torch
from oversampled_rows import SETTINGS, recorded_rollouts
from support import recorded_batches
from vllm_cpu import let_cpus_take_vllm
from vllm_policies import random_policy, rollout_of, rule_out_placeholders, save, trainer_for, write

let_cpus_take_vllm()
method, family, folder, rate = *sys.argv[1:3], Path(sys.argv[3]), float(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(0)
adapters = sys.argv[5:] == ["adapters"]


def main():
    model, processor = random_policy(family)
    rule_out_placeholders(model)
    settings = {**SETTINGS, "learning_rate": rate, "lora": adapters, "vllm_lora": adapters}
    trainer = trainer_for(method, save(model, processor, folder / "policy"), folder / "run", **settings)
    batches = recorded_batches(trainer)
    with recorded_rollouts() as rollouts:
        trainer.train()
    write(
        folder / "results.pt",
        rollouts=rollouts,
        batches=[rollout_of(batch) for batch in batches],
        history=trainer.state.log_history,
        facts=asdict(trainer.facts),
    )


main()
