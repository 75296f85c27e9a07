"""Training rows: a teacher's steps to known answers, and labels of a policy's steps (arXiv:2509.19003, 3.2 and 3.3).

    make_step_data(rows, teacher, store).rows                for `ChainOfStepSFTTrainer`

    chains = chains_of(rows, sample_paths(rows, policy, store, "paths", n=16)).rows
    annotate_by_monte_carlo(chains, policy, store).rows      soft label = share of 16 continuations that end rightly
    annotate_by_judge(chains, judge, store).rows             Good, Neutral or Bad per step, from a model told the answer

Labelled rows are for `ProcessRewardTrainer`; the answer's label is whether it is right. All of it resumes after a kill,
and several processes share the work, as `answer_questions` says. What failed is asked again with `retry_failed=True`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from datasets import Dataset, Features, List, Value

from ..data.images import images_of
from ..data.rows import Row
from ..generation.engine import Engine, Failure, Request, SamplingParams
from ..grading import Grader
from ..grading.grader import grader_settings
from ..grading.reward import items_of
from ..jobs.answering import JoinedRows, answer_questions
from ..jobs.asking import MalformedReply, ReplyCollector, parsed_positions, reference_answer
from ..jobs.difficulty import Filtered, tally, usable_questions
from ..jobs.questions import remember_questions
from ..jobs.source_rows import join_source_columns
from ..jobs.store import Store
from ..messages import question_text, with_system_message
from .chains import SAMPLING_PARAMS, Path
from .objective import judge_labels, monte_carlo_labels
from .prompts import (
    JUDGE_PROMPT,
    MAX_TAUGHT_STEPS,
    MIN_TAUGHT_STEPS,
    read_ratings,
    read_steps,
    step_data_message,
    step_data_prompt,
    step_judge_message,
)
from .protocols import Continuation
from .template import STEP_END, chain_ends, parse_chain, render_chain

STEP_DATA = "chain-of-step-data"
PATHS = "chain-of-step-paths"
MONTE_CARLO = "chain-of-step-monte-carlo"
JUDGED = "chain-of-step-judge"

_TAUGHT_COLUMNS = ("id", "prompt", "images", "image", "completion")
_TAUGHT_FEATURES = Features({"completion": Value("string")})
_GRADED_BY = ("answer", "choices", "hint", "tolerance")
_CHAIN_COLUMNS = ("id", "prompt", "images", "image", *_GRADED_BY, "completion", "correct")
_CHAIN_FEATURES = Features({"id": Value("string"), "completion": Value("string"), "correct": Value("bool")})
_LABELLED_COLUMNS = ("id", "prompt", "images", "image", "completion", "step_labels", "answer_label")
_LABEL_FEATURES = Features({"step_labels": List(Value("float64")), "answer_label": Value("float64")})


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
    """Let a teacher write a chain of steps for each question.

    The prompt of Fig. 8 is the system message; question, images and reference answer are the user's. A chain keeps
    the answer as the teacher wrote it, if that is right.

    Args:
        rows: rows with id, prompt, answer, and optionally images and choices. The teacher gets the first of several
            answers, and no system message, which stays in the rows that are made.
        teacher, store: who writes the steps, and what keeps every chain.
        min_steps, max_steps: bounds that the prompt names; a chain outside them is malformed.
        sampling_params: `SamplingParams()` by default. At temperature 0 a malformed reply comes again.
        attempts: number of tries, each time with another seed, before a question is dropped whose reply is malformed,
            failed, or comes to another answer.
        grader: `Grader()` by default. Its verdict decides whether a chain is asked for again, so a store with chains
            that another one graded is refused, unlike in `answer_questions`.
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
    running = {"description": "writing steps", **running}
    asking = ReplyCollector(store, sampling_params or SamplingParams(), attempts, seed, running)

    def request(row: Row) -> Request:
        message = step_data_message(question_text(row["prompt"]), reference_answer(row["answer"]))
        return Request(with_system_message([{"role": "user", "content": message}], prompt), images_of(row))

    def read(row: Row, reply: str) -> dict[str, str]:
        chain = read_steps(reply, min_steps=min_steps, max_steps=max_steps)
        (verdict,) = grader.grade_batch(items_of([row], [chain.answer or ""]))
        if not verdict.correct:
            raise MalformedReply("another answer than the reference")
        return {"completion": render_chain(chain)}

    settings = {
        "messages": {"system": prompt, "user": step_data_message("{question}", "{answer}")},
        "grader": grader_settings(grader),
    }
    usable = usable_questions(rows, grader)
    dropped = Counter({"the gold answer cannot be used": len(rows) - len(usable)})
    questions = rows.select(usable)
    remember_questions(store, STEP_DATA, questions)
    replies = asking.ask(STEP_DATA, teacher, questions, request, read, settings=settings)
    positions = parsed_positions(questions["id"][:], replies, dropped)
    completions = [replies[id_].payload["completion"] for id_ in questions.select(positions)["id"]]
    dataset = Dataset.from_dict({"completion": completions}, features=_TAUGHT_FEATURES)
    return Filtered(join_source_columns(dataset, questions, positions, _TAUGHT_COLUMNS), dict(+dropped))


