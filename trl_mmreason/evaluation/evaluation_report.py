"""Report of one evaluation, or of several on the same questions side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import PIL.Image
from accelerate import PartialState
from datasets import Dataset

from ..generation.engine import Engine, Failure
from ..generation.protocols import AnsweringProtocol
from ..jobs.store import Store
from ..messages import question_text
from ..training.logged_questions import about_question
from .benchmarks import Benchmark
from .curves import training_plots
from .files import SavedEvaluation, headline, read_evaluation, refuse_folders, result_problems, write_evaluation
from .metrics import Estimate, Metric, metric_of
from .provenance import provenance_record
from .report import INTERVALS_NOTE, Mark, ReportTable, TableRow, side_by_side, write_report
from .results import Results, compare_results, summarise
from .runner import Samples, evaluate
from .scaling import draw_scaling, scaling_plots
from .trajectory import Piece, Trajectory, Turn, scored_pieces

REPORT, COMPARISON = "report.html", "compared.html"
_SAMPLES_SHOWN = 8  # most samples per question on the page
_RECORDED = ("n", "sampling_params", "grader", "system_prompt", "seed")
_INTERVALS = "Brackets: 95 % bootstrap intervals over questions, or over problems where several questions are variants."
_CHANGES = (
    " A change is over the questions on which both could be graded; the bootstrap draws a question with its answers in "
    "both evaluations, as in a paired comparison."
)

_TURNS = (
    " t1 and t2 are the first and the second answer; correction is a wrong first answer made right, misjudgment "
    "a right one made wrong."
)


def evaluate_into(
    folder: str | Path,
    rows: Dataset,
    engine: Engine,
    protocol: AnsweringProtocol,
    *,
    command: str = "",
    about: Mapping[str, Any] | None = None,
    benchmark: Benchmark | None = None,
    shown: int = 100,
    training: Mapping[str, Any] | None = None,
    **asking: Any,
) -> Results:
    """Evaluate a policy, and save results, samples and report; stored answers are reused.

    Under several processes call it on all of them; each gets the results, and the main one writes.

    Args:
        folder: output folder, created if missing, for `answers.sqlite` and the files of `save_evaluation`.
        rows, engine, protocol: arguments of `evaluate`.
        command, about: are recorded: by which command line, and what says what was evaluated; `name` and `title` are by
            default the benchmark's, or the folder's name.
        benchmark: adds what is its own, as for `summarise`.
        shown: questions in the report.
        training: settings of the policy's training, which are recorded. Its answers are not stored: it will change.
        **asking: other arguments of `evaluate`: `n`, `sampling_params`, `grader`, `system_prompt` and `seed`, which are
            recorded, and those of `answer_questions`, such as `batch_size` and `description`.
    """
    refuse_folders(Path(folder), REPORT)
    with (
        nullcontext()
        if training
        else Store(Path(folder) / "answers.sqlite", elsewhere="another output folder") as store
    ):
        samples = evaluate(rows, engine, store, protocol, **asking)
    results = summarise(samples, benchmark, grader=asking.get("grader"))
    if PartialState().is_main_process:
        name, title = (benchmark.name, benchmark.title) if benchmark else [Path(folder).name] * 2
        named = {"name": name, "title": title, **(about or {})}
        recorded = {setting: asking[setting] for setting in _RECORDED if setting in asking}
        record = provenance_record(engine, protocol, command=command, benchmark=named, **recorded)
        if training:
            record["training"] = training
            # It would name the checkpoint that training began with.
            named = record["settings"]["engine"]
            record["settings"]["engine"] = {name: value for name, value in named.items() if name != "model"}
        save_evaluation(folder, rows, samples, results, record, shown)
    return results


def save_evaluation(
    folder: str | Path, rows: Dataset, samples: Samples, results: Results, record: Mapping[str, Any], shown: int = 100
) -> Path:
    """Write an evaluation's files and its report.

    Args:
        samples, results, record: results of `evaluate`, `summarise` and `provenance_record`.
        shown: questions in the report, whose images are kept.
    """
    write_evaluation(folder, samples, results, record, rows.select(range(min(shown, len(rows)))))
    (Path(folder) / REPORT).with_suffix(".png").unlink(missing_ok=True)  # curves of an earlier evaluation
    return write_evaluation_report({Path(folder).name: folder}, shown=shown)


def write_evaluation_report(
    folders: Mapping[str, str | Path],
    output: str | Path | None = None,
    shown: int = 100,
    log_history: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write the page, with curves over n for several samples per question or searches of several widths.

    Args:
        folders: name → folder of an evaluation; several have to be of the same questions, and the first is what the
            others are compared with.
        output: the file; by default in the first folder, `report.html`, or `compared.html` of several.
        log_history: `trainer.state.log_history` of the training between two evaluations, whose curves are then shown.

    Returns:
        The file; the curves are beside it, as a PNG file of its name.

    Raises:
        DataError: a folder holds no evaluation.
        ValueError: the questions of two folders are not the same.
    """
    saved = {name: read_evaluation(folder) for name, folder in folders.items()}
    name, first = next(iter(saved.items()))
    path = Path(output) if output else Path(folders[name]) / (REPORT if len(saved) == 1 else COMPARISON)
    results = {name: each.results for name, each in saved.items()}
    questions = {row["id"]: question_text(row["prompt"]) for row in first.samples.rows}
    tables = [results_table(results), _category_table(results)]  # refuses other questions
    plots = scaling_plots(saved)
    curves: dict[str, Any] = {"plots": plots, "plots_title": "Inference-time scaling", "plots_note": INTERVALS_NOTE}
    if log_history:
        curves = {"plots": training_plots({"": log_history})}
    if plots:
        draw_scaling(plots).savefig(path.with_suffix(".png"), format="png", dpi=120)
    write_report(
        path,
        title=f"{first.about['benchmark']['title']}: {len(first.samples.rows)} questions",
        command="\n".join(dict.fromkeys(each.about["command"] for each in saved.values())),
        settings=side_by_side({name: dict(_flat(each.about)) for name, each in saved.items()}),
        tables=tables,
        trajectories=[
            trajectory
            for name, each in saved.items()
            for trajectory in trajectories_of(
                each.samples, first.images, shown, "" if len(saved) == 1 else name, questions
            )
        ],
        **curves,
        notes=[
            *_other_prompts(saved),
            *_left_out(saved, shown),
            *(
                f"{name}: {line.strip()}" if len(saved) > 1 else line.strip()
                for name, each in results.items()
                for line in result_problems(each)
            ),
        ],
    )
    return path


