"""Pytest plugin of `make test-trl`: TRL's tests of its trainers run on ours, offline."""

import inspect
import os
import re
import sys
import tempfile
from functools import partialmethod
from pathlib import Path

os.environ |= {"HF_HOME": tempfile.mkdtemp(), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
os.environ.setdefault("OMP_NUM_THREADS", "1")

import datasets
import pytest
import torch
import trl
from standins import build_models, load_dataset

from trl_mmreason.compat.precision import settle_on_cpu
from trl_mmreason.data.images import with_images
from trl_mmreason.training.checkpoint import CheckpointRestoreMixin
from trl_mmreason.training.construction import load_policy_processor
from trl_mmreason.training.grpo import GroupGRPOTrainer
from trl_mmreason.training.length_batching import LengthBatchingMixin
from trl_mmreason.training.preparation import prepare_models
from trl_mmreason.training.reference import reference_from_policy
from trl_mmreason.training.sft import CompletionSFTTrainer

DIFFERENT = {  # test → why it cannot pass here
    "test_trust_remote_code": "needs code from the Hub",
    "uses_model_revision": "needs a revision from the Hub",
    "toolcall": "its rows are on the Hub",
    "completions_all_masked": "training that changes no weight ends with NothingTrained",
    "all_rewards_none": "training that changes no weight ends with NothingTrained",
}


class Supervised(CheckpointRestoreMixin, LengthBatchingMixin, trl.SFTTrainer):
    """What `CompletionSFTTrainer` is, but for rows and formats."""

    _token_fields = CompletionSFTTrainer._token_fields
    batch_layout = CompletionSFTTrainer.batch_layout

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True
        self._collates_as_trl = type(self.data_collator).__name__ == "DataCollatorForVisionLanguageModeling"
        self.data_collator = with_images(self.data_collator)
        prepare_models(self)


class Preferring(CheckpointRestoreMixin, trl.DPOTrainer):
    """What `IterativeDPOTrainer` is, but for rounds."""

    def __init__(self, model, ref_model=None, args=None, **kwargs):
        if kwargs.get("processing_class") is None:  # as its trainer does, before the reference is written
            kwargs["processing_class"] = load_policy_processor(model, args)
        with reference_from_policy(model, args or trl.DPOConfig("DPO"), kwargs.get("peft_config")):
            super().__init__(model, ref_model, args, **kwargs)
        self.data_collator = with_images(self.data_collator)
        prepare_models(self)


def on_this_machine(config, settle):
    """TRL's configurations train in bfloat16 by default, on a CPU too, which transformers refuses."""
    if not torch.cuda.is_available():
        config.use_cpu = True
        settle_on_cpu(config)
    settle(config)


for kind in (trl.GRPOConfig, trl.DPOConfig, trl.SFTConfig):
    kind.__post_init__ = partialmethod(on_this_machine, settle=kind.__post_init__)
torch.set_num_threads(1)
if "TRL_AS_IT_IS" not in os.environ:  # set, the suite runs on TRL's own trainers, to compare with
    trl.GRPOTrainer, trl.DPOTrainer, trl.SFTTrainer = GroupGRPOTrainer, Preferring, Supervised
datasets.load_dataset = load_dataset
# Tests of tool calls write ids; losses over Qwen's whole vocabulary take ten times as long on a CPU.
os.environ.setdefault("IDS_OF_QWEN", "x" if any("grpo" in argument for argument in sys.argv) else "")
MODELS = build_models(Path(os.environ["HF_HOME"]) / "hub", bool(os.environ["IDS_OF_QWEN"]))


def pytest_collection_modifyitems(items):
    for item in items:
        source = inspect.getsource(item.function) + repr(getattr(item, "callspec", None) and item.callspec.params)
        source = source.split("def ", 1)[1]  # not the parameters of other cases
        absent = (
            set(
                re.findall(r"(?:trl-internal-testing|google|Qwen|HuggingFaceTB)/[\w.-]*For[\w.-]*|Qwen/[\w.-]+", source)
            )
            - MODELS
        )
        why = next((why for name, why in DIFFERENT.items() if name in item.name), None)
        if absent or why:
            item.add_marker(pytest.mark.skip(reason=why or f"no stand-in for {sorted(absent)[0]}"))
