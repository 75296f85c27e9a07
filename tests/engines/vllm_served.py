"""A training run with a vLLM server: `python vllm_served.py FAMILY FOLDER [OPTION …]`.

Run by test_vllm_server.py. Options: `lora`, `side_by_side` and `checks` as for vllm_colocated.py; `others`
trains the other trainers that sample behind AdaPO, each from the first policy; `oversampled` trains AdaPO at learning
rate 0 with more questions in flight than an update takes, and resumes it. Weights travel over gloo, as NCCL needs a GPU
for the server and one for the trainer.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from oversampled_rows import SETTINGS as OVERSAMPLED
from oversampled_rows import recorded_rollouts
from policy_server import CountingClient, Server
from processes import free_port
from vllm_policies import random_policy, rule_out_placeholders, save, train, trainer_for, write

from trl_mmreason.compat.replaced import replaced
from trl_mmreason.training import oversampling

OTHERS = ["srpo", "chain_of_step", "self_evolution", "sophia", "turns"]


def oversampled(make):
    """A run of three steps, and three further ones of another trainer, that go on from its checkpoint."""
    settings = {**OVERSAMPLED, "learning_rate": 0.0, "vllm_group_port": free_port()}
    first = make(**{**settings, "max_steps": 3, "save_strategy": "steps", "save_steps": 3})
    found, restore = {}, oversampling.restored

    def restored(trainer, saved):
        groups = restore(trainer, saved)
        found["restored"] = oversampling.kept(groups)
        return groups

    with recorded_rollouts() as found["rollouts"], replaced(oversampling, restored=restored):
        first.train()
        settings["vllm_group_port"] = free_port()
        make(**settings).train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-3")
    return {**found, "kept": oversampling.kept(first._waiting)}


family, folder, options = sys.argv[1], Path(sys.argv[2]), set(sys.argv[3:])
torch.set_num_threads(1)
torch.manual_seed(0)
model, processor = random_policy(family, side_by_side="side_by_side" in options)
rule_out_placeholders(model)
policy = save(model, processor, folder / "policy")
with Server(policy, folder / "server.log") as address:
    served = {"vllm_mode": "server", "vllm_server_base_url": address, "vllm_server_timeout": 240.0}
    served["vllm_group_port"] = free_port()
    trainer = trainer_for("adapo", policy, folder / "run", lora="lora" in options, **served)
    results = {"adapo": train(trainer), "image": model.config.image_token_id, "rows_sent": CountingClient.rows_sent}
    if "checks" in options:
        from vllm_checks import served_checks

        results |= served_checks(trainer, family)
    if "oversampled" in options:
        results |= oversampled(partial(trainer_for, "adapo", policy, folder / "oversampled", **served))
    for method in OTHERS if "others" in options else []:
        served["vllm_group_port"] = free_port()
        results[method] = train(trainer_for(method, policy, folder / method, **served))
write(folder / "results.pt", **results)
