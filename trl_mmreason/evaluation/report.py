"""One self-contained HTML page: settings, tables, training curves, and a browser of what the model wrote.

The page loads nothing from anywhere: images are inlined, and its content policy forbids every request. All
text is escaped by the template; nothing that a model wrote becomes markup, script or JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape
from PIL.Image import Image

from ..data.folders import write_whole
from ..data.images import page_data_url
from .curves import Plot
from .trajectory import NOT_GRADED, Trajectory

_PAGE = Path(__file__).with_name("page")  # the template, its style and script, and the library that draws
_SPECIAL_TOKEN = re.compile(r"(<\|[^<>|\s]{1,60}\|>)")
_SMALL_SIDE_PIXELS = 200  # smaller ones are shown enlarged, with sharp pixels
_COLOURS = 6  # colours of the style sheet, `--series-0` to `--series-5`

CURVES_NOTE = (
    "Thin: logged values; bold: mean over a trailing window of a tenth of the run. Drag over a plot to zoom into all "
    "of them, double-click to zoom out, click a name to hide its line."
)
INTERVALS_NOTE = (
    "Shaded: 95 % intervals over questions. Drag over a plot to zoom, double-click to zoom out, click a name to hide "
    "its line."
)


class Mark(NamedTuple):
    """A plotted value between 0 and 1, and the ends of its line, such as an interval's."""

    value: float
    low: float
    high: float


class TableRow(NamedTuple):
    """A line of a table.

    Attributes:
        label: the row's first column.
        cells: the number of each further column, and the small print after it or "".
        marks: what is drawn in the last column, in the order of the table's `marked`; `None` where nothing can be.
    """

    label: str
    cells: Sequence[tuple[str, str]]
    marks: Sequence[Mark | None] = ()


class ReportTable(NamedTuple):
    """Numbers in rows and columns, with a column for their plot.

    Attributes:
        title: heading of the table.
        header: the name of every column, the first included, which may be "".
        rows: rows, in order.
        note: explanation below the table.
        marked: names of the columns that are drawn; empty without a plot.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[TableRow]
    note: str = ""
    marked: Sequence[str] = ()


def write_report(
    path: str | Path,
    *,
    title: str,
    command: str,
    settings: Mapping[str, Any],
    tables: Sequence[ReportTable],
    trajectories: Sequence[Trajectory],
    plots: Sequence[Plot] = (),
    plots_title: str = "Training curves",
    plots_note: str = CURVES_NOTE,
    notes: Sequence[str] = (),
) -> None:
    """Write the report; a section without content is left out.

    Args:
        command: the command line that made the results; "" if it is not known.
        trajectories: what the browser shows, in this order; those of all runs together.
        plots, plots_title, plots_note: curves, what stands above and what below them.
        notes: sentences that a reader should see first, such as what could not be graded.

    Raises:
        ValueError: when trajectories with one id differ in question, answer or category.
    """
    filters: dict[str, Callable[..., Any]] = {
        "number": lambda value: "n/a" if value is None or math.isnan(value) else f"{value:.3g}",
        "percent": lambda share: f"{100 * min(max(share, 0.0), 1.0):.0f}%",
        "fragment": lambda text: quote(text.encode("utf-8", "replace"), safe=""),
        "tokens": _with_faint_tokens,
        "json": json.dumps,
    }
    page = page_template("report.html", filters).render(
        title=title,
        command=command,
        settings=settings,
        notes=notes,
        tables=[table for table in tables if table.rows],
        plots=[plot.as_json() for plot in plots],
        plots_title=plots_title,
        plots_note=plots_note,
        questions=[_question(group) for group in _by_question(trajectories)],
        filters=_filters(trajectories),
        sorted_by=list(dict.fromkeys(name for trajectory in trajectories for name in _values(trajectory))),
        colours=_COLOURS,
    )
    write_whole(path, page)


def page_template(name: str, filters: Mapping[str, Callable[..., Any]] | None = None) -> Template:
    """A template of the folder `page`, which escapes all text; `content(file)` puts one of its own files in."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= filters or {}
    environment.globals["content"] = _content
    return environment.from_string(_content(name))


def page_images(images: Iterable[Image]) -> list[dict[str, Any]]:
    """Images for a template: their data URLs, and whether they are small."""
    return [{"uri": page_data_url(one), "small": max(one.size) < _SMALL_SIDE_PIXELS} for one in images]


