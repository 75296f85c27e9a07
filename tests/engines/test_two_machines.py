"""Two launchers on loopback stand for two machines: they train as two processes of one machine do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import free_port, launch
from support import full_but
from switch import environment

ROOT = Path(__file__).parents[2]
SECONDS = 300
TYPES = {"zero3": "DEEPSPEED", "fsdp2": "FSDP"}
CPU = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def start(engine, model, folder, log, *place):
    """A launcher with the shipped configuration, as its comment says, for one process a machine and without bf16."""
    command = [str(Path(sys.executable).with_name("accelerate")), "launch"]
    command += ["--config_file", str(ROOT / f"configs/accelerate/two_nodes_{engine}.yaml"), "--mixed_precision", "no"]
    command += ["--num_processes", "2", *map(str, place), str(ROOT / "tests/engines/two_machines_run.py")]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers"), os.environ.get("PYTHONPATH", "")])
    own = {**CPU, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, model, str(folder)], env={**os.environ, **own}, stdout=file, stderr=file, start_new_session=True
        )


def finish(processes, logs):
    try:
        for process, log in zip(processes, logs, strict=True):
            assert process.wait(SECONDS) == 0, log.read_text()[-6000:]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()


@pytest.mark.parametrize("engine", full_but("zero3", TYPES))
def test_two_machines_train_as_one(engine, checkpoints, tmp_path):
    """One machine with two processes has the variables that one launcher sets, without a Python that imports anew."""
    model = checkpoints("qwen2_5_vl")
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    variables = {**environment(engine), **CPU}
    launch("engines/two_machines_run.py", 2, model, one, environment=variables, seconds=SECONDS)
    logs = [tmp_path / f"machine_{rank}.log" for rank in range(2)]
    address = ["--main_process_ip", "127.0.0.1", "--main_process_port", free_port(), "--num_machines", 2]
    finish(
        [start(engine, model, two, log, "--machine_rank", rank, *address) for rank, log in enumerate(logs)],
        logs,
    )
    together, apart = ([torch.load(folder / f"process_{rank}.pt") for rank in range(2)] for folder in (one, two))
    for run in (together, apart):
        assert [part["distributed_type"] for part in run] == [TYPES[engine]] * 2
        assert [part["world_size"] for part in run] == [2, 2]
        for weight in run[0]["weights"]:
            assert torch.equal(run[0]["weights"][weight], run[1]["weights"][weight]), weight
        assert run[0]["changed"] > 20
    assert [part["local_world_size"] for part in together] == [2, 2]
    assert [(part["machine"], part["local_world_size"]) for part in apart] == [("0", 1), ("1", 1)]
    assert len(apart[0]["losses"]) == 2
    assert apart[0]["losses"] == pytest.approx(together[0]["losses"], abs=1e-6)
    for name, weight in together[0]["weights"].items():
        torch.testing.assert_close(apart[0]["weights"][name], weight, atol=1e-6, rtol=0)
