"""Drawn problems: determinism, splits, answers recomputed by hand, images, choices, dataset rows."""

import random

import pytest
from datasets import Dataset
from PIL import ImageChops

from trl_mmreason.miniature import draw
from trl_mmreason.miniature.tasks import (
    CATEGORIES,
    LEVELS,
    Problem,
    make_dataset,
    make_problem,
    make_problems,
    split_of,
)

EVERY_KIND = [(category, level) for category in CATEGORIES for level in LEVELS]


def content(problem: Problem) -> tuple:
    """What decides the answer, written without the package: the numbers in any order, but for clock and counting."""
    values = list(problem.facts.values())
    if problem.category == "counting":
        return (problem.asked, *values)
    return tuple(values) if problem.category == "clock" else tuple(sorted(values))


def answer_by_hand(problem: Problem) -> str:
    facts = problem.facts
    values = list(facts.values())
    if problem.category in ("adding", "counting"):
        return str(sum(values))
    if problem.category == "bar_chart":
        return str(facts[problem.asked] if problem.level == 1 else abs(values[0] - values[1]))
    if problem.category == "lengths":
        by_length = sorted(facts, key=lambda colour: facts[colour])
        longest, shortest = facts[by_length[-1]], facts[by_length[0]]
        return {1: by_length[-1], 2: str(longest), 3: str(longest - shortest)}[problem.level]
    if problem.category == "triangle":
        return str(180 - values[0] - values[1])
    if problem.category == "clock":
        minutes = f":{facts['minute'] // 10}{facts['minute'] % 10}"
        return str(facts["hour"]) + ("" if problem.level == 1 else minutes)
    return str(facts[problem.asked] if problem.level == 1 else sum(values))


@pytest.mark.parametrize(("category", "level"), EVERY_KIND)
def test_same_arguments_give_the_same_problem_and_other_seeds_another_image(category, level):
    first, again = (make_problem(category, 17, level=level, multiple_choice=True) for _ in range(2))
    assert first == again
    assert first.image.tobytes() == again.image.tobytes()
    assert first.id == f"{category}-{level}-train-000017"
    images = {make_problem(category, seed, level=level).image.tobytes() for seed in range(50)}
    assert len(images) == 50


def test_a_known_problem_stays_the_same_on_every_machine_and_version():
    problem = make_problem("adding", 0)
    # random.Random("adding-1-train-000000") gives these; a change would silently change every recorded result
    assert problem.facts == {"first": 3, "second": 0}
    assert problem.answer == "3"
    assert problem.prompt == [{"role": "user", "content": "What is the sum of the digits?"}]


@pytest.mark.parametrize(("category", "level"), EVERY_KIND)
def test_answer_follows_from_the_facts(category, level):
    for seed in range(80):
        problem = make_problem(category, seed, level=level)
        assert problem.answer == answer_by_hand(problem)


@pytest.mark.full
@pytest.mark.parametrize(("category", "level"), EVERY_KIND)
def test_splits_share_no_content_and_no_image(category, level):
    few_contents = (category, level) == ("bar_chart", 1)
    problems = {
        split: [make_problem(category, seed, level=level, split=split) for seed in range(400 if few_contents else 100)]
        for split in ("train", "heldout", "new_pictures")
    }
    contents = {split: {content(problem) for problem in members} for split, members in problems.items()}
    images = {split: {p.image.tobytes() for p in members} for split, members in problems.items()}
    assert contents["train"].isdisjoint(contents["heldout"])
    assert contents["new_pictures"].isdisjoint(contents["heldout"])
    assert images["train"].isdisjoint(images["heldout"] | images["new_pictures"])
    # images new, contents old: 400 draws of at most 36 contents miss hardly any of them
    if few_contents:
        assert contents["new_pictures"] == contents["train"]