class ChainRows(NamedTuple):
    """Chains of a policy, whole or labelled, and the number that was dropped for each reason.

    Attributes:
        rows: `id`, `prompt`, and `images` if the questions have them. Whole chains have `answer`, `choices`, `hint` and
            `tolerance` if the questions have them, `completion` (the chain) and `correct` (whether it comes to the
            right answer); labelled ones `completion`, `step_labels` (one per step, in [0, 1]) and `answer_label` (1 =
            right, or 0).
        dropped: reasons and counts.
        tokens: number of sampled tokens for the labels, in this run and those before; `None` for a judge, and where the
            engine does not say.
    """

    rows: Dataset
    dropped: dict[str, int]
    tokens: int | None = None

    def __str__(self) -> str:
        text = tally(len(self.rows), self.dropped, "chains")
        return text if self.tokens is None else f"{text}\n{self.tokens} tokens sampled for the labels"


def chains_of(rows: Dataset, paths: Mapping[str, Sequence[Path]]) -> ChainRows:
    """Select the whole chains among sampled paths; of equal chains of a question the first.

    Returns:
        Chains with the ids "<id of the question>#<index of the path>", in the order of the questions.
    """
    dropped: Counter[str] = Counter()
    chains: dict[tuple[int, str], Path] = {}
    for position, id_ in enumerate(ids := rows["id"][:]):
        for path in paths.get(id_, ()):
            if path.correct is None:
                dropped["the gold answer cannot be used"] += 1
            elif path.read.problem is not None:
                dropped[path.read.problem] += 1
            elif (position, path.text) in chains:
                dropped["repeated"] += 1
            else:
                chains[position, path.text] = path
    positions = [position for position, _ in chains]
    columns = {
        "id": [f"{ids[position]}#{path.index}" for (position, _), path in chains.items()],
        "completion": [path.text for path in chains.values()],
        "correct": [path.correct for path in chains.values()],
    }
    dataset = Dataset.from_dict(columns, features=_CHAIN_FEATURES)
    return ChainRows(join_source_columns(dataset, rows, positions, _CHAIN_COLUMNS), dict(dropped))


def annotate_by_monte_carlo(
    chains: Dataset,
    engine: Engine,
    store: Store,
    *,
    n: int = 16,
    sampling_params: SamplingParams = SAMPLING_PARAMS,
    labels: Literal["soft", "hard"] = "soft",
    grader: Grader | None = None,
    seed: int = 0,
    **running: Any,
) -> ChainRows:
    """Label each step by the outcomes of `n` continuations after it (after Math-Shepherd).

    A continuation is right if the chain that it completes comes to the right answer. The engine sees question, images
    and the chain up to the step, and never the answer. Another grader samples nothing again.

    Args:
        chains: `rows` of `chains_of`.
        engine: continues the chains; the policy that wrote them, or another that was fine-tuned on chains.
        sampling_params: the paper's sampling by default; mind `max_new_tokens`.
        labels: soft, the share of right continuations; or hard, 1 if any is right. Both come from the same samples.
        **running: arguments of `answer_questions`, such as `retry_failed` and `batch_size`, in continuations.

    Returns:
        A chain is dropped if the sampling after any of its steps failed, or a continuation has no verdict.

    Raises:
        ValueError: an argument is out of range, or the rows are no chains.
        SettingsChanged: the store holds continuations that were drawn in another way.
    """
    if n < 1 or labels not in ("soft", "hard"):
        raise ValueError(
            f"annotate_by_monte_carlo: got n={n} and labels={labels!r}, expected n ≥ 1 and labels 'soft' or 'hard'."
        )
    _check_chains("annotate_by_monte_carlo", chains)
    steps = _steps(chains)
    answer_options: dict[str, Any] = {"n": n, "sampling_params": sampling_params, "grader": grader, "seed": seed}
    answer_options |= {"description": "continuing chains", **running}
    answers = answer_questions(steps, engine, store, Continuation(), stage=MONTE_CARLO, **answer_options)
    failed: set[int] = set()
    correct: list[list[list[Any]]] = [[] for _ in range(len(chains))]
    tokens: int | None = 0
    for position, samples in zip(steps.positions, answers, strict=True):
        correct[position].append([])
        for sample in samples:
            if isinstance(sample, Failure):
                failed.add(position)
            else:
                correct[position][-1].append(sample["turns"][0]["correct"])
                count = sample.get("tokens")
                tokens = None if tokens is None or count is None else tokens + count
    sampled = [position for position in range(len(chains)) if position not in failed]
    positions = [position for position in sampled if not any(None in verdicts for verdicts in correct[position])]
    soft_and_hard = [monte_carlo_labels(correct[position]) for position in positions]
    step_labels = [(soft if labels == "soft" else hard).tolist() for soft, hard in soft_and_hard]
    dropped = {"sampling failed": len(failed), "a continuation has no verdict": len(sampled) - len(positions)}
    dropped = {reason: number for reason, number in dropped.items() if number}
    return ChainRows(_labelled(chains, positions, step_labels), dropped, tokens)


