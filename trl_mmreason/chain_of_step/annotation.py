"""Labels of the steps of chains, by sampled continuations or by a judge (arXiv:2509.19003, section 3.3).

    paths = sample_paths(rows, policy, store, "paths", n=16)
    chains = chains_of(rows, paths).rows
    annotate_by_monte_carlo(chains, policy, store).rows      soft label = share of 16 continuations that end rightly
    annotate_by_judge(chains, judge, store).rows             Good, Neutral or Bad a step, from a model told the answer

The rows are what `ProcessRewardTrainer` takes. The answer's label is whether it is right, in both.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from datasets import Dataset, Features, List, Value

from ..data.images import pictures_of
from ..data.rows import Row
from ..generation.engine import Engine, Failure, Request, SamplingParams
from ..grading import Grader
from ..jobs.answering import answer_questions
from ..jobs.asking import ReplyCollector, parsed_positions, reference_answer
from ..jobs.difficulty import tally
from ..jobs.questions import remember_questions
from ..jobs.source_rows import JoinedRows, join_source_columns
from ..jobs.store import Store
from ..messages import question_text, with_system_message
from .objective import judge_labels, monte_carlo_labels
from .paths import SAMPLING_PARAMS, Path, read_path
from .prompts import JUDGE_PROMPT, read_ratings, step_judge_message
from .protocols import Continuation
from .template import chain_ends, parse_chain

PATHS = "chain-of-step-paths"
MONTE_CARLO = "chain-of-step-monte-carlo"
JUDGED = "chain-of-step-judge"

_CHAIN_COLUMNS = ("id", "prompt", "images", "image", "answer", "choices", "completion", "correct")
_CHAIN_FEATURES = Features({"id": Value("string"), "completion": Value("string"), "correct": Value("bool")})
_LABELLED_COLUMNS = ("id", "prompt", "images", "image", "completion", "step_labels", "answer_label")
_LABEL_FEATURES = Features({"step_labels": List(Value("float64")), "answer_label": Value("float64")})


class ChainRows(NamedTuple):
    """Whole chains, and the number of other completions for each reason.

    `rows` has the columns `id`, `prompt`, `images` and `choices` if the questions have them, `answer`, `completion`
    (the chain) and `correct` (whether it comes to the right answer).
    """

    rows: Dataset
    dropped: dict[str, int]

    def __str__(self) -> str:
        return tally(len(self.rows), self.dropped, "chains")


class Annotated(NamedTuple):
    """Training rows of a process reward model, and the number of dropped chains for each reason.

    Attributes:
        rows: `id`, `prompt`, `images` if the chains have them, `completion`, `step_labels` (one per step, in [0, 1])
            and `answer_label` (1 = right, or 0).
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

    Args:
        rows: the questions that were sampled.
        paths: result of `sample_paths`.

    Returns:
        Chains with the ids "<id of the question>#<index of the path>", in the order of the questions.
    """
    dropped: Counter[str] = Counter()
    chains: dict[tuple[int, str], Path] = {}
    for position, id_ in enumerate(ids := rows["id"][:]):
        for path in paths.get(id_, ()):
            problem = read_path(path.text).problem
            if path.correct is None:
                dropped["the gold answer cannot be used"] += 1
            elif problem is not None:
                dropped[problem] += 1
            elif (position, path.text) in chains:
                dropped["repeated"] += 1
            else:
                chains[position, path.text] = path
    columns = {
        "id": [f"{ids[position]}#{path.index}" for (position, _), path in chains.items()],
        "completion": [path.text for path in chains.values()],
        "correct": [path.correct for path in chains.values()],
    }
    dataset = Dataset.from_dict(columns, features=_CHAIN_FEATURES)
    return ChainRows(
        join_source_columns(dataset, rows, [position for position, _ in chains], _CHAIN_COLUMNS), dict(dropped)
    )


# --------------------------------------------------------------------------------------------------------- Monte Carlo


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
) -> Annotated:
    """Label each step by the outcomes of `n` continuations after it (after Math-Shepherd).

    A continuation is right if the chain that it completes comes to the right answer. The engine sees question, pictures
    and the chain up to the step, and never the answer.

    It resumes, and several processes share the work, as `answer_questions` says; another grader samples nothing again.
    What failed is sampled again with `retry_failed=True`.

    Args:
        chains: `rows` of `chains_of`.
        engine: continues the chains; the policy that wrote them, or another that was fine-tuned on chains.
        store: keeps every continuation.
        n: continuations a step.
        sampling_params: the paper's sampling by default; mind `max_new_tokens`.
        labels: soft, the share of right continuations; or hard, 1 if any is right. Both come from the same samples.
        grader: `Grader()` by default.
        seed: other seeds give other continuations.
        **running: arguments of `answer_questions`, such as `retry_failed` and `batch_size`, in continuations.

    Returns:
        A chain is dropped if the sampling after any of its steps failed.

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
    correct: list[list[list[bool]]] = [[] for _ in range(len(chains))]
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
    positions = [position for position in range(len(chains)) if position not in failed]
    soft_and_hard = [monte_carlo_labels(correct[position]) for position in positions]
    step_labels = [(soft if labels == "soft" else hard).tolist() for soft, hard in soft_and_hard]
    dropped = {"sampling failed": len(failed)} if failed else {}
    return Annotated(_labelled(chains, positions, step_labels), dropped, tokens)


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


