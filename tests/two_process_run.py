"""One step of two turns on given completions: `python two_process_run.py MODEL FOLDER ROWS_A_PROCESS LOSS METHOD`.

Run by test_distributed.py, in one process or two. What is sampled does not depend on the number of processes:
the first answer of a row follows from its place among all rows, the second from the prompt that leads to it.
"""

import hashlib
import sys
from pathlib import Path

import torch
from datasets import Dataset
from support import SMALL_RUN, ParityGrader, drawn_rows, recorded_batches, weights_of
from trl import GRPOTrainer

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.baselines.two_turns import SCoReConfig, SCoReTrainer

torch.set_num_threads(1)
model, folder, rows_a_process, loss_type = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
by_letter = {"filter_zero_advantage": True, "zero_advantage_criterion": "correctness"}
Trainer, Config, own, salt = {  # other salts, other answers
    "adapo": (AdaPOTrainer, AdaPOConfig, {}, ""),
    "correctness": (AdaPOTrainer, AdaPOConfig, by_letter, " 16"),  # in one group all second answers are right
    "score": (SCoReTrainer, SCoReConfig, {"stage_one_share": 0.0}, ""),  # each turn has an advantage of its own
}[sys.argv[5]]


def answer(key: str, vocabulary: list[int], ends: list[int]) -> list[int]:
    """A made-up answer of one to five tokens; one in four does not end."""
    digest = hashlib.sha256(f"{key}{salt}".encode()).digest()
    tokens = [vocabulary[byte % len(vocabulary)] for byte in digest[: 1 + digest[0] % 5]]
    return tokens if digest[1] % 4 == 0 else [*tokens, ends[0]]


settings = {
    **SMALL_RUN,
    "per_device_train_batch_size": rows_a_process,
    "max_steps": 1,
    "beta": 0.05,
    "optim": "sgd",
    "learning_rate": 1.0,
    "loss_type": loss_type,
    "filter_zero_advantage": False,
    **own,
}
rows = Dataset.from_list(drawn_rows(24))
trainer = Trainer(model, args=Config(str(folder), **settings), train_dataset=rows, grader=ParityGrader())
with torch.no_grad():  # away from the policy, or the KL term of the first step would be 0
    for weight in trainer.ref_model.parameters():
        weight.add_(0.05)
process = trainer.accelerator.process_index
vocabulary = [t for t in range(20, 200) if t not in trainer.eos_token_ids]


def generate(self, prompt_ids, images, fields, num_generations):
    if num_generations == 1:  # second turn
        keys = [f"second {ids}" for ids in prompt_ids]
    else:
        keys = [f"first {process * len(prompt_ids) + row}" for row in range(len(prompt_ids))]
    return [answer(key, vocabulary, trainer.eos_token_ids) for key in keys], None


GRPOTrainer._generate_single_turn = generate
outcomes, score_groups = [], trainer.score_groups
trainer.score_groups = lambda rewards: outcomes.append(score_groups(rewards)) or outcomes[-1]
batches = recorded_batches(trainer)
trainer.train()
masks = batches[0]["completion_mask"] > 0
by_row = zip(batches[0]["advantages"], masks, strict=True)  # one a row, or, where turns have their own, one a token
torch.save(
    {
        "world_size": trainer.accelerator.num_processes,
        "rewards": outcomes[0].rewards,
        "kl_coefs": outcomes[0].kl_coefs,
        "keep": outcomes[0].keep,
        "advantages": [(row[own] if row.ndim else row.unsqueeze(0)).tolist() for row, own in by_row],
        "kept_tokens": batches[0]["num_items_in_batch"],
        "logged": {k: v for k, v in trainer.state.log_history[0].items() if isinstance(v, float)},
        "weights": weights_of(trainer.model),
    },
    folder / f"process_{process}.pt",
)
