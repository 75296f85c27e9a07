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

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset

from ..data.unseen_media import refuse_unseen_media
from ..generation.engine import Engine, Failure, SamplingParams
from ..generation.patience import patient_state, wait_for_all
from ..generation.protocols import Answered, AnsweringProtocol, RowSample
from ..grading import Grader, JudgeGrader
from ..messages import with_system_message
from .questions import remember_questions
from .run import Progress, run
from .source_rows import JoinedRows
from .store import Store
from .verdicts import (
    TEXTS,
    StoredSamples,
    forget_silence,
    grade_payloads,
    grade_stored,
    grading_meanwhile,
    named_rows,
    stage_beside,
    unit_name,
    verdict_stage,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answers:
    """Graded samples of questions, read from the store on demand.

    Iterating gives for each question, in the order of `ids`, an iterator of its n samples: dicts with `turns`, each
    turn with `text`, `answer`, `correct`, `reason` and `decided_by`, and with the other fields of `Answered`; or a
    `Failure`.

    Attributes:
        rows: the questions, without their images.
        n: samples per question.
        turns: answers per whole sample.
        store, stage, verdicts: store of the answers, and their stage and that of the verdicts on them.
        scores: stage of the scores by `scorer`, if there is one.
    """

    rows: Dataset
    n: int
    turns: int
    store: Store
    stage: str
    verdicts: str
    scores: str = ""
    scorer: Any = None

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the questions."""
        return self.rows["id"][:]

    def items(self) -> Iterator[tuple[str, Iterator[dict[str, Any] | Failure]]]:
        """Each question's id with its samples."""
        return zip(self.ids, self, strict=True)

    def __iter__(self) -> Iterator[Iterator[dict[str, Any] | Failure]]:
        for row in named_rows(self.rows):
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

    A killed run resumes. Under several processes each takes its share; call it on all of them with the same store, and
    every process gets the whole result.

    Args:
        rows: rows with id, prompt, answer, and optionally images (or image), choices, hint and `tolerance`.
        engine: the policy.
        store: store of every answer, verdict and score.
        protocol: how the policy is asked, what of its replies is graded, and what scores them.
        stage: stage of the store.
        n: samples per question.
        grader: `Grader()` by default. With another one than before only the grading is done again.
        system_prompt: put before every question; the rows stay as they are.
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
        forget_silence(store, answers.verdicts, running)
    with grading_meanwhile(store, stage, grader) as grade_previous_batch:

        def answer(units: Sequence[RowSample]) -> list[dict[str, Any] | Failure]:
            grade_previous_batch(units)
            return ask(units, engine, protocol, sampling_params, system_prompt=system_prompt, seed=seed)

        run(store, stage, rows, answer, settings=settings, n=n, description=description, **running)
    wait_for_all()
    scorer = getattr(protocol, "scorer", None)
    if scorer is not None:
        answers = score_answers(answers, rows, scorer, **running)
    grade_stored(StoredSamples(store, stage, n, texts), grader, **running)
    return answers


def score_answers(
    answers: Answers,
    rows: Dataset | JoinedRows,
    scorer: Any,
    *,
    stage: str | None = None,
    description: str = "scoring",
    **running: Any,
) -> Answers:
    """The same answers with stored scores; `answer_questions` does this for protocols that have a scorer.

    Args:
        answers, rows: result of `answer_questions`, and its rows.
        scorer: see `AnsweringProtocol`.
        stage: stage of the scores; by default each scorer has its own.
        description, **running: as for `answer_questions`.
    """
    made_by = json.dumps(scorer.settings, sort_keys=True)
    scored = replace(answers, scores=stage or stage_beside(answers.stage, "scores", made_by), scorer=scorer)
    samples = StoredSamples(answers.store, answers.stage, answers.n, rows)
    samples.run(scored.scores, scorer.score, settings=scorer.settings, description=description, **running)
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
    """Sample and grade without a store, for a policy that changes with the next update; see `answer_questions`.

    Under several processes each takes a share, and every process gets the whole result. `engine.processes` of them, if
    there is such a number, answer with one engine and take one share.

    Args:
        rows: rows, which get the ids of `distinct_ids`.
        batch_size: samples asked for at once.
    """
    sampling_params, grader, state = sampling_params or SamplingParams(), grader or Grader(), patient_state()
    ids, scorer = distinct_ids(rows), getattr(protocol, "scorer", None)
    samples: list[dict[str, Any] | Failure] = []
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
            samples += answers
            progress.add(None if isinstance(answer, Failure) else answer for answer in answers)
    if state.num_processes > 1:  # in the order of processes, which is that of rows
        samples = gather_object(samples if state.process_index % together == 0 else [])
    failures = [sample.reason for sample in samples if isinstance(sample, Failure)]
    if failures and state.is_main_process:
        logger.warning(
            "%s: %d of %d samples failed, the first: %s", description, len(failures), len(samples), failures[0]
        )
    return [samples[start : start + n] for start in range(0, len(samples), n)]


def distinct_ids(rows: Dataset) -> list[str]:
    """The rows' ids; a missing id becomes the row's number, which is also appended to repeated ids."""
    values = rows["id"][:] if "id" in rows.column_names else [None] * len(rows)
    ids = [str(id_ or number) for number, id_ in enumerate(values)]
    times = Counter(ids)
    return [id_ if times[id_] == 1 else f"{id_}#{number}" for number, id_ in enumerate(ids)]


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


def _joined(payload: Any, verdicts: Any, scores: Any = None, *, scorer: Any) -> dict[str, Any]:
    turns = zip(payload["turns"], verdicts["turns"], strict=True)
    scored = {} if scorer is None else scorer.fields(payload, scores)
    return {**payload, **scored, "turns": [{"text": turn["text"], **graded} for turn, graded in turns]}


def _payload(answer: Answered) -> dict[str, Any]:
    fields = answer._asdict()
    fields["turns"] = [{"text": turn.text} if turn.graded == turn.text else turn._asdict() for turn in answer.turns]
    return {name: value for name, value in fields.items() if value is not None}
