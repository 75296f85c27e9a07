"""How many questions a second `evaluate` answers and grades, beside a plain loop over one question at a time.

Both ask a miniature policy, which is right about half of the time, the same questions with pictures, greedily, and
grade with the same grader. The loop is what one writes first: the processor, `model.generate`, the tokenizer, the
grader. What `evaluate` does beside, its store, its metrics and their intervals, is in its time. Answers and verdicts
have to be the same. Rounds alternate, and the ratio is the median of theirs: a busy machine slows both alike.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from datasets import Dataset
from rounds import median_ratio, medians_of, parser_of, take_turns, write_numbers
from sampling import one_by_one
from transformers import PreTrainedModel, ProcessorMixin

from trl_mmreason.chain_of_step.miniature import PLAIN_ANSWERS
from trl_mmreason.commands.parsers import count
from trl_mmreason.evaluation.results import summarise
from trl_mmreason.evaluation.runner import evaluate
from trl_mmreason.grading import Grader
from trl_mmreason.miniature.cold_start import cold_start
from trl_mmreason.miniature.models import FAMILIES, build_model
from trl_mmreason.miniature.tasks import make_dataset
from trl_mmreason.sampling import SamplingParams
from trl_mmreason.sampling.protocols import Direct
from trl_mmreason.sampling.store import Store
from trl_mmreason.sampling.transformers_engine import TransformersEngine

Answers = list[tuple[str, bool | None]]


def by_loop(model: PreTrainedModel, processor: ProcessorMixin, rows: Dataset, tokens: int) -> Answers:
    """Text and verdict of every question, one after the other."""
    grader = Grader()
    found: Answers = []
    for row in rows:
        [text] = one_by_one(model, processor, [row], [tokens])
        question = row["prompt"][-1]["content"]
        found.append((text, grader.grade(text, row["answer"], choices=row["choices"], question=question).correct))
    return found


def by_evaluate(engine: TransformersEngine, rows: Dataset, tokens: int, batch: int) -> Answers:
    """The same by the runner, with a store of its own."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "answers.sqlite") as store:
        sampling_params = SamplingParams(tokens, temperature=0.0)
        samples = evaluate(rows, engine, store, Direct(), sampling_params=sampling_params, batch_size=batch)
        summarise(samples)
    found: Answers = []
    for (sample,) in samples.samples:
        if not isinstance(sample, dict):
            raise RuntimeError(f"A sample failed: {sample.reason}")
        found.append((sample["turns"][0]["text"], sample["turns"][0]["correct"]))
    return found


def taught_policy(family: str, folder: Path) -> tuple[PreTrainedModel, ProcessorMixin]:
    """A policy that adds two drawn digits, and is right about half of the time."""
    model, processor = build_model(family, "demo")
    cold_start(model, processor, ["adding"], folder, lessons=PLAIN_ANSWERS, target_accuracy=0.5)
    return model.eval(), processor


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="qwen2_5_vl")
    parser.add_argument("--questions", type=count, default=256)
    parser.add_argument("--tokens", type=count, default=32, help="bound of an answer")
    parser.add_argument("--batch", type=count, default=64)
    parser.add_argument("--limit", type=float, default=4.0, help="lowest ratio of questions per second")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, processor = taught_policy(arguments.family, Path(folder) / "policy")
    rows = make_dataset(["adding"], arguments.questions, split="new_pictures")
    engine = TransformersEngine(model, processor, batch_size=arguments.batch)
    contestants = {
        "one by one": lambda: by_loop(model, processor, rows, arguments.tokens),
        "evaluate": lambda: by_evaluate(engine, rows, arguments.tokens, arguments.batch),
    }
    seconds, found = take_turns(contestants, arguments.rounds)
    for pair in zip(found["one by one"][-1], found["evaluate"][-1], strict=True):
        if pair[0] != pair[1]:
            sys.exit(f"The answers differ: {pair}")
    medians = medians_of(seconds)
    ratio = median_ratio(seconds["one by one"], seconds["evaluate"])
    right = sum(bool(correct) for _, correct in found["evaluate"][-1])
    print(f"{arguments.questions} questions, {right} right, answers of up to {arguments.tokens} tokens")
    for name, median in medians.items():
        print(f"{name:>10}: {arguments.questions / median:8.1f} questions a second, median of {arguments.rounds}")
    print(f"ratio {ratio:.1f}, expected at least {arguments.limit:.1f}; all answers and verdicts are the same")
    write_numbers(arguments, seconds=seconds, ratio=ratio, right=right)
    if ratio < arguments.limit:
        sys.exit(1)


if __name__ == "__main__":
    main()
