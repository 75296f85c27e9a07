"""Read and write an evaluation's files: results, samples, each question's share in the metrics, images.

Equal evaluations give equal files: there is no time in them, and no order but that of the questions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow.parquet as pq
from datasets import Dataset, Image

from ..data.folders import atomic_path, write_whole
from ..data.rows import DataError
from ..generation.engine import Failure
from ..messages import question_text
from ..training.model_card import PRINTED
from .metrics import Estimate, aligned, metric_of
from .question_table import QuestionTable
from .results import EvaluatedQuestion, Results
from .runner import Samples

RESULTS, SAMPLES = "results.json", "samples.jsonl"
QUESTIONS, IMAGES = "questions.jsonl", "pictures.parquet"
EVALUATION_FORMAT = 1

_decode = Image().decode_example

_NUMBERS = ("metrics", "categories", "counts", "failures", "unusable")  # parts of `results.json` with numbers
_QUESTION = ("category", "group", "choices", "tolerance")  # optional columns of a row


@dataclass(frozen=True)
class SavedEvaluation:
    """An evaluation read from its folder.

    Attributes:
        samples: result of `evaluate`; each prompt as one message, the question.
        results: result of `summarise`.
        about: what made them: `results.json` without the numbers.
        images: id → the images of the first questions.
    """

    samples: Samples
    results: Results
    about: dict[str, Any]
    images: dict[str, list[PIL.Image.Image]]


def refuse_folders(folder: Path, *others: str) -> None:
    """Refuse an output folder in which a folder has the name of a file to write, before any sampling.

    Args:
        *others: files beside those of `write_evaluation`.

    Raises:
        DataError: names it.
    """
    for name in (RESULTS, SAMPLES, QUESTIONS, IMAGES, PRINTED, *others):
        if (folder / name).is_dir():
            raise DataError(
                f"{folder / name} is a folder, expected a file or nothing. Fix: move it, or write elsewhere."
            )


def write_evaluation(
    folder: str | Path, samples: Samples, results: Results, record: Mapping[str, Any], with_images: Dataset
) -> None:
    """Write all files except the report.

    Args:
        samples, results: results of `evaluate` and `summarise`.
        record: how the numbers were made, as JSON: benchmark, settings, versions.
        with_images: the first questions, whose images are kept.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).unlink(missing_ok=True)  # what is killed from here on is no evaluation, and not a mixed one
    whole = {"format": EVALUATION_FORMAT, "n": samples.n, "turns": samples.turns, **record, **results_as_json(results)}
    write_whole(folder / SAMPLES, _as_jsonl(_lines(samples)))
    sides = np.stack([results.table.numerator, results.table.denominator], axis=-1).tolist()
    adds = [{"adds": dict(zip(results.table.names, side, strict=True))} for side in sides]
    lines = ({**asdict(question), **each} for question, each in zip(results.questions, adds, strict=True))
    write_whole(folder / QUESTIONS, _as_jsonl(lines))
    write_whole(folder / PRINTED, f"{format_results(results)}\n")
    with atomic_path(folder / IMAGES) as unfinished:
        ids = [row["id"] for row in samples.rows[: len(with_images)]]
        with_images.select_columns(["images"]).add_column("id", ids).to_parquet(unfinished)
    write_whole(
        folder / RESULTS, json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)
    )  # last: it is complete


def read_evaluation(folder: str | Path) -> SavedEvaluation:
    """Read what `write_evaluation` wrote.

    Raises:
        DataError: the folder holds no evaluation, or one of a newer format.
    """
    folder = Path(folder)
    missing = [name for name in (RESULTS, SAMPLES, QUESTIONS, IMAGES) if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder} is not a finished evaluation: it has no {' and no '.join(missing)}.")
    whole = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    if whole.get("format") != EVALUATION_FORMAT:
        raise DataError(f"{folder / RESULTS} has the format {whole.get('format')!r}, expected {EVALUATION_FORMAT}.")
    samples = _samples(_read_lines(folder / SAMPLES), whole["n"], whole["turns"])
    results = _results(whole, _read_lines(folder / QUESTIONS))
    rows = pq.read_table(folder / IMAGES).to_pylist()
    images = {row["id"]: [_decode(image) for image in row["images"]] for row in rows}
    about = {name: value for name, value in whole.items() if name not in _NUMBERS}
    return SavedEvaluation(samples, results, about, images)


def format_results(results: Results) -> str:
    """Format metrics, categories and problems as plain text."""
    counts = results.counts
    parts = [f"{counts['questions']} questions, {counts['samples']} samples"]
    parts.append(format_side_by_side({"": results}))
    if results.categories:
        parts.append(_accuracy_table("category", results.categories))
    parts.append("\n".join(result_problems(results)))
    return "\n\n".join(part for part in parts if part)


def format_overview(results: Mapping[str, Results]) -> str:
    """Format a table of accuracies, one line for each benchmark."""
    return _accuracy_table("", {name: (each.counts["questions"], each.metrics) for name, each in results.items()})


