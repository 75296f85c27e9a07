"""Load a model with experts twice under ZeRO-3: `python experts_run.py FOLDER upstream|imported`."""

import os
import sys
from pathlib import Path

import torch

# alone in its process group
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}

from processes import free_port
from switch import let_cpus_take_the_engine
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.integrations import HfDeepSpeedConfig

from trl_mmreason.compat.sharding import import_model_classes

folder, way = Path(sys.argv[1]), sys.argv[2]
os.environ.setdefault("MASTER_PORT", str(free_port()))
let_cpus_take_the_engine()
torch.set_num_threads(1)
config = HfDeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})
if way == "imported":
    import_model_classes(AutoConfig.from_pretrained(folder / "model"))
configured = []
for _ in range(2):
    model = AutoModelForImageTextToText.from_pretrained(folder / "model")
    (experts,) = {type(module) for module in model.modules() if type(module).__name__ == "GptOssExperts"}
    configured.append(all(hasattr(module, "config") for module in model.modules() if isinstance(module, experts)))
torch.save(configured, folder / f"{way}.pt")
