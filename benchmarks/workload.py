"""The standard workload: trajectories whose lengths have a long tail, to questions with pictures of different sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.tasks import make_problems, problems_dataset

MEDIAN, BOUND = 64, 512
"""Tokens of a trajectory; lengths are log-normal, their 95th percentile is `BOUND`, and longer ones are cut there."""
GROUP = 8  # trajectories a question
SIDES = (56, 112, 168)  # of a picture, in pixels
_SIGMA = math.log(BOUND / MEDIAN) / 1.645


def lengths(n: int, *, shortest: int = 1, seed: int = 0, bound: int = BOUND) -> list[int]:
    """Tokens of n trajectories; with another bound they are shorter or longer in proportion."""
    rng, median = random.Random(seed), MEDIAN * bound / BOUND
    return [min(bound, max(shortest, round(median * math.exp(rng.gauss(0, _SIGMA))))) for _ in range(n)]


def questions(n: int, *, sides: Sequence[int] = SIDES, fewest_pictures: int = 1, most_pictures: int = 3) -> Dataset:
    """Sums with one to three pictures, of which the first is asked about."""
    rng = random.Random(0)
    drawn = {side: list(problems_dataset(make_problems(["adding"], most_pictures * n, size=side))) for side in sides}

    def row(number: int) -> dict:
        pictures = rng.randint(fewest_pictures, most_pictures)
        shown = [drawn[rng.choice(sides)][most_pictures * number + k] for k in range(pictures)]
        return {**shown[0], "images": [picture for each in shown for picture in each["images"]]}

    return Dataset.from_list([row(number) for number in range(n)])


def save_policy(folder: Path, size: str) -> None:
    """A randomly initialised Qwen2.5-VL of a size of the miniature, which sees these pictures as large as they are."""
    model, processor = build_model("qwen2_5_vl", size)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
