"""How many samples a second TransformersEngine makes, beside a plain loop that generates one question at a time.

Both answer the same questions with pictures, greedily, on the same miniature model with random weights, which writes
to the full length. The loop is what one writes first: the processor, `model.generate`, the tokenizer. The answers
of both have to be the same. The rounds of the two alternate, and the ratio is between medians: a busy machine slows
both alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, ProcessorMixin
from trl.data_utils import prepare_multimodal_messages

from trl_mmreason.miniature.models import FAMILIES, build_model
from trl_mmreason.miniature.tasks import make_dataset
from trl_mmreason.sampling import Failure, Request, SamplingParams
from trl_mmreason.sampling.generation import placeholder_ids
from trl_mmreason.sampling.transformers_engine import TransformersEngine


def one_by_one(model: PreTrainedModel, processor: ProcessorMixin, rows: list[dict[str, Any]], tokens: int) -> list[str]:
    """The plain loop."""
    texts = []
    for row in rows:
        conversation = prepare_multimodal_messages(row["prompt"], images=row["images"])
        inputs = processor.apply_chat_template(
            conversation, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
        ).to(model.device)
        with torch.no_grad():
            ids = model.generate(
                **inputs, do_sample=False, max_new_tokens=tokens, suppress_tokens=placeholder_ids(model.config)
            )
        texts.append(processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts


def by_engine(engine: TransformersEngine, rows: list[dict[str, Any]], tokens: int) -> list[str]:
    requests = [Request(row["prompt"], row["images"]) for row in rows]
    texts = []
    for result in engine.sample(requests, SamplingParams(tokens, temperature=0)):
        if isinstance(result, Failure) or result[0].finish_reason != "length":
            raise RuntimeError(f"Expected an answer of {tokens} tokens, got {result}.")
        texts.append(result[0].text)
    return texts


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="qwen2_5_vl")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--batch", type=int, default=32, help="of the engine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=4.0, help="lowest ratio of samples per second")
    parser.add_argument("--json", type=Path, help="write the seconds of every round here")
    arguments = parser.parse_args()
    for name in ("questions", "tokens", "batch", "rounds"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}: expected 1 or more")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    model, processor = build_model(arguments.family, "demo")
    rows = list(make_dataset(["adding"], arguments.questions))
    engine = TransformersEngine(model, processor, batch_size=arguments.batch)
    contestants = {
        "one by one": lambda: one_by_one(model, processor, rows, arguments.tokens),
        "engine": lambda: by_engine(engine, rows, arguments.tokens),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(1 + arguments.rounds):  # the first warms up
        texts = {}
        for name in list(contestants)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            texts[name] = contestants[name]()
            seconds[name].append(time.perf_counter() - start)
        if texts["engine"] != texts["one by one"]:
            different = sum(a != b for a, b in zip(texts["engine"], texts["one by one"], strict=True))
            sys.exit(f"{different} of {len(rows)} greedy answers differ between the two.")
    rates = {name: len(rows) / statistics.median(times[1:]) for name, times in seconds.items()}
    ratio = rates["engine"] / rates["one by one"]
    ratios = [plain / ours for plain, ours in zip(seconds["one by one"], seconds["engine"], strict=True)][1:]
    print(
        f"{len(rows)} questions with a picture, {arguments.tokens} tokens each, {arguments.family} demo, engine in "
        f"batches of {arguments.batch}, same answers"
    )
    for name, rate in rates.items():
        print(f"{name:12}{rate:8.1f} samples/s")
    print(f"{'ratio':12}{ratio:8.2f}          {min(ratios):.2f} - {max(ratios):.2f} over {arguments.rounds} rounds")
    if arguments.json:
        settings = {name: getattr(arguments, name) for name in ("family", "questions", "tokens", "batch", "rounds")}
        numbers = {"seconds": {name: times[1:] for name, times in seconds.items()}, "ratio": ratio}
        arguments.json.write_text(json.dumps({**settings, **numbers}, indent=2))
    if ratio < arguments.limit:
        sys.exit(
            f"The engine makes {ratio:.2f} times the loop's samples per second; at least {arguments.limit} expected."
        )


if __name__ == "__main__":
    main()
