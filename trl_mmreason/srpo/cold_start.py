"""The cold start's data (section 3.1.1): the policy solves, a teacher who knows the answer reflects, and both become
one completion to imitate.

    <think>{cot}</think> <answer>{answer}</answer> <reflection>{reflection}</reflection> <answer>{ground_truth}</answer>

The true answer is seen by the teacher alone. It may be in the reflection and in the last answer, never before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from datasets import Dataset, Features, Value

from ..data.images import IMAGE_COLUMNS, images_of
from ..data.rows import MESSAGES, DataError
from ..generation.engine import Engine, Request, SamplingParams
from ..grading import Grader
from ..jobs.answering import answer_questions
from ..jobs.asking import ReplyCollector, parsed_positions
from ..jobs.difficulty import tally
from ..jobs.source_rows import join_source_columns
from ..jobs.store import Store
from ..messages import question_text, quoted, with_system_message
from .prompts import (
    COT_PROMPT,
    SFT_PROMPT,
    TEACHER_SYSTEM_PROMPT,
    read_rating,
    read_reflection,
    scorer_prompt,
    teacher_prompt,
)
from .protocols import FirstSolution
from .selection import PolicySolution, read_solutions, select_mix

SOLUTIONS = "srpo-answers"
RATINGS = "srpo-ratings"
REFLECTIONS = "srpo-reflections"

_FEATURES = Features(
    {
        "id": Value("string"),
        "prompt": MESSAGES,
        "completion": Value("string"),
        "first_correct": Value("bool"),
        "rating": Value("float64"),
    }
)
_COLUMNS = ("id", "prompt", *IMAGE_COLUMNS, "completion", "first_correct", "rating")


class Reflections(NamedTuple):
    """Training rows, and the number of dropped answers for each reason.

    `rows` has the columns `id` ("<id of the question>#<number of the answer>"), `prompt`, `images` if the questions
    have them, `completion`, `first_correct`, and `rating`, which is None without a scorer.
    """

    rows: Dataset
    dropped: dict[str, int]

    def __str__(self) -> str:
        return tally(len(self.rows), self.dropped, "answers")


@dataclass(frozen=True)
class ReflectionMaking:
    """Settings of solutions and reflections: sampling, and selection of rows.

    Attributes:
        size: rows to make; by default as many as the mix allows. Less come out if replies of the teacher are dropped.
        right_share: share of right first answers.
        n: first solutions a question; each may become a row.
        sampling_params: sampling parameters of the policy; by default as `SamplingParams()` says.
        teacher_sampling_params: of teacher and scorer, likewise. At temperature 0 a malformed reply comes again.
        cot_prompt: system message to the policy; `None`: as the rows are.
        system_prompt: system message of the rows that are made; `None`: as the rows are.
        scorer_sees_images: off for a scorer that reads text only, as the paper's (DeepSeek-V3).
        second_thought: have the teacher write a second `<think>` too, which the paper's rows do not have.
        attempts: how often teacher and scorer are asked, each time with another seed, before a reply that is malformed
            or failed is dropped.
        seed: other seeds give other solutions, ratings and reflections.

    Raises:
        ValueError: a value is out of range.
    """

    size: int | None = None
    right_share: float = 0.3
    n: int = 1
    sampling_params: SamplingParams = SamplingParams()
    teacher_sampling_params: SamplingParams = SamplingParams()
    cot_prompt: str | None = COT_PROMPT
    system_prompt: str | None = SFT_PROMPT
    scorer_sees_images: bool = True
    second_thought: bool = False
    attempts: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        select_mix((), (), size=self.size, right_share=self.right_share)


def make_reflections(
    rows: Dataset,
    policy: Engine,
    teacher: Engine,
    store: Store,
    making: ReflectionMaking | None = None,
    *,
    scorer: Engine | None = None,
    grader: Grader | None = None,
    **running: Any,
) -> Reflections:
    """Let the policy solve each question, and a teacher reflect on a mix of right and wrong solutions.

    It resumes, and several processes share the work, as `answer_questions` says. `n`, `size` and `right_share` may
    differ from those of the run before, and then only what is missing is asked. What failed is asked again with
    `retry_failed=True`.

    Args:
        rows: rows with id, prompt, answer, and optionally images and choices. Of several answers the first is taught.
        policy: writes the first solutions.
        teacher: engine that writes the reflections; it gets the true answer.
        store: keeps every reply.
        making: `ReflectionMaking()` by default.
        scorer: rates the reasoning from 1 to 10, without the true answer; without one all count the same.
        grader: `Grader()` by default.
        **running: arguments of `run`, such as `batch_size` and `retry_failed`; `retries` holds for the policy.

    Raises:
        DataError: a row has a system message already.
        ValueError: `attempts` is out of range.
        SettingsChanged: the store holds replies that were drawn in another way.
    """
    making = making or ReflectionMaking()
    asking = ReplyCollector(store, making.teacher_sampling_params, making.attempts, making.seed, running)
    if making.cot_prompt is not None or making.system_prompt is not None:
        _refuse_system_messages(rows)
    dropped: Counter[str] = Counter()
    answers = answer_questions(
        rows,
        policy,
        store,
        FirstSolution(),
        stage=SOLUTIONS,
        n=making.n,
        sampling_params=making.sampling_params,
        grader=grader,
        system_prompt=making.cot_prompt,
        seed=making.seed,
        description="solving",
        **running,
    )
    solutions = read_solutions(rows, answers, dropped)
    if scorer is not None:
        images = making.scorer_sees_images
        rated = _ask(asking, RATINGS, scorer, rows, solutions, _scorer_messages, read_rating, dropped, images=images)
        solutions = [solution._replace(rating=payload["score"]) for solution, payload in rated]
    mix = select_mix(
        [solution.correct for solution in solutions],
        [solution.rating for solution in solutions],
        size=making.size,
        right_share=making.right_share,
    )
    dropped["left over by size and mix"] += len(solutions) - len(mix)
    chosen, second_thought = [solutions[k] for k in mix], making.second_thought
    messages = partial(_teacher_messages, second_thought=second_thought)
    read = partial(read_reflection, second_thought=second_thought)
    reflected = _ask(asking, REFLECTIONS, teacher, rows, chosen, messages, read, dropped)
    return Reflections(_as_rows(rows, reflected, making.system_prompt), dict(+dropped))


def compose(solution: PolicySolution, reflection: str, think: str | None = None) -> str:
    """Compose the completion of "Self-reflection SFT" (appendix B.3), with a second `<think>` if there is one."""
    second_thought = "" if think is None else f"<think>{think}</think>\n"
    return (
        f"<think>{solution.cot}</think>\n<answer>{solution.answer}</answer>\n<reflection>{reflection}</reflection>\n"
        f"{second_thought}<answer>{solution.ground_truth}</answer>"
    )


def _refuse_system_messages(rows: Dataset) -> None:
    for id_, prompt in zip(rows["id"], rows["prompt"], strict=True):
        if any(message["role"] == "system" for message in prompt):
            raise DataError(
                f"make_reflections: row {id_!r} has a system message of its own, but cot_prompt and system_prompt are "
                "to be one. Take it out of the rows; or give cot_prompt=None and system_prompt=None, which keep it."
            )


# -------------------------------------------------------------------------------------------------- teacher and scorer

_TEMPLATE = PolicySolution("{id}", 0, "{cot}", "{answer}", False, "{ground_truth}")
_ASKED_FOR = {RATINGS: "rating", REFLECTIONS: "reflection"}


def _ask(
    asking: ReplyCollector,
    stage: str,
    engine: Engine,
    rows: Dataset,
    solutions: Sequence[PolicySolution],
    messages: Callable[[str, PolicySolution], list[dict[str, str]]],
    read: Callable[[str], dict[str, Any]],
    dropped: Counter[str],
    *,
    images: bool = True,
) -> list[tuple[PolicySolution, dict[str, Any]]]:
    """Ask the teacher; return the solutions with a reply, each with the reply's payload, and count the others.

    Args:
        messages: what to say, from the question and the solution.
        read: the payload that a reply holds; raises `MalformedReply`.
        images: whether to show the question's images.
    """

    def request(unit: Mapping[str, Any]) -> Request:
        row = rows[unit["solution"].position]
        shown = images_of(row) if images else ()
        return Request(messages(question_text(row["prompt"]), unit["solution"]), shown)

    template_messages = {message["role"]: message["content"] for message in messages("{question}", _TEMPLATE)}
    ids = [solution.id for solution in solutions]
    units = [{"id": solution.id, "solution": solution} for solution in solutions]
    settings = {"messages": template_messages, "images": images}
    replies = asking.ask(stage, engine, units, request, lambda _, reply: read(reply), settings=settings)
    positions = parsed_positions(ids, replies, dropped, prefix=f"{_ASKED_FOR[stage]}: ")
    return [(solutions[k], replies[ids[k]].payload) for k in positions]


def _scorer_messages(question: str, solution: PolicySolution) -> list[dict[str, str]]:
    return [{"role": "user", "content": scorer_prompt(question, quoted(solution.cot))}]


def _teacher_messages(question: str, solution: PolicySolution, second_thought: bool) -> list[dict[str, str]]:
    cot, answer = quoted(solution.cot), quoted(solution.answer)
    prompt = teacher_prompt(question, cot, answer, solution.ground_truth, second_thought=second_thought)
    return with_system_message([{"role": "user", "content": prompt}], TEACHER_SYSTEM_PROMPT)


# ----------------------------------------------------------------------------------------------------------------- rows


def _as_rows(
    rows: Dataset, reflected: Sequence[tuple[PolicySolution, Mapping[str, Any]]], system_prompt: str | None
) -> Dataset:
    """Make one row for each solution with its reflection, with its question's images as stored."""
    solutions = [solution for solution, _ in reflected]
    positions = [solution.position for solution in solutions]
    columns = {
        "id": [solution.id for solution in solutions],
        "prompt": [with_system_message(prompt, system_prompt) for prompt in rows.select(positions)["prompt"]],
        "completion": [compose(solution, **payload) for solution, payload in reflected],
        "first_correct": [solution.correct for solution in solutions],
        "rating": [solution.rating for solution in solutions],
    }
    return join_source_columns(Dataset.from_dict(columns, features=_FEATURES), rows, positions, _COLUMNS)
