"""Training runs whose rollouts a vLLM server samples one step ahead: FAMILY FOLDER are its arguments.

Run by test_vllm_ahead.py. One server serves all runs; it is ended and started again in some of them.
"""

import signal
import sys
import time
from copy import deepcopy
from pathlib import Path

import torch
from datasets import Dataset
from file_server import FileClient, Server, weights_travel_in
from support import drawn_rows
from transformers import TrainerCallback
from vllm_policies import random_policy, rollout_of, rule_out_placeholders, save, scored, trainer_for, write

from trl_mmreason.training import ahead
from trl_mmreason.training.interruption import TrainingInterrupted

family, folder = sys.argv[1], Path(sys.argv[2])
STEPS = 4


class At(TrainerCallback):
    """Does something after a number of updates."""

    def __init__(self, step, work):
        self.step, self.work = step, work

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            self.work()


def run(method, name, rate, *callbacks, resume=None, **settings):
    """Train; gives what is kept of each rollout, batches, metrics, and how it ended."""
    settings = {"max_steps": STEPS, "learning_rate": rate, "generate_ahead": True, **settings}
    served = {"vllm_mode": "server", "vllm_server_base_url": address}
    trainer = trainer_for(method, policy, folder / name, **{"vllm_server_timeout": 240.0, **served, **settings})
    for callback in callbacks:
        trainer.add_callback(callback)
    if settings.get("eval_strategy"):
        trainer.eval_dataset = Dataset.from_list(drawn_rows(2, seed=3))
    rollouts, batches, before = [], [], deepcopy(model)
    sent = FileClient.rows_sent

    def record(inputs):
        rows, trajectories = roll_out(inputs)
        policy_now = trainer.accelerator.unwrap_model(trainer.model)
        rollouts.append(
            [
                {
                    "question": str(row["prompt"][-1]["content"]),
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

    def keep(inputs):
        training = trainer.model.training
        batch = prepare(inputs)
        if training:
            batches.append(rollout_of(batch))
        return batch

    roll_out, trainer._ahead.rollout = trainer._ahead.rollout, record
    prepare, trainer._generate_and_score_completions = trainer._generate_and_score_completions, keep
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
        "rows_sent": FileClient.rows_sent - sent,
        "checkpoints": sorted(path.name for path in (folder / name).glob("checkpoint-*")),
        "differences": trainer.facts.engine_differences,
    }


def again():
    """End the server, and start it with the weights of its folder."""
    server.end()
    server.start()


torch.set_num_threads(1)
torch.manual_seed(0)
model, processor = random_policy(family)
rule_out_placeholders(model)
policy = save(model, processor, folder / "policy")
weights_travel_in(folder)
ahead.MESSAGE_SECONDS = 2.0
server = Server(policy, folder / "server.log")
found = {}
with server as address:
    found["still"] = run("adapo", "still", 0.0)
    found["moving"] = run("adapo", "moving", 1e-4, eval_strategy="steps", eval_steps=2)
    found["turns"] = run("turns", "turns", 1e-4)
    found["restarted"] = run("adapo", "restarted", 1e-4, At(2, again))
    found["killed"] = run("adapo", "killed", 1e-4, At(2, server.end), vllm_server_timeout=10.0)
    server.start()
    found["resumed"] = run("adapo", "killed", 1e-4, resume="auto")
    stop = At(2, lambda: server.process.send_signal(signal.SIGSTOP))
    found["stopped"] = run("adapo", "stopped", 1e-4, stop, vllm_server_timeout=10.0)
    server.process.send_signal(signal.SIGCONT)
write(folder / "results.pt", **found)
