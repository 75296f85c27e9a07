"""Drawn visual-maths problems: seven categories, three levels, and splits that share no content.

A problem is made from a seed: its numbers, its image, its question, its answer and its worked steps. `make_problem`
makes one, `make_problems` many, `make_dataset` the rows that the trainers take.

The content of a problem is what decides its answer, whatever its image looks like: the two digits of a sum in either
order, the time on a clock. A stable hash of the content decides the split, so that held-out problems ask for what was
never trained on, and not only for new images of it. About one content in five is held out.

A tiny model that was trained on four fifths of the addition table reads the digits of a held-out sum and cannot add
them. The split "new_pictures" has other images of the contents of "train", and so tells seeing from knowing.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from datasets import Dataset, Features, Image, Json, List, Value
from PIL import Image as PILImage

from ..data.row_values import stored_image
from ..data.rows import MESSAGES
from . import draw
from .solutions import ERRORS, WorkedStep, attempt, letter_of, worked_steps, wrong_results

CATEGORIES = ("adding", "counting", "bar_chart", "lengths", "triangle", "clock", "table")
LEVELS = (1, 2, 3)
SPLITS = ("train", "heldout", "new_pictures")

# `choices` is Json: a struct column would give every row the letters of all the others, filled with None
FEATURES = Features(
    {
        "prompt": MESSAGES,
        "images": List(Image()),
        "answer": Value("string"),
        "choices": Json(),
        "id": Value("string"),
        "category": Value("string"),
        "level": Value("int64"),
    }
)

# Chosen so that every digit, bar value, length and hour is on both sides, and every sum of two digits in training.
_SPLIT_SALT = "mmreason-251839"
_LETTERS = "ABCD"
_SEEDS_A_DATASET = 1_000_000


@dataclass(frozen=True)
class Problem:
    """One problem with its whole truth.

    Attributes:
        id: Category, level, split and seed: "adding-2-train-000017".
        category: One of `CATEGORIES`.
        level: 1 (easiest) to 3.
        question: The question in words, without the choices.
        image: The image, RGB.
        answer: The right answer: a number, a name or a time "3:05"; for multiple choice its letter.
        choices: Letter → text, None for an open answer.
        facts: What must be read off the image to answer, name → number.
        asked: What the question is about (a colour, a bar, a cell), "" where the category says it.
        steps: The right solution: one reading a fact, then the working, then the answer.
        seed: The seed it was made from.
    """

    id: str
    category: str
    level: int
    question: str
    image: PILImage.Image
    answer: str
    choices: dict[str, str] | None
    facts: dict[str, int]
    asked: str
    steps: tuple[WorkedStep, ...]
    seed: int

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The user's message; choices follow the question, one a line."""
        lines = [f"{letter}. {text}" for letter, text in (self.choices or {}).items()]
        return [{"role": "user", "content": "\n".join([self.question, *lines])}]


def make_problem(
    category: str,
    seed: int,
    *,
    level: int = 1,
    split: str = "train",
    multiple_choice: bool = False,
    size: int = 56,
) -> Problem:
    """The problem of this category, level, split and seed.

    The same arguments always give the same problem and the same bytes of image. `multiple_choice` changes neither.

    Args:
        category: One of `CATEGORIES`.
        seed: Any number ≥ 0.
        level: 1, 2 or 3.
        split: "train", "heldout" (other contents) or "new_pictures" (the contents of "train").
        multiple_choice: Give four choices and ask for the letter.
        size: Side of the image in pixels, a multiple of 28 and at least 56.

    Raises:
        ValueError: for an argument outside these.
    """
    _check("category", category, CATEGORIES)
    _check("level", level, LEVELS)
    _check("split", split, SPLITS)
    if size < 56 or size % 28:
        raise ValueError(f"make_problem() got size={size}; expected a multiple of 28 pixels, at least 56.")
    if seed < 0:
        raise ValueError(f"make_problem() got seed={seed}; expected 0 or more.")
    # random.Random hashes a string with SHA-512: the streams of two splits, levels or categories have nothing in common
    stream = f"{category}-{level}-{split}-{seed:06d}"
    rng = random.Random(stream)
    side = "heldout" if split == "heldout" else "train"
    scene = _SCENES[category](rng, level)
    while split_of(category, scene.facts, scene.asked) != side:
        scene = _SCENES[category](rng, level)
    right = attempt(category, level, scene.facts, scene.asked)
    choices = _choices(category, level, scene, stream) if multiple_choice else None
    return Problem(
        id=stream,
        category=category,
        level=level,
        question=scene.question,
        image=scene.draw(rng, size=size),
        answer=right.stated if choices is None else letter_of(choices, right.stated),
        choices=choices,
        facts=scene.facts,
        asked=scene.asked,
        steps=worked_steps(category, scene.asked, right, choices),
        seed=seed,
    )


