"""What AdaPO costs over TRL's GRPO: both trainers on the same model, batch and number of tokens, in one run.

Training step: sampling is replaced by answers drawn beforehand. GRPO's answer has as many tokens as AdaPO's two answers
and the user's turn between them, so both process tensors of the same sizes. The optimizer's step is the same code in
both and is left out, as it would only bring the ratio nearer to 1.

Generation: AdaPO's two turns of T/2 new tokens against GRPO's one turn of T. Prefill is what it takes to generate one
token; the rest is decoding.

The rounds of the two trainers alternate, and a ratio is the median of theirs: a busy machine slows both alike.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from rounds import median_ratio, middle_half, parser_of, take_turns, write_numbers
from training import REFERENCE, Answers, Call, TimedAdaPO, TimedGRPO, draw_answers, prepare, settings, train_on
from trl import GRPOConfig, GRPOTrainer
from workload import GROUP

from trl_mmreason import AdaPOConfig
from trl_mmreason.commands.parsers import count
from trl_mmreason.grading.reward import accuracy_reward
from trl_mmreason.miniature.models import save_model
from trl_mmreason.miniature.tasks import make_dataset
from trl_mmreason.timing import device_clock

STEP = "training step without generation"
NOT_AN_ANSWER = "99"  # no two digits sum to it


def make_trainers(
    model: str, folder: Path, questions: Dataset, batch: int, tokens: int
) -> tuple[TimedGRPO, TimedAdaPO]:
    """Both trainers on the same checkpoint, neither yet prepared for training."""
    has_gpu = torch.cuda.is_available()

    def run(name: str, new_tokens: int) -> dict[str, Any]:
        others = {
            "output_dir": str(folder / name),
            "max_completion_length": new_tokens,
            "generation_kwargs": {"min_new_tokens": new_tokens},
            "top_p": 0.99,  # AdaPO's, whose sorting takes its time in both
            "model_init_kwargs": {"dtype": "bfloat16" if has_gpu else "float32"},
            "gradient_checkpointing": has_gpu,
        }
        return settings(batch, batch, **others, **REFERENCE)

    grpo = TimedGRPO(model, accuracy_reward, args=GRPOConfig(**run("grpo", tokens)), train_dataset=questions)
    adapo = TimedAdaPO(model, args=AdaPOConfig(**run("adapo", tokens // 2)), train_dataset=questions)
    return grpo, adapo


def draw_graded(trainer: GRPOTrainer, questions: Dataset, lengths: list[int]) -> list[Answers]:
    """Answers of each given length, one a trajectory, half of them right.

    The right ones are spread so that a group has all four outcomes in two turns: no group is dropped.
    """
    turns = []
    for turn, length in enumerate(lengths):
        rights = [sample // 2**turn % 2 == 0 for sample in range(GROUP)]
        said = [gold if right else NOT_AN_ANSWER for gold in questions["answer"] for right in rights]
        turns.append(draw_answers(trainer, [length] * len(said), [f"\\boxed{{{answer}}}" for answer in said]))
    return turns


# ------------------------------------------------------------------------------------------------------------ measuring


Figures = dict[str, tuple[list[float] | None, list[float]]]
"""Part of the work → seconds of each round: GRPO's, `None` where it has no such part, and AdaPO's."""


def measure_steps(grpo: TimedGRPO, adapo: TimedAdaPO, rows: list[dict], rounds: int) -> Figures:
    """Scoring, loss and backward pass, and their sum, with replayed answers."""

    def step(trainer: TimedGRPO) -> float:
        train_on(trainer, rows)
        return trainer.scoring_seconds

    contestants = {"grpo": partial(step, grpo), "adapo": partial(step, adapo)}
    seconds, scoring = take_turns(contestants, rounds, warm_up=2)
    if grpo.shapes != adapo.shapes:
        raise RuntimeError(f"The two trainers processed different sizes: GRPO {grpo.shapes}, AdaPO {adapo.shapes}.")
    rest = {name: subtract(seconds[name], scoring[name]) for name in seconds}
    return {
        "scoring: reference, rewards, advantages": (scoring["grpo"], scoring["adapo"]),
        "forward, loss, backward": (rest["grpo"], rest["adapo"]),
        STEP: (seconds["grpo"], seconds["adapo"]),
    }


def subtract(whole: list[float], *parts: list[float]) -> list[float]:
    """The seconds of each round without those of its parts."""
    return [first - sum(others) for first, *others in zip(whole, *parts, strict=True)]


def prefill_seconds(trainer: TimedGRPO, call: Call) -> float:
    """Seconds to generate one token from a call's prompts."""
    full = trainer.generation_config
    trainer.generation_config = copy.deepcopy(full)
    trainer.generation_config.update(max_new_tokens=1, min_new_tokens=1)
    start = device_clock()
    trainer.sample(*call.arguments)
    seconds = device_clock() - start
    trainer.generation_config = full
    return seconds


