"""A policy with a weight of three values under ZeRO-3, in two processes: `python padded_run.py FOLDER`.

DeepSpeed pads it to four and never sets the fourth, which is NaN here.
"""

import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from every_trainer import four_steps, make
from switch import let_cpus_take_the_engine
from torch.nn import functional
from transformers import AutoModelForImageTextToText, TrainerCallback

from trl_mmreason.training.facts import check_finite

let_cpus_take_the_engine()
torch.set_num_threads(1)
root, name = Path(sys.argv[1]), "ReflectionSFTTrainer"


class Shifted(torch.nn.Module):
    """A norm, and then a shift of the first three values."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.shift = norm, torch.nn.Parameter(torch.zeros(3))

    def forward(self, hidden):
        return self.norm(hidden) + functional.pad(self.shift, (0, hidden.shape[-1] - 3))


def fill_the_padding(trainer):
    shift = next(weight for name, weight in trainer.model.named_parameters() if name.endswith("norm.shift"))
    assert shift.ds_numel == 3
    assert shift.ds_tensor.numel() == 2
    if int(os.environ["RANK"]) == 1:
        shift.ds_tensor.data[1] = torch.nan


class Padding(TrainerCallback):
    """DeepSpeed has split the weights when training begins; an update writes the padding again."""

    def on_step_end(self, args, state, control, **kwargs):
        fill_the_padding(trainer)


model = AutoModelForImageTextToText.from_pretrained(root / "policy", dtype=torch.float32)
language = model.model.language_model
language.norm = Shifted(language.norm)
settings = {**four_steps(name), "save_strategy": "no"}
trainer = make(name, model, root / "run", trainer_kwargs={"callbacks": [Padding()]}, **settings)
trainer.train()
check_finite(trainer)
torch.save(asdict(trainer.facts), root / f"process_{os.environ['RANK']}.pt")
