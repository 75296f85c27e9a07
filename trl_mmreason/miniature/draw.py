"""Draw the miniature's problems with PIL, one function for each category.

Every function takes a `random.Random` for what does not matter (offsets, noise, shades) and the numbers that do; the
same arguments and the same state of the random stream give the same bytes. `size` is the side of the square image
in pixels; positions inside are shares of it, so that a larger image is the same scene with more pixels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Point = tuple[float, float]

COLOURS: dict[str, Colour] = {
    "red": (215, 35, 35),
    "blue": (30, 80, 205),
    "green": (30, 145, 55),
    "orange": (250, 160, 20),
}
SHAPES = ("circles", "squares", "triangles")
CELLS_ACROSS = 9  # grid cells of a `lengths` image, and the top of a bar chart's scale
_GREY = (190, 190, 190)


def draw_adding(rng: random.Random, digits: Sequence[int], *, level: int, size: int) -> Image.Image:
    """Draw digits side by side, each in its own share of the width; at level 1 nothing else."""
    image, draw = _canvas(rng, size)
    column = size / len(digits)
    height = size * (0.4 if len(digits) == 2 else 0.32)
    sway, rise = (0.03, 0.04) if level == 1 else (0.04, 0.15)
    if level > 1:
        _noise_lines(rng, draw, size, count=2 * level - 1)
    for index, digit in enumerate(digits):
        x = (index + 0.5) * column + rng.uniform(-sway, sway) * size
        y = size / 2 + rng.uniform(-rise, rise) * size
        _write(draw, str(digit), (x, y), height, _ink(rng))
    return image


def draw_counting(rng: random.Random, shapes: Sequence[tuple[str, str]], *, columns: int, size: int) -> Image.Image:
    """Draw `shapes` as (kind, colour), each in its own cell of a `columns` x `columns` grid that is not drawn."""
    image, draw = _canvas(rng, size)
    cell = size / columns
    for (kind, colour), place in zip(shapes, rng.sample(range(columns**2), len(shapes)), strict=True):
        row, column = divmod(place, columns)
        radius = cell * rng.uniform(0.34, 0.4)
        x = (column + 0.5) * cell + rng.uniform(-0.08, 0.08) * cell
        y = (row + 0.5) * cell + rng.uniform(-0.08, 0.08) * cell
        _shape(draw, kind, (x, y), radius, COLOURS[colour])
    return image


def draw_bar_chart(rng: random.Random, bars: Mapping[str, int], *, size: int) -> Image.Image:
    """Draw upright bars over their letters; a grid line a unit, and the line of 5 is dark and labelled."""
    image, draw = _canvas(rng, size)
    unit = max(1, int(0.76 * size / CELLS_ACROSS))
    left, floor = round(0.14 * size), round(0.82 * size)
    slot = (size - left) / len(bars)
    for index, (letter, value) in enumerate(bars.items()):
        middle = left + (index + 0.5) * slot
        fill = COLOURS[rng.choice(list(COLOURS))]
        draw.rectangle((round(middle - 0.3 * slot), floor - value * unit, round(middle + 0.3 * slot), floor), fill=fill)
        _write(draw, letter, (middle, 0.915 * size), 0.13 * size, (20, 20, 20))
    for value in range(CELLS_ACROSS + 1):
        y = floor - value * unit
        draw.line((left, y, size, y), fill=(90, 90, 90) if value in (0, 5) else _GREY)
    _write(draw, "5", (0.065 * size, floor - 5 * unit), 0.13 * size, (20, 20, 20))
    return image


def draw_lengths(rng: random.Random, bars: Mapping[str, int], *, level: int, size: int) -> Image.Image:
    """Draw lying bars, colour → length in cells, cut into cells; level 1 starts them all at the left edge."""
    image, draw = _canvas(rng, size)
    cell = size // (CELLS_ACROSS + 1)
    left = (size - CELLS_ACROSS * cell) // 2
    for column in range(CELLS_ACROSS + 1):
        draw.line((left + column * cell, 0, left + column * cell, size), fill=(215, 215, 215))
    if level == 3:
        _noise_lines(rng, draw, size, count=4)
    slot = size / len(bars)
    for index, (colour, length) in enumerate(bars.items()):
        start = left + (0 if level == 1 else rng.randint(0, CELLS_ACROSS - length)) * cell
        middle = (index + 0.5) * slot + rng.uniform(-0.08, 0.08) * slot
        top, bottom = round(middle - 0.11 * size), round(middle + 0.11 * size)
        draw.rectangle((start, top, start + length * cell, bottom), fill=COLOURS[colour])
        for mark in range(length + 1):
            draw.line((start + mark * cell, top, start + mark * cell, bottom), fill=(255, 255, 255))
    return image


def draw_triangle(rng: random.Random, angles: Sequence[int], *, level: int, size: int) -> Image.Image:
    """Draw a triangle, not to scale, with two angles (degrees) at two corners and "?" at the third.

    Reading left corner, right corner, top, the known angles are in their order. Level 1 asks for the top, higher
    levels for any corner; level 3 also has a side length, which is of no use.
    """
    image, draw = _canvas(rng, size)
    if level > 1:
        _noise_lines(rng, draw, size, count=level)
    unknown = 2 if level == 1 else rng.randrange(3)
    at_corner = [*angles[:unknown], 180 - sum(angles), *angles[unknown:]]
    apex_x = _apex(at_corner[0], at_corner[1]) * size
    base_y = 0.72 * size
    corners: list[Point] = [(0.08 * size, base_y), (0.92 * size, base_y), (apex_x, 0.25 * size)]
    draw.line([*corners, corners[0]], fill=(40, 40, 40), width=max(1, size // 56))
    labels: list[Point] = [(0.2 * size, 0.86 * size), (0.8 * size, 0.86 * size), (apex_x, 0.13 * size)]
    for index, place in enumerate(labels):
        text = "?" if index == unknown else str(at_corner[index])
        _write(draw, text, place, 0.15 * size, (20, 20, 20))
    if level == 3:
        _write(draw, str(rng.randint(2, 9)), (apex_x, 0.58 * size), 0.15 * size, COLOURS["blue"])
    return image


def draw_clock(rng: random.Random, hour: int, minute: int, *, level: int, size: int) -> Image.Image:
    """Draw a round clock; level 3 has no numbers on its face and a thin red hand for the seconds."""
    image, draw = _canvas(rng, size)
    centre, radius = size / 2, 0.47 * size
    draw.ellipse((centre - radius, centre - radius, centre + radius, centre + radius), outline=(40, 40, 40))
    for tick in range(12):
        inner = 0.82 if tick % 3 == 0 else 0.9
        draw.line(
            [_on_circle(centre, inner * radius, tick / 12), _on_circle(centre, radius, tick / 12)],
            fill=(40, 40, 40),
            width=max(1, size // 56),
        )
    if level < 3:
        for number in (3, 6, 9, 12):
            _write(draw, str(number), _on_circle(centre, 0.67 * radius, number / 12), 0.11 * size, (120,) * 3)
    else:
        tip = _on_circle(centre, 0.9 * radius, rng.random())
        draw.line([(centre, centre), tip], fill=COLOURS["red"], width=max(1, size // 112))
    hour_tip = _on_circle(centre, 0.48 * radius, (hour + minute / 60) / 12)
    draw.line([(centre, centre), hour_tip], fill=_ink(rng), width=max(3, round(0.06 * size)))
    minute_tip = _on_circle(centre, 0.88 * radius, minute / 60)
    draw.line([(centre, centre), minute_tip], fill=COLOURS["blue"], width=max(2, round(0.03 * size)))
    return image


def draw_table(rng: random.Random, rows: Sequence[Sequence[int]], *, level: int, size: int) -> Image.Image:
    """Draw a ruled table of single digits; level 3 has noise lines under the digits."""
    image, draw = _canvas(rng, size)
    if level == 3:
        _noise_lines(rng, draw, size, count=3)
    cell_width, cell_height = (size - 1) / len(rows[0]), (size - 1) / len(rows)
    for index in range(len(rows) + 1):
        draw.line((0, index * cell_height, size, index * cell_height), fill=(90, 90, 90))
    for index in range(len(rows[0]) + 1):
        draw.line((index * cell_width, 0, index * cell_width, size), fill=(90, 90, 90))
    height = 0.65 * min(cell_width, cell_height)
    for row, digits in enumerate(rows):
        for column, digit in enumerate(digits):
            place = ((column + 0.5) * cell_width, (row + 0.5) * cell_height)
            _write(draw, str(digit), place, height, _ink(rng))
    return image


def _canvas(rng: random.Random, size: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Make a light, nearly white image."""
    paper = (rng.randint(240, 255), rng.randint(240, 255), rng.randint(240, 255))
    image = Image.new("RGB", (size, size), paper)
    return image, ImageDraw.Draw(image)


