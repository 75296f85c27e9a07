"""A training run with vLLM in its process: `python vllm_colocated.py FAMILY METHOD FOLDER [OPTION …]`.

Run by test_vllm.py. Options: `memory` passes the policy as a model whose weights differ from those in its folder,
`lora` trains an adapter, `qlora` one of a base in 4 bit, `adapters` one that vLLM gets as it is, `language` one of the
language model alone, `dropout` drops half its inputs, `bfloat16` trains in it, `sharded` trains what FOLDER/policy has
in two processes, `shared` shares one vLLM between two, `side_by_side` puts images beside each other, `nan` makes the
loss of the second update NaN, `checks` does what needs no second engine afterwards.
"""

import math
import os
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from switch import let_cpus_take_the_engine
from transformers import GenerationConfig
from vllm_cpu import let_cpus_take_vllm
from vllm_policies import random_policy, rule_out_placeholders, save, train, trainer_for, write
from vllm_turns import sampled_tokens, short_of_room, two_ways

from trl_mmreason.compat.replaced import replaced

let_cpus_take_vllm()
if any(os.environ.get(f"ACCELERATE_USE_{engine}") == "true" for engine in ("DEEPSPEED", "FSDP")):
    let_cpus_take_the_engine()
family, method, folder, options = sys.argv[1], sys.argv[2], Path(sys.argv[3]), set(sys.argv[4:])
torch.set_num_threads(1)
torch.manual_seed(0)

shared = "shared" in options
model, processor = random_policy(family, size="even" if shared else "study", side_by_side="side_by_side" in options)
if "memory" in options:  # vLLM starts from other weights than the policy's, and is told of one end of its turns
    policy_folder = save(model, processor, folder / "policy")
    model = type(model).from_pretrained(policy_folder, dtype=torch.float32)
    GenerationConfig(eos_token_id=processor.tokenizer.eos_token_id).save_pretrained(policy_folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    rule_out_placeholders(model)
    policy = model
elif "sharded" in options:
    policy = str(folder / "policy")
else:
    rule_out_placeholders(model)
    policy = save(model, processor, folder / "policy")

settings = {"vllm_tensor_parallel_size": 2, "per_device_train_batch_size": 6} if shared else {}
if "sharded" in options:
    settings["per_device_train_batch_size"] = 6
if "adapters" in options:
    settings["vllm_lora"] = True
if "bfloat16" in options:
    settings |= {"bf16": True, "model_init_kwargs": {"dtype": "bfloat16"}, "max_steps": 12, "learning_rate": 3e-4}
if "language" in options:
    settings["language"] = True
if "dropout" in options:
    settings["dropout"] = 0.5
trainer = trainer_for(
    method, policy, folder / "run", lora=bool({"lora", "adapters"} & options), qlora="qlora" in options, **settings
)
frozen = {name: weight.clone() for name, weight in trainer.model.named_parameters() if not weight.requires_grad}
engine = trainer.vllm_generation.llm.llm_engine
if shared:
    # On CPUs with AVX-512 vLLM names its shared memory alike in all runs, and removes it when C++ ends, which processes
    # of a fork server skip. Both have it open now, and do not need the name.
    for segment in Path("/dev/shm").glob("*-cpushm_*"):
        segment.unlink(missing_ok=True)
results = {"dtype": str(engine.model_config.dtype), "image": model.config.image_token_id}
results |= {"ends": trainer.eos_token_ids, "seeds": (engine.model_config.seed, trainer.args.seed)}
if method == "adapo":
    results["two_ways"] = {bound: two_ways(trainer, bound) for bound in ((16,) if shared else (2, 16))}
    if "checks" in options:
        results["short"] = short_of_room(trainer, results["two_ways"][16])
if "nan" in options:
    compute_loss = trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: (
        compute_loss(*args, **kwargs) * (math.nan if trainer.state.global_step == 1 else 1.0)
    )
with sampled_tokens(engine) as results["tokens"]:
    results["rollouts"] = train(trainer)
if "adapters" in options:
    loads, model_of_vllm = [], engine.model_executor.driver_worker.model_runner.model
    with replaced(model_of_vllm, load_weights=loads.append):
        trainer.vllm_generation.sync_weights()
    results["loads"] = len(loads)
now = dict(trainer.model.named_parameters())
results["finite"] = all(weight.isfinite().all() for weight in now.values() if weight.is_floating_point())
results["facts"] = asdict(trainer.facts)
if "sharded" not in options:
    results["frozen"] = {name: torch.equal(weight, now[name]) for name, weight in frozen.items()}
if family == "llava_next":
    from vllm.model_executor.models.llava_next import LlavaNextForConditionalGeneration as Upstream

    name = next(name for name, _ in model.named_parameters() if "vision_tower" in name)
    results["upstream_name"] = Upstream.hf_to_vllm_mapper.map_name(name)
if shared:  # vLLM's runner for GPUs draws from numpy, which a reward function may have left in another state
    np.random.seed(trainer.accelerator.process_index)
    with trainer.vllm_generation._one_random_state():
        results["drawn_together"] = np.random.rand(), torch.rand(()).item()
    results["drawn_alone"] = np.random.rand()
if shared or "checks" in options:
    from vllm_checks import checks, evaluations

    results["evaluations"] = evaluations(trainer)
if "checks" in options:
    results |= checks(trainer, family)
write(folder / f"results_{trainer.accelerator.process_index}.pt", **results)