def trajectories_of(
    samples: Samples,
    images: Mapping[str, list[PIL.Image.Image]],
    shown: int,
    run: str,
    questions: Mapping[str, str],
) -> list[Trajectory]:
    """Collect the trajectories that the report shows: the first questions, with up to eight samples each.

    Args:
        images: id → the question's.
        questions: id → the question; others may have been asked with another prompt.
    """
    trajectories = []
    for row, tried in list(zip(samples.rows, samples.samples, strict=True))[:shown]:
        about = about_question(row)
        for index, sample in enumerate(tried[:_SAMPLES_SHOWN]):
            trajectories.append(
                Trajectory(
                    id=row["id"],
                    category=about["category"],
                    question=questions[row["id"]],
                    answer=about["answer"],
                    images=images.get(row["id"], ()),
                    run=run,
                    number=index + 1 if samples.n > 1 else None,
                    turns=_turns(sample, samples.turns),
                    rewards={} if isinstance(sample, Failure) else _numbers(sample),
                    problem=sample.reason if isinstance(sample, Failure) else sample.get("problem"),
                )
            )
    return trajectories


def _turns(sample: Mapping[str, Any] | Failure, turns: int) -> list[Turn | None]:
    if isinstance(sample, Failure):
        return [None] * turns
    labels = (
        ["Answer"] if turns == 1 else ["First answer", "Second answer", *(f"Answer {k}" for k in range(3, turns + 1))]
    )
    answers: list[Turn | None] = [None] * turns
    scores = sample.get("step_scores") or []
    ends = sample["step_ends"] if scores else []
    for place, turn in enumerate(sample["turns"]):
        text = turn["text"]
        is_last = place == turns - 1
        answers[place] = Turn(
            pieces=scored_pieces(text, ends, scores, sample.get("answer_score")) if is_last else [Piece(text)],
            correct=turn["correct"],
            label=labels[place],
            answer=turn["answer"],
            reason=turn["reason"],
        )
    return answers


def _numbers(sample: Mapping[str, Any]) -> dict[str, float | None]:
    numbers = {name: sample[name] for name in ("score", "tokens") if name in sample}
    return numbers | {metric_of(name).label: value for name, value in sample.get("measures", {}).items()}


