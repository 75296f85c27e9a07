"""Scoring a chain's steps in one forward pass, against scoring its prefixes one by one with the model's own logits.

The other ways are what a user would write without this package: for each step, and for the answer, the chain up to
there goes through the model, and two entries of the logits at its last token are compared; once with the logits of all
tokens, as models give them by default, and once with `logits_to_keep=1`. All get the same batch size and model:
random weights, Qwen2.5-VL's vocabulary, and chains of the standard workload, longer ones of more steps.

Peak memory is measured in a process for each way: on a GPU what torch had allocated beyond the model, on a CPU how far
the process grew. Rounds alternate, and a ratio is the median of theirs.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rounds import median_ratio, medians_of, parser_of, take_turns, write_numbers
from workload import lengths, questions

from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.chain_of_step.template import ANSWER_END, Chain, Step, chain_ends, render_chain
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.commands.parsers import count
from trl_mmreason.miniature.models import build_model
from trl_mmreason.pictures import pictures_of
from trl_mmreason.sampling.generation import collate, encode

VOCABULARY = 151_936  # rows of the embeddings of Qwen2.5-VL
STEP = 41  # tokens of a step

Rows = list[dict[str, Any]]
Scored = list[list[float | None]]  # a row's steps, then its answer


def build(size: str) -> ProcessRewardModel:
    model, processor = build_model("qwen2_5_vl", size)
    add_chain_tokens(model, processor)
    model.resize_token_embeddings(VOCABULARY, mean_resizing=False)
    return ProcessRewardModel(model.to("cuda" if torch.cuda.is_available() else "cpu"), processor)


def draw_rows(n: int) -> Rows:
    """Chains of about the lengths of the standard workload, in steps of equal length; a chain has a step at least."""
    rows = []
    for number, (question, tokens) in enumerate(zip(questions(n), lengths(n), strict=True)):
        names = (f"Look {k}" for k in range(max(1, round(tokens / STEP))))
        chain = Chain([Step(name, f"The first digit is 3. {number}", "I looked twice.") for name in names], "7")
        rows.append({**question, "completion": render_chain(chain)})
    return rows


def in_one_pass(prm: ProcessRewardModel, rows: Rows, batch_size: int) -> Scored:
    return [[*scores.steps.tolist(), scores.answer] for scores in prm.score(rows, batch_size=batch_size)]


@torch.no_grad()
def prefix_by_prefix(prm: ProcessRewardModel, rows: Rows, batch_size: int, **forward: int) -> Scored:
    tokenizer, model = prm.processing_class.tokenizer, prm.model
    right, wrong = tokenizer.convert_tokens_to_ids(["+", "-"])
    prefixes = []
    for number, row in enumerate(rows):
        text = row["completion"]
        ends = [*chain_ends(text).steps, text.rindex(ANSWER_END) + len(ANSWER_END)]
        prefixes += [(number, row, text[:end]) for end in ends]
    scored: Scored = [[] for _ in rows]
    for start in range(0, len(prefixes), batch_size):
        batch = prefixes[start : start + batch_size]
        prompts = [
            encode(prm.processing_class, row["prompt"], pictures_of(row)).extended(
                tokenizer(text, add_special_tokens=False)["input_ids"]
            )
            for _, row, text in batch
        ]
        inputs = {name: value.to(model.device) for name, value in collate(prompts, tokenizer.pad_token_id).items()}
        logits = model(**inputs, use_cache=False, **forward).logits[:, -1]
        for (number, _, _), score in zip(batch, (logits[:, right] - logits[:, wrong]).sigmoid().tolist(), strict=True):
            scored[number].append(score)
    return scored


WAYS: dict[str, Callable[[ProcessRewardModel, Rows, int], Scored]] = {
    "one pass": in_one_pass,
    "prefixes, all logits": prefix_by_prefix,
    "prefixes, last logits": partial(prefix_by_prefix, logits_to_keep=1),
}


def peak_mib(way: str, size: str, rows: Rows, batch_size: int) -> float:
    """How much memory scoring takes beyond the model; to be called in a fresh process."""
    prm = build(size)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        WAYS[way](prm, rows, batch_size)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    WAYS[way](prm, rows[:1], 1)  # what torch allocates once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    WAYS[way](prm, rows, batch_size)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> int:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--size", default="demo", help="of the miniature model: test, demo or study")
    parser.add_argument("--rows", type=count, default=32, help="chains")
    parser.add_argument("--batch-size", type=count, default=8, help="rows in a forward pass, of both ways")
    parser.add_argument("--limit", type=float, default=3.0, help="the ratio of times that is expected at least")
    args = parser.parse_args()
    rows = draw_rows(args.rows)
    # First of all: a process begins with the peak of the one that starts it.
    peaks = {way: in_a_process(peak_mib, way, args.size, rows, args.batch_size) for way in WAYS}
    prm = build(args.size)
    tokens = [len(prm.processing_class.tokenizer(row["completion"])["input_ids"]) for row in rows]
    contestants = {way: partial(score, prm, rows, args.batch_size) for way, score in WAYS.items()}
    seconds, found = take_turns(contestants, args.rounds)
    one, *others = (torch.tensor([score for row in scored[-1] for score in row]) for scored in found.values())
    difference = max((one - other).abs().max().item() for other in others)
    medians = medians_of(seconds)
    ratios = {way: median_ratio(times, seconds["one pass"]) for way, times in seconds.items()}
    print(f"{args.rows} chains of {min(tokens)} to {max(tokens)} tokens, {sum(tokens)} in all, {prm.model.device}")
    for way in WAYS:
        print(f"{way:22} {medians[way]:8.3f} s  x {ratios[way]:5.1f}   peak {peaks[way]:6.0f} MiB")
    print(f"scores differ by {difference:.1e} at most")
    write_numbers(args, seconds=seconds, peak_mib=peaks, difference=difference)
    return int(ratios["prefixes, last logits"] < args.limit or difference > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
