"""Load benchmarks in the common row format, with every image decoded and every gold answer checked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, Json, Value

from ...data.image_size import PixelBounds, fitted_image
from ...data.row_loading import checked_features, list_first, row_problems, with_plain_answers
from ...data.row_sources import LINE, parse_line
from ...data.row_values import RefusedValue, read_images
from . import drawn, mathematics, perception, science
from .adapter import Benchmark, BenchmarkError, Question, UnusableCell, image_numbers
from .prompt import TEMPLATE, check_prompt_template, name_images, render
from .sources import read_table

BENCHMARKS: dict[str, Benchmark] = {
    one.name: one for one in (*mathematics.BENCHMARKS, *science.BENCHMARKS, *perception.BENCHMARKS, *drawn.BENCHMARKS)
}

_COLUMNS = ("prompt", "images", "answer", "choices", "id", "category", "hint", "group", "tolerance")
_FEATURES = Features({**checked_features(), "hint": Value("string"), "group": Value("string"), "tolerance": Json()})


def load_benchmark(
    name: str,
    source: str | os.PathLike | Dataset | DatasetDict | None = None,
    *,
    split: str | None = None,
    image_root: str | os.PathLike | None = None,
    prompt_template: str | None = None,
    instruction: str | None = None,
    max_rows: int | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> Dataset:
    """Load a whole benchmark, or raise: without some rows it would be another benchmark.

    The dataset has these columns, as `data.load_rows` makes them where it knows them too:

    - `prompt`: one user message. Tags of images are written out ("image 2"), as the images stand before it.
    - `images`: images in RGB, decoded on access.
    - `answer`: a string; in every row a list of strings, any of which is right, if any row has several.
    - `choices`: letter → text, or None. The answer is then the letter.
    - `id`: unique. `category`: a string or None. `hint`: a string, "" without.
    - `group`: the problem that several rows are variants, versions or steps of, or None.
    - `tolerance`: for `grading.reward.grade_answers`, the fields of its `Tolerance` that are set, or None.

    A gold answer that the grader cannot use is loaded all the same; answers to it get no verdict, unless the tolerance
    says `as_text`.

    Args:
        name: one of `BENCHMARKS`.
        source: by default the benchmark's data set on the Hub. Another Hub id, or a copy: a folder of parquet files
            with or without configurations, one .parquet file, a .json or .jsonl file, a Dataset or a DatasetDict.
        split: another split of it; several are joined by "+". A single file is one split, whatever it is called.
        image_root: the folder that paths of images start from; by default that of the file.
        prompt_template: places for {question}, {choices}, {hint} and {instruction}; `TEMPLATE` by default.
        instruction: instead of the benchmark's own; "" for none.
        max_rows: only the first so many rows, for a trial.
        min_pixels, max_pixels: enlarge smaller images and shrink larger ones to so many pixels, as `load_rows` does.

    Raises:
        BenchmarkError: there is no such benchmark; its data are not there, or not laid out as published; or rows of it
            cannot be used: the first twenty problems are in the message, all in `problems`.
    """
    benchmark = BENCHMARKS.get(name)
    if benchmark is None:
        raise BenchmarkError(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    if max_rows is not None and max_rows < 1:
        raise BenchmarkError(f"{name}: max_rows is {max_rows}, expected at least 1, or None for all rows")
    pixels = PixelBounds(min_pixels, max_pixels)
    if pixels.problem:
        raise BenchmarkError(f"{name}: {pixels.problem}")
    template = TEMPLATE if prompt_template is None else prompt_template
    try:
        check_prompt_template(template)
    except ValueError as error:
        raise BenchmarkError(f"{name}: {error}") from error
    table = read_table(benchmark, source, split or benchmark.split, max_rows or benchmark.rows)
    positions = _benchmark_positions(benchmark, table.dataset, table.is_json)
    positions = [place for place in positions for _ in range(benchmark.questions_per_row)][:max_rows]
    if not positions:
        raise BenchmarkError(f"{name}: {table.name} has no rows of it among {len(table.dataset)}")
    root = table.image_root if image_root is None else Path(image_root)
    reader = _Reader(benchmark, root, template, benchmark.instruction if instruction is None else instruction, pixels)
    checked = table.dataset.select(positions).map(
        reader.check_line if table.is_json else reader.check,
        with_indices=True,
        features=_FEATURES,
        remove_columns=table.dataset.column_names,
        writer_batch_size=100,  # rows held in memory before writing; a row may hold megabytes of images
        load_from_cache_file=False,  # the images behind the paths may have changed
        desc=f"Checking {benchmark.title}",
    )
    problems, summary = row_problems(checked, positions, f"{name}, from {table.name}")
    if problems:
        raise BenchmarkError(f"{summary}:\n{list_first(problems, 20)}", problems)
    return _with_unique_ids(with_plain_answers(checked)).select_columns(list(_COLUMNS))


def _benchmark_positions(benchmark: Benchmark, table: Dataset, is_json: bool) -> list[int]:
    """Positions of the rows that belong to the benchmark."""
    keep = benchmark.keep
    if keep is None:
        return list(range(len(table)))
    if is_json:
        return [index for index, line in enumerate(table[LINE]) if _line_belongs(line, keep)]
    light = [column for column, feature in table.features.items() if isinstance(feature, Value)]
    return [index for index, row in enumerate(table.select_columns(light)) if keep(row)]


def _line_belongs(line: str, keep: Callable[[Mapping[str, Any]], bool]) -> bool:
    try:
        return keep(parse_line(line))
    except RefusedValue:
        return True  # the row's problem is reported later


@dataclass(frozen=True)
class _Reader:
    """Converts one benchmark's rows to the common format; picklable for the processes of `map`."""

    benchmark: Benchmark
    image_root: Path
    template: str
    instruction: str
    pixels: PixelBounds

    def check_line(self, line: Mapping[str, str], index: int) -> dict[str, Any]:
        try:
            row = parse_line(line[LINE])
        except RefusedValue as refused:
            return self._refused(index, [refused.in_column("line")])
        return self.check(row, index)

    def check(self, row: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Return our columns and `problems`; a row with problems has only these and an id."""
        try:
            question = self.benchmark.read({**row, "part": index % self.benchmark.questions_per_row + 1})
        except UnusableCell as refused:
            name = str(row.get(self.benchmark.id_column) or "")
            return self._refused(index, [refused.in_column(refused.column)], name)
        images, problems = [], []
        for column, value in question.images.items():
            try:
                of_cell = read_images(value, self.image_root)
                if not of_cell:
                    raise RefusedValue("missing image", "it holds none; complete the copy")
                images += of_cell
            except RefusedValue as refused:
                problems.append(refused.in_column(column))
        if problems:
            return self._refused(index, problems, question.id)
        if self.pixels != PixelBounds():
            images = [fitted_image(one, self.pixels) for one in images]
        return self._row(question, images, index)

    def _row(self, question: Question, images: list[dict[str, Any]], index: int) -> dict[str, Any]:
        numbers = image_numbers(question.images, len(images))
        question_text, choices, hint = name_images(question.question, question.choices, question.hint, numbers)
        content = render(
            self.template,
            question=question_text,
            choices=choices if question.choices_shown else None,
            hint=hint,
            instruction=self.instruction,
        )
        tolerance = question.tolerance and {name: one for name, one in question.tolerance._asdict().items() if one}
        return {
            "prompt": [{"role": "user", "content": content}],
            "images": images,
            "answer": [question.answer] if isinstance(question.answer, str) else question.answer,
            "choices": choices,
            "id": question.id or f"{self.benchmark.name}-{index}",
            "category": question.category,
            "hint": hint,
            "group": question.group,
            "tolerance": tolerance,
            "problems": [],
        }

    def _refused(self, index: int, problems: list[dict[str, str]], id: str | None = "") -> dict[str, Any]:
        empty = dict.fromkeys(_COLUMNS)
        name = id or f"{self.benchmark.name}-{index}"
        return {**empty, "prompt": [], "images": [], "answer": [], "id": name, "problems": problems}


def _with_unique_ids(checked: Dataset) -> Dataset:
    """Number repeated ids: variants of a problem, or the same number in two configurations."""
    ids = checked["id"][:]
    if len(set(ids)) == len(ids):
        return checked
    seen: Counter[str] = Counter()
    used_ids = set(ids)
    unique = []
    for one in ids:
        seen[one] += 1
        while seen[one] > 1 and f"{one}#{seen[one]}" in used_ids:
            seen[one] += 1
        unique.append(one if seen[one] == 1 else f"{one}#{seen[one]}")
    return checked.remove_columns("id").add_column("id", pa.array(unique, pa.string()), feature=Value("string"))
