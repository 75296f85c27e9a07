"""The cold start's data (section 3.1.1): the policy solves, a teacher who knows the answer reflects, and both become
one completion to imitate.

    <think>{cot}</think> <answer>{answer}</answer> <reflection>{reflection}</reflection> <answer>{ground_truth}</answer>

The true answer is seen by the teacher alone. It may stand in the reflection and in the last answer, never before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from datasets import Dataset, Features, List, Value, concatenate_datasets

from ..construction import with_system_message
from ..grading import Grader
from ..grading.reward import question_text
from ..rows import DataError
from ..sampling.difficulty import tally, wait_for_all
from ..sampling.engine import Decoding, Engine, Failure, Request, Sample, seed_of
from ..sampling.run import run
from ..sampling.store import Record, Store
from .prompts import (
    COT_PROMPT,
    SFT_PROMPT,
    TEACHER_SYSTEM_PROMPT,
    MalformedReply,
    read_reflection,
    read_score,
    scorer_prompt,
    teacher_prompt,
)
from .selection import Solution, Student, read_solutions, select_mix

RATINGS = "srpo-ratings"
REFLECTIONS = "srpo-reflections"

PICTURES_A_BATCH = 64  # rows that are in memory at once when pictures are copied; one may hold megabytes

_MALFORMED = "malformed reply"
_FEATURES = Features(
    {
        "id": Value("string"),
        "prompt": List({"role": Value("string"), "content": Value("string")}),
        "completion": Value("string"),
        "first_correct": Value("bool"),
        "rating": Value("float64"),
    }
)


class Reflections(NamedTuple):
    """The rows to train on, and why other answers became none: reason → number of answers.

    `rows` has the columns `id` ("<id of the question>#<number of the answer>"), `prompt`, `images` if the questions
    have them, `completion`, `first_correct`, and `rating`, which is None without a scorer.
    """

    rows: Dataset
    dropped: dict[str, int]

    def __str__(self) -> str:
        return tally(len(self.rows), self.dropped, "answers")


def make_reflections(
    rows: Dataset,
    policy: Engine,
    teacher: Engine,
    store: Store,
    *,
    scorer: Engine | None = None,
    scorer_sees_images: bool = True,
    size: int | None = None,
    right_share: float = 0.3,
    n: int = 1,
    decoding: Decoding | None = None,
    teacher_decoding: Decoding | None = None,
    grader: Grader | None = None,
    cot_prompt: str | None = COT_PROMPT,
    system_prompt: str | None = SFT_PROMPT,
    second_thought: bool = False,
    attempts: int = 3,
    seed: int = 0,
    **running: Any,
) -> Reflections:
    """Let the policy solve each question `n` times, and the teacher reflect on a mix of right and wrong solutions.

    It goes on where a killed run stopped; `n`, `size` and `right_share` may differ from those of the run before, and
    then only what is missing is asked. What failed is asked again with `retry_failed=True`. Under several processes
    each takes its share; call it on all of them with the same store, and every process gets the whole result.

    Args:
        rows: rows with id, prompt, answer, and optionally images and choices. Of several answers the first is taught.
        policy: writes the first solutions.
        teacher: writes the reflections, and is told the true answer.
        store: keeps every reply.
        scorer: rates the reasoning from 1 to 10, without the true answer; without one all count the same.
        scorer_sees_images: off for a scorer that reads text only, as the paper's (DeepSeek-V3).
        size: rows to make; by default as many as the mix allows. Less come out if replies of the teacher are dropped.
        right_share: share of right first answers.
        n: first solutions a question; each may become a row.
        decoding: of the policy; by default as `Decoding()` says.
        teacher_decoding: of teacher and scorer, likewise. At temperature 0 a malformed reply comes again.
        grader: `Grader()` by default.
        cot_prompt: system message to the policy; `None`: as the rows are.
        system_prompt: system message of the rows that are made; `None`: as the rows are.
        second_thought: have the teacher write a second `<think>` too, which the paper's rows do not have.
        attempts: how often teacher and scorer are asked, each time with another seed, before a reply that is malformed
            or failed is dropped.
        seed: other seeds give other solutions, ratings and reflections.
        **running: for `run`, such as `batch_size` and `retry_failed`; `retries` holds for the policy.

    Raises:
        DataError: a row has a system message already.
        ValueError: an argument is out of range.
        SettingsChanged: the store holds replies that were drawn in another way.
    """
    select_mix((), (), size=size, right_share=right_share)  # refuses what is out of range before anything is asked
    if attempts < 1:
        raise ValueError(f"make_reflections: attempts is {attempts}, expected at least 1.")
    if cot_prompt is not None or system_prompt is not None:
        _refuse_system_messages(rows)
    dropped: Counter[str] = Counter()
    student = Student(policy, decoding or Decoding(), grader or Grader(), cot_prompt, seed)
    student.solve(rows, store, n, running)
    solutions = read_solutions(rows, store, n, dropped)
    asking = _Asking(rows, store, teacher_decoding or Decoding(), attempts, seed, running)
    if scorer is not None:
        ratings = asking.ask(RATINGS, scorer, solutions, _scorer_messages, read_score, images=scorer_sees_images)
        kept = _answered(solutions, ratings, "rating", dropped)
        solutions = [solution._replace(rating=ratings[solution.id].payload["score"]) for solution in kept]
    mix = select_mix(
        [solution.correct for solution in solutions],
        [solution.rating for solution in solutions],
        size=size,
        right_share=right_share,
    )
    dropped["left over by size and mix"] += len(solutions) - len(mix)
    chosen = [solutions[k] for k in mix]
    replies = asking.ask(
        REFLECTIONS,
        teacher,
        chosen,
        lambda question, solution: _teacher_messages(question, solution, second_thought),
        lambda reply: read_reflection(reply, second_thought=second_thought),
    )
    chosen = _answered(chosen, replies, "reflection", dropped)
    completions = [compose(solution, **replies[solution.id].payload) for solution in chosen]
    return Reflections(_as_rows(rows, chosen, completions, system_prompt), dict(+dropped))


def compose(solution: Solution, reflection: str, think: str | None = None) -> str:
    """The completion of "Self-reflection SFT" (appendix B.3), with a second `<think>` if there is one."""
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

Messages = Callable[[str, Solution], list[dict[str, str]]]
_TEMPLATE = Solution("{id}", 0, "{cot}", "{answer}", False, "{ground_truth}")


@dataclass(frozen=True)
class _Asking:
    """How teacher and scorer are asked about solutions."""

    rows: Dataset
    store: Store
    decoding: Decoding
    attempts: int
    seed: int
    running: Mapping[str, Any]

    def ask(
        self,
        stage: str,
        engine: Engine,
        solutions: Sequence[Solution],
        messages: Messages,
        read: Callable[[str], dict[str, Any]],
        *,
        images: bool = True,
    ) -> dict[str, Record]:
        """Solution id → what came of asking about it, for these solutions and those of earlier runs.

        Args:
            messages: what to say, from the question and the solution.
            read: the payload that a reply holds; raises `MalformedReply`.
            images: whether to show the question's pictures.
        """

        def work(units: Sequence[tuple[Mapping[str, Any], int]]) -> list[dict[str, Any] | Failure]:
            requests = []
            for unit, _ in units:
                row = self.rows[unit["solution"].position]
                said = messages(question_text(row["prompt"]), unit["solution"])
                shown = row.get("images") if images else None
                requests.append(Request(said, shown or (), seed=seed_of(self.seed, stage, unit["id"])))
            return ask_until_read(engine, self.decoding, requests, read, self.attempts)

        settings = {
            "engine": engine.settings,
            "decoding": asdict(self.decoding),
            "messages": {message["role"]: message["content"] for message in messages("{question}", _TEMPLATE)},
            "images": images,
            "seed": self.seed,
        }
        units = [{"id": solution.id, "solution": solution} for solution in solutions]
        # `run` would try again with the same seed, and get the same reply.
        run(self.store, stage, units, work, settings=settings, **{**self.running, "retries": 0})
        wait_for_all()
        return {record.id: record for record in self.store.records(stage)}


def ask_until_read(
    engine: Engine,
    decoding: Decoding,
    requests: Sequence[Request],
    read: Callable[[str], dict[str, Any]],
    attempts: int,
) -> list[dict[str, Any] | Failure]:
    """What `read` makes of the first reply to each request that is not malformed; the last `Failure` if all are.

    Args:
        read: raises `MalformedReply`.
        attempts: how often to ask, each time with another seed.
    """
    results: dict[int, dict[str, Any] | Failure] = {}
    for attempt in range(attempts):
        waiting = [k for k in range(len(requests)) if not isinstance(results.get(k), dict)]
        if not waiting:
            break
        asked = [replace(requests[k], seed=seed_of(requests[k].seed, attempt)) for k in waiting]
        for k, samples in zip(waiting, engine.sample(asked, decoding), strict=True):
            results[k] = samples if isinstance(samples, Failure) else _read(samples[0], read)
    return [results[k] for k in range(len(requests))]


def _read(sample: Sample, read: Callable[[str], dict[str, Any]]) -> dict[str, Any] | Failure:
    if sample.finish_reason == "length":
        return Failure(f"{_MALFORMED}: cut by the length limit")
    try:
        return read(sample.text)
    except MalformedReply as error:
        return Failure(f"{_MALFORMED}: {error}")


def _answered(
    solutions: Iterable[Solution], replies: Mapping[str, Record], what: str, dropped: Counter[str]
) -> list[Solution]:
    """The solutions with a reply; those without are counted."""
    kept = []
    for solution in solutions:
        record = replies[solution.id]
        if record.status == "done":
            kept.append(solution)
        else:
            dropped[f"{what}: {record.reason if record.reason.startswith(_MALFORMED) else 'sampling failed'}"] += 1
    return kept


def _scorer_messages(question: str, solution: Solution) -> list[dict[str, str]]:
    return [{"role": "user", "content": scorer_prompt(question, solution.cot)}]


def _teacher_messages(question: str, solution: Solution, second_thought: bool) -> list[dict[str, str]]:
    asked = teacher_prompt(
        question, solution.cot, solution.answer, solution.ground_truth, second_thought=second_thought
    )
    return with_system_message([{"role": "user", "content": asked}], TEACHER_SYSTEM_PROMPT)


# ----------------------------------------------------------------------------------------------------------------- rows


def _as_rows(
    rows: Dataset,
    solutions: Sequence[Solution],
    completions: list[str],
    system_prompt: str | None,
) -> Dataset:
    """One row a solution, with the pictures of its question as they are stored."""
    questions = rows.select([solution.position for solution in solutions])
    columns = {
        "id": [solution.id for solution in solutions],
        "prompt": [with_system_message(prompt, system_prompt) for prompt in questions["prompt"]],
        "completion": completions,
        "first_correct": [solution.correct for solution in solutions],
        "rating": [solution.rating for solution in solutions],
    }
    if "images" not in rows.column_names:
        return Dataset.from_dict(columns, features=_FEATURES)
    order = ["id", "prompt", "images", "completion", "first_correct", "rating"]
    if not solutions:  # concatenating nothing would lose the column
        features = Features({**_FEATURES, "images": rows.features["images"]})
        return Dataset.from_dict({**columns, "images": []}, features=features).select_columns(order)
    made = Dataset.from_dict(columns, features=_FEATURES)
    pictures = questions.select_columns("images").flatten_indices(writer_batch_size=PICTURES_A_BATCH)
    return concatenate_datasets([made, pictures], axis=1).select_columns(order)