def test_sums_are_split_one_fifth_held_out_with_every_digit_on_both_sides():
    pairs = {(a, b): split_of("adding", {"first": a, "second": b}, "") for a in range(10) for b in range(10)}
    held_out = {pair for pair, split in pairs.items() if split == "heldout"}
    assert 15 <= len(held_out) <= 25
    assert {digit for pair in held_out for digit in pair} == set(range(10))
    assert {digit for pair in pairs.keys() - held_out for digit in pair} == set(range(10))
    assert {a + b for a, b in pairs.keys() - held_out} == set(range(19))
    assert held_out == {(b, a) for a, b in held_out}


@pytest.mark.full
@pytest.mark.parametrize(
    ("category", "values"),
    [
        ("bar_chart", set(range(1, 10))),
        ("lengths", set(range(2, 9))),
        ("clock", set(range(1, 13)) | set(range(0, 30, 5))),
        ("table", set(range(10))),
    ],
)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_value_occurs_in_both_splits(category, values, split):
    seen = {value for p in make_problems([category], 400, split=split) for value in p.facts.values()}
    assert seen == values


@pytest.mark.parametrize("level", LEVELS)
def test_hands_numbers_and_angles_can_be_what_they_say(level):
    for seed in range(200):
        triangle = make_problem("triangle", seed, level=level)
        assert min(*triangle.facts.values(), int(triangle.answer)) >= 20
        assert all(angle % (10, 5, 1)[level - 1] == 0 for angle in triangle.facts.values())
        lengths = make_problem("lengths", seed, level=level).facts
        assert len(set(lengths.values())) == len(lengths) == (2 if level == 1 else 3)
        assert 1 <= int(make_problem("counting", seed, level=level).answer) <= (8 if level == 3 else 6)


# what draws an image of a number, given the random stream
IMAGES = {
    "adding": lambda drawn, first: draw.draw_adding(drawn, [first, 4], level=2, size=56),
    "counting": lambda drawn, first: draw.draw_counting(drawn, [("circles", "red")] * first, columns=3, size=56),
    "bar_chart": lambda drawn, first: draw.draw_bar_chart(drawn, {"A": first, "B": 4}, size=56),
    "lengths": lambda drawn, first: draw.draw_lengths(drawn, {"red": first, "blue": 4}, level=1, size=56),
    "triangle": lambda drawn, first: draw.draw_triangle(drawn, [10 * first, 40], level=3, size=56),
    "clock, hour": lambda drawn, first: draw.draw_clock(drawn, first, 20, level=3, size=56),
    "clock, minute": lambda drawn, first: draw.draw_clock(drawn, 7, 5 * first, level=3, size=56),
    "table": lambda drawn, first: draw.draw_table(drawn, [[first, 4], [1, 2]], level=3, size=56),
}


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_image_changes_with_the_facts_alone(image):
    # the same random stream: only the number differs, so that any two equal images would hide it
    assert len({image(random.Random(5), first).tobytes() for first in range(2, 9)}) == 7


def test_level_one_digits_stand_in_their_own_halves_twenty_to_twenty_four_pixels_tall():
    for seed in range(100):
        image = make_problem("adding", seed).image.convert("L").point(lambda grey: 255 if grey < 150 else 0)
        for half in (image.crop((0, 0, 28, 56)), image.crop((28, 0, 56, 56))):
            left, top, right, bottom = half.getbbox()
            assert 20 <= bottom - top <= 24
            assert left >= 1
            assert right <= 27


def test_a_square_is_drawn_in_its_colour_and_fills_its_place():
    image = draw.draw_counting(random.Random(1), [("squares", "red"), ("squares", "blue")], columns=3, size=56)
    red = [xy for xy in ((x, y) for x in range(56) for y in range(56)) if image.getpixel(xy) == (215, 35, 35)]
    # a cell is 56/3 = 18.7 pixels, half a side 0.85 · (0.34 to 0.4) of it: 5.4 to 6.3, so 10 to 14 pixels a side
    assert 10**2 <= len(red) <= 14**2


