"""A training run with a vLLM server: `python vllm_served.py FAMILY FOLDER [OPTION …]`.

Run by test_vllm_server.py. Options: `lora`, `side_by_side` and `checks` as for vllm_colocated.py; `others`
trains the other trainers that sample behind AdaPO, each from the first policy. TRL sends weights
over NCCL, which needs a GPU for the server and one for the trainer. Here the tensors that it would send, under the
names that it would send, travel in a file.
"""

import sys
from pathlib import Path

import torch
from file_server import FileClient, Server, weights_travel_in
from vllm_policies import random_policy, rule_out_placeholders, save, train, trainer_for, write

OTHERS = ["srpo", "chain_of_step", "self_evolution", "sophia", "turns"]

family, folder, options = sys.argv[1], Path(sys.argv[2]), set(sys.argv[3:])
torch.set_num_threads(1)
torch.manual_seed(0)
model, processor = random_policy(family, side_by_side="side_by_side" in options)
rule_out_placeholders(model)
policy = save(model, processor, folder / "policy")
weights_travel_in(folder)
with Server(policy, folder / "server.log") as address:
    served = {"vllm_mode": "server", "vllm_server_base_url": address, "vllm_server_timeout": 240.0}
    trainer = trainer_for("adapo", policy, folder / "run", lora="lora" in options, **served)
    results = {"adapo": train(trainer), "image": model.config.image_token_id, "rows_sent": FileClient.rows_sent}
    if "checks" in options:
        from vllm_checks import served_checks

        results |= served_checks(trainer, family)
    for method in OTHERS if "others" in options else []:
        results[method] = train(trainer_for(method, policy, folder / method, **served))
write(folder / "results.pt", **results)
