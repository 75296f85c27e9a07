"""Benchmarks of mathematics and physics, each a function from a row to a question."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...data.rows import Row
from ...grading.tolerance import Tolerance
from . import we_math
from .adapter import (
    QUESTION_IN_IMAGE,
    Benchmark,
    Question,
    UnusableCell,
    image,
    is_one_of,
    label,
    letter_or_text,
    lettered,
    listed,
    numbered_images,
    on_hub,
    text,
    usual_question,
)
from .options import read_options, split_semicolons

# MathVista's own hints (github.com/lupantech/MathVista, evaluation/build_query.py).
_FORMS = {
    "choice": "Please answer the question and provide the correct option letter, e.g., A, B, C, D, at the end.",
    "integer": "Please answer the question requiring an integer answer and provide the final value, e.g., 1, 2, 3, at "
    "the end.",
    "list": "Please answer the question requiring a Python list as an answer and provide the final list, e.g., "
    "[1, 2, 3], [1.2, 1.3, 1.4], at the end.",
}
_PLACES = {"1": "one decimal place", "2": "two decimal places"}
_PLACES_SHOWN = {"1": "1.2, 1.3, 1.4", "2": "1.23, 1.34, 1.45"}
# DynaMath's evaluation takes a float for right within 0.001, and asks for three decimal places
# (github.com/DynaMath/DynaMath, evaluation/opensource_json_eval.py).
_DYNAMATH_ERROR = 0.001
_UNSTATED_ERROR = 1e-8  # OlympiadBench, for an answer among several that has no error of its own
_MATH_SIGN = re.compile(r"(?<!\\)\$")  # an escaped dollar sign is money


def _math_vista(row: Row) -> Question:
    question, unit = text(row, "question"), label(row, "unit")
    choices = lettered(listed(row, "choices"), "choices")
    answer = text(row, "answer")
    hint, tolerance = _math_vista_form(row)
    if choices:
        right = next((one for one, choice in choices.items() if choice == answer), None)
        if right is None:
            message = f"the answer {answer!r} is none of the choices {list(choices.values())}"
            raise UnusableCell("answer", "answer not among the choices", message[:200])
        answer, hint, tolerance = right, _FORMS["choice"], None
    return Question(
        text(row, "pid"),
        f"{question} (Unit: {unit})" if unit else question,
        image(row, "decoded_image", "image"),
        answer,
        choices,
        _metadata(row, "task"),
        hint,
        tolerance=tolerance,
    )


def _math_vista_form(row: Row) -> tuple[str, Tolerance | None]:
    """The expected form of the answer, and its tolerance.

    MathVista's evaluation rounds a float to `precision` places and compares the strings, so that half a unit of the
    last place is the widest difference that passes (github.com/lupantech/MathVista, evaluation/calculate_score.py).
    """
    form, places = label(row, "answer_type"), label(row, "precision")
    if form != "float" or places is None:
        return _FORMS.get(form or "", ""), None
    shown = f", e.g., {_PLACES_SHOWN[places]}," if places in _PLACES_SHOWN else ""
    hint = (
        f"Please answer the question requiring a floating-point number with "
        f"{_PLACES.get(places, f'{places} decimal places')} and provide the final value{shown} at the end."
    )
    return hint, Tolerance(absolute=0.5 * 10.0 ** -float(places))


def _metadata(row: Row, name: str) -> str | None:
    metadata = row.get("metadata")
    return label(metadata, name) if isinstance(metadata, Mapping) else None


def _math_verse(row: Row) -> Question:
    answer = text(row, "answer")
    asked = label(row, "question")
    # of "Vision Only" the question is empty, and choices that stand in the image are told to the grader alone
    _, choices = read_options(asked or label(row, "question_for_eval") or "", answer)
    question = read_options(asked, answer)[0] if asked else QUESTION_IN_IMAGE
    version = text(row, "problem_version")
    return Question(
        text(row, "sample_index"),
        question,
        image(row, "image"),
        answer,
        choices,
        _metadata(row, "subject") if version == _VISION_ONLY else version,
        (label(row, "query_cot") or "").partition(_QUESTION)[0],
        group=text(row, "problem_index"),
        choices_shown=bool(asked),
    )


_VISION_ONLY = "Vision Only"
_QUESTION = "\nQuestion:"  # MathVerse's own query: a hint, and the question after it


def _math_vision(row: Row) -> Question:
    return usual_question(row, image(row, "decoded_image", "image"), lettered(listed(row, "options"), "options"))


def _we_math(row: Row) -> Question:
    problem, step = text(row, "ID"), text(row, "key").rpartition("_")[2]
    options = text(row, "option")
    choices = split_semicolons(options)
    question = text(row, "question")
    return Question(
        f"{problem}/{step}",
        question if choices else f"{question}\n{options}",
        image(row, "image_path"),
        letter_or_text(row, "answer", choices),
        choices,
        we_math.category(problem, step),
        group=problem,
    )


def _dyna_math(row: Row) -> Question:
    problem, answer = text(row, "id"), text(row, "ground_truth")
    question, choices = read_options(text(row, "question"), answer)
    is_float = label(row, "answer_type") == "float"
    return Question(
        problem,
        question,
        image(row, "decoded_image", "image"),
        answer,
        choices,
        label(row, "subject"),
        "Give the answer to 3 decimal places." if is_float else "",
        problem,
        Tolerance(absolute=_DYNAMATH_ERROR) if is_float else None,
    )


def _olympiad_bench(row: Row) -> Question:
    context, question = label(row, "context"), text(row, "question")
    golds = [gold for one in listed(row, "final_answer") if (gold := _MATH_SIGN.sub("", one).strip())]
    if not golds:
        raise UnusableCell("final_answer", "empty", f"it holds {row.get('final_answer')!r}; every row needs an answer")
    unit = label(row, "unit")
    hints = [
        "The question has several answers; separate them with commas." if row.get("is_multiple_answer") else "",
        f"Unit: {unit}. Leave the unit out of the answer." if unit else "",
    ]
    images = numbered_images(row, context, question)
    if not images and is_one_of(row, "modality", ("multimodal",)):
        raise UnusableCell("image_1", "missing image", "the row is multimodal and holds none; complete the copy")
    return Question(
        text(row, "id"),
        f"{context}\n{question}" if context else question,
        images,
        ", ".join(golds),
        category=label(row, "subject", "subfield"),
        hint=" ".join(filter(None, hints)),
        tolerance=_olympiad_error(row),
    )


def _olympiad_error(row: Row) -> Tolerance | None:
    """The column `error`: a number, or one for each of several answers, in a list or between commas; none for tuples.

    As OlympiadBench's evaluation reads it (github.com/OpenBMB/OlympiadBench, inference/judge.py).
    """
    value = row.get("error")
    if value in (None, "", []) or "Tuple" in (label(row, "answer_type") or ""):
        return None
    parts = value if isinstance(value, list) else str(value).split(",")
    try:
        errors = [float(part) if str(part).strip() else _UNSTATED_ERROR for part in parts]
    except (TypeError, ValueError) as error:
        raise UnusableCell("error", "not a number", f"{value!r} is not a list of numbers") from error
    if not all(math.isfinite(one) and one >= 0 for one in errors):
        raise UnusableCell("error", "not a number", f"{value!r} is not a tolerance; expected finite numbers ≥ 0")
    return Tolerance(absolute=errors[0] if len(errors) == 1 else errors)


def _mv_math(row: Row) -> Question:
    question, answer, choices = text(row, "question"), text(row, "answer"), None
    if label(row, "answer_type") == "choice":
        question, choices = read_options(question, answer)
    images = image(row, "input_image")
    return Question(text(row, "problem_id"), question, images, answer, choices, label(row, "subject"))


def _mmk12(row: Row) -> Question:
    answer = text(row, "answer")
    question, choices = read_options(text(row, "question"), answer)
    return Question(text(row, "id"), question, image(row, "image"), answer, choices, label(row, "subject"))


_MATHVERSE: dict[str, Any] = {
    **on_hub("AI4Math/MathVerse"),
    "paper": "2403.14624",
    "split": "testmini",
    "configs": ("testmini",),
    "id_column": "sample_index",
    "columns": ("sample_index", "problem_index", "problem_version", "question", "image", "answer"),
    "read": _math_verse,
    "answers_in_prose": True,
}
_MATHVISION: dict[str, Any] = {
    **on_hub("MathLLMs/MathVision"),
    "paper": "2402.14804",
    "columns": ("id", "question", "options", ("decoded_image", "image"), "answer"),
    "read": _math_vision,
    "answers_in_prose": True,  # a last letter, a number after "is" (github.com/mathllm/MATH-V, evaluation/evaluate.py)
}
_DYNAMATH: dict[str, Any] = {
    **on_hub("DynaMath/DynaMath_Sample"),
    "paper": "2411.00836",
    "split": "+".join(f"sample_variant{number}" for number in range(1, 11)),
    "columns": ("id", "question", ("decoded_image", "image"), "ground_truth", "answer_type"),
    "read": _dyna_math,
    "has_variants": True,
}
_OLYMPIAD: dict[str, Any] = {
    **on_hub("Hothan/OlympiadBench"),
    "paper": "2402.14008",
    "split": "train",  # the only split
    "read": _olympiad_bench,
}
_METRIC = ("metric geometry - angle", "metric geometry - area", "metric geometry - length")
_OLYMPIAD_FULL: dict[str, Any] = {
    **_OLYMPIAD,
    # open-ended, in English and Chinese, with images and without: all but the proofs
    "configs": tuple(
        f"OE_{images}_{kind}"
        for images in ("MM", "TO")
        for kind in ("maths_en_COMP", "maths_zh_CEE", "maths_zh_COMP", "physics_en_COMP", "physics_zh_CEE")
    ),
    "columns": ("id", "question", "final_answer", "answer_type", "error"),
}


def _geometry(
    name: str, title: str, column: str, plane: Sequence[str], rows: tuple[int, int] = (0, 0), **source: Any
) -> tuple[Benchmark, ...]:
    """A benchmark's plane and solid geometry, as in SOPHIA's Table 3 (arXiv:2507.16814).

    Args:
        column: column of the topics.
        plane: topics that are plane geometry, in lower case.
        rows: how many there are of each kind.
    """
    source["columns"] = (*source["columns"], column)
    return tuple(
        Benchmark(
            name=f"{name}/{kind}_geometry",
            title=f"{title}, {kind} geometry",
            rows=count,
            keep=partial(is_one_of, column=column, names=topics),
            **source,
        )
        for kind, topics, count in zip(("plane", "solid"), (plane, ("solid geometry",)), rows, strict=True)
    )


BENCHMARKS = (
    Benchmark(
        name="mathvista",
        title="MathVista",
        **on_hub("AI4Math/MathVista"),
        paper="2310.02255",
        split="testmini",
        rows=1000,
        id_column="pid",
        columns=("pid", "question", ("decoded_image", "image"), "choices", "precision", "answer", "answer_type"),
        read=_math_vista,
        answers_in_prose=True,
    ),
    Benchmark(name="mathverse", title="MathVerse", rows=3940, **_MATHVERSE),
    Benchmark(
        name="mathverse/vision_only",
        title="MathVerse, vision only",
        rows=788,
        keep=partial(is_one_of, column="problem_version", names=(_VISION_ONLY.casefold(),)),
        **_MATHVERSE,
    ),
    Benchmark(name="mathvision", title="MathVision", split="test", rows=3040, **_MATHVISION),
    Benchmark(name="mathvision/testmini", title="MathVision, testmini", split="testmini", rows=304, **_MATHVISION),
    *_geometry("mathvision", "MathVision", "subject", _METRIC, (1122, 244), **_MATHVISION, split="test"),
    Benchmark(
        name="we_math",
        title="We-Math",
        **on_hub("We-Math/We-Math"),
        paper="2407.01284",
        split="testmini",
        rows=1740,
        id_column="ID",
        columns=("ID", "key", "question", "option", "answer", "image_path"),
        read=_we_math,
        scores=we_math.scores,
    ),
    Benchmark(name="dynamath", title="DynaMath", rows=5010, **_DYNAMATH),
    *_geometry("dynamath", "DynaMath", "subject", ("plane geometry",), (770, 150), **_DYNAMATH),
    Benchmark(
        name="olympiadbench",
        title="OlympiadBench",
        configs=("OE_MM_maths_en_COMP", "OE_MM_physics_en_COMP"),  # open-ended, with images, English
        rows=606,
        columns=("id", "question", "final_answer", "answer_type", "error", "image_1"),
        **_OLYMPIAD,
    ),
    Benchmark(name="olympiadbench/full", title="OlympiadBench, all but proofs", rows=6728, **_OLYMPIAD_FULL),
    *_geometry("olympiadbench", "OlympiadBench", "subfield", ("geometry", "plane geometry"), **_OLYMPIAD_FULL),
    Benchmark(
        name="mv_math",
        title="MV-MATH",
        hub="",  # the repository on the Hub shows its images as rows, without the questions
        source="https://github.com/eternal8080/MV-MATH",
        paper="2502.20808",
        split="test",
        rows=2009,
        id_column="problem_id",
        columns=("problem_id", "question", "input_image", "answer", "answer_type"),
        read=_mv_math,
    ),
    Benchmark(
        name="mmk12",
        title="MMK12",
        **on_hub("FanqingM/MMK12"),
        paper="2503.07365",
        split="test",
        rows=2000,
        columns=("id", "question", "answer", "image"),
        read=_mmk12,
    ),
)
