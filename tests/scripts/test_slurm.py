"""The SLURM scripts, without SLURM: small stand-ins for `srun` and `scontrol` run every task on this machine.

What the scripts hand to the launchers and to vLLM is tested, and when the job ends; that a cluster takes them is not.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from processes import free_port
from trl import ModelConfig, TrlParser

from trl_mmreason import AdaPOConfig
from trl_mmreason.scripts.single_stage import DataArguments

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(ROOT.glob("examples/slurm/*.sbatch"))
NODES = ["localhost", "node-b", "node-c"]

SRUN = """#!/bin/bash
# srun [--nodes N] [--ntasks N] [--nodelist A,B] COMMAND…: one task a node, all on this machine
nodes=$SLURM_JOB_NODELIST
while [[ $1 == --* ]]; do
    [[ $1 == --nodelist=* ]] && nodes=${1#--nodelist=}
    shift
done
rank=0 pids=()
for node in ${nodes//,/ }; do
    SLURM_PROCID=$rank NODE=$node "$@" & pids+=($!)
    rank=$((rank + 1))
done
trap 'for pid in "${pids[@]}"; do pkill -KILL -P "$pid"; kill -KILL "$pid"; done 2>/dev/null; exit 143' TERM
trap 'kill -USR1 "${pids[@]}"' USR1
status=0
for pid in "${pids[@]}"; do
    ended=0; wait "$pid" || ended=$?
    while kill -0 "$pid" 2>/dev/null; do ended=0; wait "$pid" || ended=$?; done
    ((ended == 0)) || status=$ended
done
exit $status
"""
SCONTROL = """#!/bin/bash
[[ $1 != requeue ]] || { echo '{"name": "requeue"}' >> "$NOTES"; exit 0; }
[[ "$1 $2" == "show hostnames" ]] || exit 1
tr , '\\n' <<< "$3"
"""
# A program that writes down how it was called, then does what its environment says.
NOTES = """#!{python}
import json, os, signal, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
name = os.path.basename(sys.argv[0])
line = dict(name=name, node=os.environ["NODE"], arguments=sys.argv[1:], dev=os.environ.get("VLLM_SERVER_DEV_MODE"))
line |= dict(key=os.environ.get("VLLM_API_KEY"))
with open(os.environ["NOTES"], "a") as file:
    file.write(json.dumps(line) + "\\n")
if name == "accelerate" and os.environ.get("TRAINING_ENDS_ON_SIGNAL"):
    if (trainer := os.fork()) == 0:
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(75))
        with open(os.environ["NOTES"], "a") as file:
            file.write(json.dumps(dict(name="trainer")) + "\\n")
        time.sleep(60)
    sys.exit(int(os.waitpid(trainer, 0)[1] != 0))  # a launcher's status is 1 whatever its processes' was
if name == "accelerate":
    time.sleep(float(os.environ.get("TRAINING_SECONDS", 0)))
    sys.exit(int(os.environ.get("TRAINING_STATUS", 0)))
time.sleep(1)  # as if it loaded a model
if os.environ.get("SERVER_STATUS"):
    sys.exit(int(os.environ["SERVER_STATUS"]))
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        with open(os.environ["NOTES"], "a") as file:
            file.write(json.dumps(dict(name="health", path=self.path)) + "\\n")
        self.send_response(200); self.end_headers()
server = HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health)
server.timeout = 0.1
end = time.monotonic() + float(os.environ.get("SERVER_SECONDS", 600))
while time.monotonic() < end:
    server.handle_request()
