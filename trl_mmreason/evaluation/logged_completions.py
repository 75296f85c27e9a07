"""Read what the policy wrote in training from TRL's tables of completions, for a report."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ..messages import question_text, text_of
from ..training.logged_questions import LoggedQuestion, read_questions
from .methods import declared
from .trajectory import Piece, Trajectory, Turn

logger = logging.getLogger(__name__)

_STEPS = 12  # steps whose completions are shown: enough to follow a run

Completion = Mapping[str, Any]
"""A line of TRL's table: step, prompt, completion, advantage, and a column for every reward and every extra."""


class Logged(NamedTuple):
    """The trajectories of a report, and notes on missing ones."""

    trajectories: list[Trajectory]
    notes: list[str]


def tables_of(folder: Path) -> list[Path]:
    """TRL's tables in a trainer's output folder, ordered by step."""
    return sorted(folder.glob("completions/completions_*.parquet"), key=_step_of)


def read_logged_completions(folder: Path, shown: int, run: str = "") -> Logged:
    """Read completions of steps spread evenly over the run, including the first and the last.

    Args:
        shown: how many at most, unless a single group has more; groups are whole, and of each step equally many.
        run: what the run is called among others.
    """
    tables = [table for table in tables_of(folder) if _is_whole(table)]
    if not tables:
        return Logged([], ["No completions were logged; train with log_completions=True to see some here."])
    last = pq.read_table(tables[-1]).to_pylist()
    group_size = len(_whole_groups(last, _questions(folder, _step_of(tables[-1]), last), 1))
    chosen = _spread(tables, min(_STEPS, max(shown // max(group_size, 1), 1)))
    trajectories: list[Trajectory] = []
    without_questions = []
    total = 0
    for table in chosen:
        content = pq.read_table(table)
        lines, numbers = content.to_pylist(), _number_columns(content.schema)
        total += len(lines)
        questions = _questions(folder, _step_of(table), lines)
        if lines and not questions:
            without_questions.append(_step_of(table))
        for line, question in _whole_groups(lines, questions, shown // len(chosen)):
            rewards = {name: None if line[name] in (None, "") else float(line[name]) for name in numbers}
            trajectories.append(
                Trajectory(
                    id=question.id or _digest(question),
                    category=question.category,
                    question=question.question,
                    answer=question.answer,
                    images=[_opened(path) for path in question.images if path.exists()],
                    run=run,
                    step=line["step"],
                    turns=turns_of(line, pieces_of(line)),
                    rewards=rewards,
                    problem=line.get("problem") or None,
                )
            )
    notes = []
    if len(trajectories) < total or len(chosen) < len(tables):
        steps = f"{len(chosen)} of {len(tables)} steps that were logged"
        notes.append(f"Shown are {len(trajectories)} of the {total} completions at {steps}.")
    if without_questions:
        steps = ", ".join(map(str, without_questions))
        notes.append(f"Images and ids of the questions were not logged at step {steps}.")
    return Logged(_numbered(trajectories), notes)


def _is_whole(table: Path) -> bool:
    """Whether a table was written to its end; a warning names one that was not."""
    try:
        pq.read_metadata(table)
    except pa.ArrowInvalid:  # its process was killed, or the disk was full
        logger.warning("%s is cut off, and left out", table)
        return False
    return True


def answers_of(completion: Completion) -> list[str]:
    """The policy's answers in a completion, without calls of tools and what others said."""
    written = completion["completion"]
    if isinstance(written, str):
        return [written]
    answers = [message for message in written if message["role"] == "assistant" and not message.get("tool_calls")]
    return [_text_of(message) for message in answers]


def verdicts_of(completion: Completion) -> list[bool | None]:
    """The logged verdicts on a completion's answers: two, one or none."""
    if "second_correct" in completion:
        return [completion["first_correct"], completion["second_correct"]]
    for name in ("first_correct", "correct"):
        if name in completion:
            return [completion[name]]
    # the reward of `grading.get_accuracy_reward`
    return [{0.0: False, 1.0: True}.get(completion.get("accuracy_reward", math.nan))]


def pieces_of(completion: Completion) -> list[Sequence[Piece]]:
    """The answers cut by the method's format, or whole."""
    for method in declared():
        if method.pieces is not None and (pieces := method.pieces(completion)) is not None:
            return pieces
    return [[Piece(text)] for text in answers_of(completion)]


def turns_of(completion: Completion, answers: Sequence[Sequence[Piece]]) -> list[Turn | None]:
    """The answers with their logged verdicts; `None` for a graded answer that was never given."""
    verdicts = verdicts_of(completion)
    verdicts = [*[None] * (len(answers) - len(verdicts)), *verdicts]  # a single verdict is that of the last answer
    labels = ["Answer"] if len(verdicts) == 1 else ["First answer", "Second answer"]
    turns = [
        Turn(pieces=pieces, correct=correct, label=labels[place] if place < len(labels) else f"Answer {place + 1}")
        for place, (pieces, correct) in enumerate(zip(answers, verdicts, strict=False))
    ]
    if turns and completion.get("answer"):
        turns[-1] = replace(turns[-1], answer=completion["answer"])
    return [*turns, *[None] * (len(verdicts) - len(turns))]


def _text_of(message: Mapping[str, Any]) -> str:
    """A message's text, including the thought that some chat templates move to another field."""
    thought = message.get("reasoning_content") or message.get("thinking")
    return (f"<think>\n{thought}\n</think>\n" if thought else "") + text_of(message["content"] or "")


def _number_columns(schema: pa.Schema) -> list[str]:
    """The numeric columns, such as rewards and advantage; Chain-of-Step logs one as a string, "" for none."""
    numbers = [field.name for field in schema if pa.types.is_floating(field.type) or pa.types.is_integer(field.type)]
    return [name for name in schema.names if name != "step" and (name in numbers or name == "answer_score")]


def _questions(folder: Path, step: int, lines: Sequence[Completion]) -> list[LoggedQuestion]:
    """The questions of these lines; none if they were not logged, or belong to another run's lines."""
    questions = read_questions(folder, step)
    texts = [question_text(line["prompt"]) for line in lines]
    return questions if [question.question for question in questions] == texts else []


def _whole_groups(
    lines: Sequence[Completion], questions: Sequence[LoggedQuestion], most: int
) -> list[tuple[Completion, LoggedQuestion]]:
    """Take lines with their questions in whole groups of one question; at least the first group."""
    known = questions or [LoggedQuestion(question_text(line["prompt"]), "", "", "", []) for line in lines]
    pairs: list[tuple[Completion, LoggedQuestion]] = []
    for _, group in groupby(zip(lines, known, strict=True), key=lambda pair: pair[1]):
        members = list(group)
        if pairs and len(pairs) + len(members) > most:
            break
        pairs += members
    return pairs


def _numbered(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Append numbers to ids that several questions share, and add each line's position in its group."""
    sharing: dict[str, dict[tuple[str, str, str], int]] = {}
    places: Counter[tuple[str, int | None]] = Counter()
    numbered = []
    for trajectory in trajectories:
        questions = sharing.setdefault(trajectory.id, {})
        question = trajectory.question, trajectory.answer, trajectory.category
        number = questions.setdefault(question, len(questions) + 1)
        id_ = trajectory.id if number == 1 else f"{trajectory.id} ({number})"
        places[group := (id_, trajectory.step)] += 1
        numbered.append(replace(trajectory, id=id_, number=places[group]))
    return numbered


def _digest(question: LoggedQuestion) -> str:
    """An id for a question without one, equal for equal text and images."""
    content = "\n".join([question.question, *(path.name for path in question.images)])
    return f"question {hashlib.sha256(content.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.copy()


def _step_of(table: Path) -> int:
    return int(table.stem.rpartition("_")[2])


def _spread(tables: Sequence[Path], count: int) -> list[Path]:
    """At most `count` items at even distances, including the last."""
    if len(tables) <= count:
        return list(tables)
    last = len(tables) - 1
    return [tables[round(last * (1 - index / max(count - 1, 1)))] for index in reversed(range(count))]
