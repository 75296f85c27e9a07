"""From questions to verdicts: a protocol asks, a store keeps the answers, a grader grades them.

    with Store("runs/answers.sqlite") as store:
        answers = answer_questions(rows, engine, store, Direct(), stage="answers", n=8)
        for id_, samples in answers.items():
            whole = [sample for sample in samples if not isinstance(sample, Failure)]
            right = [last_verdict(sample, answers.turns) for sample in whole]

Answers, verdicts and scores are kept apart: another grader or scorer samples nothing again. Whatever filters, selects
or measures by sampled answers does it through this function.
"""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import compress, count, tee
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset

from ..data.unseen_media import refuse_unseen_media
from ..generation.engine import Engine, Failure, SamplingParams
from ..generation.patience import patient_state, rank_and_size, wait_for_all
from ..generation.protocols import Answered, AnsweringProtocol, RowSample, Scorer
from ..grading import Grader, JudgeGrader, Verdict
from ..grading.grader import grader_settings
from ..grading.tolerance import grade_answers
from ..grading.version import grader_version
from ..messages import with_system_message
from .judging_again import judge_again
from .progress import Progress
from .questions import remember_questions
from .run import Work, run
from .store import Record, Store

logger = logging.getLogger(__name__)

_MOST_WAITING = 8  # batches
TEXTS = ("id", "prompt", "answer", "choices", "category", "hint", "group", "tolerance")  # all but the pictures


@dataclass(frozen=True)
class Answers:
    """Graded samples of questions, read from the store on demand.

    Iterating gives for each question, in the order of `ids`, an iterator of its n samples: dicts with `turns`, each
    turn with `text`, `answer`, `correct`, `reason` and `decided_by`, and with the other fields of `Answered`; or a
    `Failure`.

    Attributes:
        rows: the questions, without their pictures.
        n: samples per question.
        turns: answers that a whole sample has.
        store, stage, verdicts: where the answers are, and the verdicts on them.
        scores: where the scores by `scorer` are, if there is one.
    """

    rows: Dataset
    n: int
    turns: int
    store: Store
    stage: str
    verdicts: str
    scores: str = ""
    scorer: Scorer | None = None

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the questions."""
        return self.rows["id"][:]

    def items(self) -> Iterator[tuple[str, Iterator[dict[str, Any] | Failure]]]:
        """Each question's id with its samples."""
        return zip(self.ids, self, strict=True)

    def __iter__(self) -> Iterator[Iterator[dict[str, Any] | Failure]]:
        for row in _words_for_units(self.rows):
            yield map(partial(self._sample, row), range(self.n))

    def _sample(self, row: Mapping[str, Any], index: int) -> dict[str, Any] | Failure:
        answer = next(self.store.find(self.stage, [(row["id"], index)]), None)
        if answer is None or answer.status == "failed":
            return Failure("was not sampled" if answer is None else answer.reason)
        verdict_and_scores = []
        stages = {self.verdicts: "graded"} | ({self.scores: "scored"} if self.scorer else {})
        for stage, done in stages.items():
            record = next(self.store.find(stage, [(unit_name(row, index), 0)]), None)
            if record is None or record.status == "failed":
                return Failure(f"was not {done}" if record is None else f"was not {done}: {record.reason}")
            verdict_and_scores.append(record.payload)
        return _joined(answer.payload, *verdict_and_scores, scorer=self.scorer)


