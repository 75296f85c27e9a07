"""Images on one process and none on the other: every engine trains as DDP does, and DDP needs no search."""

import json

import pytest
import torch
from processes import launch
from support import FAMILY_NAMES
from switch import environment

# Two characters a step, one a process: images of its row. "----" is an epoch of text alone.
ORDERS = ["1--1", "-121", "----", "2-12"]
OF_STEPS = ["ChainOfStepSFTTrainer", "IterativeDPOTrainer", "ChainOfStepGRPOTrainer"]
RUNS = [
    *({"trainer": "ReflectionSFTTrainer", "order": order, "policy": "qwen2_5_vl"} for order in ORDERS),
    {"trainer": "ReflectionSFTTrainer", "order": "1--1-2--", "policy": "qwen2_5_vl", "accumulation": 2},
    {"trainer": "ProcessRewardTrainer", "order": "1--1", "policy": "steps"},
    {"trainer": "OffPolicyRewardTrainer", "order": "-12-", "policy": "qwen2_5_vl"},
    *({"trainer": "AdaPOTrainer", "order": "1--2", "policy": family} for family in FAMILY_NAMES),
    {"trainer": "SRPOTrainer", "order": "-1--", "policy": "qwen2_5_vl"},
    *({"trainer": name, "order": "-12-", "policy": "steps"} for name in OF_STEPS),
    {"trainer": "SelfEvolutionTrainer", "order": "2--1", "policy": "qwen2_5_vl"},
]


@pytest.fixture(scope="module")
def outcomes(checkpoints, policies, tmp_path_factory):
    """engine → what each run ended with, in both processes."""
    found = {}

    def run(engine):
        if engine not in found:
            folder = tmp_path_factory.mktemp(engine)
            paths = {family: checkpoints(family) for family in FAMILY_NAMES} | {"steps": policies["model"]}
            (folder / "job.json").write_text(json.dumps({"folder": str(folder), "runs": RUNS, "policies": paths}))
            launch("engines/images_run.py", 2, folder / "job.json", environment=environment(engine), seconds=300)
            found[engine] = [torch.load(folder / f"process_{rank}.pt") for rank in range(2)]
        return found[engine]

    return run


@pytest.mark.parametrize("engine", ["ddp", "zero3", pytest.param("fsdp2", marks=pytest.mark.full)])
def test_every_order_of_images_trains_as_under_ddp(engine, outcomes):
    reference, (first, second) = outcomes("ddp")[0], outcomes(engine)
    for run, expected, found, other in zip(RUNS, reference, first, second, strict=True):
        assert len(found["losses"]) == 2, run
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5), run
        assert found["losses"] == other["losses"], run
        for name, weight in expected["weights"].items():
            torch.testing.assert_close(found["weights"][name], weight, atol=1e-6, rtol=0)
            torch.testing.assert_close(other["weights"][name], found["weights"][name], atol=0, rtol=0)
