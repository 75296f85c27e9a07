"""Step data (arXiv:2509.19003, section 3.2): a teacher, who is given the short answer, writes the steps to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from datasets import Dataset, Features, Value

from ..data.images import pictures_of
from ..generation.engine import Engine, Request, SamplingParams
from ..grading import Grader
from ..grading.grader import grader_settings
from ..grading.reward import items_of
from ..jobs.asking import MalformedReply, ReplyCollector, parsed_positions, reference_answer
from ..jobs.difficulty import Filtered, usable_questions
from ..jobs.questions import remember_questions
from ..jobs.source_rows import join_source_columns
from ..jobs.store import Store
from ..messages import question_text, with_system_message
from .prompts import MAX_TAUGHT_STEPS, MIN_TAUGHT_STEPS, read_steps, step_data_message, step_data_prompt
from .template import render_chain

STEP_DATA = "chain-of-step-data"

_COLUMNS = ("id", "prompt", "images", "image", "completion")


def make_step_data(
    rows: Dataset,
    teacher: Engine,
    store: Store,
    *,
    min_steps: int = MIN_TAUGHT_STEPS,
    max_steps: int = MAX_TAUGHT_STEPS,
    sampling_params: SamplingParams | None = None,
    attempts: int = 3,
    grader: Grader | None = None,
    seed: int = 0,
    **running: Any,
) -> Filtered:
    """Let a teacher write a chain of steps for each question, for `ChainOfStepSFTTrainer`.

    It resumes, and several processes share the work, as `answer_questions` says. What failed is asked again with
    `retry_failed=True`.

    The prompt of Fig. 8 is the system message; question, pictures and reference answer are the user's. A chain keeps
    the answer as the teacher wrote it, if that is right.

    Args:
        rows: rows with id, prompt, answer, and optionally images and choices. Of several answers the first is told. A
            system message stays in the rows that are made, and is not shown to the teacher.
        teacher: writes the steps.
        store: keeps every chain.
        min_steps, max_steps: asked for, and what has fewer or more is malformed.
        sampling_params: `SamplingParams()` by default. At temperature 0 a malformed reply comes again.
        attempts: number of tries, each time with another seed, before a question is dropped whose reply is malformed,
            failed, or comes to another answer.
        grader: `Grader()` by default. Its verdict decides whether a chain is asked for again, so a store with chains
            that another one graded is refused, unlike in `answer_questions`.
        seed: other seeds give other chains.
        **running: arguments of `run`, such as `batch_size` and `retry_failed`.

    Returns:
        Rows of the columns `id`, `prompt`, `images` if the questions have them, and `completion`, the chain.

    Raises:
        ValueError: an argument is out of range.
        SettingsChanged: the store holds chains that were made in another way.
    """
    if not 1 <= min_steps <= max_steps:
        raise ValueError(f"make_step_data: got {min_steps} to {max_steps} steps, expected 1 ≤ min_steps ≤ max_steps.")
    grader, prompt = grader or Grader(), step_data_prompt(min_steps, max_steps)
    asking = ReplyCollector(
        store, sampling_params or SamplingParams(), attempts, seed, {"description": "writing steps", **running}
    )

    def request(row: Mapping[str, Any]) -> Request:
        message = step_data_message(question_text(row["prompt"]), reference_answer(row["answer"]))
        return Request(with_system_message([{"role": "user", "content": message}], prompt), pictures_of(row))

    def read(row: Mapping[str, Any], reply: str) -> dict[str, str]:
        chain = read_steps(reply, min_steps=min_steps, max_steps=max_steps)
        (verdict,) = grader.grade_batch(items_of([row], [chain.answer or ""]))
        if not verdict.correct:
            raise MalformedReply("another answer than the reference")
        return {"completion": render_chain(chain)}

    settings = {
        "messages": {"system": prompt, "user": step_data_message("{question}", "{answer}")},
        "grader": grader_settings(grader),
    }
    dropped: Counter[str] = Counter()
    usable = usable_questions(rows, grader)
    dropped["the gold answer cannot be used"] += len(rows) - len(usable)
    questions = rows.select(usable)
    remember_questions(store, STEP_DATA, questions)
    replies = asking.ask(STEP_DATA, teacher, questions, request, read, settings=settings)
    positions = parsed_positions(questions["id"][:], replies, dropped)
    completions = [replies[id_].payload["completion"] for id_ in questions.select(positions)["id"]]
    dataset = Dataset.from_dict({"completion": completions}, features=Features({"completion": Value("string")}))
    return Filtered(join_source_columns(dataset, questions, positions, _COLUMNS), dict(+dropped))
