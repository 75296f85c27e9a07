"""Train one trainer under an engine in several ways: `python cell_run.py JOB.json`, in two processes.

The ways are those of `test_table.ways_of`. Each trains four steps; where it can, it is begun again from the checkpoint
of the second (or, for iterative DPO, from the first round). What came out is saved for the test.
"""

import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate.utils import is_peft_model
from every_trainer import DPO, SAVED, four_steps, make
from judged import judge_by
from peft import LoraConfig
from support import losses_of, with_nan
from switch import let_cpus_take_the_engine
from transformers import AutoModelForImageTextToText

from trl_mmreason.chain_of_step.tokens import trainable_token_indices
from trl_mmreason.compat.merged_adapters import merged_parameters
from trl_mmreason.compat.sharding import loading_whole, whole_state

let_cpus_take_the_engine()
torch.set_num_threads(1)
job = json.loads(Path(sys.argv[1]).read_text())
root, engine = Path(job["folder"]), None


def lora(path, *, tokens):
    """An adapter of everything, vision included; with the rows of the template's tokens, if that is asked for."""
    indices = None
    if tokens:
        with loading_whole():
            indices = trainable_token_indices(AutoModelForImageTextToText.from_pretrained(path))
    return LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"], trainable_token_indices=indices)


def changed_policy(path):
    """A policy in memory that differs from its checkpoint, in pieces where the engine loads it so."""
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            (weight.ds_tensor if hasattr(weight, "ds_tensor") else weight).mul_(1.05)
    return model


def trainer_for(way, folder):
    path = job["tied"] if way == "tied" else job["model"]
    adapter = lora(path, tokens=way == "lora, tokens") if way.startswith("lora") else None
    model = path
    if way == "memory":  # in pieces, where the engine loads it so
        model = changed_policy(path)
    elif way == "memory, whole":
        with loading_whole():
            model = changed_policy(path)
    own = {"no judge": {"judge": False}, "by tokens": {"max_tokens_per_micro_batch": 160}}
    settings = four_steps(job["trainer"]) | own.get(way, {})
    kwargs = {"judge": judge_by({"{3}": 1.0, "{4}": 0.5})} if way == "other judge" else {}
    trainer = make(job["trainer"], model, folder, adapter=adapter, trainer_kwargs=kwargs, **settings)
    assert trainer.accelerator.num_processes == 2
    return with_nan(trainer, {1}) if way == "not finite" else trainer


def outcome_of(trainer):
    """Losses, the whole of every trained weight, by no code that saves, and what vLLM would be sent of an adapter."""
    policy = trainer.accelerator.unwrap_model(trainer.model)
    trained = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
    sent = merged_parameters(policy) if is_peft_model(policy) else ()
    found = {"losses": losses_of(trainer), "sent": {name: weight.to("cpu", copy=True) for name, weight in sent}}
    return {**found, "weights": whole_state(trained, keep=True), "facts": asdict(trainer.facts)}


def begun_again(way, folder):
    again = folder.with_name(folder.name + "-again")
    shared = job["trainer"] == DPO
    if shared:
        if int(os.environ["RANK"]) == 0:
            shutil.copytree(folder, again)
            shutil.rmtree(again / "round-2")
        torch.distributed.barrier()
    trainer = trainer_for(way, again)
    trainer.train(**({} if shared else {"resume_from_checkpoint": str(folder / f"checkpoint-{SAVED}")}))
    return trainer


outcomes = {}
for way in job["ways"]:
    folder = root / way.replace(", ", "-")
    try:
        trainer = trainer_for(way, folder)
    except ValueError as error:
        outcomes[way] = {"refused": str(error)}
        continue
    engine = str(trainer.accelerator.distributed_type)
    trainer.train()
    outcomes[way] = outcome_of(trainer)
    trainer.save_model(str(folder / "final"))
    if way in ("full", "lora"):
        outcomes[way]["again"] = outcome_of(begun_again(way, folder))
torch.save({"engine": engine, "ways": outcomes}, root / f"process_{os.environ['RANK']}.pt")
