"""Two rows or more of every benchmark, written down as its data set is published, and what they must become."""

from benchmark_rows import charts, geometry, mathematics, perception, problems, science

LAYOUTS = {
    **mathematics.LAYOUTS,
    **problems.LAYOUTS,
    **geometry.LAYOUTS,
    **science.LAYOUTS,
    **charts.LAYOUTS,
    **perception.LAYOUTS,
}
