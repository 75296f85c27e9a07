"""Two launchers on loopback stand for two machines: they train as one launcher with two processes does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import free_port

ROOT = Path(__file__).parents[2]
SECONDS = 300
TYPES = {"zero3": "DEEPSPEED", "fsdp2": "FSDP"}


def start(engine, model, folder, log, *place):
    """A launcher with the shipped configuration, as its comment says, for one process a machine and without bf16."""
    command = [str(Path(sys.executable).with_name("accelerate")), "launch"]
    command += ["--config_file", str(ROOT / f"configs/accelerate/two_nodes_{engine}.yaml"), "--mixed_precision", "no"]
    command += ["--num_processes", "2", *map(str, place), str(ROOT / "tests/engines/two_machines_run.py")]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    cpu = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, model, str(folder)], env={**os.environ, **cpu}, stdout=file, stderr=file, start_new_session=True
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


@pytest.mark.parametrize("engine", TYPES)
def test_two_machines_train_as_one(engine, checkpoints, tmp_path):
    model = checkpoints("qwen2_5_vl")
    runs = {}
    for name, machines in {"one": 1, "two": 2}.items():
        folder, port = tmp_path / name, free_port()
        folder.mkdir()
        logs = [tmp_path / f"{name}_{rank}.log" for rank in range(machines)]
        address = ["--main_process_ip", "127.0.0.1", "--main_process_port", port, "--num_machines", machines]
        finish(
            [
                start(engine, model, folder, log, "--machine_rank", rank, *address)
                for rank, log in zip(range(machines), logs, strict=True)
            ],
            logs,
        )
        runs[name] = [torch.load(folder / f"process_{rank}.pt") for rank in range(2)]
    for name, machines in {"one": [0, 0], "two": [0, 1]}.items():
        assert [part["distributed_type"] for part in runs[name]] == [TYPES[engine]] * 2
        assert [part["world_size"] for part in runs[name]] == [2, 2]
        assert [part["machine"] for part in runs[name]] == machines
        assert [part["local_world_size"] for part in runs[name]] == [2 // len(set(machines))] * 2
        for weight in runs[name][0]["weights"]:
            assert torch.equal(runs[name][0]["weights"][weight], runs[name][1]["weights"][weight]), weight
        assert runs[name][0]["changed"] > 20
    one, two = runs["one"][0], runs["two"][0]
    assert len(two["losses"]) == 2
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-6)
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, atol=1e-6, rtol=0)