def answer_questions(
    rows: Dataset | JoinedRows,
    engine: Engine,
    store: Store,
    protocol: AnsweringProtocol,
    *,
    stage: str,
    n: int = 1,
    sampling_params: SamplingParams | None = None,
    grader: Grader | JudgeGrader | None = None,
    system_prompt: str | None = None,
    seed: int = 0,
    description: str = "answering",
    **running: Any,
) -> Answers:
    """Sample and grade `n` answers to each question.

    A killed run resumes. Under several processes each takes its share; call it on all of them with the
    same store, and every process gets the whole result.

    Args:
        rows: questions with id, prompt, answer, and optionally images (or image), choices, hint and `tolerance`.
        engine: the policy.
        store: keeps every answer, verdict and score.
        protocol: how it is asked, what of its replies is graded, and what scores them.
        stage: stage of the store.
        n: samples per question.
        sampling_params: sampling parameters, by default `SamplingParams()`.
        grader: `Grader()` by default. With another one than before only the grading is done again.
        system_prompt: put before every question; the rows stay as they are.
        seed: other seeds give other samples.
        description: beside the progress bar.
        **running: arguments of `run`, such as `batch_size`.

    Raises:
        SettingsChanged: the store holds answers that were drawn in another way, or to other questions.
    """
    sampling_params, grader = sampling_params or SamplingParams(), grader or Grader()
    texts = rows.select_columns([name for name in TEXTS if name in rows.column_names])
    answers = Answers(texts, n, protocol.turns, store, stage, verdict_stage(stage, grader))
    settings = {
        "engine": engine.settings,
        "protocol": getattr(protocol, "answer_settings", None) or protocol.settings,
        "sampling_params": asdict(sampling_params),
        "system_prompt": system_prompt,
        "seed": seed,
    }
    if isinstance(rows, Dataset):
        refuse_unseen_media("answer_questions: rows", rows)
    remember_questions(store, stage, rows)
    store.open_stage(stage, settings)
    if isinstance(grader, JudgeGrader):
        _judge_again(answers, grader, running)
    with _grading_meanwhile(answers, grader) as grade_last_batch:

        def answer(units: Sequence[RowSample]) -> list[dict[str, Any] | Failure]:
            grade_last_batch(units)
            return ask(units, engine, protocol, sampling_params, system_prompt=system_prompt, seed=seed)

        run(store, stage, rows, answer, settings=settings, n=n, description=description, **running)
    wait_for_all()
    scorer: Scorer | None = getattr(protocol, "scorer", None)
    if scorer is not None:
        answers = score_answers(answers, rows, scorer, **running)
    stored, grade = _StoredSamples(answers, texts), _on_kept(partial(grade_payloads, grader=grader))
    run(store, answers.verdicts, stored, grade, settings=_grading_settings(grader), description="grading", **running)
    wait_for_all()
    return answers


def score_answers(
    answers: Answers,
    rows: Dataset | JoinedRows,
    scorer: Scorer,
    *,
    stage: str | None = None,
    description: str = "scoring",
    **running: Any,
) -> Answers:
    """The same answers with scores, which are stored; `answer_questions` does it for protocols that have a scorer.

    Args:
        answers, rows: result of `answer_questions`, and its rows.
        scorer: scores each sample; no engine is needed any more.
        stage: stage of the scores; by default each scorer has its own.

    Other arguments as for `answer_questions`.
    """
    made_by = json.dumps(scorer.settings, sort_keys=True)
    scored = replace(answers, scores=stage or _beside(answers.stage, "scores", made_by), scorer=scorer)
    stored, score = _StoredSamples(answers, rows), _on_kept(scorer.score)
    run(answers.store, scored.scores, stored, score, settings=scorer.settings, description=description, **running)
    wait_for_all()
    return scored


