"""One self-contained HTML page: settings, metrics, training curves, and a browser of what the model wrote.

The page loads nothing from anywhere: pictures are inlined, and its content policy forbids every request. All
text is escaped by the template; nothing that a model wrote becomes markup, script or JSON.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from PIL import Image

from .metrics import METRICS, Change

_TEMPLATE = Path(__file__).with_name("report.html")
_MAX_SIDE_PIXELS = 768  # larger pictures are shrunk, or a few hundred photographs make a page that no browser opens
_SMALL_SIDE_PIXELS = 200  # smaller ones are shown enlarged, with sharp pixels


@dataclass(frozen=True, kw_only=True)
class TwoTurnTrajectory:
    """One question answered twice by one model, as the report shows it.

    Attributes:
        id: the question's id; trajectories with the same id are shown side by side.
        category: kind of question, for the filter.
        question, answer: what was asked, and the gold answer.
        images: the question's pictures.
        first, second: the two answers' text; `second` is None when there is none, as when the first answer never
            ended.
        first_correct, second_correct: the verdicts; a second answer that is missing is not correct.
        stage: which model answered, such as "before" or "after".
        problem: what is wrong with the form of the text, if the method wants one; None when nothing is.
    """

    id: str
    category: str
    question: str
    answer: str
    images: Sequence[Image.Image]
    first: str
    second: str | None
    first_correct: bool
    second_correct: bool
    stage: str
    problem: str | None = None

    def __post_init__(self) -> None:
        if self.second is None and self.second_correct:
            raise ValueError(f"trajectory {self.id!r} ({self.stage}): second_correct is True but second is None")

    @property
    def transition(self) -> str:
        """The type i→j, such as `0→1` for a wrong answer that the second turn made right."""
        return f"{int(self.first_correct)}→{int(self.second_correct)}"


def write_report(
    path: str | Path,
    *,
    title: str,
    command: str,
    settings: Mapping[str, Any],
    comparison: Mapping[str, Change],
    trajectories: Sequence[TwoTurnTrajectory],
    curves_png: str | Path,
) -> None:
    """Write the report.

    Args:
        path: the HTML file to write.
        command: the command line that made the results.
        settings: names and values, shown in their order.
        comparison: what `metrics.compare` returned.
        trajectories: what the browser shows, in this order; all stages together.
        curves_png: the picture that `curves.plot_curves` wrote.

    Raises:
        ValueError: when trajectories with one id differ in question, answer or category.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        title=title,
        command=command,
        settings=settings,
        metrics=[(METRICS[name], row) for name, row in comparison.items()],
        curves=_data_uri(Path(curves_png).read_bytes()),
        questions=[_question(group) for group in _by_question(trajectories)],
        transitions=["0→0", "0→1", "1→0", "1→1"],
        categories=sorted({trajectory.category for trajectory in trajectories}),
        stages=list(dict.fromkeys(trajectory.stage for trajectory in trajectories)),
    )
    # A model can write half a surrogate pair, which UTF-8 cannot hold.
    Path(path).write_text(page, encoding="utf-8", errors="replace")


def _by_question(trajectories: Sequence[TwoTurnTrajectory]) -> list[list[TwoTurnTrajectory]]:
    groups: dict[str, list[TwoTurnTrajectory]] = {}
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


def _question(group: list[TwoTurnTrajectory]) -> dict[str, Any]:
    """What the template needs of one question; its pictures are taken once, from the first trajectory."""
    return {
        "trajectories": group,
        "pictures": [
            {"uri": _data_uri(_png(image)), "small": max(image.size) < _SMALL_SIDE_PIXELS} for image in group[0].images
        ],
        **{field: getattr(group[0], field) for field in ("id", "category", "question", "answer")},
    }


def _png(image: Image.Image) -> bytes:
    picture = image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGBA")
    if max(picture.size) > _MAX_SIDE_PIXELS:
        picture = picture.copy()  # thumbnail() works in place
        picture.thumbnail((_MAX_SIDE_PIXELS, _MAX_SIDE_PIXELS))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
