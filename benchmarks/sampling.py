"""How many samples a second TransformersEngine makes, beside a plain loop that generates one question at a time.

Both answer the same questions with pictures, greedily, on the same miniature model with random weights, which writes
to the full length. The loop is what one writes first: the processor, `model.generate`, the tokenizer. The answers
of both have to be the same. Rounds alternate, and the ratio is the median of theirs: a busy machine slows both alike.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from transformers import PreTrainedModel, ProcessorMixin
from trl.data_utils import prepare_multimodal_messages

from trl_mmreason.commands.parsers import count
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


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="qwen2_5_vl")
    parser.add_argument("--questions", type=count, default=64)
    parser.add_argument("--tokens", type=count, default=32, help="of an answer")
    parser.add_argument("--batch", type=count, default=32, help="of the engine")
    parser.add_argument("--limit", type=float, default=4.0, help="lowest ratio of samples per second")
    arguments = parser.parse_args()
    model, processor = build_model(arguments.family, "demo")
    rows = list(make_dataset(["adding"], arguments.questions))
    engine = TransformersEngine(model, processor, batch_size=arguments.batch)
    contestants = {
        "one by one": lambda: one_by_one(model, processor, rows, arguments.tokens),
        "engine": lambda: by_engine(engine, rows, arguments.tokens),
    }
    seconds, texts = take_turns(contestants, arguments.rounds)
    if texts["engine"] != texts["one by one"]:
        sys.exit("The greedy answers of the two differ.")
    medians = medians_of(seconds)
    ratio = median_ratio(seconds["one by one"], seconds["engine"])
    print(
        f"{len(rows)} questions with a picture, {arguments.tokens} tokens each, {arguments.family} demo, engine in "
        f"batches of {arguments.batch}, same answers"
    )
    for name, median in medians.items():
        print(f"{name:12}{len(rows) / median:8.1f} samples/s")
    print(f"{'ratio':12}{ratio:8.2f}, in the middle half {middle_half(seconds['one by one'], seconds['engine'])}")
    write_numbers(arguments, seconds=seconds, ratio=ratio)
    if ratio < arguments.limit:
        sys.exit(
            f"The engine makes {ratio:.2f} times the loop's samples per second; at least {arguments.limit} expected."
        )


if __name__ == "__main__":
    main()
