"""The full OlympiadBench, and the plane and solid geometry of three benchmarks, as rows of the whole ones."""

from dataclasses import replace

from benchmark_rows import mathematics, problems
from benchmark_rows.layout import Asked, row

_OLYMPIAD = problems.LAYOUTS["olympiadbench"]
_CHINESE = "设 $x$ 满足 $x+1=3$, 求 $x$."


def _part(whole, column, *topics):
    """The rows of a whole benchmark under these topics, of which all but the first belong to the part."""
    rows = [{**row, column: topic} for row, topic in zip(whole.rows, topics, strict=True)]
    return replace(whole, rows=rows, asked=[None, *whole.asked[1:]], needed=column)


_VISION, _DYNAMATH = mathematics.LAYOUTS["mathvision"], problems.LAYOUTS["dynamath"]
_ANGLE, _AREA = "metric geometry - angle", "metric geometry - area"
# fmt: off
LAYOUTS = {
    "mathvision/plane_geometry": _part(_VISION, "subject", "solid geometry", _ANGLE, _AREA),
    "mathvision/solid_geometry": _part(_VISION, "subject", "analytic geometry", *["solid geometry"] * 2),
    "dynamath/plane_geometry": _part(_DYNAMATH, "subject", "solid geometry", *["plane geometry"] * 2),
    "dynamath/solid_geometry": _part(_DYNAMATH, "subject", "plane geometry", *["solid geometry"] * 2),
    "olympiadbench/plane_geometry": _part(_OLYMPIAD, "subfield", "Algebra", "Geometry", "Plane Geometry"),
    "olympiadbench/solid_geometry": _part(_OLYMPIAD, "subfield", "Geometry", *["Solid Geometry"] * 2),
    "olympiadbench/full": replace(
        _OLYMPIAD,
        rows=[
            *_OLYMPIAD.rows,
            row(
                id=12, question=_CHINESE, final_answer=["$2$"], modality="Text-only", is_multiple_answer=False,
                answer_type="Numerical", subfield="Algebra", subject="Math", language="Chinese",
            ),
        ],
        asked=[*_OLYMPIAD.asked, Asked(right="2", wrong="3", answer="2")],
    ),
}
