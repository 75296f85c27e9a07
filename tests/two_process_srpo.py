"""A step of SRPO's cold start and one of its RL on given completions: `python two_process_srpo.py MODEL FOLDER ROWS`.

Run by test_distributed.py, in one process or two, with ROWS a process. A completion follows from its place among all.
"""

import sys
from pathlib import Path

import torch
from support import drawn_rows, ids_of, recorded_batches, sft_trainer, srpo_trainer, weights_of

torch.set_num_threads(1)
model, folder, rows_a_process = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
rows = drawn_rows(24)

COMPLETION = "<think>a</think> <answer>7</answer> <reflection>{}</reflection> <answer>7</answer>"
demonstrations = [
    {"prompt": row["prompt"], "images": row["images"], "completion": COMPLETION.format("so " * (1 + number))}
    for number, row in enumerate(rows[:12])
]
sgd = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1}
sft = sft_trainer(model, folder, demonstrations, per_device_train_batch_size=rows_a_process, **sgd)
sft.train()

rows = [{**row, "answer": "1"} for row in rows]
bounds = {"filter_min_accuracy": 0.1, "filter_max_accuracy": 0.9}
trainer = srpo_trainer(model, folder, rows, per_device_train_batch_size=rows_a_process, **bounds, **sgd)
process = trainer.accelerator.process_index


def completions(prompt_ids, *_, **__):
    """Right or wrong, complete or not, long or short, by the completion's place among those of all processes.

    All first answers of the second group, which two processes share, are right: the accuracy filter drops it.
    """
    written = []
    for place in range(process * len(prompt_ids), (process + 1) * len(prompt_ids)):
        first, second = 1 if 4 <= place < 8 else place % 3, place % 5
        text = f"<think>{'so ' * place}</think> <answer>{first}</answer>"
        if place % 4:
            text += f" <reflection>{'hm ' * (place % 7 + 1)}</reflection> <answer>{second}</answer>"
        ids = ids_of(trainer.processing_class, text if place % 6 else text[:-3])
        written.append([*ids, trainer.processing_class.tokenizer.eos_token_id])
    return written, None


trainer._generate_single_turn = completions
batches = recorded_batches(trainer)
trainer.train()
timings = ("step_time", "time/", "epoch")
torch.save(
    {
        "world_size": trainer.accelerator.num_processes,
        "advantages": batches[0]["advantages"],
        "keep": batches[0]["tool_mask"].any(dim=1),
        "logged": {k: v for k, v in trainer.state.log_history[0].items() if not k.startswith(timings)},
        "sft": weights_of(sft.model),
        "rl": weights_of(trainer.model),
    },
    folder / f"process_{process}.pt",
)