def annotate_by_judge(
    chains: Dataset,
    judge: Engine,
    store: Store,
    *,
    sampling_params: SamplingParams | None = None,
    attempts: int = 3,
    seed: int = 0,
    **running: Any,
) -> ChainRows:
    """Label each step by a judge's rating: right if it is Good, or Neutral in a chain with the right answer.

    The prompt of Fig. 9 is the system message; question, images, reference answer and steps are the user's.

    Args:
        chains: `rows` of `chains_of`. The judge gets the first of several reference answers.
        judge, store: who rates the steps, and what keeps the ratings.
        sampling_params: `SamplingParams()` by default. At temperature 0 a malformed reply comes again.
        attempts: number of tries, each time with another seed, before a chain is dropped whose reply is malformed, of
            another number of ratings than steps, or failed.
        **running: arguments of `run`, such as `batch_size` and `retry_failed`.

    Raises:
        ValueError: an argument is out of range, or the rows are no chains.
        SettingsChanged: the store holds ratings that were drawn in another way.
    """
    _check_chains("annotate_by_judge", chains)
    running = {"description": "judging", **running}
    asking = ReplyCollector(store, sampling_params or SamplingParams(), attempts, seed, running)

    def request(row: Row) -> Request:
        steps = parse_chain(row["completion"]).steps
        message = step_judge_message(question_text(row["prompt"]), reference_answer(row["answer"]), steps)
        return Request(with_system_message([{"role": "user", "content": message}], JUDGE_PROMPT), images_of(row))

    def read(row: Row, reply: str) -> dict[str, list[int]]:
        return {"ratings": read_ratings(reply, row["completion"].count(STEP_END))}

    settings = {"messages": {"system": JUDGE_PROMPT, "user": step_judge_message("{question}", "{answer}", [])}}
    ids = [f"{id_}-{_digest(text)}" for id_, text in zip(chains["id"], chains["completion"], strict=True)]
    units = chains.remove_columns("id").add_column("id", ids)
    remember_questions(store, JUDGED, units)
    replies = asking.ask(JUDGED, judge, units, request, read, settings=settings)
    dropped: Counter[str] = Counter()
    positions = parsed_positions(ids, replies, dropped)
    correct = chains["correct"][:]
    step_labels = [judge_labels(replies[ids[k]].payload["ratings"], correct[k]).tolist() for k in positions]
    return ChainRows(_labelled(chains, positions, step_labels), dict(dropped))


def _check_chains(name: str, chains: Dataset) -> None:
    expected = ("id", "prompt", "answer", "completion", "correct")
    if missing := [column for column in expected if column not in chains.column_names]:
        raise ValueError(
            f"{name}: the chains have the columns {chains.column_names} and lack {missing}; chains_of makes them of "
            "sampled paths."
        )


def _steps(chains: Dataset) -> JoinedRows:
    """Make a row for each step: its chain's row with a new id and, as `prefix`, the chain up to that step."""
    steps = [
        (position, f"{id_}/{number}-{_digest(text[:end])}", text[:end])
        for position, (id_, text) in enumerate(zip(chains["id"], chains["completion"], strict=True))
        for number, end in enumerate(chain_ends(text).steps, start=1)
    ]
    columns = {"id": [id_ for _, id_, _ in steps], "prefix": [prefix for _, _, prefix in steps]}
    return JoinedRows(chains, [position for position, _, _ in steps], columns)


def _digest(text: str) -> str:
    """Digest a chain for its unit's id, so that two chains under one row id differ."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _labelled(chains: Dataset, positions: list[int], step_labels: list[list[float]]) -> Dataset:
    """Make rows of the kept chains, with the labels of their steps and answers."""
    correct = chains.select(positions)["correct"]
    labels = {"step_labels": step_labels, "answer_label": [float(right) for right in correct]}
    dataset = Dataset.from_dict(labels, features=_LABEL_FEATURES)
    return join_source_columns(dataset, chains, positions, _LABELLED_COLUMNS)