def answer_in_memory(
    rows: Dataset,
    engine: Engine,
    protocol: AnsweringProtocol,
    *,
    n: int = 1,
    sampling_params: SamplingParams | None = None,
    grader: Grader | JudgeGrader | None = None,
    system_prompt: str | None = None,
    seed: int = 0,
    batch_size: int = 32,
    description: str = "answering",
) -> list[list[dict[str, Any] | Failure]]:
    """Sample and grade without a store, for a policy that changes with the next update.

    Under several processes each takes a share, and every process gets the whole result; they need no disk in common.
    `engine.processes`, if there is one, says how many of them answer with one engine: these take one share.

    Args:
        rows: questions as for `answer_questions`, under the ids of `distinct_ids`.
        batch_size: samples asked for at once.

    Other arguments as for `answer_questions`.
    """
    sampling_params, grader, state = sampling_params or SamplingParams(), grader or Grader(), patient_state()
    ids, scorer = distinct_ids(rows), getattr(protocol, "scorer", None)
    numbered_samples: list[tuple[int, dict[str, Any] | Failure]] = []
    together = getattr(engine, "processes", 1)
    engines, total = state.num_processes // together, len(rows) * n
    number = state.process_index // together
    first, last = total * number // engines, total * (number + 1) // engines
    with Progress(description, last - first, 0, 0, quiet=not state.is_main_process) as progress:
        for start in range(first, last, batch_size):
            batch = range(start, min(start + batch_size, last))
            units = [({**rows[k // n], "id": ids[k // n]}, k % n) for k in batch]
            answers = ask(units, engine, protocol, sampling_params, system_prompt=system_prompt, seed=seed)
            done = [place for place, answer in enumerate(answers) if not isinstance(answer, Failure)]
            payloads: list[Any] = [answers[place] for place in done]  # no failures
            answered_rows = [units[place][0] for place in done]
            verdicts = grade_payloads(answered_rows, payloads, grader)
            scores = [{}] * len(done) if scorer is None else scorer.score(answered_rows, payloads)
            for place, *parts in zip(done, payloads, verdicts, scores, strict=True):
                answers[place] = _joined(*parts, scorer=scorer)
            numbered_samples += zip(batch, answers, strict=True)
            progress.add(_record(unit, answer) for unit, answer in zip(units, answers, strict=True))
    is_first = state.process_index % together == 0
    gathered = gather_object(numbered_samples if is_first else []) if state.num_processes > 1 else numbered_samples
    samples = [sample for _, sample in sorted(gathered, key=lambda item: item[0])]
    failures = [sample.reason for sample in samples if isinstance(sample, Failure)]
    if failures and state.is_main_process:
        logger.warning(
            "%s: %d of %d samples failed, the first: %s", description, len(failures), len(samples), failures[0]
        )
    return [samples[start : start + n] for start in range(0, len(samples), n)]


class JoinedRows(Sequence):
    """Rows that each belong to a row of a data set, such as the steps of its chains; pictures are not copied.

    Args:
        rows: the data set.
        positions: position of the row that each belongs to.
        columns: what each has of its own, `id` among it, in the place of the data set's.
    """

    def __init__(self, rows: Dataset, positions: Sequence[int], columns: Mapping[str, Sequence[Any]]) -> None:
        self.rows, self.positions, self.columns = rows, positions, columns
        self.column_names = [*columns, *(name for name in rows.column_names if name not in columns)]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, place: Any) -> Any:
        """A whole row, or one of the rows' own columns."""
        if isinstance(place, str):
            return self.columns[place]
        own = {name: values[place] for name, values in self.columns.items()}
        return {**self.rows[self.positions[place]], **own}

    def select_columns(self, names: Sequence[str]) -> Dataset:
        """Copy these columns, none of which holds pictures, into a new data set."""
        shared = [name for name in names if name not in self.columns]
        dataset = self.rows.select_columns(shared).select(self.positions)
        for name in names:
            if name in self.columns:
                dataset = dataset.add_column(name, list(self.columns[name]))
        return dataset


def distinct_ids(rows: Dataset) -> list[str]:
    """The rows' ids; a missing id becomes the row's number, which is also appended to repeated ids."""
    values = rows["id"][:] if "id" in rows.column_names else [None] * len(rows)
    ids = [str(id_ or number) for number, id_ in enumerate(values)]
    times = Counter(ids)
    return [id_ if times[id_] == 1 else f"{id_}#{number}" for number, id_ in enumerate(ids)]


def verdict_stage(stage: str, grader: Grader | JudgeGrader) -> str:
    """Name of the stage with this grader's verdicts on the answers of another stage."""
    return _beside(stage, "verdicts", _graded_by(grader))


def unit_name(row: Mapping[str, Any], index: int) -> str:
    """Id of a sample's verdicts and scores; it contains the tolerance."""
    tolerance = row.get("tolerance")
    return f"{row['id']}#{index}" + (f" {json.dumps(tolerance, sort_keys=True)}" if tolerance else "")


def _beside(stage: str, kind: str, made_by: str) -> str:
    """Name of the stage beside another one that holds verdicts or scores of one origin."""
    name = f"{kind}-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"
    return name if stage == "answers" else f"{stage}-{name}"


def _graded_by(grader: Grader | JudgeGrader) -> str:
    return f"{grader_settings(grader)} {grader_version()}"


def _words_for_units(rows: Dataset) -> Iterator[dict[str, Any]]:
    """The columns that `unit_name` reads, row by row."""
    yield from rows.select_columns([name for name in ("id", "tolerance") if name in rows.column_names])


class _StoredSamples(Sequence):
    """Stored samples as rows for grading or scoring, read on demand."""

    column_names = ("id",)

    def __init__(self, answers: Answers, rows: Dataset | JoinedRows) -> None:
        self.answers = answers
        units, queried = tee((id_, index) for id_ in answers.ids for index in range(answers.n))
        held, failed = answers.store.holds(answers.stage, queried), answers.store.failed(answers.stage)
        # a byte for each sample that there may be, and the numbers of those that there are
        self.done = bytearray(has and unit not in failed for unit, has in zip(units, held, strict=True))
        self.numbers = array("q", compress(count(), self.done))
        self._row = lru_cache(maxsize=1)(rows.__getitem__)  # samples of one question follow each other

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: Any) -> Any:
        if place == "id":
            units = ((row, index) for row in _words_for_units(self.answers.rows) for index in range(self.answers.n))
            return [unit_name(row, index) for row, index in compress(units, self.done)]
        position, index = divmod(self.numbers[place], self.answers.n)
        row = self._row(position)
        (record,) = self.answers.store.find(self.answers.stage, [(row["id"], index)])
        return {"row": row, **record.payload}


@contextmanager
def _grading_meanwhile(
    answers: Answers, grader: Grader | JudgeGrader
) -> Iterator[Callable[[Sequence[RowSample]], None]]:
    """Grade a batch in a thread while the engine answers the next one, if the grader runs in other processes.

    Gives a function that is called with each batch before it is answered, when the last one is in the store. What is
    left undone is graded when all is answered: the last batch, what comes while `_MOST_WAITING` batches wait, and where
    the grader raised.
    """
    thread, waiting, last = ThreadPoolExecutor(1), deque[Future](), list[RowSample]()

    def grade_last_batch(units: Sequence[RowSample]) -> None:
        while waiting and waiting[0].done():
            waiting.popleft()
        if last and len(waiting) < _MOST_WAITING:
            waiting.append(thread.submit(_grade_kept, answers, grader, [*last]))
        last[:] = [({name: row[name] for name in TEXTS if name in row}, index) for row, index in units]

    try:
        yield grade_last_batch if getattr(grader, "works_elsewhere", False) else lambda units: None
    finally:
        thread.shutdown(cancel_futures=True)  # where it is interrupted, too: a judge may be paid for each answer


def _grade_kept(answers: Answers, grader: Grader | JudgeGrader, units: Sequence[RowSample]) -> None:
    """Grade the stored ones among these samples, and store the verdicts."""
    store = answers.store
    stored = [(row, record) for row, index in units for record in store.find(answers.stage, [(row["id"], index)])]
    done = [(row, record) for row, record in stored if record.status == "done"]
    verdicts = grade_payloads([row for row, _ in done], [record.payload for _, record in done], grader)
    names = [unit_name(row, record.index) for row, record in done]
    store.open_stage(answers.verdicts, _grading_settings(grader))
    records = [Record(name, 0, "done", verdict) for name, verdict in zip(names, verdicts, strict=True)]
    store.save(answers.verdicts, records)


def _judge_again(answers: Answers, grader: JudgeGrader, running: Mapping[str, Any]) -> None:
    """Let the main process ask a judge again that has given no verdict, or with `retry_failed` none on some answers."""
    rank, _ = rank_and_size(running.get("rank"), running.get("world_size"))
    if rank == 0 and answers.verdicts in answers.store.stages():
        stored = _StoredSamples(answers, answers.rows)

        def grade(places: list[int]) -> list[dict[str, Any]]:
            kept = [stored[place] for place in places]
            return grade_payloads([each["row"] for each in kept], kept, grader)

        retry_failed, batch_size = running.get("retry_failed", False), running.get("batch_size", 32)
        judge_again(
            answers.store, answers.verdicts, stored["id"], grade, retry_failed=retry_failed, batch_size=batch_size
        )
    wait_for_all()


def _on_kept(work: Callable[[list[Any], list[Any]], Sequence[dict[str, Any]]]) -> Work:
    """Let `run` call what takes rows and samples with those of `_StoredSamples`."""
    return lambda units: work([unit["row"] for unit, _ in units], [unit for unit, _ in units])


def _grading_settings(grader: Grader | JudgeGrader) -> dict[str, str]:
    return {"grader": _graded_by(grader)}


# ------------------------------------------------------------------------------------------------------ a batch of them


def ask(
    units: Sequence[RowSample],
    engine: Engine,
    protocol: AnsweringProtocol,
    sampling_params: SamplingParams,
    *,
    system_prompt: str | None,
    seed: int,
) -> list[dict[str, Any] | Failure]:
    """Sample once for each unit, as JSON; see `answer_questions`."""
    prompted = [({**row, "prompt": with_system_message(row["prompt"], system_prompt)}, index) for row, index in units]
    answers = protocol.answer(prompted, engine, sampling_params, seed)
    return [answer if isinstance(answer, Failure) else _payload(answer) for answer in answers]


def grade_payloads(
    rows: Sequence[Mapping[str, Any]], payloads: Sequence[Mapping[str, Any]], grader: Grader | JudgeGrader
) -> list[dict[str, Any]]:
    """Grade every turn of each sample in one batch."""
    turns = [(row, turn) for row, payload in zip(rows, payloads, strict=True) for turn in payload["turns"]]
    texts = [turn.get("graded", turn["text"]) for _, turn in turns]
    verdicts = iter(grade_answers(grader, [row for row, _ in turns], texts))
    return [{"turns": [_verdict_fields(next(verdicts)) for _ in payload["turns"]]} for payload in payloads]


def _record(unit: RowSample, answer: dict[str, Any] | Failure) -> Record:
    row, index = unit
    if isinstance(answer, Failure):
        return Record(row["id"], index, "failed", {}, answer.reason)
    return Record(row["id"], index, "done", answer)


def _joined(payload: Any, verdicts: Any, scores: Any = None, *, scorer: Scorer | None) -> dict[str, Any]:
    turns = zip(payload["turns"], verdicts["turns"], strict=True)
    scored = {} if scorer is None else scorer.fields(payload, scores)
    return {**payload, **scored, "turns": [{"text": turn["text"], **graded} for turn, graded in turns]}


def _payload(answer: Answered) -> dict[str, Any]:
    fields = answer._asdict()
    fields["turns"] = [{"text": turn.text} if turn.graded == turn.text else turn._asdict() for turn in answer.turns]
    return {name: value for name, value in fields.items() if value is not None}


def _verdict_fields(verdict: Verdict) -> dict[str, Any]:
    fields = verdict._asdict()
    return {"answer": fields.pop("extracted"), **fields}
