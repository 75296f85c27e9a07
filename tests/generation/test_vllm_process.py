"""A vLLM in a process of its own: what reaches it and comes back, and when it ends. A module stands in for vLLM."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import PIL.Image
import psutil
import pytest
import torch
from support import drawn_rows

from trl_mmreason.generation import Failure, Request, SamplingParams, vllm_engine
from trl_mmreason.generation.vllm_engine import VLLMEngine, VLLMProcess, environment_of_one

STAND_IN = """
import json, os
from types import SimpleNamespace as N

SamplingParams = dict

class LLM:
    def __init__(self, model, **kwargs):
        if kwargs.get("dtype") == "float3":
            raise ValueError("there is no float3")
        self.llm_engine = N(model_config=N(hf_config=N(image_token_id=5)))

    def generate(self, prompts, params, *, use_tqdm):
        said = [{"process": os.getpid(), "rank": os.environ.get("RANK"), "tokens": len(prompt["prompt_token_ids"]),
                 "sizes": [image.size for image in prompt.get("multi_modal_data", {"image": []})["image"]]}
                for prompt in prompts]
        return [N(outputs=[N(index=k, text=json.dumps(one), token_ids=[1], finish_reason="stop", logprobs=None)
                           for k in range(asked["n"])]) for one, asked in zip(said, params)]
"""
ARGUMENTS = """
from dataclasses import dataclass

@dataclass
class EngineArgs:
    model: str = ""
"""
QUESTION = [{"role": "user", "content": "What is 2+3?"}]


@pytest.fixture(autouse=True)
def vllm(tmp_path, monkeypatch):
    """A module of that name, for this process and those that it begins."""
    folder = tmp_path / "modules"
    (folder / "vllm" / "engine").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text(STAND_IN)
    (folder / "vllm" / "engine" / "arg_utils.py").write_text(ARGUMENTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    yield
    sys.modules.pop("vllm", None)


@pytest.fixture
def engine(checkpoints):
    made = VLLMProcess(checkpoints("qwen2_5_vl"))
    yield made
    made.close()


def answers(engine, *requests):
    found = engine.sample(requests or [Request(QUESTION)], SamplingParams())
    return [one if isinstance(one, Failure) else [json.loads(sample.text) for sample in one] for one in found]


@pytest.mark.full
def test_requests_are_answered_in_order_elsewhere_and_a_broken_image_fails_alone(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    (row,) = drawn_rows(1)
    (image,) = row["images"]
    image.save(tmp_path / "whole.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "whole.png").read_bytes()[:-200])
    whole, broken, later = (PIL.Image.open(tmp_path / f"{name}.png") for name in ("whole", "broken", "broken"))
    shown = [{"role": "assistant", "content": "5"}, {"role": "user", "content": [{"type": "image", "image": later}]}]
    asked = [Request(QUESTION, [broken]), Request([*QUESTION, *shown]), Request(row["prompt"], [whole])]
    first, *failed, seen, last = answers(engine, Request(QUESTION, n=2), *asked, Request(QUESTION))
    assert ["truncated" in failure.reason for failure in failed] == [True, True]
    assert len(first) == 2
    assert first[0] == first[1] == last[0]
    assert (first[0]["sizes"], seen[0]["sizes"]) == ([], [list(image.size)])
    assert (first[0]["process"] != os.getpid(), first[0]["rank"]) == (True, None)


@pytest.mark.full
def test_it_ends_when_it_is_closed_and_begins_again_when_it_is_asked(engine):
    ((one,),) = answers(engine)
    assert answers(engine) == [[one]]
    engine.close()
    assert not psutil.pid_exists(one["process"])
    engine.close()
    ((again,),) = answers(engine)
    assert again["process"] != one["process"]


@pytest.mark.full
def test_it_ends_with_the_process_that_began_it(checkpoints):
    script = (
        "import json, os; from trl_mmreason.generation import Request, SamplingParams;"
        "from trl_mmreason.generation.vllm_engine import VLLMProcess;"
        f"engine = VLLMProcess({checkpoints('qwen2_5_vl')!r});"
        f"[[sample]] = engine.sample([Request({QUESTION!r})], SamplingParams());"
        "print(json.loads(sample.text)['process'], flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    number = int(killed.stdout)
    for _ in range(100):
        if not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.1)
    raise AssertionError("vLLM outlives the process that began it")


@pytest.mark.full
def test_what_vllm_raises_is_raised_here(checkpoints):
    engine = VLLMProcess(checkpoints("qwen2_5_vl"), dtype="float3")
    with pytest.raises(RuntimeError, match="ValueError: there is no float3"):
        answers(engine)


@pytest.mark.full
def test_a_vllm_that_dies_is_an_error_and_the_next_request_begins_another(engine):
    ((one,),) = answers(engine)
    os.kill(one["process"], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="ended. Its own output above says why"):
        answers(engine)
    ((again,),) = answers(engine)
    assert again["process"] != one["process"]


@pytest.mark.full
def test_an_interrupted_request_leaves_no_reply_behind_for_the_next_one(engine, monkeypatch):
    ((one,),) = answers(engine)

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._connection, "recv", interrupt)
    with pytest.raises(KeyboardInterrupt):
        answers(engine, Request(QUESTION), Request(QUESTION))
    ((again,),) = answers(engine)
    assert again["process"] != one["process"]


def test_settings_are_those_of_a_vllm_in_this_process(checkpoints):
    asked = {"dtype": "float16", "gpu_memory_utilization": 0.5}
    path = checkpoints("qwen2_5_vl")
    assert VLLMProcess(path, **asked).settings == VLLMEngine(path, **asked).settings


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"])
def test_one_of_several_processes_asks_for_no_second_gpu(monkeypatch, checkpoints, name):
    monkeypatch.setattr(vllm_engine, "patient_state", lambda: SimpleNamespace(num_processes=8))
    with pytest.raises(ValueError, match=f"got {name}=2 in each of 8 processes, expected 1"):
        VLLMProcess(checkpoints("qwen2_5_vl"), **{name: 2})


@pytest.mark.parametrize(
    ("processes", "device", "given", "seen"),
    [
        (2, "cuda:1", {}, {"CUDA_VISIBLE_DEVICES": "1"}),
        (2, "cuda:1", {"CUDA_VISIBLE_DEVICES": "4,7"}, {"CUDA_VISIBLE_DEVICES": "7"}),
        (
            2,
            "cuda:1",
            {"CUDA_VISIBLE_DEVICES": "4,7", "HIP_VISIBLE_DEVICES": "4,7"},
            {"CUDA_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": "7"},
        ),
        (1, "cuda:0", {}, {}),  # which may use several
        (1, "cuda:0", {"CUDA_VISIBLE_DEVICES": "4,7"}, {"CUDA_VISIBLE_DEVICES": "4,7"}),
        (2, "cpu", {}, {}),
    ],
)
def test_it_sees_the_gpu_of_its_process_and_nothing_of_the_launcher(monkeypatch, processes, device, given, seen):
    state = SimpleNamespace(num_processes=processes, device=torch.device(device))
    monkeypatch.setattr(vllm_engine, "patient_state", lambda: state)
    launcher = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "ACCELERATE_USE_FSDP"}
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**dict.fromkeys(launcher, "1"), **given}.items():
        monkeypatch.setenv(name, value)
    own = environment_of_one()
    assert not own.keys() & launcher
    assert {name: own[name] for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in own} == seen
    assert own["PATH"] == os.environ["PATH"]
