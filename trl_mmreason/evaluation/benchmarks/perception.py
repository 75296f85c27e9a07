"""Benchmarks of visual logic, physics, scientific charts, and fine or high-resolution perception."""

from __future__ import annotations

import re
import string
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ...data.rows import Row
from . import charxiv
from .adapter import (
    QUESTION_IN_IMAGE,
    Benchmark,
    Question,
    UnusableCell,
    image,
    label,
    letter,
    lettered,
    listed,
    numbered_images,
    on_hub,
    required_choices,
    text,
)
from .options import read_options

BLINK_TASKS = tuple(
    (
        "Art_Style Counting Forensic_Detection Functional_Correspondence IQ_Test Jigsaw Multi-view_Reasoning "
        "Object_Localization Relative_Depth Relative_Reflectance Semantic_Correspondence Spatial_Relation "
        "Visual_Correspondence Visual_Similarity"
    ).split()
)
_IN_THE_IMAGE = {one: one for one in "ABCD"}  # choices that are drawn
# The end of a question that asks for the answer alone; the instruction takes its place.
_DIRECTLY = re.compile(
    r"\s*(?:Please answer directly with|Answer with the option's letter from the given choices)[^\n]*\Z", re.IGNORECASE
)
# What CharXiv's graders hold an answer to, by `reasoning_a_type`, the `inst_category` of the authors' own files
# (arXiv:2406.18521, appendix of its prompts). `reasoning_q_source` beside it says who wrote the question.
_CHARXIV_TEXT, _CHARXIV_NUMBER = 1, 3


def _visu_logic(row: Row) -> Question:
    right = letter(row, "label", _IN_THE_IMAGE)
    question, choices = read_options(text(row, "question"), right)
    return Question(
        text(row, "id"), question, image(row, "image_path"), right, choices or dict(_IN_THE_IMAGE), label(row, "tag")
    )


def _visual_puzzles(row: Row) -> Question:
    choices = lettered(listed(row, "options"), "options") or dict(_IN_THE_IMAGE)
    right = letter(row, "answer", choices)
    return Question(text(row, "id"), text(row, "question"), image(row, "image"), right, choices, label(row, "category"))


def _phyx(row: Row) -> Question:
    answer = text(row, "answer")
    return Question(
        text(row, "index"), text(row, "question"), image(row, "image"), answer, None, label(row, "category")
    )


def _phyx_choices(row: Row) -> Question:
    right = letter(row, "answer", _IN_THE_IMAGE)
    question, choices = read_options(text(row, "question"), right)
    return Question(text(row, "index"), question, image(row, "image"), right, choices, label(row, "category"))


def _see_phys(row: Row) -> Question:
    # "nan" is what pandas makes of an empty cell; a row without a question has it in its image
    asked, figures = (None if (found := label(row, name)) == "nan" else found for name in ("question", "sig_figs"))
    hint = f"Give the final answer with {figures} significant figures." if figures else ""
    images = {"images": row.get("images")}
    return Question(
        text(row, "index"), asked or QUESTION_IN_IMAGE, images, text(row, "answer"), None, label(row, "subject"), hint
    )


def _char_xiv(row: Row) -> Question:
    answer = text(row, "reasoning_a")
    kind = text(row, "reasoning_a_type")
    if not kind.isdecimal() or not 1 <= int(kind) <= 4:
        message = f"it holds {kind!r}; expected 1 to 4, which say what form the answer has"
        raise UnusableCell("reasoning_a_type", "unknown form of answer", message)
    hint = ""
    if int(kind) == _CHARXIV_TEXT:
        hint = "The answer is text that stands in the chart."
    elif int(kind) >= _CHARXIV_NUMBER:
        decimals = len(answer.partition(".")[2])
        # not "decimal places", by which the grader would take 2.504 for 2.50; the authors ask for the exact value
        form = f"with {decimals} digit{'s' * (decimals > 1)} after the point" if decimals else "a whole one"
        stands = " that stands in the chart" if int(kind) == _CHARXIV_NUMBER else f", {form}"
        hint = f"The answer is a number{stands}."
    question = text(row, "reasoning_q")
    return Question(
        label(row, "figure_path"), question, image(row, "image"), answer, None, label(row, "category"), hint
    )


def _real_world_qa(row: Row) -> Question:
    answer = text(row, "answer")
    question, choices = read_options(_DIRECTLY.sub("", text(row, "question")), answer)
    return Question(None, question, image(row, "image"), answer, choices)


def _v_star(row: Row) -> Question:
    right = letter(row, "label", _IN_THE_IMAGE)
    question, choices = read_options(_DIRECTLY.sub("", text(row, "text")), right)
    return Question(text(row, "question_id"), question, image(row, "image"), right, choices, label(row, "category"))


def _hr_bench(row: Row) -> Question:
    choices = required_choices([label(row, one) or "" for one in "ABCD"], "A")
    right, question = letter(row, "answer", choices), text(row, "question")
    return Question(
        text(row, "index"),
        question,
        image(row, "image"),
        right,
        choices,
        label(row, "category"),
        group=f"{question} {'; '.join(sorted(choices.values()))}",  # four rows, with four orders of the choices
    )