# --------------------------------------------------------------------------------------------------------------- judge


def annotate_by_judge(
    chains: Dataset,
    judge: Engine,
    store: Store,
    *,
    sampling_params: SamplingParams | None = None,
    attempts: int = 3,
    seed: int = 0,
    **running: Any,
) -> Annotated:
    """Label each step by a judge's rating: right if it is Good, or Neutral in a chain with the right answer.

    The prompt of Fig. 9 is the system message; question, pictures, reference answer and steps are the user's. A killed
    run resumes, and shares the work, as `annotate_by_monte_carlo` does.

    Args:
        chains: `rows` of `chains_of`. The judge gets the first of several reference answers.
        judge: rates the steps.
        store: keeps the ratings.
        sampling_params: `SamplingParams()` by default. At temperature 0 a malformed reply comes again.
        attempts: number of tries, each time with another seed, before a chain is dropped whose reply is malformed, of
            another number of ratings than steps, or failed.
        seed: other seeds give other replies.
        **running: arguments of `run`, such as `batch_size` and `retry_failed`.

    Raises:
        ValueError: an argument is out of range, or the rows are no chains.
        SettingsChanged: the store holds ratings that were drawn in another way.
    """
    _check_chains("annotate_by_judge", chains)
    asking = ReplyCollector(
        store, sampling_params or SamplingParams(), attempts, seed, {"description": "judging", **running}
    )

    def request(row: Row) -> Request:
        steps = parse_chain(row["completion"]).steps
        message = step_judge_message(question_text(row["prompt"]), reference_answer(row["answer"]), steps)
        return Request(with_system_message([{"role": "user", "content": message}], JUDGE_PROMPT), pictures_of(row))

    def read(row: Row, reply: str) -> dict[str, list[int]]:
        return {"ratings": read_ratings(reply, len(parse_chain(row["completion"]).steps))}

    settings = {"messages": {"system": JUDGE_PROMPT, "user": step_judge_message("{question}", "{answer}", [])}}
    ids = [f"{id_}-{_digest(text)}" for id_, text in zip(chains["id"], chains["completion"], strict=True)]
    units = chains.remove_columns("id").add_column("id", ids)
    remember_questions(store, JUDGED, units)
    replies = asking.ask(JUDGED, judge, units, request, read, settings=settings)
    dropped: Counter[str] = Counter()
    positions = parsed_positions(ids, replies, dropped)
    correct = chains["correct"][:]
    step_labels = [judge_labels(replies[ids[k]].payload["ratings"], correct[k]).tolist() for k in positions]
    return Annotated(_labelled(chains, positions, step_labels), dict(dropped))


def _check_chains(name: str, chains: Dataset) -> None:
    missing = [
        column for column in ("id", "prompt", "answer", "completion", "correct") if column not in chains.column_names
    ]
    if missing:
        raise ValueError(
            f"{name}: the chains have the columns {chains.column_names} and lack {missing}; chains_of makes them of "
            "sampled paths."
        )


def _labelled(chains: Dataset, positions: list[int], step_labels: list[list[float]]) -> Dataset:
    """Make rows of the kept chains, with the labels of their steps and answers."""
    correct = chains.select(positions)["correct"]
    columns = {"step_labels": step_labels, "answer_label": [float(right) for right in correct]}
    return join_source_columns(
        Dataset.from_dict(columns, features=_LABEL_FEATURES), chains, positions, _LABELLED_COLUMNS
    )
