"""What DDP's search for unused weights costs, which TRL asks for in every step of a vision-language model.

    OMP_NUM_THREADS=1 torchrun --nproc_per_node 2 benchmarks/ddp_search.py

TRL: `find_unused_parameters=True`, and a batch without pictures leaves the vision encoder out. Ours: no search, and
such a batch encodes a small picture, so that every weight has a gradient. Rounds of both alternate on equal models, in
float32 on CPUs or in bfloat16 on GPUs; a ratio is the median of theirs, of seconds for forward and backward pass.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from torch.nn.parallel import DistributedDataParallel

from trl_mmreason.commands.parsers import count
from trl_mmreason.engines.pictures import let_every_pass_see_a_picture
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.tasks import make_problems


def batch(processor: Any, rows: int, *, pictures: bool, device: torch.device) -> dict[str, torch.Tensor]:
    problems = make_problems(["adding", "counting"], rows, seed=dist.get_rank())
    conversations = []
    for problem in problems:
        content: list[dict[str, Any]] = [{"type": "image", "image": problem.image}] if pictures else []
        words = "How many are there, counted one by one? " * 8
        conversations.append([{"role": "user", "content": [*content, {"type": "text", "text": words}]}])
    inputs = processor.apply_chat_template(
        conversations, tokenize=True, return_dict=True, return_tensors="pt", processor_kwargs={"padding": True}
    )
    inputs["labels"] = inputs["input_ids"].clone()
    return {name: value.to(device) for name, value in inputs.items()}


def step(model: Any, inputs: dict[str, torch.Tensor]) -> None:
    model(**inputs).loss.backward()
    dist.barrier()


def main() -> None:
    parser = parser_of(__doc__, rounds=30)
    parser.add_argument("--size", default="study", help="of the miniature: test, demo or study")
    parser.add_argument("--rows", type=count, default=4, help="of a batch of each process")
    args = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")

    models = {}
    for name, search in (("search", True), ("none", False)):
        model, processor = build_model("qwen2_5_vl", args.size)
        model.train().to(device, torch.bfloat16 if has_gpu else torch.float32)
        if not search:
            let_every_pass_see_a_picture(model, processor)
        models[name] = DistributedDataParallel(model, find_unused_parameters=search)
    seconds = {}
    for pictures in (True, False):
        inputs = batch(processor, args.rows, pictures=pictures, device=device)
        contestants = {name: partial(step, model, inputs) for name, model in models.items()}
        times, _ = take_turns(contestants, args.rounds, warm_up=3)
        medians, middle = medians_of(times), middle_half(times["none"], times["search"])
        shown = "with pictures" if pictures else "text alone   "
        seconds[shown.strip()] = times
        if dist.get_rank() == 0:
            each = ", ".join(f"{name} {median:.4f} s" for name, median in medians.items())
            print(f"{shown}  {each}, ratio {median_ratio(times['none'], times['search']):.3f} (middle half {middle})")
    if dist.get_rank() == 0:
        write_numbers(args, seconds=seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
