"""Rotary frequencies of a policy and its reference under ZeRO-3 in bfloat16: `python rotary_run.py FOLDER`.

Run by test_rotary.py in two processes, for every family.
"""

import logging
import sys
from pathlib import Path

import torch
from every_trainer import make
from switch import let_cpus_take_the_engine
from transformers import AutoModelForImageTextToText

from trl_mmreason.compat.sharding import loading_whole
from trl_mmreason.miniature.models import FAMILIES


def frequencies(model):
    """Name → rotary frequencies, under the names of a model that nothing wraps."""
    found = dict(model.named_buffers())
    return {name.removeprefix("module."): value.cpu() for name, value in found.items() if "inv_freq" in name}


warned = []
handler = logging.Handler()
handler.emit = lambda record: warned.append(record.getMessage())
logging.getLogger("trl_mmreason.compat.precision").addHandler(handler)
let_cpus_take_the_engine()
torch.set_num_threads(1)
root, outcomes = Path(sys.argv[1]), {}
for family in FAMILIES:
    path = root / family
    settings = {"bf16": True, "model_init_kwargs": {"dtype": "bfloat16"}}
    trainer = make("AdaPOTrainer", str(path), path / "run", **settings)
    upstream = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.bfloat16)
    with loading_whole():
        exact = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.bfloat16)
    models = {"policy": trainer.model, "reference": trainer.ref_model, "upstream": upstream, "exact": exact}
    if family == "qwen2_5_vl":
        models["off-policy reference"] = make("OffPolicyRewardTrainer", str(path), path / "off", **settings).reference
        judged = make("SelfEvolutionTrainer", str(path), path / "judged", **{**settings, "beta": 0.0})
        models["judge"] = judged._judging_copy
    outcomes[family] = {name: frequencies(model) for name, model in models.items()}
outcomes["warnings"] = [message for message in warned if "rotary" in message]
if trainer.is_world_process_zero():
    torch.save(outcomes, root / "results.pt")