def _ink(rng: random.Random) -> Colour:
    return (rng.randint(0, 60), rng.randint(0, 60), rng.randint(0, 60))


def _noise_lines(rng: random.Random, draw: ImageDraw.ImageDraw, size: int, *, count: int) -> None:
    """Draw pale lines across the image; first, so that they never cover what is to be read."""
    for _ in range(count):
        ends = [(rng.uniform(0, size), rng.uniform(0, size)) for _ in range(2)]
        draw.line(ends, fill=_GREY, width=max(1, size // 56))


@lru_cache(maxsize=64)
def _font(digit_height: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    # a digit of Pillow's built-in font is 0.72 of the nominal size tall
    return ImageFont.load_default(size=digit_height / 0.72)


def _write(draw: ImageDraw.ImageDraw, text: str, centre: Point, height: float, fill: Colour) -> None:
    """`text` with its ink centred on `centre`; `height` is a digit's in pixels."""
    font = _font(height)
    # placed by its base line: Pillow cuts off the top of text whose origin lies above the image
    left, top, right, bottom = font.getbbox(text, anchor="ls")
    origin = (centre[0] - (left + right) / 2, centre[1] - (top + bottom) / 2)
    draw.text(origin, text, font=font, fill=fill, anchor="ls")


def _shape(draw: ImageDraw.ImageDraw, kind: str, centre: Point, radius: float, fill: Colour) -> None:
    x, y = centre
    if kind == "circles":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
    elif kind == "squares":
        half = 0.85 * radius
        draw.rectangle((x - half, y - half, x + half, y + half), fill=fill)
    else:
        draw.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=fill)


def _apex(left_degrees: float, right_degrees: float) -> float:
    """Position of the top over a base from 0.08 to 0.92, away from the corners to leave room for labels."""
    left, right = 1 / math.tan(math.radians(left_degrees)), 1 / math.tan(math.radians(right_degrees))
    return min(0.75, max(0.25, 0.08 + 0.84 * left / (left + right)))


def _on_circle(centre: float, radius: float, turn: float) -> Point:
    """The point at `turn` of a full turn, clockwise from the top."""
    angle = 2 * math.pi * turn
    return centre + radius * math.sin(angle), centre - radius * math.cos(angle)