def format_side_by_side(results: Mapping[str, Results]) -> str:
    """Format a table with a column for each policy and a line for each metric."""
    lines = [["percent [95 % interval]", *results]]
    for name in dict.fromkeys(name for result in results.values() for name in result.metrics):
        metric, known = metric_of(name), [result.metrics.get(name) for result in results.values()]
        lines.append([metric.label, *("" if one is None else metric.with_interval(one) for one in known)])
    return aligned(lines)


def headline(metrics: Mapping[str, Estimate]) -> list[str]:
    """The metrics shown by category: accuracies of single answers."""
    return ["acc_t1", "acc_t2"] if "acc_t1" in metrics else ["accuracy"]


def result_problems(results: Results) -> list[str]:
    """One line for each kind of problem with samples or questions."""
    counts = results.counts
    descriptions = {
        "failed": "samples failed and count as wrong (retry with --retry-failed)",
        "unusable_gold": "questions have a gold answer that cannot be used and count nowhere",
        "no_second_turn": "samples have no second answer, which counts as wrong",
        "no_answer": "final answers could not be found in what was said",
        "malformed": "samples do not have the protocol's form",
        "decided_by_timeout": "answers could not be compared in time and count as wrong",
        "decided_by_memory": "answers could not be compared in memory and count as wrong",
        "decided_by_crash": "answers crashed the comparison and count as wrong",
        "decided_by_error": "answers could not be compared and count as wrong",
        "decided_by_size": "answers were too long to compare and count as wrong",
        "decided_by_unreadable": "answers have no verdict, as the judge's reply is missing or cannot be read; their "
        "questions count nowhere (retry with --retry-failed)",
        "decided_by_judge": "verdicts are the judge's",
        "decided_by_tolerance": "answers are right within the benchmark's tolerance",
        "decided_by_text": "answers were compared as strings, as the benchmark does",
    }
    lines = [f"{counts[name]} {words}" for name, words in descriptions.items() if counts.get(name)]
    lines += [f"  {each['id']}, sample {each['sample']}: {each['reason']}" for each in results.failures[:5]]
    if len(results.failures) > 5:
        lines.append("  …")
    return lines


def results_as_json(results: Results) -> dict[str, Any]:
    """The numbers as JSON values, null for NaN."""
    return {
        "metrics": {name: estimate.as_json() for name, estimate in results.metrics.items()},
        "categories": {
            name: {"questions": questions, **{metric: estimate.as_json() for metric, estimate in metrics.items()}}
            for name, (questions, metrics) in results.categories.items()
        },
        "counts": results.counts,
        "failures": results.failures,
        "unusable": results.unusable,
    }


def _accuracy_table(heading: str, groups: Mapping[str, tuple[int, Mapping[str, Estimate]]]) -> str:
    """Format a line for each group of questions: its name, how many they are, and their accuracies."""
    shown = list(dict.fromkeys(name for _, metrics in groups.values() for name in headline(metrics)))
    lines = [[heading, "questions", *(metric_of(name).label for name in shown)]]
    for group, (questions, metrics) in groups.items():
        lines.append([group, str(questions), *(metric_of(name).with_interval(metrics[name]) for name in shown)])
    return aligned(lines)


def _results(whole: Mapping[str, Any], lines: list[dict[str, Any]]) -> Results:
    adds = [line.pop("adds") for line in lines]
    names = tuple(adds[0])
    sides = np.array([[each[name] for name in names] for each in adds])
    return Results(
        metrics={name: Estimate.from_json(estimate) for name, estimate in whole["metrics"].items()},
        categories={
            category: (numbers.pop("questions"), {name: Estimate.from_json(each) for name, each in numbers.items()})
            for category, numbers in whole["categories"].items()
        },
        counts=whole["counts"],
        failures=whole["failures"],
        unusable=whole["unusable"],
        questions=[EvaluatedQuestion(**line) for line in lines],
        table=QuestionTable(names, sides[..., 0], sides[..., 1]),
    )


def _as_jsonl(lines: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _lines(samples: Samples) -> Iterator[dict[str, Any]]:
    for row, tried in zip(samples.rows, samples.samples, strict=True):
        about = {name: row[name] for name in _QUESTION if row.get(name) is not None}
        for index, sample in enumerate(tried):
            fields = {"failed": sample.reason} if isinstance(sample, Failure) else sample
            question = {"question": question_text(row["prompt"]), "gold": row["answer"], **about}
            yield {"id": row["id"], "sample": index, **question, **fields}


def _samples(lines: list[dict[str, Any]], n: int, turns: int) -> Samples:
    rows: list[dict[str, Any]] = []
    samples: list[list[dict[str, Any] | Failure]] = []
    for line in lines:
        id_, index, question, gold = (line.pop(name) for name in ("id", "sample", "question", "gold"))
        about = {name: line.pop(name) for name in _QUESTION if name in line}
        if index == 0:
            rows.append({"id": id_, "prompt": [{"role": "user", "content": question}], "answer": gold, **about})
            samples.append([])
        samples[-1].append(Failure(line["failed"]) if "failed" in line else line)
    return Samples(rows, n, turns, samples)
