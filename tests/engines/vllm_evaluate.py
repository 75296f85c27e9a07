"""The engine of `mmreason evaluate --vllm --dtype float32`: `python vllm_evaluate.py FOLDER`. Run by test_vllm.py."""

import os
import sys
from pathlib import Path

import torch
from support import drawn_rows
from vllm_policies import random_policy, rule_out_placeholders, save, write

from trl_mmreason.cli.commands import evaluate
from trl_mmreason.cli.main import build_parser
from trl_mmreason.generation import Request, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine

if __name__ == "__main__":  # vLLM's own process imports this file again
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1"}
    if not torch.cuda.is_available():
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # vLLM reads it; compiling takes half a minute
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    model, processor = random_policy("qwen2_5_vl")
    rule_out_placeholders(model)
    policy = save(model, processor, folder / "policy")

    asked = ["evaluate", "own=rows", "--model", policy, "--vllm", "--dtype", "float32"]
    engine = evaluate.load_engine(build_parser().parse_args(asked))
    requests = [Request(row["prompt"], images=row["images"]) for row in drawn_rows(3)]
    greedy = SamplingParams(8, 0.0, logprobs=True)
    answers = {}
    for name, asked in (("vllm", engine), ("transformers", TransformersEngine(policy, dtype=torch.float32))):
        samples = [row[0] for row in asked.sample(requests, greedy)]
        answers[name] = {"ids": [s.token_ids for s in samples], "logprobs": [s.logprobs for s in samples]}
    write(folder / "results.pt", settings=engine.settings, **answers)