def side_by_side(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the settings of all runs; where they differ, the values name their runs."""
    together = {}
    for name in dict.fromkeys(name for of_run in settings.values() for name in of_run):
        values = {run: of_run.get(name, "") for run, of_run in settings.items()}
        first, *others = values.values()
        alike = all(other == first for other in others)
        together[name] = first if alike else "; ".join(f"{run}: {value}" for run, value in values.items())
    return together


def _content(name: str) -> Markup:
    """Read one of the page's own files, which is not escaped."""
    return Markup((_PAGE / name).read_text(encoding="utf-8"))


def _by_question(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Group trajectories by card: one question, and in training one run and step."""
    groups: dict[tuple[Any, ...], list[Trajectory]] = {}
    for trajectory in trajectories:
        of_training = () if trajectory.step is None else (trajectory.run, trajectory.step)
        group = groups.setdefault((trajectory.id, *of_training), [])
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
    """The template's values for one question, with the images of its first trajectory."""
    first = group[0]
    graded = [trajectory.is_right for trajectory in group if trajectory.is_right is not None]
    is_group = first.step is not None
    return {
        "trajectories": [{"of": trajectory, "values": _values(trajectory)} for trajectory in group],
        "images": page_images(first.images),
        "about": [
            first.id,
            first.category,
            *([first.run, f"step {first.step}"] if is_group else []),
            f"{sum(graded)} of {len(graded)} right" if len(graded) > 1 else "",
        ],
        "change": " ".join(_changes(group)),
        "columns": list(dict.fromkeys(name for one in group for name in one.rewards)) if is_group else [],
        "largest_advantage": max((abs(one.rewards.get("advantage") or 0.0) for one in group), default=0.0) or 1.0,
        **{field: getattr(first, field) for field in ("id", "category", "question", "answer", "step")},
    }


def _changes(group: Sequence[Trajectory]) -> list[str]:
    """Whether another run is right more often, or less often, than the first; neither if that has no verdict."""
    verdicts: dict[str, list[bool]] = {}
    for trajectory in group:
        if trajectory.is_right is not None:
            verdicts.setdefault(trajectory.run, []).append(trajectory.is_right)
    shares = {run: fmean(of_run) for run, of_run in verdicts.items()}
    first = shares.get(group[0].run, math.nan)
    return [
        *(["better"] if any(share > first for share in shares.values()) else []),
        *(["worse"] if any(share < first for share in shares.values()) else []),
    ]


def _filters(trajectories: Sequence[Trajectory]) -> list[tuple[str, str, list[str]]]:
    """Name, label and choices of every filter that has a choice."""
    types = sorted({trajectory.transition for trajectory in trajectories})
    turns = [kind.split("→") for kind in types]
    verdicts = sorted({verdicts[-1] for verdicts in turns} - {NOT_GRADED})
    changed = ["changed"] if any(verdicts[0] != verdicts[-1] for verdicts in turns) else []
    runs = list(dict.fromkeys(trajectory.run for trajectory in trajectories))
    changes = sorted({change for group in _by_question(trajectories) for change in _changes(group)})
    filters = [
        ("type", "Verdict", [*verdicts, *changed, *(kind for kind in types if kind not in verdicts)]),
        ("change", f"Compared with {''.join(runs[:1])}", ["better or worse", *changes] if changes else []),
        ("run", "Run", runs),
        ("step", "Step", list(dict.fromkeys(str(one.step) for one in trajectories if one.step is not None))),
        ("category", "Category", sorted({trajectory.category for trajectory in trajectories} - {""})),
    ]
    return [(name, label, choices) for name, label, choices in filters if len(choices) > 1]


def _values(trajectory: Trajectory) -> dict[str, float]:
    """The sort keys of trajectories."""
    known = {name: value for name, value in trajectory.rewards.items() if value is not None and math.isfinite(value)}
    return {**known, "length": sum(len(piece.text) for turn in trajectory.turns if turn for piece in turn.pieces)}


def _with_faint_tokens(text: str) -> Markup:
    """The text, escaped, with names of special tokens such as `<|reasoning_start|>` in smaller print."""
    parts: list[str] = _SPECIAL_TOKEN.split(text)
    tokens = [Markup('<span class="token">{}</span>').format(token) for token in parts[1::2]]
    parts[1::2] = tokens
    return Markup("").join(map(escape, parts))
