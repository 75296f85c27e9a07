"""Training runs whose rollouts a vLLM server samples one step ahead: FAMILY FOLDER [lost] are its arguments.

Run by test_vllm_ahead.py. One server serves all runs; with `lost` it is ended and started again in most of them. Of two
processes, which train once together, the first starts it.
"""

import os
import signal
import sys
import time
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from datasets import Dataset
from policy_server import CountingClient, Server
from processes import free_port
from support import drawn_rows
from transformers import TrainerCallback
from vllm_policies import random_policy, rollout_of, rule_out_placeholders, save, scored, trainer_for, write

from trl_mmreason.training import ahead
from trl_mmreason.training.interruption import TrainingInterrupted

family, folder = sys.argv[1], Path(sys.argv[2])
rank, processes = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
STEPS = 4


class At(TrainerCallback):
    """Does something after a number of updates, when the rollout that is in flight has been sampled."""

    def __init__(self, step, work):
        self.step, self.work, self.trainer = step, work, None

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            self.trainer._ahead._wait()
            self.work()


def run(method, name, rate, *callbacks, resume=None, amid=None, **settings):
    """Train; gives what is kept of each rollout, batches, metrics, and how it ended.

    Args:
        resume: checkpoint.
        amid: called with the client between the turns of the first rollout after two updates, in its thread.
    """
    settings = {"max_steps": STEPS, "learning_rate": rate, "generate_ahead": True, **settings}
    served = {"vllm_mode": "server", "vllm_server_base_url": address, "vllm_group_port": free_port()}
    trainer = trainer_for(method, policy, folder / name, **{"vllm_server_timeout": 500.0, **served, **settings})
    for callback in callbacks:
        callback.trainer = trainer
        trainer.add_callback(callback)
    rollouts, batches, before = [], [], deepcopy(model)
    sent = CountingClient.rows_sent

    def record(inputs):
        rows, trajectories = roll_out(inputs)
        policy_now = trainer.accelerator.unwrap_model(trainer.model)
        rollouts.append(
            [
                {
                    "question": f"{row['prompt'][-1]['content']} {row['answer']}",
                    "sampled": torch.tensor(each.logprobs),
                    "now": scored(policy_now, each),
                    "before": scored(before, each),
                    "mask": torch.tensor(each.env_mask).bool(),
                    "older": each.older_tokens,
                    "turns": len(each.turns),
                    "images": len(each.images),
                }
                for row, each in zip(rows, trajectories, strict=True)
            ]
        )
        before.load_state_dict(policy_now.state_dict())
        return rows, trajectories

    def say(row, answers):
        if amid is not None and not done and trainer.state.global_step == 2:
            done.append(True)
            amid(trainer.vllm_generation.vllm_client)
        return next_message(row, answers)

    def keep(inputs):
        training = trainer.model.training
        batch = prepare(inputs)
        if training:
            batches.append(rollout_of(batch))
        return batch

    roll_out, trainer._ahead.rollout = trainer._ahead.rollout, record
    prepare, trainer._generate_and_score_completions = trainer._generate_and_score_completions, keep
    done, next_message, trainer.next_message = [], trainer.next_message, say
    begun, ended = time.monotonic(), "finished"
    try:
        trainer.train(resume_from_checkpoint=resume)
    except TrainingInterrupted as error:
        ended = f"status {error.code}"
    flight = trainer._ahead._flight
    return {
        "rollouts": rollouts,
        "batches": batches,
        "history": trainer.state.log_history,
        "ended": ended,
        "seconds": time.monotonic() - begun,
        "in_flight": flight is not None and not flight.left.is_set(),
        "rows_sent": CountingClient.rows_sent - sent,
        "checkpoints": sorted(path.name for path in (folder / name).glob("checkpoint-*")),
        "differences": trainer.facts.engine_differences,
    }


def start_again():
    """End the server, and start it with the weights of its folder."""
    server.end()
    server.start()


def look_started_again(client):
    """Give the server the weights of its folder, and the name of those of a server that was just started."""
    call = {"method": "load_file", "args": [f"{policy}/model.safetensors"]}
    client.session.post(f"{client.base_url}/collective_rpc", json=call).raise_for_status()
    client._ask("POST", "/update_weight_version", json={"new_version": "default"})


def alone():
    """The runs of one process with a server that stays."""
    found = {}
    found["still"] = run("adapo", "still", 0.0)
    asked = Dataset.from_list(drawn_rows(2, seed=3))
    found["moving"] = run("adapo", "moving", 1e-4, eval_strategy="steps", eval_steps=2, eval_dataset=asked)
    found["turns"] = run("turns", "turns", 1e-4)
    return found


def lost(server):
    """The runs of one process with a server that goes away."""
    found = {}
    found["stale"] = run("adapo", "stale", 1e-4, amid=look_started_again)
    found["restarted"] = run("adapo", "restarted", 1e-4, At(2, start_again))
    found["killed"] = run("adapo", "killed", 1e-4, amid=lambda _: server.end(), vllm_server_timeout=10.0)
    server.start()
    found["resumed"] = run("adapo", "killed", 1e-4, resume="auto")
    stop = At(2, lambda: os.killpg(server.process.pid, signal.SIGSTOP))
    found["stopped"] = run("adapo", "stopped", 1e-4, stop, vllm_server_timeout=10.0)
    os.killpg(server.process.pid, signal.SIGCONT)
    return found


def together():
    """The run of two processes, of which a group of four has rows in both."""
    return run("adapo", "together", 1e-4, per_device_train_batch_size=6)


torch.set_num_threads(1)
torch.manual_seed(0)
model, processor = random_policy(family)
rule_out_placeholders(model)
policy = str(folder / "policy")
ahead.MESSAGE_SECONDS = 2.0
started = folder / "address"
if rank:
    while not started.exists():
        time.sleep(0.2)
    address = started.read_text()
    write(folder / f"results_{rank}.pt", together=together())
else:
    save(model, processor, folder / "policy")
    server = Server(policy, folder / "server.log")
    with server as address:
        started.with_suffix(".part").write_text(address)
        started.with_suffix(".part").rename(started)
        runs = partial(lost, server) if sys.argv[3:] else alone
        found = runs() if processes == 1 else {"together": together()}
    write(folder / f"results_{rank}.pt", **found)