def results_table(results: Mapping[str, Results]) -> ReportTable:
    """Build the table of an evaluation, or of several and what each has more than the first; shares are plotted."""
    first, *others = results
    compared = {name: compare_results(results[first], results[name]) for name in others}
    header = ["", first if others else "value"]
    for run in others:
        header += [run, "change" if len(others) == 1 else f"{run} − {first}"]
    metrics = {name: result.metrics for name, result in results.items()}
    fullest_first = sorted(metrics.values(), key=len, reverse=True)  # the order of the run with most metrics is kept
    rows = []
    for name in dict.fromkeys(name for estimates in fullest_first for name in estimates):
        metric = metric_of(name)
        cells = [_cell(metric, metrics[first].get(name))]
        for run in others:
            change = compared[run][name].change if name in compared[run] else None
            cells += [_cell(metric, metrics[run].get(name)), _cell(metric, change, signed=True)]
        rows.append(
            TableRow(metric.label, cells, [_mark_of(metric, estimates.get(name)) for estimates in metrics.values()])
        )
    has_turns = any("acc_t1" in estimates for estimates in metrics.values())
    note = _INTERVALS + (_CHANGES if others else "") + (_TURNS if has_turns else "")
    title, marked = ("Comparison", list(results)) if others else ("Results", ["value"])
    return ReportTable(title, header, rows, note, marked)


def _category_table(results: Mapping[str, Results]) -> ReportTable:
    """Build a table of accuracies by category and run; that of the final answer is plotted."""
    shown = {name: headline(result.metrics) for name, result in results.items()}
    columns = [(name, metric) for name in results for metric in shown[name]]
    rows = []
    for category in dict.fromkeys(category for result in results.values() for category in result.categories):
        of_run = {name: result.categories.get(category, (0, {})) for name, result in results.items()}
        numbers = [_cell(metric_of(metric), of_run[name][1].get(metric)) for name, metric in columns]
        questions = max(count for count, _ in of_run.values())
        marks = [_mark_of(metric_of(shown[name][-1]), of_run[name][1].get(shown[name][-1])) for name in results]
        rows.append(TableRow(category, [(str(questions), ""), *numbers], marks))
    labels = {
        (name, metric): metric_of(metric).label if len(results) == 1 else f"{name}, {metric_of(metric).label}"
        for name, metric in columns
    }
    marked = [labels[name, shown[name][-1]] for name in results]
    return ReportTable("By category", ["category", "questions", *labels.values()], rows, marked=marked)


def _mark_of(metric: Metric, estimate: Estimate | None) -> Mark | None:
    """The plotted mark of a metric: a share with its interval; `None` for other metrics."""
    if estimate is None or not metric.is_share:
        return None
    mark = Mark(estimate.value, *estimate.interval)
    return mark if all(0 <= place <= 1 for place in mark) else None  # never of NaN


def _cell(metric: Metric, estimate: Estimate | None, signed: bool = False) -> tuple[str, str]:
    """A number and its interval, as cells of a `TableRow`."""
    if estimate is None:
        return "", ""
    number, interval = metric.with_interval(estimate, signed).split(" ", maxsplit=1)
    return number, interval


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        inner = [(f"{path}.{key}" if path else str(key), each) for key, each in value.items() if key != "command"]
        return [entry for key, each in inner for entry in _flat(each, key)]
    return [] if value is None else [(path, value if isinstance(value, str) else json.dumps(value))]


def _left_out(saved: Mapping[str, SavedEvaluation], shown: int) -> list[str]:
    """Notes on the questions and samples that are not among the trajectories."""
    questions = len(next(iter(saved.values())).samples.rows)
    samples = max(each.samples.n for each in saved.values())
    notes = [(shown, questions, "questions"), (_SAMPLES_SHOWN, samples, "samples of a question")]
    return [f"Trajectories: the first {few} of {all_} {what}." for few, all_, what in notes if few < all_]


def _other_prompts(saved: Mapping[str, SavedEvaluation]) -> list[str]:
    """Names of the evaluations whose prompts differ from the first's."""
    prompts = {name: [row["prompt"] for row in each.samples.rows] for name, each in saved.items()}
    first, *others = prompts
    return [f"{name} was asked with other prompts than {first}." for name in others if prompts[name] != prompts[first]]