def _blink(row: Row) -> Question:
    choices = required_choices(listed(row, "choices"), "choices")
    right = letter(row, "answer", choices)
    whole = text(row, "prompt")
    stem, shown = read_options(whole, right)
    is_split = shown is not None and shown.keys() == choices.keys()
    return Question(
        text(row, "idx"),
        stem if is_split else whole,
        {"image_1": row.get("image_1"), **numbered_images(row, whole)},
        right,
        choices,
        label(row, "sub_task"),
        choices_shown=is_split,  # else they are in the text as it is
    )


def _mean_over_tasks(rows: Sequence[Row], correct: Sequence[bool | None]) -> dict[str, float]:
    """BLINK's score: its tasks weigh alike, however many questions they have (eval/evaluate.py of its authors)."""
    by_task: dict[str, list[bool]] = defaultdict(list)
    for row, right in zip(rows, correct, strict=True):
        if right is not None:
            by_task[row["category"]].append(right)
    return {"mean_over_tasks": fmean(map(fmean, by_task.values()))} if len(by_task) > 1 else {}


_PHYX: dict[str, Any] = {
    **on_hub("Cloudriver/PhyX"),
    "paper": "2505.15929",
    "configs": ("data_for_llms_eval",),
    "id_column": "index",
    "columns": ("index", "question", "answer", "image"),
}
_PHYX_OPEN, _PHYX_CHOICES = {**_PHYX, "read": _phyx}, {**_PHYX, "read": _phyx_choices}
_HR_BENCH: dict[str, Any] = {
    **on_hub("DreamMr/HR-Bench"),
    "paper": "2408.15556",
    "configs": ("hrbench_version_split",),
    "rows": 800,
    "id_column": "index",
    "columns": ("index", "question", "answer", *string.ascii_uppercase[:4], "image"),
    "read": _hr_bench,
}
BENCHMARKS = (
    Benchmark(
        name="visulogic",
        title="VisuLogic",
        hub="",
        source="https://huggingface.co/datasets/VisuLogic/VisuLogic",
        paper="2504.15279",
        split="train",
        rows=1000,
        columns=("id", "question", "label", "image_path"),
        read=_visu_logic,
    ),
    Benchmark(
        name="visualpuzzles",
        title="VisualPuzzles",
        **on_hub("neulab/VisualPuzzles"),
        paper="2504.10342",
        split="train",
        rows=1168,
        columns=("id", "question", "options", "answer", "image"),
        read=_visual_puzzles,
    ),
    Benchmark(name="phyx", title="PhyX mini, open answers", split="phyx_mini_oe", rows=1000, **_PHYX_OPEN),
    Benchmark(
        name="phyx/choices", title="PhyX mini, multiple choice", split="phyx_mini_mc", rows=1000, **_PHYX_CHOICES
    ),
    Benchmark(name="phyx/full", title="PhyX, open answers", split="phyx_oe", rows=3000, **_PHYX_OPEN),
    Benchmark(name="phyx/full_choices", title="PhyX, multiple choice", split="phyx_mc", rows=3000, **_PHYX_CHOICES),
    Benchmark(
        name="seephys",
        title="SeePhys",
        **on_hub("SeePhys/SeePhys"),
        paper="2505.19099",
        split="train",
        rows=2000,
        id_column="index",
        columns=("index", "question", "answer", "images"),
        read=_see_phys,
    ),
    Benchmark(
        name="charxiv",
        title="CharXiv, reasoning questions, validation",
        **on_hub("princeton-nlp/CharXiv"),
        paper="2406.18521",
        split="validation",
        rows=1000,
        id_column="figure_path",
        columns=("reasoning_q", "reasoning_a", "reasoning_a_type", "image"),
        read=_char_xiv,
    ),
    Benchmark(
        name="charxiv/descriptive",
        title="CharXiv, descriptive questions, validation",
        **on_hub("princeton-nlp/CharXiv"),
        paper="2406.18521",
        split="validation",
        rows=4000,
        id_column="figure_path",
        columns=(
            *(f"descriptive_{one}{part}" for part in range(1, charxiv.QUESTIONS_PER_CHART + 1) for one in "qa"),
            *("subplot_loc", "subplot_row", "subplot_col", "figure_path", "image"),
        ),
        read=charxiv.descriptive,
        questions_per_row=charxiv.QUESTIONS_PER_CHART,
    ),
    Benchmark(
        name="realworldqa",
        title="RealWorldQA",
        **on_hub("xai-org/RealworldQA"),
        split="test",
        rows=765,
        id_column="",
        columns=("question", "answer", "image"),
        read=_real_world_qa,
    ),
    Benchmark(
        name="vstar",
        title="V*Bench",
        **on_hub("lmms-lab/vstar-bench"),
        paper="2312.14135",
        split="test",
        rows=191,
        id_column="question_id",
        columns=("question_id", "text", "label", "image"),
        read=_v_star,
    ),
    Benchmark(name="hrbench/4k", title="HR-Bench 4K", split="hrbench_4k", **_HR_BENCH),
    Benchmark(name="hrbench/8k", title="HR-Bench 8K", split="hrbench_8k", **_HR_BENCH),
    Benchmark(
        name="blink",
        title="BLINK, validation",
        **on_hub("BLINK-Benchmark/BLINK"),
        paper="2404.12390",
        split="val",
        configs=BLINK_TASKS,
        rows=1901,
        id_column="idx",
        columns=("idx", "prompt", "choices", "answer", "image_1"),
        read=_blink,
        scores=_mean_over_tasks,
    ),
)
