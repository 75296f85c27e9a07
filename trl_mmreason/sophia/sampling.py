"""SOPHIA's semi-off-policy sampling (arXiv:2507.16814, section 4.1 and Algorithm 1).

policy     image alone            → K captions      (it never sees the question)
reasoner   question and caption     → N trajectories per caption (it never sees the image)
R(y)       the final answer is right, R(c) the share of right trajectories from a caption
rows       question and image     → the shortest right trajectory from a good caption

made = make_off_policy_data(rows, policy, reasoner, store)
OffPolicyRewardTrainer(model, args=config, train_dataset=made.rows)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from datasets import Dataset

from ..data.images import IMAGE_COLUMNS, images_of, stored_images
from ..data.rows import MESSAGES, Row
from ..data.unseen_media import refuse_unseen_media
from ..generation.engine import Engine, Failure, SamplingParams
from ..generation.patience import wait_for_all
from ..generation.protocols import Direct, RowSample
from ..grading import Grader
from ..jobs.answering import answer_questions, ask
from ..jobs.difficulty import tally, usable_questions
from ..jobs.questions import remember_questions
from ..jobs.run import run
from ..jobs.source_rows import ROWS_A_BATCH, JoinedRows
from ..jobs.store import Store
from ..messages import plain_messages, question_text
from .objective import select_trajectories
from .prompts import CAPTION_PROMPT, MAX_TOKENS, THINKING_PROMPT, reasoning_prompt
from .protocols import FromCaption
from .selection import (
    CAPTIONS,
    HARD_TRAJECTORIES,
    TRAJECTORIES,
    Outcomes,
    Sampled,
    make_rows,
    read_captions,
    read_outcomes,
    select,
    unit_id,
    unrewarded,
)


class OffPolicyData(NamedTuple):
    """Training rows, and statistics of the sampling.

    Attributes:
        rows: `id` ("<id of the question>#<caption>.<trajectory>"), `prompt`, `images` (or `image`), `completion`,
            `reward`, `caption_reward` (R(c) in [0, 1]), `caption` (`None` if the length limit cut it; no trainer reads
            it, see `mixture.with_captions`), and with log-probabilities `behavior_logps` (nats, one a sampled token, of
            one that ended the turn too). In the order of the questions, captions and trajectories.
        dropped: why other questions have no rewarded trajectory: reason → number of questions.
        questions: how many have one.
        captions: how many there are.
        trajectories: the same counts of trajectories.
        right: how many of these are right.
    """

    rows: Dataset
    dropped: dict[str, int]
    questions: int
    captions: Sampled
    trajectories: Sampled
    right: int

    def __str__(self) -> str:
        lines = [
            tally(self.questions, self.dropped, "questions"),
            f"captions: {self.captions}",
            f"trajectories: {self.trajectories}, {self.right} right",
            f"{len(self.rows)} rows",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class OffPolicySampling:
    """Settings of captions and trajectories: sampling, and selection of the rewarded ones.

    Attributes:
        captions: K a question.
        trajectories: N a caption.
        caption_prompt: Fig. A2 by default.
        reason: question, caption → what the reasoner is asked; Fig. A3 by default.
        caption_sampling_params: of the captions. One that is cut by the length limit is used as it is, and counted.
        sampling_params: sampling parameters of the trajectories. With `logprobs` the rows have `behavior_logps`.
        threshold: α; R(c) has to be above it.
        keep: trajectories per question, the shortest first (Keep-n of Table A4).
        rule: "sophia", or one of its ablations "random", "without_caption_reward" and "without_shortest".
        unselected: make rows with reward 0 of all other trajectories that were not cut.
        thinking_prompt: system message of rows that think in tags, in the place of their own; `None`: as the rows are.
        seed: other seeds give other captions and trajectories, and draw others where a rule draws.

    Raises:
        ValueError: a value is out of range.
    """

    captions: int = 8
    trajectories: int = 8
    caption_prompt: str = CAPTION_PROMPT
    reason: Callable[[str, str], str] = reasoning_prompt
    caption_sampling_params: SamplingParams = SamplingParams(MAX_TOKENS)  # the paper gives only the length
    sampling_params: SamplingParams = SamplingParams(MAX_TOKENS)
    threshold: float = 0.75
    keep: int = 1
    rule: str = "sophia"
    unselected: bool = False
    thinking_prompt: str | None = THINKING_PROMPT
    seed: int = 0

    def __post_init__(self) -> None:
        one = torch.ones(1, 1)
        select_trajectories(one, one, self.threshold, self.keep, self.rule)


def make_off_policy_data(
    rows: Dataset,
    policy: Engine,
    reasoner: Engine,
    store: Store,
    sampling: OffPolicySampling | None = None,
    *,
    hard_reasoner: Engine | None = None,
    is_hard: Callable[[Row], bool] | None = None,
    grader: Grader | None = None,
    count_tokens: Callable[[str], int] | None = None,
    **running: Any,
) -> OffPolicyData:
    """Let the policy describe each image, a reasoner answer from the descriptions, and reward the best trajectories.

    It resumes, and several processes share the work, as `answer_questions` says. More captions or trajectories ask only
    for those that are missing; another selection from the same store asks nobody anything. What failed is asked again
    with `retry_failed=True`.

    Args:
        rows: rows with id, prompt, answer, images (or image), and optionally choices. What is in the first message
            of the user is the question; a system message is shown to neither model. A prompt may be a string, or hold
            parts of which the images come first, and becomes messages with string contents.
        policy: the vision-language model that is trained. It sees the caption prompt and the images.
        reasoner: sees question and caption.
        store: keeps every caption and every trajectory.
        sampling: `OffPolicySampling()` by default.
        hard_reasoner: answers the hard questions in the place of `reasoner`.
        is_hard: of a row without its images; comes with `hard_reasoner`.
        grader: `Grader()` by default. What was cut, failed, or got no reply of a judge counts as wrong.
        count_tokens: counts the tokens of a string, where the reasoner's engine gives no number of tokens.
        **running: arguments of `run`, such as `batch_size` and `retry_failed`.

    Raises:
        ValueError: rows lack what is asked or answered, or hold images that nobody would see, or of `hard_reasoner` and
            `is_hard` one is missing.
        UnsuitableEngine: log-probabilities are asked for, and the reasoner gives none.
        SettingsChanged: the store holds what was drawn in another way, or for other questions of these ids.
        UnknownLengths: the shortest are to be kept, and nobody counts tokens.
    """
    sampling = sampling or OffPolicySampling()
    if (hard_reasoner is None) != (is_hard is None):
        raise ValueError(
            f"make_off_policy_data: got hard_reasoner={hard_reasoner!r} and is_hard={is_hard!r}, expected both or "
            "neither."
        )
    grader, dropped = grader or Grader(), Counter[str]()
    usable_rows, questions = _usable_rows(rows, grader, dropped)
    ids = usable_rows["id"][:]
    hard = [False] * len(ids) if is_hard is None else [is_hard(row) for row in questions]
    stages = [HARD_TRAJECTORIES if one else TRAJECTORIES for one in hard]

    remember_questions(store, CAPTIONS, questions, question_text, with_images=usable_rows)
    _describe(usable_rows, policy, store, sampling, running)
    described, caption_counts = read_captions(store, ids, sampling.captions)
    reasoners = {TRAJECTORIES: reasoner} | ({} if hard_reasoner is None else {HARD_TRAJECTORIES: hard_reasoner})
    outcomes = _sample_trajectories(questions, described, stages, reasoners, store, sampling, grader=grader, **running)

    def find(question: int, k: int, n: int | None = None) -> Mapping[str, Any]:
        """The payload of a trajectory; without n that of its caption."""
        id_ = ids[question]
        stage, unit = (CAPTIONS, (id_, k)) if n is None else (stages[question], (unit_id(id_, k), n))
        (record,) = store.find(stage, [unit])
        return record.payload

    selected = select(outcomes, ids, sampling, find, count_tokens)
    dataset = make_rows(usable_rows, questions["prompt"], outcomes, selected, sampling, find)
    return OffPolicyData(
        dataset,
        dict(+(dropped + unrewarded(outcomes, selected, sampling.rule))),
        int(selected.any(axis=(1, 2)).sum()),
        caption_counts,
        outcomes.sampled,
        int(outcomes.correct.sum()),
    )


def _usable_rows(rows: Dataset, grader: Grader, dropped: Counter[str]) -> tuple[Dataset, Dataset]:
    """Select the rows with an image and a usable gold answer, also as text alone; count the others."""
    prompts = _prompts(rows)
    refuse_unseen_media("make_off_policy_data: rows", rows)
    columns = [name for name in IMAGE_COLUMNS if name in rows.column_names]
    tables = rows.select_columns(columns).with_format("arrow").iter(ROWS_A_BATCH)  # in which no image is decoded
    stored = (row for table in tables for row in table.to_pylist())
    with_images = [position for position, row in enumerate(stored) if stored_images(row)]
    usable = sorted({*with_images} & {*usable_questions(rows, grader)})
    dropped["no image"] += len(rows) - len(with_images)
    dropped["the gold answer cannot be used"] += len(with_images) - len(usable)
    usable_rows = rows.select(usable)
    texts = usable_rows.remove_columns([*columns, "prompt"])
    return usable_rows, texts.add_column("prompt", [prompts[position] for position in usable], feature=MESSAGES)


def _prompts(rows: Dataset) -> list[list[dict[str, str]]]:
    """Convert the rows' prompts to plain messages.

    Raises:
        ValueError: there are no rows, they lack columns, or a prompt does not fit into strings or asks nothing.
    """
    if not len(rows):
        raise ValueError("make_off_policy_data: the data set has no rows.")
    missing = [name for name in ("id", "prompt", "answer") if name not in rows.column_names]
    if missing:
        raise ValueError(
            f"make_off_policy_data: the rows have the columns {rows.column_names} and lack {missing}. "
            "trl_mmreason.data.row_loading.load_rows(…, columns={'answer': …}) brings other names into this form."
        )
    prompts = []
    for id_, prompt in zip(rows["id"], rows["prompt"], strict=True):
        prompts.append(plain_messages(prompt, f"make_off_policy_data: row {id_!r}"))
        if not question_text(prompts[-1]).strip():
            raise ValueError(f"make_off_policy_data: row {id_!r} asks nothing: its prompt is {prompt!r:.200}.")
    return prompts


def _describe(
    rows: Dataset, policy: Engine, store: Store, sampling: OffPolicySampling, running: Mapping[str, Any]
) -> None:
    """Sample the captions of each row's images."""
    sampling_params, seed, protocol = sampling.caption_sampling_params, sampling.seed, Direct()
    prompt = [{"role": "user", "content": sampling.caption_prompt}]

    def work(units: Sequence[RowSample]) -> list[dict[str, Any] | Failure]:
        # of the row the policy sees nothing but the images
        images = [({"id": row["id"], "prompt": prompt, "images": images_of(row)}, k) for row, k in units]
        return ask(images, policy, protocol, sampling_params, system_prompt=None, seed=seed)

    settings = {
        "engine": policy.settings,
        "protocol": protocol.settings,
        "sampling_params": asdict(sampling_params),
        "prompt": sampling.caption_prompt,
        "seed": seed,
    }
    run(store, CAPTIONS, rows, work, settings=settings, n=sampling.captions, **{"description": "captioning", **running})
    wait_for_all()