def test_a_larger_image_shows_the_same_problem():
    small, large = (make_problem("table", 3, level=3, size=size) for size in (56, 112))
    assert large.image.size == (112, 112)
    assert large.image.mode == "RGB"
    assert (small.facts, small.answer, small.question) == (large.facts, large.answer, large.question)


@pytest.mark.parametrize(("category", "level"), EVERY_KIND)
def test_choices_have_one_right_letter_and_change_nothing_else(category, level):
    letters = set()
    for seed in range(100):
        free = make_problem(category, seed, level=level)
        chosen = make_problem(category, seed, level=level, multiple_choice=True)
        assert list(chosen.choices) == ["A", "B", "C", "D"]
        assert len(set(chosen.choices.values())) == 4
        assert chosen.choices[chosen.answer] == free.answer
        assert ImageChops.difference(free.image, chosen.image).getbbox() is None
        letters.add(chosen.answer)
    assert letters == set("ABCD")


def test_choices_stand_a_line_each_in_the_prompt():
    problem = make_problem("adding", 4, multiple_choice=True)
    assert problem.facts == {"first": 8, "second": 1}
    assert problem.choices[problem.answer] == "9"
    lines = problem.prompt[0]["content"].split("\n")
    assert lines[0] == "What is the sum of the digits?"
    assert lines[1:] == [f"{letter}. {problem.choices[letter]}" for letter in "ABCD"]


@pytest.mark.parametrize("multiple_choice", [False, True])
def test_dataset_survives_parquet(tmp_path, multiple_choice):
    categories = ("adding", "lengths")
    dataset = make_dataset(categories, 5, multiple_choice=multiple_choice, seed=2)
    dataset.to_parquet(tmp_path / "rows.parquet")
    loaded = Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    assert loaded.features == dataset.features
    assert loaded.column_names == ["prompt", "images", "answer", "choices", "id", "category", "level"]
    for index, row in enumerate(loaded):
        problem = make_problem(categories[index % 2], 2_000_000 + index, multiple_choice=multiple_choice)
        (image,) = row.pop("images")
        assert image.convert("RGB").tobytes() == problem.image.tobytes()
        assert row == {
            "prompt": problem.prompt,
            "answer": problem.answer,
            "choices": problem.choices,
            "id": problem.id,
            "category": categories[index % 2],
            "level": 1,
        }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"category": "sudoku"}, "category='sudoku'; expected one of .*'adding'"),
        ({"level": 4}, r"level=4; expected one of \(1, 2, 3\)"),
        ({"split": "test"}, "split='test'; expected one of .*'heldout'"),
        ({"size": 60}, "size=60; expected a multiple of 28"),
        ({"size": 28}, "size=28; expected a multiple of 28 pixels, at least 56"),
        ({"seed": -1}, "seed=-1; expected 0 or more"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_problem(**{"category": "adding", "seed": 0, **arguments})


def test_one_category_can_be_named_without_a_list():
    assert make_dataset("adding", 2, seed=3)["id"][:] == make_dataset(["adding"], 2, seed=3)["id"][:]
    with pytest.raises(ValueError, match="category='sudoku'; expected one of"):
        make_dataset("sudoku", 2)


def test_problems_need_a_category_and_room_in_the_seed():
    with pytest.raises(ValueError, match="no categories"):
        make_problems([], 3)
    with pytest.raises(ValueError, match="n=1000001; expected at most 1000000"):
        make_problems(["adding"], 1_000_001)


def test_each_category_can_have_a_level_of_its_own():
    levels = {"bar_chart": 2, "adding": 1}
    problems = make_problems(["adding", "bar_chart"], 5, level=levels, seed=3)
    drawn = [(problem.category, problem.level) for problem in problems]
    assert drawn == [*[("adding", 1), ("bar_chart", 2)] * 2, ("adding", 1)]
    alone = make_problem("bar_chart", 3_000_001, level=2)
    assert problems[1].id == alone.id
    assert problems[1].image.tobytes() == alone.image.tobytes()
    with pytest.raises(KeyError, match="clock"):
        make_problems(["adding", "clock"], 2, level=levels)