sys.exit(7)
"""


@pytest.fixture
def submit(tmp_path):
    """Run a script as a job on some nodes; gives its exit code, what it printed, and how programs were called.

    With `warn_at` the script gets SLURM's signal when so many training processes run.
    """
    tools, environment = tmp_path / "tools", tmp_path / "venv" / "bin"
    environment.mkdir(parents=True)
    tools.mkdir()
    notes = NOTES.format(python=sys.executable)
    files = {tools / "srun": SRUN, tools / "scontrol": SCONTROL}
    files |= {environment / name: notes for name in ("accelerate", "vllm")}
    for path, text in files.items():
        path.write_text(text)
        path.chmod(0o755)

    def run(script, nodes, *arguments, warn_at=0, **variables):
        noted = tmp_path / "notes.jsonl"
        noted.unlink(missing_ok=True)
        job = {
            "SLURM_JOB_ID": "123456",
            "SLURM_JOB_NODELIST": ",".join(nodes),
            "SLURM_NNODES": str(len(nodes)),
            "SLURM_CPUS_PER_TASK": "4",
            "PATH": f"{tools}:{os.environ['PATH']}",
            "VENV": str(environment.parent),
            "NOTES": str(noted),
            "SERVER_PORT": str(free_port()),
            "no_proxy": "localhost",
        }
        started = subprocess.Popen(
            ["bash", str(ROOT / "examples/slurm" / script), *arguments],
            env={**os.environ, **job, **{name: str(value) for name, value in variables.items()}},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if warn_at:
            while not noted.exists() or noted.read_text().count('"trainer"') < warn_at:
                assert started.poll() is None, started.communicate()
            started.send_signal(signal.SIGUSR1)
        output, errors = started.communicate(timeout=60)
        done = subprocess.CompletedProcess(started.args, started.returncode, output, errors)
        calls = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
        return done, calls

    return run


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_scripts_are_shell(path):
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", path], check=True)
    header = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--time"} < {line[8:].split("=")[0] for line in header}
    assert "#SBATCH --ntasks-per-node=1" in header  # a launcher a node


def launchers(calls):
    """Node → what `accelerate launch` understands, and what the training script does."""
    found = {}
    for call in calls:
        if call["name"] == "accelerate":
            assert call["arguments"][0] == "launch"
            launcher = launch_command_parser().parse_args(call["arguments"][1:])
            parser = TrlParser((DataArguments, AdaPOConfig, ModelConfig))
            given = [*launcher.training_script_args, "--use_cpu", "true"]
            found[call["node"]] = (launcher, parser.parse_args_and_config(given)[1])
    return found


def test_every_node_gets_a_launcher_with_its_rank(submit):
    done, calls = submit("train.sbatch", NODES, "--learning_rate", "1e-6", PORT=29511)
    assert done.returncode == 0, done.stderr
    started = launchers(calls)
    assert [started[node][0].machine_rank for node in NODES] == [0, 1, 2]
    for launcher, training in started.values():
        assert (launcher.num_machines, launcher.num_processes) == (3, 24)
        assert (launcher.main_process_ip, launcher.main_process_port) == ("localhost", 29511)
        assert launcher.config_file == "configs/accelerate/two_nodes_zero3.yaml"
        assert launcher.training_script == "examples/adapo.py"
        assert training.learning_rate == 1e-6
    assert launchers(submit("train.sbatch", NODES)[1])["localhost"][0].main_process_port == 23456  # follows the job


def test_a_failure_of_training_is_the_job_s(submit):
    done, calls = submit("train.sbatch", NODES, TRAINING_STATUS=3, RESUME="")
    assert done.returncode == 3
    assert {call["name"] for call in calls} == {"accelerate"}  # it does not queue again
    assert launchers(calls)["localhost"][1].resume_from_checkpoint is None


@pytest.mark.parametrize(
    ("script", "nodes", "trainers"),
    [("train.sbatch", NODES[:2], 2), pytest.param("train_with_vllm.sbatch", NODES, 2, marks=pytest.mark.full)],
)
def test_a_job_that_was_warned_ends_on_every_node_and_queues_again(submit, script, nodes, trainers):
    done, calls = submit(script, nodes, warn_at=trainers, TRAINING_ENDS_ON_SIGNAL=1, TENSOR_PARALLEL=2)
    assert done.returncode == 1, done.stderr
    assert [call["name"] for call in calls].count("trainer") == trainers
    assert calls[-1] == {"name": "requeue"}
    started = launchers(calls)
    assert len(started) == trainers
    assert {training.resume_from_checkpoint for _, training in started.values()} == {"auto"}


@pytest.mark.full
def test_the_first_node_serves_and_the_others_train(submit):
    done, calls = submit("train_with_vllm.sbatch", NODES, "--learning_rate", "1e-6", TENSOR_PARALLEL=2)
    assert done.returncode == 0, done.stderr
    assert [call["name"] for call in calls] == ["vllm", "health", "accelerate", "accelerate"]  # training waits
    served = calls[0]
    assert (served["node"], served["dev"], served["arguments"][:2]) == (
        "localhost",
        "1",
        ["serve", "Qwen/Qwen2.5-VL-7B-Instruct"],
    )
    assert served["arguments"][-1] == "--enable-scale-out"  # without which vLLM 0.30 and later take no images
    flags = dict(zip(served["arguments"][2:-1:2], served["arguments"][3:-1:2], strict=True))
    assert json.loads(flags["--weight-transfer-config"]) == {"backend": "nccl"}
    assert (flags["--logprobs-mode"], flags["--max-logprobs"]) == ("processed_logprobs", "-1")
    assert flags["--tensor-parallel-size"] == "2"
    assert flags["--host"] == "localhost"  # the first node, not every interface
    (key,) = {call["key"] for call in calls if call["name"] != "health"}
    assert len(key) == 32
    assert key not in str([call.get("arguments") for call in calls])  # which other users of the node see
    started = launchers(calls)
    assert {node: launcher.machine_rank for node, (launcher, _) in started.items()} == {"node-b": 0, "node-c": 1}
    for launcher, training in started.values():
        assert (launcher.num_machines, launcher.num_processes, launcher.main_process_ip) == (2, 16, "node-b")
        assert (training.use_vllm, training.vllm_mode) == (True, "server")
        assert training.vllm_server_base_url == f"http://localhost:{flags['--port']}"
        assert training.learning_rate == 1e-6


@pytest.mark.full
@pytest.mark.parametrize(
    ("variables", "status", "message"),
    [
        ({"TRAINING_STATUS": 3}, 3, ""),
        ({"SERVER_STATUS": 5}, 1, "vllm serve ended before it answered"),
        ({"SERVER_SECONDS": 3, "TRAINING_SECONDS": 50}, 1, "vllm serve ended during training, with exit code 7"),
        ({"START_SECONDS": 0}, 1, "vllm serve did not answer within 0 s"),
    ],
    ids=["training", "server at once", "server later", "server never"],
)
def test_the_job_ends_when_one_of_both_does(submit, variables, status, message):
    done, _ = submit("train_with_vllm.sbatch", NODES, **variables)
    assert done.returncode == status
    assert message in done.stderr


def test_one_node_is_too_few(submit):
    done, calls = submit("train_with_vllm.sbatch", NODES[:1])
    assert done.returncode == 1
    assert "got 1 node; expected one for vLLM and one or more for training" in done.stderr
    assert calls == []
