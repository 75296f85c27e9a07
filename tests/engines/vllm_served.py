"""A training run with a vLLM server: `python vllm_served.py FAMILY FOLDER [OPTION …]`.

Run by test_vllm_server.py. Options: `lora`, `side_by_side` and `checks` as for vllm_colocated.py; `others`
trains the other trainers that sample behind AdaPO, each from the first policy; `oversampled` trains AdaPO at learning
rate 0 with more questions in flight than an update takes, and resumes it. Weights travel over gloo, as NCCL needs a GPU
for the server and one for the trainer.
"""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from oversampled_rows import SETTINGS as OVERSAMPLED
from oversampled_rows import recorded_rollouts
from processes import free_port
from vllm_policies import random_policy, rule_out_placeholders, save, train, trainer_for, write

from trl_mmreason.compat import vllm as corrections
from trl_mmreason.compat.replaced import replaced
from trl_mmreason.training import oversampling

os.environ |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_API_KEY": "a key"}
if not torch.cuda.is_available():
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # vLLM reads it; compiling takes half a minute
SETTINGS = ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "12", "--enable-scale-out"]
SETTINGS += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
SETTINGS += ["--worker-extension-cls", "vllm_worker.Weights", "--weight-transfer-config", '{"backend": "gloo"}']


OTHERS = ["srpo", "chain_of_step", "self_evolution", "sophia", "turns"]


class CountingClient(corrections.ImageClient):
    """Counts the rows whose images it sends."""

    rows_sent = 0

    def _post(self, url, **request):
        CountingClient.rows_sent += url.endswith("/render")
        return super()._post(url, **request)


def end_with_parent():
    """Let the server end when this script is killed, as `launch` does with one that takes too long."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


@contextmanager
def server(folder, log):
    """Serve a folder, and give the address; `vllm serve` is stopped in the end, with the processes that it started."""
    port = free_port()
    serve = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", folder]
    command = [*serve, "--host", "127.0.0.1", "--port", str(port), *SETTINGS]
    here = str(Path(__file__).parent)  # where the worker's extension is
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def oversampled(make):
    """A run of three steps, and three further ones of another trainer, that go on from its checkpoint."""
    settings = {**OVERSAMPLED, "learning_rate": 0.0, "vllm_group_port": free_port()}
    first = make(**{**settings, "max_steps": 3, "save_strategy": "steps", "save_steps": 3})
    found, restore = {}, oversampling.restored

    def restored(trainer, saved):
        groups = restore(trainer, saved)
        found["restored"] = oversampling.kept(groups)
        return groups

    with recorded_rollouts() as found["rollouts"], replaced(oversampling, restored=restored):
        first.train()
        settings["vllm_group_port"] = free_port()
        make(**settings).train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-3")
    return {**found, "kept": oversampling.kept(first._waiting)}


family, folder, options = sys.argv[1], Path(sys.argv[2]), set(sys.argv[3:])
torch.set_num_threads(1)
torch.manual_seed(0)
model, processor = random_policy(family, side_by_side="side_by_side" in options)
rule_out_placeholders(model)
policy = save(model, processor, folder / "policy")
corrections.ImageClient = CountingClient
with server(policy, folder / "server.log") as address:
    served = {"vllm_mode": "server", "vllm_server_base_url": address, "vllm_server_timeout": 240.0}
    served["vllm_group_port"] = free_port()
    trainer = trainer_for("adapo", policy, folder / "run", lora="lora" in options, **served)
    results = {"adapo": train(trainer), "image": model.config.image_token_id, "rows_sent": CountingClient.rows_sent}
    if "checks" in options:
        from vllm_checks import served_checks

        results |= served_checks(trainer, family)
    if "oversampled" in options:
        results |= oversampled(partial(trainer_for, "adapo", policy, folder / "oversampled", **served))
    for method in OTHERS if "others" in options else []:
        served["vllm_group_port"] = free_port()
        results[method] = train(trainer_for(method, policy, folder / method, **served))
write(folder / "results.pt", **results)