def _sample_trajectories(
    questions: Dataset,
    captions: Sequence[Sequence[int]],
    stages: Sequence[str],
    reasoners: Mapping[str, Engine],
    store: Store,
    sampling: OffPolicySampling,
    **asking: Any,
) -> Outcomes:
    """Sample and grade the trajectories.

    Args:
        reasoners: stage → who answers its questions.
        store, sampling: arguments of `make_off_policy_data`.
        **asking: arguments of `answer_questions`.
    """
    protocol = FromCaption(store, CAPTIONS, sampling.reason)
    asking = {
        "n": sampling.trajectories,
        "sampling_params": sampling.sampling_params,
        "seed": sampling.seed,
        "description": "reasoning",
        **asking,
    }
    reasoner_answers = []
    for stage, engine in reasoners.items():
        places = [
            (position, k) for position, numbers in enumerate(captions) if stages[position] == stage for k in numbers
        ]
        if places:
            reasoner_answers.append(
                answer_questions(_units(questions, places), engine, store, protocol, stage=stage, **asking)
            )
    return read_outcomes(reasoner_answers, questions["id"][:], sampling.captions, sampling.trajectories)


def _units(questions: Dataset, places: Sequence[tuple[int, int]]) -> JoinedRows:
    """Make a row for each (question, caption), whose prompt is the question only."""
    ids, texts = questions["id"][:], [question_text(prompt) for prompt in questions["prompt"]]
    columns = {
        "id": [unit_id(ids[position], k) for position, k in places],
        "question": [ids[position] for position, _ in places],
        "caption": [k for _, k in places],
        "prompt": [[{"role": "user", "content": texts[position]}] for position, _ in places],
    }
    return JoinedRows(questions, [position for position, _ in places], columns)
