"""How many samples a second TransformersEngine makes, beside a plain loop that generates one question at a time.

Both answer the standard workload greedily, on the same miniature model with random weights, and end each answer at the
length drawn for it. The loop is what one writes first: the processor, `model.generate`, the tokenizer. The answers
of both have to be the same. Rounds alternate, and the ratio is the median of theirs: a busy machine slows both alike.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from transformers import PreTrainedModel, ProcessorMixin
from trl.data_utils import prepare_multimodal_messages
from workload import BOUND, lengths, questions

from trl_mmreason.commands.parsers import count
from trl_mmreason.miniature.models import FAMILIES, build_model
from trl_mmreason.parts import placeholder_ids
from trl_mmreason.sampling import Failure, Request, SamplingParams, transformers_engine
from trl_mmreason.sampling.engine import derive_seed
from trl_mmreason.sampling.generation import end_of_turn_ids
from trl_mmreason.sampling.gumbel import StopTracker
from trl_mmreason.sampling.transformers_engine import TransformersEngine


def never_ends_by_itself(model: PreTrainedModel, processor: ProcessorMixin) -> None:
    """Give the tokens that end a turn a bias that no logit outweighs."""
    head = model.get_output_embeddings()
    ends = torch.tensor(end_of_turn_ids(model, processor))
    head.bias = torch.nn.Parameter(torch.zeros(head.out_features).index_fill(0, ends, -torch.inf))


class EndsAt(TransformersEngine):
    """Ends the answer to a request at the length that is drawn for its number, which is its seed."""

    drawn: list[int]

    def _generate(self, encoded: Any, seeds: Sequence[int], sampling_params: SamplingParams) -> Any:
        length_of = {derive_seed(number, 0): tokens for number, tokens in enumerate(self.drawn)}
        limits = [length_of[seed] for seed in seeds]
        with patch.object(transformers_engine, "StopTracker", lambda _, *others: StopTracker(limits, *others)):
            return super()._generate(encoded, seeds, sampling_params)


def one_by_one(
    model: PreTrainedModel, processor: ProcessorMixin, rows: list[dict[str, Any]], drawn: list[int]
) -> list[str]:
    """The plain loop."""
    texts = []
    for row, tokens in zip(rows, drawn, strict=True):
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


def by_engine(engine: EndsAt, rows: list[dict[str, Any]]) -> list[str]:
    requests = [Request(row["prompt"], row["images"], seed=number) for number, row in enumerate(rows)]
    texts = []
    for result, tokens in zip(engine.sample(requests, SamplingParams(BOUND, temperature=0)), engine.drawn, strict=True):
        if isinstance(result, Failure) or result[0].tokens != tokens:
            raise RuntimeError(f"Expected an answer of {tokens} tokens, got {result}.")
        texts.append(result[0].text)
    return texts


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="qwen2_5_vl")
    parser.add_argument("--questions", type=count, default=64)
    parser.add_argument("--batch", type=count, default=32, help="of the engine")
    parser.add_argument("--limit", type=float, default=4.0, help="lowest ratio of samples per second")
    arguments = parser.parse_args()
    model, processor = build_model(arguments.family, "demo")
    never_ends_by_itself(model, processor)
    rows, drawn = list(questions(arguments.questions)), lengths(arguments.questions)
    engine = EndsAt(model, processor, batch_size=arguments.batch)
    engine.drawn = drawn
    contestants = {
        "one by one": lambda: one_by_one(model, processor, rows, drawn),
        "engine": lambda: by_engine(engine, rows),
    }
    seconds, texts = take_turns(contestants, arguments.rounds)
    if texts["engine"] != texts["one by one"]:
        sys.exit("The greedy answers of the two differ.")
    medians = medians_of(seconds)
    ratio = median_ratio(seconds["one by one"], seconds["engine"])
    print(
        f"{len(rows)} questions, answers of {min(drawn)} to {max(drawn)} tokens, {sum(drawn)} in all, "
        f"{arguments.family} demo, engine in batches of {arguments.batch}, same answers"
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
