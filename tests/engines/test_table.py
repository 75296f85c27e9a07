"""Every trainer under every engine: the same losses, weights, checkpoints and references as two processes of DDP."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from processes import launch
from support import saved_model
from switch import ENGINES, environment
from trainers import SAVED, STEPS, TRAINERS
from transformers import AutoModelForImageTextToText, AutoProcessor

from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.miniature.models import build_model

HERE = Path(__file__).parent
SHARDED = [engine for engine in ENGINES if engine != "ddp"]
WAYS = ["full", "tied", "lora", "memory", "memory, whole"]
TOKENS = ("ChainOfStepSFTTrainer", "ProcessRewardTrainer")
TYPES = {"ddp": "MULTI_CPU", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED", "fsdp2": "FSDP"}


def ways_of(trainer):
    return [*WAYS, "lora, tokens"] if trainer in TOKENS else WAYS