def make_problems(
    categories: str | Sequence[str],
    n: int,
    *,
    split: str = "train",
    level: int | Mapping[str, int] = 1,
    multiple_choice: bool = False,
    seed: int = 0,
    size: int = 56,
) -> list[Problem]:
    """Make `n` problems that cycle through the categories; another seed gives other images.

    Args:
        categories: some of `CATEGORIES`, or one of them.
        level: level of all problems, or of each category.

    Raises:
        ValueError: when `categories` is empty or `n` is more than a seed has room for, and as `make_problem`.
        KeyError: a category without a level.
    """
    if isinstance(categories, str):
        categories = [categories]
    if not categories:
        raise ValueError(f"make_problems() got no categories; expected some of {CATEGORIES}.")
    if n > _SEEDS_A_DATASET:
        raise ValueError(
            f"make_problems() got n={n}; expected at most {_SEEDS_A_DATASET}, or two seeds would share problems."
        )
    levels = level if isinstance(level, Mapping) else dict.fromkeys(categories, level)
    return [
        make_problem(
            category,
            seed * _SEEDS_A_DATASET + index,
            level=levels[category],
            split=split,
            multiple_choice=multiple_choice,
            size=size,
        )
        for index, category in zip(range(n), cycle(categories))
    ]


def make_dataset(categories: str | Sequence[str], n: int, **drawing: Any) -> Dataset:
    """`make_problems` as a dataset in the common row format, with the same arguments."""
    return problems_dataset(make_problems(categories, n, **drawing))


def problems_dataset(problems: Iterable[Problem]) -> Dataset:
    """Problems as rows of prompt, images, answer, choices, id, category and level (`FEATURES`)."""
    rows = [
        {
            "prompt": problem.prompt,
            "images": [stored_image(problem.image)],
            "answer": problem.answer,
            "choices": problem.choices,
            "id": problem.id,
            "category": problem.category,
            "level": problem.level,
        }
        for problem in problems
    ]
    return Dataset.from_list(rows, features=FEATURES)


