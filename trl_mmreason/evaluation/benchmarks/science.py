"""Benchmarks of science, many subjects, logic, charts and diagrams."""

from __future__ import annotations

import re
import string
from pathlib import PurePosixPath
from typing import Any

from ...data.rows import Row
from ...grading.tolerance import Tolerance
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
    usual_question,
)
from .options import read_options

MMMU_SUBJECTS = tuple(
    (
        "Accounting Agriculture Architecture_and_Engineering Art Art_Theory Basic_Medical_Science Biology Chemistry "
        "Clinical_Medicine Computer_Science Design Diagnostics_and_Laboratory_Medicine Economics Electronics "
        "Energy_and_Power Finance Geography History Literature Manage Marketing Materials Math Mechanical_Engineering "
        "Music Pharmacy Physics Psychology Public_Health Sociology"
    ).split()
)
_ABSENT = ("none", "null")
# "We consider an answer to be correct if it is within 5 % of the gold answer" (arXiv:2203.10244, section 5.1)
_CHARTQA_ERROR = 0.05


def _mmmu(row: Row) -> Question:
    row_id, question = text(row, "id"), text(row, "question")
    options = listed(row, "options") if text(row, "question_type") == "multiple-choice" else []
    choices = lettered(options, "options")
    return Question(
        row_id,
        question,
        numbered_images(row, question, *options),
        letter(row, "answer", choices) if choices else _open_answer(row),
        choices,
        re.sub(r"\A[a-z]+_|_\d+\Z", "", row_id),  # validation_Art_Theory_7
    )


def _open_answer(row: Row) -> str | list[str]:
    """One answer, or a list in text form of which any entry is right."""
    answer = text(row, "answer")
    if not answer.startswith("["):
        return answer
    try:
        return [one for one in listed(row, "answer") if one] or answer
    except UnusableCell:  # for example an interval
        return answer


def _mmmu_pro(row: Row) -> Question:
    options = listed(row, "options")
    images = numbered_images(row, text(row, "question"), *options)
    return usual_question(row, images, required_choices(options, "options"))


def _mmmu_pro_vision(row: Row) -> Question:
    question = "The question and its choices are in the picture."
    choices = required_choices(listed(row, "options"), "options")
    return usual_question(row, image(row, "image"), choices, question=question)._replace(choices_shown=False)


def _mm_star(row: Row) -> Question:
    answer = text(row, "answer")
    question, choices = read_options(text(row, "question"), answer)
    return Question(text(row, "index"), question, image(row, "image"), answer, choices, label(row, "category"))


def _m3cot(row: Row) -> Question:
    choices = required_choices(listed(row, "choices"), "choices")
    images = image(row, "image", "image_path") if row.get("image") or row.get("image_path") else {}  # some have none
    return usual_question(row, images, choices, category="domain")._replace(hint=label(row, "context") or "")


def _logic_vista(row: Row) -> Question:
    answer = text(row, "answer")
    question, choices = read_options(label(row, "question") or QUESTION_IN_IMAGE, answer)
    images = image(row, "image", "imagename")
    name = label(row, "imagename", "id", "index")
    skills = ", ".join(listed(row, "skill")) if isinstance(row.get("skill"), list) else label(row, "skill")
    return Question(name and PurePosixPath(name).stem, question, images, answer, choices, skills or None)


def _is_question(row: Row) -> bool:
    """Whether there is a question or an answer; v1_382 of LogicVista's 448 rows is blank."""
    return bool(label(row, "question", "answer"))


def _emma(row: Row) -> Question:
    question = text(row, "question")
    context = label(row, "context") or ""
    if context.lower() in _ABSENT:
        context = ""
    is_choice = text(row, "type").lower().startswith("multiple")
    options = listed(row, "options") if is_choice else []
    images = numbered_images(row, context, question, *options)
    return usual_question(row, images, lettered(options, "options"), id_column="pid")._replace(hint=context)


