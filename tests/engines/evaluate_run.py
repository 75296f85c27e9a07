"""Evaluate a policy before and after training under an engine: `python evaluate_run.py MODEL FOLDER`, in two processes.

It does what `train_and_compare` does, with an adapter and without; run by test_evaluation.py.
"""

import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from every_trainer import four_steps, make
from peft import LoraConfig
from recorded import recorded_ids
from support import drawn_rows
from switch import let_cpus_take_the_engine

from trl_mmreason.generation import Request, SamplingParams
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.scripts import comparison
from trl_mmreason.scripts.single_stage import train_and_save

let_cpus_take_the_engine()
torch.set_num_threads(1)
path, root = sys.argv[1], Path(sys.argv[2])
rows = Dataset.from_list(drawn_rows(5, seed=3))


def answered(trainer, stage, saved=None):
    """The token ids that this process sampled, and how long the graded samples of all questions are."""
    with recorded_ids(TransformersEngine) as ids:
        table = comparison._evaluate(trainer, rows, TwoTurn("Again."), stage, saved).table
    return {"ids": ids, "tokens": table.numerator[:, table.names.index("tokens")].tolist()}


def sampled(folder):
    """What an engine of the saved policy samples in each process, as in an example's stages."""
    engine = TransformersEngine(str(folder))
    asked = [Request(row["prompt"], images=row["images"]) for row in rows]
    return [answer.token_ids for (answer,) in engine.sample(asked, SamplingParams(8, 0.0))]


outcomes = {}
for way in ("full", "lora"):
    adapter = LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"]) if way == "lora" else None
    trainer = make("AdaPOTrainer", path, root / way, adapter=adapter, **four_steps("AdaPOTrainer"))
    assert trainer.accelerator.num_processes == 2
    before = answered(trainer, "before")
    train_and_save(trainer)
    outcomes[way] = {"before": before, "after": answered(trainer, "after", trainer.args.output_dir)}
    outcomes[way]["saved"] = sampled(root / way)  # while the configuration of the engine is alive
torch.save(outcomes, root / f"process_{os.environ['RANK']}.pt")
