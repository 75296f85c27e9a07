"""One of several processes that evaluate in memory: policy_run.py FOLDER."""

import json
import sys
from pathlib import Path

from accelerate import PartialState
from datasets import Dataset
from scripted import Scripted

from trl_mmreason.evaluation.runner import evaluate
from trl_mmreason.sampling.protocols import Direct

state = PartialState(cpu=True)
asked = []


def answer(request, times):
    asked.append(request.messages[0]["content"])
    return asked[-1].replace("question", "answer")


prompts = [[{"role": "user", "content": f"question {k}"}] for k in range(5)]
rows = Dataset.from_list([{"prompt": prompt, "answer": "7"} for prompt in prompts])
samples = evaluate(rows, Scripted(answer), None, Direct(), batch_size=2)
Path(sys.argv[1], f"{state.process_index}.json").write_text(json.dumps({"samples": samples.samples, "asked": asked}))
state.destroy_process_group()
