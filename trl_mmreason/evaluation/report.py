"""One self-contained HTML page: settings, tables, training curves, and a browser of what the model wrote.

The page loads nothing from anywhere: images are inlined, and its content policy forbids every request. All
text is escaped by the template; nothing that a model wrote becomes markup, script or JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from ..data.folders import write_whole
from ..data.images import page_data_url
from .metrics import Estimate, Metric, metric_of
from .plots import Plot
from .trajectory import NOT_GRADED, Piece, Trajectory

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
TURNS = (
    " t1 and t2 are the first and the second answer; correction is a wrong first answer made right, misjudgment "
    "a right one made wrong."
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
        path: the HTML file to write.
        command: the command line that made the results; "" if it is not known.
        settings: names and values, shown in their order.
        tables: shown in this order.
        trajectories: what the browser shows, in this order; those of all runs together.
        plots, plots_title, plots_note: curves, what stands above and what below them.
        notes: sentences that a reader should see first, such as what could not be graded.

    Raises:
        ValueError: when trajectories with one id differ in question, answer or category.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": _number, "percent": _percent, "tokens": _with_faint_tokens}
    environment.filters |= {"fragment": _fragment, "json": json.dumps}
    page = environment.from_string(_content("report.html")).render(
        content=_content,
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


def results_table(
    metrics: Mapping[str, Mapping[str, Estimate]],
    changes: Mapping[str, Mapping[str, Estimate]],
    *,
    title: str,
    note: str,
) -> ReportTable:
    """Build the table of one or more runs, with shares plotted.

    Args:
        metrics: name of the run → its metrics.
        changes: name of each run but the first → what it has more than the first.
        title, note: above and below the table.
    """
    first, *others = metrics
    header = ["", first]
    for run in others:
        header += [run, "change" if len(others) == 1 else f"{run} − {first}"]
    fullest_first = sorted(metrics.values(), key=len, reverse=True)  # the order of the run with most metrics is kept
    rows = []
    for name in dict.fromkeys(name for estimates in fullest_first for name in estimates):
        metric = metric_of(name)
        cells = [cell(metric, metrics[first].get(name))]
        for run in others:
            change = changes[run].get(name)
            cells += [cell(metric, metrics[run].get(name)), cell(metric, change, signed=True)]
        rows.append(
            TableRow(metric.label, cells, [mark_of(metric, estimates.get(name)) for estimates in metrics.values()])
        )
    return ReportTable(title, header, rows, note, list(metrics))


def side_by_side(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the settings of all runs; where they differ, the values name their runs.

    Args:
        settings: name of the run → its settings.
    """
    together = {}
    for name in dict.fromkeys(name for of_run in settings.values() for name in of_run):
        values = {run: of_run.get(name, "") for run, of_run in settings.items()}
        first, *others = values.values()
        alike = all(other == first for other in others)
        together[name] = first if alike else "; ".join(f"{run}: {value}" for run, value in values.items())
    return together


def mark_of(metric: Metric, estimate: Estimate | None) -> Mark | None:
    """The plotted mark of a metric: a share with its interval; `None` for other metrics."""
    if estimate is None or not metric.is_share:
        return None
    mark = Mark(estimate.value, *estimate.interval)
    return mark if all(0 <= place <= 1 for place in mark) else None  # never of NaN


def cell(metric: Metric, estimate: Estimate | None, signed: bool = False) -> tuple[str, str]:
    """A number and its interval, as cells of a `TableRow`."""
    if estimate is None:
        return "", ""
    number, interval = metric.with_interval(estimate, signed).split(" ", maxsplit=1)
    return number, interval


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
        "images": [{"uri": page_data_url(one), "small": max(one.size) < _SMALL_SIDE_PIXELS} for one in first.images],
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
    """Whether another run is right more often, or less often, than the first."""
    verdicts: dict[str, list[bool]] = {}
    for trajectory in group:
        if trajectory.is_right is not None:
            verdicts.setdefault(trajectory.run, []).append(trajectory.is_right)
    first, *others = [fmean(of_run) for of_run in verdicts.values()] or [0.0]
    return [
        *(["better"] if any(share > first for share in others) else []),
        *(["worse"] if any(share < first for share in others) else []),
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


def _fragment(text: str) -> str:
    """Encode a string as a URL fragment."""
    return quote(text.encode("utf-8", "replace"), safe="")


def _number(value: float | None) -> str:
    """Format a number with three digits."""
    return "n/a" if value is None or math.isnan(value) else f"{value:.3g}"


def _with_faint_tokens(text: str) -> Markup:
    """The text, escaped, with names of special tokens such as `<|reasoning_start|>` in smaller print."""
    parts: list[str] = _SPECIAL_TOKEN.split(text)
    tokens = [Markup('<span class="token">{}</span>').format(token) for token in parts[1::2]]
    parts[1::2] = tokens
    return Markup("").join(map(escape, parts))


def _percent(piece: Piece) -> str:
    """A piece's score in percent, for the style sheet."""
    assert piece.score is not None
    return f"{100 * min(max(piece.score, 0.0), 1.0):.0f}%"
