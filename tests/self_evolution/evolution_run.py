"""A step of self-evolution on given responses: `python evolution_run.py MODEL FOLDER ROWS`.

Run by test_trainer.py, in one process or two, with ROWS a process: groups of four, of which one stands on both. A
response follows from its place among all.
"""

import sys
from pathlib import Path

import torch
from judged import judge_by, trainer_for
from support import drawn_rows, ids_of, recorded_batches, weights_of

torch.set_num_threads(1)
model, folder, rows_a_process = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
rows = [{**row, "answer": "3"} for row in drawn_rows(6)]
trainer = trainer_for(
    model,
    folder,
    rows,
    trainer_kwargs={"judge": judge_by({"a a": 0.9, "b": 0.5, "": 0.2})},
    per_device_train_batch_size=rows_a_process,
    optim="sgd",
    learning_rate=1.0,
    max_steps=1,
)
process = trainer.accelerator.process_index


def completions(prompt_ids, *_, **__):
    written = []
    for place in range(process * len(prompt_ids), (process + 1) * len(prompt_ids)):
        thought = "a " * (place % 3) + "b " * (place % 2)
        text = rf"<think>{thought}</think>\boxed{{{3 + (place % 4) // 2}}}" if place % 5 else "I do not know it."
        written.append([*ids_of(trainer.processing_class, text), trainer.processing_class.tokenizer.eos_token_id])
    return written, None


trainer._generate_single_turn = completions
batches = recorded_batches(trainer)
trainer.train()
timings = ("step_time", "epoch", "time/")
torch.save(
    {
        "world_size": trainer.accelerator.num_processes,
        "advantages": batches[0]["advantages"],
        "logged": {k: v for k, v in trainer.state.log_history[0].items() if not k.startswith(timings)},
        "weights": weights_of(trainer.model),
    },
    folder / f"process_{process}.pt",
)
