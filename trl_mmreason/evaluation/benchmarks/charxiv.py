"""CharXiv's descriptive questions: four of 19 kinds about each chart (arXiv:2406.18521, section 2.2).

The data set stores the number of the kind, the place of the subplot and the answer. The questions are those of
github.com/princeton-nlp/CharXiv (src/descriptive_utils.py); the form of the answer is told in our words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .adapter import Question, UnusableCell, image, label, text

QUESTIONS_PER_CHART = 4
_X = "An x-axis that several subplots share counts; of two x-axes, take the lower one."
_Y = "A y-axis that several subplots share counts; of two y-axes, take the left one."
_TICK = "Leave out units and scales that are written apart from the tick."
_STEP = 'Without numerical ticks, or if the difference varies, answer "Not Applicable".'
_LINES = 'Leave out grid lines, tick marks and auxiliary lines. In a plot without lines, answer "Not Applicable".'
_LEGEND = 'Only labels of this plot count, wherever the legend stands. Without a legend, answer "Not Applicable".'
_COLORBAR = 'Leave out a percent sign. Without a colorbar, answer "Not Applicable".'
_KINDS = (
    ("what is its title?", 'A letter alone is no title. Without a title, answer "Not Applicable".'),
    ("what is the label of the x-axis?", f'{_X} Without a label, answer "Not Applicable".'),
    ("what is the label of the y-axis?", f'{_Y} Without a label, answer "Not Applicable".'),
    ("what is the leftmost labeled tick on the x-axis?", f"{_X} {_TICK}"),
    ("what is the rightmost labeled tick on the x-axis?", f"{_X} {_TICK}"),
    ("what is the spatially lowest labeled tick on the y-axis?", f"{_Y} {_TICK}"),
    ("what is the spatially highest labeled tick on the y-axis?", f"{_Y} {_TICK}"),
    ("what is the difference between consecutive numerical tick values on the x-axis?", f"{_X} {_TICK} {_STEP}"),
    ("what is the difference between consecutive numerical tick values on the y-axis?", f"{_Y} {_TICK} {_STEP}"),
    ("how many lines are there?", _LINES),
    ("do any lines intersect?", f"Answer Yes or No. {_LINES}"),
    ("how many discrete labels are there in the legend?", _LEGEND),
    (
        "what are the names of the labels in the legend?",
        f"List them from top to bottom, then from left to right, separated by commas. {_LEGEND}",
    ),
    (
        "what is the difference between the maximum and minimum values of the tick labels on the continuous legend "
        "(i.e., colorbar)?",
        _COLORBAR,
    ),
    ("what is the maximum value of the tick labels on the continuous legend (i.e., colorbar)?", _COLORBAR),
    ("what is the general trend of data from left to right?", 'A few words, such as "increases then stabilizes".'),
    (
        "what is the total number of explicitly labeled ticks across all axes?",
        "Axes that several subplots share count.",
    ),
    ("What is the layout of the subplots?", 'Answer "n by m", n rows and m columns; without subplots "1 by 1".'),
    ("What is the number of subplots?", "Without subplots it is 1."),
)
_OF_THE_WHOLE = (18, 19)  # not of one subplot
# Kind → category of the authors' scores (src/score_utils.py).
_CATEGORIES = {
    **dict.fromkeys(range(1, 8), "information extraction"),
    **dict.fromkeys((8, 9, 13, 14, 15), "enumeration"),
    **dict.fromkeys((11, 16, 18), "pattern recognition"),
    **dict.fromkeys((10, 12, 19), "counting"),
    17: "compositionality",
}


def descriptive(row: Mapping[str, Any]) -> Question:
    """The question whose number, from 1 to 4, is in the column `part`."""
    part, chart = row["part"], text(row, "figure_path")
    column = f"descriptive_q{part}"
    kind = text(row, column)
    if not kind.isdecimal() or not 1 <= int(kind) <= len(_KINDS):
        raise UnusableCell(column, "unknown kind of question", f"it holds {kind!r}; expected 1 to {len(_KINDS)}")
    number = int(kind)
    question, form = _KINDS[number - 1]
    return Question(
        f"{chart}/{part}",
        question if number in _OF_THE_WHOLE else f"{_place(row)}, {question}",
        image(row, "image"),
        text(row, f"descriptive_a{part}"),
        None,
        _CATEGORIES[number],
        form,
        group=chart,
    )


def _place(row: Mapping[str, Any]) -> str:
    if named := label(row, "subplot_loc"):
        return f"For {named}"
    line, column = text(row, "subplot_row"), text(row, "subplot_col")
    return "For the current plot" if line == "0" else f"For the subplot at row {line} and column {column}"