def split_of(category: str, facts: Mapping[str, int], asked: str) -> str:
    """The split of a content, "train" or "heldout": a stable hash holds out one in five.

    The order of the numbers makes no new content (3+4 is 4+3), but for a clock. What is counted goes with its colour.
    """
    values = list(facts.values())
    if category == "counting":
        key = f"{asked} {values}"
    elif category == "clock":
        key = f"{values}"
    else:
        key = f"{sorted(values)}"
    digest = hashlib.sha256(f"{_SPLIT_SALT} {category} {key}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % 5 == 0 else "train"


@dataclass(frozen=True)
class _Scene:
    """One random draw: the content, the question, and `draw(rng, size=...)`, which makes the image."""

    facts: dict[str, int]
    asked: str
    question: str
    draw: Callable[..., PILImage.Image]


def _adding(rng: random.Random, level: int) -> _Scene:
    names = ("first", "second", "third")[: 3 if level == 3 else 2]
    facts = {name: rng.randint(0, 9) for name in names}
    drawing = partial(draw.draw_adding, digits=list(facts.values()), level=level)
    return _Scene(facts, "", "What is the sum of the digits?", drawing)


def _counting(rng: random.Random, level: int) -> _Scene:
    """Level 1 has one colour only, level 2 shapes of a second colour, level 3 of a second and a third."""
    colour, *others = rng.sample(list(draw.COLOURS), level)
    kinds = [rng.choice(draw.SHAPES) for _ in range(rng.randint(1, 8 if level == 3 else 6))]
    shapes = [(kind, colour) for kind in kinds]
    shapes += [(rng.choice(draw.SHAPES), other) for other in others for _ in range(rng.randint(2, 4))]
    facts = {kind: kinds.count(kind) for kind in draw.SHAPES}
    drawing = partial(draw.draw_counting, shapes=shapes, columns=3 if level == 1 else 4)
    return _Scene(facts, colour, f"How many {colour} shapes are there?", drawing)


def _bar_chart(rng: random.Random, level: int) -> _Scene:
    """Two bars matter; level 2 has one bar more, level 3 three more, and both ask for a difference."""
    bars = {letter: rng.randint(1, draw.CELLS_ACROSS) for letter in "ABCDE"[: (2, 3, 5)[level - 1]]}
    first, second = sorted(rng.sample(list(bars), 2))
    facts = {first: bars[first], second: bars[second]}
    drawing = partial(draw.draw_bar_chart, bars=bars)
    if level == 1:
        asked = rng.choice([first, second])
        return _Scene(facts, asked, f"How tall is bar {asked}?", drawing)
    asked = f"{first} and {second}"
    return _Scene(facts, asked, f"What is the difference between bars {asked}?", drawing)


def _lengths(rng: random.Random, level: int) -> _Scene:
    bars = 2 if level == 1 else 3
    facts = dict(zip(rng.sample(list(draw.COLOURS), bars), rng.sample(range(2, draw.CELLS_ACROSS), bars), strict=True))
    question = (
        "Which bar is longer?",
        "How many cells long is the longest bar?",
        "How many cells longer is the longest bar than the shortest?",
    )[level - 1]
    return _Scene(facts, "", question, partial(draw.draw_lengths, bars=facts, level=level))


def _triangle(rng: random.Random, level: int) -> _Scene:
    """Angles in tens, fives and single degrees; none is under 20."""
    step = (10, 5, 1)[level - 1]
    first = rng.randrange(20, 141, step)
    second = rng.randrange(20, 161 - first, step)
    drawing = partial(draw.draw_triangle, angles=(first, second), level=level)
    return _Scene(
        {"first": first, "second": second}, "", "How many degrees is the angle at the question mark?", drawing
    )


def _clock(rng: random.Random, level: int) -> _Scene:
    """Level 1 asks for the hour alone, in the first half of the hour, where the short hand is nearer to it."""
    hour, minute = rng.randint(1, 12), rng.randrange(0, 30 if level == 1 else 60, 5)
    question = "What hour does the clock show?" if level == 1 else "What time does the clock show?"
    drawing = partial(draw.draw_clock, hour=hour, minute=minute, level=level)
    return _Scene({"hour": hour, "minute": minute}, "", question, drawing)


def _table(rng: random.Random, level: int) -> _Scene:
    """One row matters: level 1 asks for a cell of it, higher levels for its sum."""
    row_count, column_count = ((2, 2), (3, 2), (3, 3))[level - 1]
    rows = [[rng.randint(0, 9) for _ in range(column_count)] for _ in range(row_count)]
    row = rng.randrange(row_count)
    facts = {f"row {row + 1}, column {column + 1}": digit for column, digit in enumerate(rows[row])}
    drawing = partial(draw.draw_table, rows=rows, level=level)
    if level == 1:
        asked = rng.choice(list(facts))
        return _Scene(facts, asked, f"What number is in {asked}?", drawing)
    return _Scene(facts, f"row {row + 1}", f"What is the sum of row {row + 1}?", drawing)


_SCENES: dict[str, Callable[[random.Random, int], _Scene]] = {
    "adding": _adding,
    "counting": _counting,
    "bar_chart": _bar_chart,
    "lengths": _lengths,
    "triangle": _triangle,
    "clock": _clock,
    "table": _table,
}


def _choices(category: str, level: int, scene: _Scene, stream: str) -> dict[str, str]:
    """Four different choices: the right one, the result of each mistake, and near values where mistakes agree."""
    right, *mistaken = (
        attempt(category, level, scene.facts, scene.asked, error=error, stream=stream).stated
        for error in (None, *ERRORS)
    )
    near = wrong_results(category, right, (4, 5, 6, 7), tuple(draw.COLOURS))
    texts = list(dict.fromkeys([right, *mistaken, *near]))[: len(_LETTERS)]
    # its own stream, so that a problem has the same image with choices and without
    random.Random(f"{stream}-choices").shuffle(texts)
    return dict(zip(_LETTERS, texts, strict=True))


def _check(argument: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"make_problem() got {argument}={value!r}; expected one of {allowed}.")
