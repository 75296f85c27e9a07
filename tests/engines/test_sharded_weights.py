"""Weights of ZeRO-3 and FSDP2 on their way to vLLM: a bucket is whole at a time. Two gloo processes."""

import pytest
import torch
from processes import launch
from recorded import differences
from switch import environment
from vllm_policies import random_policy, rule_out_placeholders, save

pytest.importorskip("deepspeed")

BUCKET, LARGEST, ALL = 24, 16, 132  # MiB
SLACK = 8  # MiB of a process that come and go otherwise


@pytest.mark.parametrize("engine", ["zero3", "fsdp2"])
def test_the_peak_is_one_bucket_and_its_weights_come_in_one_call(tmp_path, engine):
    launch("engines/sharded_weights_run.py", 2, tmp_path / "run", seconds=300, environment=environment(engine))
    for rank in range(2):
        shown = torch.load(tmp_path / f"run_{rank}.pt")
        for way, number in {"in_buckets": 6, "one_by_one": 402, "at_once": 1}.items():
            calls = shown[way]["calls"]
            assert len(calls) == number
            loaded = [weight for call in calls for weight in call]
            assert [weight[2:] for weight in loaded] == [(k, k) for k in range(402)]  # the least and the largest value
        # the last weight of a bucket may still be held when the next is gathered
        assert shown["in_buckets"]["mebibytes"] < BUCKET + LARGEST + SLACK
        assert shown["at_once"]["mebibytes"] > ALL - SLACK


@pytest.mark.full
@pytest.mark.parametrize("engine", ["zero3", "fsdp2"])
def test_a_colocated_vllm_samples_from_what_is_trained(tmp_path, engine):
    pytest.importorskip("vllm")
    torch.manual_seed(0)
    model, processor = random_policy("qwen2_5_vl")
    rule_out_placeholders(model)
    save(model, processor, tmp_path / "policy")
    arguments = ["qwen2_5_vl", "sophia", tmp_path, "sharded"]
    launch("engines/vllm_colocated.py", 2, *arguments, seconds=500, environment=environment(engine))
    for rank in range(2):
        first, *later = torch.load(tmp_path / f"results_{rank}.pt")["rollouts"]
        assert all(differences(rollout).mean() < 1e-5 for rollout in (first, *later))
        assert (later[-1]["trained"] - later[-1]["initial"]).abs()[later[-1]["mask"]].mean() > 0.01