def _ai2d(row: Row) -> Question:
    options = listed(row, "options")
    choices = required_choices(options, "options")
    index = text(row, "answer")
    if not index.isdecimal() or int(index) >= len(options) or not options[int(index)]:
        message = f"the answer is {index!r}; expected the position of one of {len(choices)} choices, counted from 0"
        raise UnusableCell("answer", "answer not among the choices", message)
    right = string.ascii_uppercase[int(index)]
    return Question(None, text(row, "question"), image(row, "image"), right, choices)


def _chart_qa(row: Row) -> Question:
    column = "label" if "label" in row else "answer"
    golds = listed(row, column) if isinstance(row.get(column), list) else [text(row, column)]
    golds = [gold for gold in golds if gold]
    if not golds:
        raise UnusableCell(column, "empty", f"it holds {row.get(column)!r}; every row needs an answer")
    return Question(
        None,
        text(row, "query", "question"),
        image(row, "image"),
        golds[0] if len(golds) == 1 else golds,
        category=_CHARTQA_KINDS.get(label(row, "human_or_machine", "type") or ""),
        tolerance=Tolerance(relative=_CHARTQA_ERROR, as_text=True),
    )


# A class label of the one copy, a string of the other.
_CHARTQA_KINDS = {"0": "human", "1": "augmented", "human_test": "human", "augmented_test": "augmented"}


_MMMU_PRO: dict[str, Any] = {**on_hub("MMMU/MMMU_Pro"), "paper": "2409.02813", "split": "test", "rows": 1730}
BENCHMARKS = (
    Benchmark(
        name="mmmu",
        title="MMMU, validation",
        **on_hub("MMMU/MMMU"),
        paper="2311.16502",
        split="validation",
        configs=MMMU_SUBJECTS,
        rows=900,
        columns=("id", "question", "options", "image_1", "answer", "question_type"),
        read=_mmmu,
    ),
    Benchmark(
        name="mmmu_pro/vision",
        title="MMMU-Pro, vision",
        configs=("vision",),
        columns=("id", "image", "options", "answer"),
        read=_mmmu_pro_vision,
        **_MMMU_PRO,
    ),
    Benchmark(
        name="mmmu_pro/standard",
        title="MMMU-Pro, standard with 10 options",
        configs=("standard (10 options)",),
        columns=("id", "question", "options", "image_1", "answer"),
        read=_mmmu_pro,
        **_MMMU_PRO,
    ),
    Benchmark(
        name="mmstar",
        title="MMStar",
        **on_hub("Lin-Chen/MMStar"),
        paper="2403.20330",
        split="val",
        rows=1500,
        id_column="index",
        columns=("index", "question", "image", "answer"),
        read=_mm_star,
    ),
    Benchmark(
        name="m3cot",
        title="M3CoT",
        **on_hub("LightChen2333/M3CoT"),
        paper="2405.16473",
        split="test",
        rows=2318,
        columns=("id", "question", "choices", "answer", ("image", "image_path")),
        read=_m3cot,
    ),
    Benchmark(
        name="logicvista",
        title="LogicVista",
        hub="lscpku/LogicVista",
        source="https://github.com/Yijia-Xiao/LogicVista",
        paper="2407.04973",
        split="test",
        rows=447,
        keep=_is_question,
        id_column="imagename",
        columns=("question", "answer", ("image", "imagename")),
        read=_logic_vista,
    ),
    Benchmark(
        name="emma",
        title="EMMA",
        **on_hub("luckychao/EMMA"),
        paper="2501.05444",
        split="test",
        configs=("Chemistry", "Coding", "Math", "Physics"),
        rows=2788,
        id_column="pid",
        columns=("pid", "question", "options", "answer", "image_1", "type"),
        read=_emma,
    ),
    Benchmark(
        name="ai2d",
        title="AI2D",
        **on_hub("lmms-lab/ai2d"),
        paper="1603.07396",
        split="test",
        rows=3088,
        id_column="",
        columns=("question", "options", "answer", "image"),
        read=_ai2d,
    ),
    Benchmark(
        name="chartqa",
        title="ChartQA",
        **on_hub("HuggingFaceM4/ChartQA"),
        paper="2203.10244",
        split="test",
        rows=2500,
        id_column="",
        columns=(("query", "question"), ("label", "answer"), "image"),
        read=_chart_qa,
    ),
)