def measure_generation(grpo: TimedGRPO, adapo: TimedAdaPO, rows: list[dict], rounds: int) -> Figures:
    """Prefill of both turns, decoding, and their sum, with sampled answers of full length."""
    grpo.replayed = adapo.replayed = None

    def generate(trainer: TimedGRPO) -> list[Call]:
        trainer._generate_and_score_completions([dict(row) for row in rows])
        return trainer.calls

    def generate_once() -> tuple[float, float]:
        (only,) = generate(grpo)
        return only.seconds, prefill_seconds(grpo, only)

    def generate_twice() -> tuple[float, float, float]:
        first, second = generate(adapo)
        return first.seconds + second.seconds, prefill_seconds(adapo, first), prefill_seconds(adapo, second)

    contestants: dict[str, Callable[[], tuple[float, ...]]] = {"grpo": generate_once, "adapo": generate_twice}
    _, measured = take_turns(contestants, rounds)
    one_turn, prefill = (list(column) for column in zip(*measured["grpo"], strict=True))
    two_turns, prefill_1, prefill_2 = (list(column) for column in zip(*measured["adapo"], strict=True))
    return {
        "prefill, turn 1": (prefill, prefill_1),
        "prefill, turn 2": (None, prefill_2),
        "decoding": (subtract(one_turn, prefill), subtract(two_turns, prefill_1, prefill_2)),
        "generation": (one_turn, two_turns),
    }


# -------------------------------------------------------------------------------------------------------------- output


def table(figures: Figures) -> str:
    """Aligned columns: part, median seconds of both, their ratio, and its middle half over the rounds."""
    lines = [f"{'':42}{'GRPO, s':>10}{'AdaPO, s':>10}{'ratio':>8}{'middle half':>18}"]
    for part, (grpo, adapo) in figures.items():
        if grpo is None:
            lines.append(f"{part:42}{'-':>10}{median(adapo):10.4f}")
        else:
            ratio, spread = median_ratio(adapo, grpo), middle_half(adapo, grpo)
            lines.append(f"{part:42}{median(grpo):10.4f}{median(adapo):10.4f}{ratio:8.3f}{spread:>18}")
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__, rounds=60)
    parser.add_argument("--model", help="path or Hub id; by default the miniature's demo")
    parser.add_argument("--picture", type=count, default=56, help="side of a question's picture in pixels")
    parser.add_argument("--batch", type=count, default=2 * GROUP, help=f"trajectories, a multiple of {GROUP}")
    parser.add_argument("--tokens", type=count, default=128, help="of a trajectory, even")
    parser.add_argument("--limit", type=float, default=1.05, help="highest ratio of the training step")
    arguments = parser.parse_args()
    if arguments.batch % GROUP:
        parser.error(f"--batch {arguments.batch}: expected a multiple of {GROUP}, the samples of a question")
    if arguments.tokens % 2 or arguments.tokens < 64:
        parser.error(f"--tokens {arguments.tokens}: expected an even number, 64 or more: two answers and a user's turn")
    questions = make_dataset(["adding"], arguments.batch // GROUP, size=arguments.picture)
    rows = [row for row in questions for _ in range(GROUP)]
    with TemporaryDirectory() as folder:
        model = arguments.model or str(save_model("qwen2_5_vl", "demo", f"{folder}/model"))
        grpo, adapo = make_trainers(model, Path(folder), questions, arguments.batch, arguments.tokens)
        answer_tokens = arguments.tokens - len(adapo._followup_ids)
        grpo.replayed = draw_graded(grpo, questions, [arguments.tokens])
        adapo.replayed = draw_graded(adapo, questions, [answer_tokens // 2, answer_tokens - answer_tokens // 2])
        for trainer in (grpo, adapo):
            prepare(trainer)
        steps = measure_steps(grpo, adapo, rows, arguments.rounds)
        generation = measure_generation(grpo, adapo, rows, max(2, arguments.rounds // 3))
    print(table(steps), table(generation), sep="\n\n")
    write_numbers(arguments, seconds={**steps, **generation})
    theirs, ours = steps[STEP]
    ratio = median_ratio(ours, theirs or ours)
    if ratio > arguments.limit:
        sys.exit(f"AdaPO's training step takes {ratio:.3f} times GRPO's; the limit is {arguments.limit}.")


if __name__ == "__main__":
    main()
