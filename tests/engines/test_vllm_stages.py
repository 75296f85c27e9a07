"""Runs in stages sample their policies with a vLLM in each process, which ends before training begins."""

import pytest
import torch
from processes import launch
from vllm_policies import random_policy, rule_out_placeholders, save

pytest.importorskip("vllm")
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def policies(folder):
    """Two random policies."""
    torch.manual_seed(0)
    saved = []
    for name in ("policy", "other"):
        model, processor = random_policy("qwen2_5_vl")
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.02 * torch.randn_like(weight)
        rule_out_placeholders(model)
        saved.append(save(model, processor, folder / name))
    return saved


@pytest.fixture(scope="module")
def processes(policies, folder):
    """What each of two processes noted, which find what torchrun and a colocated vLLM leave in their environment."""
    left = {"TORCHELASTIC_RUN_ID": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    launch("engines/vllm_stages.py", 2, *policies, folder, environment=left)
    return [torch.load(folder / f"results_{rank}.pt") for rank in range(2)]


def test_vllm_evaluates_as_transformers_does(processes):
    for found in processes:
        assert found["vllm"] == found["transformers"]
        assert [len(answers) for answers in found["vllm"].values()] == [6, 6]
        assert found["vllm"]["one"] != found["vllm"]["other"]


def test_each_process_asks_its_own_vllm_which_ends_when_another_policy_is_asked(processes, policies):
    """Three of six questions each."""
    for found in processes:
        assert found["evaluating"] == [(policy, 3, 1) for policy in policies]


def test_dpo_samples_with_vllm_which_ends_before_it_trains(processes, policies):
    for found in processes:
        assert {(policies[0], 1), ("step", 0)} == {(what, alive) for what, _, alive in found["training"]}
