"""The report of an evaluation, or of several of the same questions side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import PIL.Image
from accelerate import PartialState
from datasets import Dataset

from ..grading import Grader, JudgeGrader
from ..messages import question_text
from ..sampling.engine import Engine, Failure, SamplingParams
from ..sampling.protocols import AnsweringProtocol
from ..sampling.store import Store
from .benchmarks import Benchmark
from .files import SavedEvaluation, headline, problems_of, read_evaluation, write_evaluation
from .metrics import Estimate, metric_of
from .provenance import provenance_record
from .report import TURNS, Table, cell, comparison_table, write_report
from .results import Results, compare_results, summarise
from .runner import GREEDY, Samples, evaluate
from .scaling import draw_scaling
from .trajectory import Piece, Trajectory, Turn, scored_pieces

REPORT, COMPARISON = "report.html", "compared.html"
_SAMPLES_SHOWN = 8  # of a question
_INTERVALS = "Brackets: 95 % bootstrap intervals over questions, or over problems where several questions are variants."


def evaluate_into(
    folder: str | Path,
    rows: Dataset,
    engine: Engine,
    protocol: AnsweringProtocol,
    *,
    title: str,
    command: str = "",
    about: Mapping[str, Any] | None = None,
    benchmark: Benchmark | None = None,
    shown: int = 100,
    n: int = 1,
    decoding: SamplingParams = GREEDY,
    grader: Grader | JudgeGrader | None = None,
    system_prompt: str | None = None,
    seed: int = 0,
    **asking: Any,
) -> Results:
    """`evaluate` a policy, `summarise`, and save all of it with its report; what is there already is not asked again.

    Under several processes call it on all of them; each gets the results, and the main one writes.

    Args:
        folder: is made if need be; gets `answers.sqlite` and the files of `save_evaluation`.
        rows, engine, protocol, n, decoding, grader, system_prompt, seed: as for `evaluate`.
        title, command, about: are recorded: what was evaluated, by which command line, and what else says so.
        benchmark: adds what is its own, as for `summarise`.
        shown: questions in the report.
        **asking: for `evaluate`, such as `batch_size` and `description`.
    """
    asked: dict[str, Any] = {"n": n, "decoding": decoding, "grader": grader, "system_prompt": system_prompt}
    asked["seed"] = seed
    with Store(Path(folder) / "answers.sqlite") as store:
        samples = evaluate(rows, engine, store, protocol, **asked, **asking)
    results = summarise(samples, benchmark, grader=grader)
    if PartialState().is_main_process:
        named = {"name": title, "title": title, **(about or {})}
        made = provenance_record(engine, protocol, command=command, benchmark=named, **asked)
        save_evaluation(folder, rows, samples, results, made, shown)
    return results


def save_evaluation(
    folder: str | Path, rows: Dataset, samples: Samples, results: Results, about: Mapping[str, Any], shown: int = 100
) -> Path:
    """Write an evaluation's files and its report.

    Args:
        folder: is made if need be.
        rows: the questions, with their pictures.
        samples, results, about: of `evaluate`, `summarise` and `provenance.about`.
        shown: questions in the report, whose pictures are kept.

    Returns:
        The report.
    """
    write_evaluation(folder, samples, results, about, rows.select(range(min(shown, len(rows)))))
    return write_evaluation_report([folder], shown=shown)


def write_evaluation_report(folders: Sequence[str | Path], output: str | Path | None = None, shown: int = 100) -> Path:
    """Write the page, with curves over n where questions have several samples or searches differ in candidates.

    Args:
        folders: of evaluations; several have to be of the same questions, and the first is what the others are
            compared with.
        output: the file; by default in the first folder, `report.html`, or `compared.html` of several.
        shown: questions whose samples can be looked at.

    Returns:
        The file; the curves are beside it, as a PNG file of its name.

    Raises:
        DataError: a folder holds no evaluation.
        ValueError: the questions of two folders are not the same.
    """
    saved = {name: read_evaluation(folder) for name, folder in zip(_names(folders), folders, strict=True)}
    first = next(iter(saved.values()))
    path = Path(output) if output else Path(folders[0]) / (REPORT if len(saved) == 1 else COMPARISON)
    results = {name: each.results for name, each in saved.items()}
    asked = {row["id"]: question_text(row["prompt"]) for row in first.samples.rows}
    tables = _tables(results)  # refuses other questions
    scaling = draw_scaling(saved)
    if scaling is not None:
        scaling.savefig(path.with_suffix(".png"), format="png", dpi=120)
    write_report(
        path,
        title=f"{first.about['benchmark']['title']}: {len(first.samples.rows)} questions",
        command="\n".join(dict.fromkeys(each.about["command"] for each in saved.values())),
        settings=_settings(saved),
        tables=tables,
        trajectories=[
            trajectory
            for name, each in saved.items()
            for trajectory in trajectories_of(
                each.samples, first.pictures, shown, "" if len(saved) == 1 else name, asked
            )
        ],
        curves_png=None if scaling is None else path.with_suffix(".png"),
        curves_title="Inference-time scaling",
        notes=[*_other_prompts(saved), *(line for name, each in results.items() for line in _notes(name, each, saved))],
    )
    return path


def trajectories_of(
    samples: Samples,
    pictures: Mapping[str, list[PIL.Image.Image]],
    shown: int,
    stage: str,
    asked: Mapping[str, str],
) -> list[Trajectory]:
    """Collect what the report's browser shows: the first questions, and up to eight samples of each.

    Args:
        samples: of `evaluate`.
        pictures: id → the question's.
        shown: how many questions.
        stage: what these samples are called among those of other evaluations.
        asked: id → the question; others may have been asked with another prompt.
    """
    found = []
    for row, tried in list(zip(samples.rows, samples.samples, strict=True))[:shown]:
        gold = row["answer"]
        for index, sample in enumerate(tried[:_SAMPLES_SHOWN]):
            number = f"sample {index + 1}" if samples.n > 1 else ""
            found.append(
                Trajectory(
                    id=row["id"],
                    category=row.get("category") or "",
                    question=asked[row["id"]],
                    answer=gold if isinstance(gold, str) else " or ".join(gold or ()),
                    images=pictures.get(row["id"], ()),
                    stage=" · ".join(part for part in (stage, number) if part) or "answer",
                    turns=_turns(sample, samples.turns),
                    rewards=_numbers(sample),
                    problem=sample.reason if isinstance(sample, Failure) else sample.get("problem"),
                )
            )
    return found


def _turns(sample: Mapping[str, Any] | Failure, turns: int) -> list[Turn | None]:
    if isinstance(sample, Failure):
        return [None] * turns
    labels = (
        ["Answer"] if turns == 1 else ["First answer", "Second answer", *(f"Answer {k}" for k in range(3, turns + 1))]
    )
    given: list[Turn | None] = [None] * turns
    for place, turn in enumerate(sample["turns"]):
        given[place] = Turn(
            pieces=_pieces(sample, turn["text"]) if place == turns - 1 else [Piece(turn["text"])],
            correct=turn["correct"],
            label=labels[place],
            answer=turn["answer"],
            reason=turn["reason"],
        )
    return given


def _pieces(sample: Mapping[str, Any], text: str) -> list[Piece]:
    """The text, cut where its scored steps end."""
    ends, scores = sample.get("step_ends") or [], sample.get("step_scores") or []
    return scored_pieces(text, ends, scores, sample.get("answer_score"))


def _numbers(sample: Mapping[str, Any] | Failure) -> dict[str, float | None]:
    if isinstance(sample, Failure):
        return {}
    numbers = {name: sample[name] for name in ("score", "tokens") if name in sample}
    return numbers | {metric_of(name).label: value for name, value in sample.get("measures", {}).items()}


def _tables(results: Mapping[str, Results]) -> list[Table]:
    names = list(results)
    everything = {name: found.metrics for name, found in results.items()}
    fullest_first = sorted(everything.values(), key=len, reverse=True)  # whose order is then kept
    rows = [
        (metric_of(metric).label, [_cell(metric, everything[name].get(metric)) for name in names])
        for metric in dict.fromkeys(metric for metrics in fullest_first for metric in metrics)
    ]
    header = ["value"] if len(names) == 1 else names
    turns = any("acc_t1" in metrics for metrics in everything.values())
    tables = [Table("Results", ["", *header], rows, _INTERVALS + (TURNS if turns else ""))]
    tables += [_change_table(names[0], name, results) for name in names[1:]]
    tables += [_category_table(name if len(names) > 1 else "", found) for name, found in results.items()]
    return tables


def _change_table(first: str, second: str, results: Mapping[str, Results]) -> Table:
    return comparison_table(
        compare_results(results[first], results[second]),
        title=f"{second} against {first}",
        sides=(first, second),
        note="Questions are drawn with both of their answers, so that the intervals of the change are those of a "
        "paired comparison. Only questions that both could be graded on are counted.",
        metric_of=metric_of,
    )


def _category_table(name: str, results: Results) -> Table:
    shown = headline(results.metrics)
    rows = [
        (category, [(str(questions), ""), *(_cell(metric, metrics[metric]) for metric in shown)])
        for category, (questions, metrics) in results.categories.items()
    ]
    title = f"{name}, by category" if name else "By category"
    return Table(title, ["category", "questions", *(metric_of(metric).label for metric in shown)], rows)


def _cell(metric: str, estimate: Estimate | None) -> tuple[str, str]:
    return ("", "") if estimate is None else cell(metric_of(metric), estimate)


def _settings(saved: Mapping[str, SavedEvaluation]) -> dict[str, str]:
    """What made the numbers; where there are several, a setting in which they differ says whose is whose."""
    flat = {name: dict(_flat(each.about)) for name, each in saved.items()}
    settings = {}
    for key in dict.fromkeys(key for values in flat.values() for key in values):
        values = {name: found.get(key, "") for name, found in flat.items()}
        alike = len(set(values.values())) == 1
        settings[key] = next(iter(values.values())) if alike else "; ".join(f"{n}: {v}" for n, v in values.items())
    return settings


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        inner = [(f"{path}.{key}" if path else str(key), each) for key, each in value.items() if key != "command"]
        return [entry for key, each in inner for entry in _flat(each, key)]
    return [] if value is None else [(path, value if isinstance(value, str) else json.dumps(value))]


def _notes(name: str, results: Results, saved: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {line.strip()}" if len(saved) > 1 else line.strip() for line in problems_of(results)]


def _other_prompts(saved: Mapping[str, SavedEvaluation]) -> list[str]:
    """Which evaluations asked in other words than the first."""
    prompts = {name: [row["prompt"] for row in each.samples.rows] for name, each in saved.items()}
    first, *others = prompts
    return [f"{name} was asked with other prompts than {first}." for name in others if prompts[name] != prompts[first]]


def _names(folders: Sequence[str | Path]) -> list[str]:
    """What tells the folders apart: their names, or their paths where names repeat."""
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
