"""One self-contained HTML page: settings, tables, training curves, and a browser of what the model wrote.

The page loads nothing from anywhere: pictures are inlined, and its content policy forbids every request. All
text is escaped by the template; nothing that a model wrote becomes markup, script or JSON.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from ..pictures import data_uri
from .metrics import Change, Estimate, Metric, metric_of
from .trajectory import Piece, Trajectory

_TEMPLATE = Path(__file__).with_name("report.html")
_SPECIAL_TOKEN = re.compile(r"(<\|[^<>|\s]{1,60}\|>)")
_SMALL_SIDE_PIXELS = 200  # smaller ones are shown enlarged, with sharp pixels


TURNS = (
    " t1 and t2 are the first and the second answer; correction is a wrong first answer made right (0→1), misjudgment "
    "a right one made wrong (1→0)."
)


class Table(NamedTuple):
    """Numbers in rows and columns.

    Attributes:
        title: its heading.
        header: the name of every column, the first included, which may be "".
        rows: each its label, in the first column, and its cells: the number, and the small print behind it or "".
        note: what a reader has to know, below the table.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    note: str = ""


def write_report(
    path: str | Path,
    *,
    title: str,
    command: str,
    settings: Mapping[str, Any],
    tables: Sequence[Table],
    trajectories: Sequence[Trajectory],
    curves_png: str | Path | None = None,
    curves_title: str = "Training curves",
    notes: Sequence[str] = (),
) -> None:
    """Write the report; a section without content is left out.

    Args:
        path: the HTML file to write.
        command: the command line that made the results; "" if it is not known.
        settings: names and values, shown in their order.
        tables: shown in this order.
        trajectories: what the browser shows, in this order; all stages together.
        curves_png, curves_title: a picture, such as that of `curves.plot_curves`, and what stands above it.
        notes: sentences that a reader should see first, such as what could not be graded.

    Raises:
        ValueError: when trajectories with one id differ in question, answer or category.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": _number, "percent": _percent, "tokens": _with_faint_tokens}
    filters = [
        ("type", "Transition", sorted({trajectory.transition for trajectory in trajectories})),
        ("category", "Category", sorted({trajectory.category for trajectory in trajectories} - {""})),
        ("stage", "Stage", list(dict.fromkeys(trajectory.stage for trajectory in trajectories))),
    ]
    page = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        title=title,
        command=command,
        settings=settings,
        notes=notes,
        tables=[table for table in tables if table.rows],
        curves=None if curves_png is None else _inlined(Path(curves_png)),
        curves_title=curves_title,
        questions=[_question(group) for group in _by_question(trajectories)],
        filters=filters,
    )
    # A model can write half a surrogate pair, which UTF-8 cannot hold.
    Path(path).write_text(page, encoding="utf-8", errors="replace")


def comparison_table(
    comparison: Mapping[str, Change],
    *,
    title: str = "Before and after training",
    sides: tuple[str, str] = ("before", "after"),
    note: str = f"Percent, or what the name says. Brackets: 95 % bootstrap intervals over questions.{TURNS}",
    metric_of: Callable[[str], Metric] = metric_of,
) -> Table:
    """The table of what `metrics.compare` returned, or another comparison of two."""
    rows = []
    for name, row in comparison.items():
        metric = metric_of(name)
        cells = [cell(metric, row.before), cell(metric, row.after), cell(metric, row.change, signed=True)]
        rows.append((metric.label, cells))
    return Table(title, ["", *sides, "change"], rows, note)


def cell(metric: Metric, estimate: Estimate, signed: bool = False) -> tuple[str, str]:
    """A number and its interval, as cells of a `Table` have them."""
    number, interval = metric.with_interval(estimate, signed).split(" ", maxsplit=1)
    return number, interval


def _by_question(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        group = groups.setdefault(trajectory.id, [])
        group.append(trajectory)
        for field in ("question", "answer", "category"):
            known, new = getattr(group[0], field), getattr(trajectory, field)
            if known != new:
                raise ValueError(
                    f"trajectories with id {trajectory.id!r} differ in {field}: {known!r} and {new!r}; "
                    "give each question its own id"
                )
    return list(groups.values())


def _question(group: list[Trajectory]) -> dict[str, Any]:
    """What the template needs of one question; its pictures are taken once, from the first trajectory."""
    return {
        "trajectories": group,
        "pictures": [
            {"uri": data_uri(image), "small": max(image.size) < _SMALL_SIDE_PIXELS} for image in group[0].images
        ],
        **{field: getattr(group[0], field) for field in ("id", "category", "question", "answer")},
    }


def _number(value: float | None) -> str:
    """Three digits are enough to compare two trajectories by."""
    return "n/a" if value is None or math.isnan(value) else f"{value:.3g}"


def _with_faint_tokens(text: str) -> Markup:
    """The text, escaped, with names of special tokens such as `<|reasoning_start|>` in smaller print."""
    parts: list[str] = _SPECIAL_TOKEN.split(text)
    tokens = [Markup('<span class="token">{}</span>').format(token) for token in parts[1::2]]
    parts[1::2] = tokens
    return Markup("").join(map(escape, parts))


def _percent(piece: Piece) -> str:
    """Where a scored piece stands between wrong and right, for the style sheet."""
    assert piece.score is not None
    return f"{100 * min(max(piece.score, 0.0), 1.0):.0f}%"


def _inlined(png: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode("ascii")
