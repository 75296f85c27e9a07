"""One GRPO step whose answers are given: `python grpo_run.py MODEL FOLDER`, run by test_reward.py.

The reward function is the package's; only what the policy wrote is replaced before it sees it.
"""

import sys
from pathlib import Path

import torch
from support import SMALL_RUN, drawn_rows, maker
from trl import GRPOConfig, GRPOTrainer

import trl_mmreason  # noqa: F401 - makes processors load without torchvision
from trl_mmreason.grading import Grader, get_accuracy_reward
from trl_mmreason.grading.grader import _shared_workers

torch.set_num_threads(1)
model, folder = sys.argv[1], Path(sys.argv[2])
GRADER = Grader(workers=1, deadline_seconds=1.0)
# a group of four answers a process, with their golds
ANSWERS = [
    [("7", "7"), (r"\sum_{k=1}^{4} k", "10"), (r"\prod_{k=1}^{10^7} (1+\sin k)", "7"), ("8", r"\frac{1}{")],
    [(r"\binom{5}{2}", "10"), ("9^{9^{9^9}}", "7"), (None, "7"), ("8", "7")],
]

reward = get_accuracy_reward(GRADER)
seen = []


def given_answers(completions, **columns):
    answers = ANSWERS[trainer.accelerator.process_index]
    texts = [r"I cannot tell." if text is None else rf"\boxed{{{text}}}" for text, _ in answers]
    values = reward(texts, **{**columns, "answer": [gold for _, gold in answers]})
    pids = [w.process.pid for w in _shared_workers(1, 1.0, GRADER.memory_bytes)._workers]
    seen.append({"values": values, "pids": pids})
    return values


make = maker(GRPOTrainer, GRPOConfig, arguments={"reward_funcs": given_answers}, **SMALL_RUN)
rows = [row for row in drawn_rows(24) if row["images"]]
trainer = make(model, folder, rows, per_device_train_batch_size=4, max_steps=1)
trainer.train()
logged = {name: value for name, value in trainer.state.log_history[0].items() if name.startswith(("grading", "reward"))}
result = {"world_size": trainer.accelerator.num_processes, "logged": logged, **seen[0]}
torch.save(result, folder / f"process_{trainer.accelerator.process_index}.pt")
