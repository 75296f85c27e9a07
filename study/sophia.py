"""Part 4: SOPHIA, its ablations, SFT and GRPO instead of it, GRPO after it, and less data (Tables 1, 5, 8 and A4)."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from datasets import Dataset

from trl_mmreason.data.folders import write_whole
from trl_mmreason.generation import SamplingParams
from trl_mmreason.generation.protocols import Direct
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.grading import Grader
from trl_mmreason.jobs.difficulty import difficulty_filter
from trl_mmreason.jobs.store import Store
from trl_mmreason.miniature.captions import caption, question_of, write_trajectory
from trl_mmreason.miniature.tasks import Problem, problems_dataset
from trl_mmreason.scripts.single_stage import train_once
from trl_mmreason.sophia.config import MixedGroupsGRPOConfig, OffPolicyRewardConfig
from trl_mmreason.sophia.grpo import MixedGroupsGRPOTrainer
from trl_mmreason.sophia.recipe import CAPTIONS_AND_ANSWERS, drawn_trajectories
from trl_mmreason.sophia.trainer import OffPolicyRewardTrainer

from .claims import Claim, above, better_in
from .running import BEFORE, Part, Start

_BATCH = 256
_SAMPLED: dict[str, Any] = {
    "captions": 4,
    "trajectories": 4,
    "threshold": 0.74,  # three of four trajectories have to be right
    "caption_tokens": 40,
    "tokens": 96,  # the longest trajectory, a second look at a count, has 78
}
_DIFFICULTY: dict[str, Any] = {"n": 4, "low": 0.25, "high": 0.75}


def prepare(start: Start) -> str:
    """Sample captions and trajectories, from which all arms of a seed select."""
    _rows(start, {})
    return start.policy


def train(start: Start, arm: str, folder: Path) -> None:
    """Train an arm.

    Its setting `choose` has fields of `OffPolicySampling`, with `solutions` it learns right solutions of all problems
    instead, `share` is that of the rows it learns from, and with `grpo` the model of the arm that it is made of is
    reinforced, or the policy itself where it is made of none. What share of the rows is right is in `right.json`.
    """
    settings, source = start.settings(arm), start.source(arm)
    if settings.pop("grpo", False):
        _reinforce(start, str(source / "model" if source else start.policy), folder, settings)
        return
    start.refuse_source(arm)
    rows = _solutions(start) if settings.pop("solutions", False) else _rows(start, dict(settings.pop("choose", {})))
    write_whole(folder / "right.json", json.dumps(_right(rows, start)))
    share = float(settings.pop("share", 1.0))
    rows = rows.shuffle(seed=start.seed).select(range(max(1, round(share * len(rows)))))
    args = OffPolicyRewardConfig(str(folder), **start.of("sft", settings))
    train_once(OffPolicyRewardTrainer(start.policy, args=args, train_dataset=rows), folder / "model")


def _rows(start: Start, choose: dict[str, Any]) -> Dataset:
    made = drawn_trajectories(
        TransformersEngine(start.policy, batch_size=_BATCH),
        _problems(start),
        start.folder / "trajectories.sqlite",
        batch_size=_BATCH,
        seed=start.seed,
        thinking_prompt=None,
        **{**_SAMPLED, **choose},
    )
    return made.rows


def _solutions(start: Start) -> Dataset:
    """The problems of the trajectories, solved as the reasoner does that neither slips nor misreads."""
    problems = _problems(start)
    written = [write_trajectory(question_of(problem), caption(problem)) for problem in problems]
    rows = problems_dataset(problems).select_columns(["id", "prompt", "images"])
    return rows.add_column("completion", written).add_column("reward", [1.0] * len(written))


def _problems(start: Start) -> list[Problem]:
    return start.problems(start.args.train_rows, stream=2)


def _right(rows: Dataset, start: Start) -> dict[str, float]:
    """Category → share of its rows whose answer is right."""
    gold, grader, by_category = {each.id: each for each in _problems(start)}, Grader(), defaultdict(list)
    for id_, completion in zip(rows["id"], rows["completion"], strict=True):
        id_ = id_.partition("#")[0]  # a trajectory's continues with its caption and its number
        by_category[gold[id_].category].append(bool(grader.grade(completion, gold[id_].answer).correct))
    return {category: round(mean(right), 4) for category, right in by_category.items()}


def _reinforce(start: Start, policy: str, folder: Path, settings: dict[str, Any]) -> None:
    args = MixedGroupsGRPOConfig(str(folder), **start.of("rl", settings))
    assert args.max_completion_length is not None  # the configuration always sets it
    with Store(folder / "difficulty.sqlite") as store:
        kept = difficulty_filter(
            start.train.select(range(min(400, len(start.train)))),
            TransformersEngine(start.policy, batch_size=_BATCH),  # the model that SOPHIA began with (B.2)
            store,
            sampling_params=SamplingParams(args.max_completion_length),
            seed=start.seed,
            batch_size=_BATCH,
            **_DIFFICULTY,
        )
    train_once(MixedGroupsGRPOTrainer(policy, args=args, train_dataset=kept.rows), folder / "model")


CLAIMS = (
    Claim(
        "It improves on the policy",
        "Table 1",
        "InternVL2.5-38B 54.03 against 43.09, InternVL3.0-38B 55.51 against 47.01",
        above("sophia", BEFORE, "accuracy"),
    ),
    *better_in(
        "Table 5",
        ("It is better than random choice among the trajectories", "55.13 against 51.53", "sophia", "random"),
        ("Random choice improves on the policy", "51.53 against 46.28", "random", BEFORE),
        ("Without caption rewards it is worse", "55.13 against 53.54", "sophia", "without-caption-reward"),
        ("Without choosing the shortest it is worse", "55.13 against 54.74", "sophia", "without-shortest"),
        (
            "Without caption rewards it is still better than random choice",
            "53.54 against 51.53",
            "without-caption-reward",
            "random",
        ),
    ),
    *better_in(
        "Section 6.2",
        (
            "It is better than SFT on right solutions",
            '"greater effectiveness than pipeline-based supervised fine-tuning"',
            "sophia",
            "sft",
        ),
        (
            "It is better than SFT on all right trajectories",
            '"greater effectiveness than pipeline-based supervised fine-tuning"',
            "sophia",
            "right-trajectories",
        ),
    ),
    *better_in(
        "Table 8",
        ("Four times the data is better", "20K 50.10 against 5K 45.36", "sophia", "quarter-data"),
        ("Twice the data is better", "20K 50.10 against 10K 47.99", "sophia", "half-data"),
    ),
    Claim(
        "Keeping more trajectories is better",
        "Table A4",
        "keep-8 51.45 against 50.74",
        above("keep-8", "sophia", "accuracy"),
    ),
    *better_in(
        "Table 1",
        ("GRPO behind it improves it further", "InternVL3.0-38B 57.28 against 55.51", "sophia-grpo", "sophia"),
        ("It is better than GRPO from the policy itself", "InternVL3.0-38B 55.51 against 50.98", "sophia", "grpo"),
    ),
    *better_in(
        "Table 1",
        ("It is better than GRPO of as many updates", "55.51 against 50.98", "sophia", "grpo-120"),
        ("It is better than GRPO of as many updates at its rate", "55.51 against 50.98", "sophia", "grpo-equal"),
        ("At GRPO's rate it is better than GRPO of as many updates", "55.51 against 50.98", "sophia-slow", "grpo-120"),
    ),
    Claim(
        "GRPO behind it is better than GRPO from the policy itself",
        "Table 1, Fig. 3",
        "InternVL3.0-38B 57.28 against 50.98",
        above("sophia-grpo", "grpo", "accuracy"),
    ),
    Claim(
        "GRPO from the policy itself improves on it",
        "Table 1",
        "InternVL3.0-38B 50.98 against 47.01; in Fig. 3 it declines",
        above("grpo", BEFORE, "accuracy"),
    ),
    Claim(
        "Choosing the shortest shortens answers",
        "Section 4.2",
        'the shortest "help models to learn a more concise reasoning structure"',
        above("without-shortest", "sophia", "tokens"),
        unit="number",
    ),
)

METRICS = ("accuracy", "tokens", "truncated")
PANELS = {
    "mean_token_accuracy": ("Tokens predicted rightly in the update", "share"),
    "dropped_all_right": ("Groups all right in GRPO", "share"),
}

PART = Part(
    lessons=CAPTIONS_AND_ANSWERS,
    train=train,
    protocol=lambda start, arm: Direct(),
    claims=CLAIMS,
    prepare=prepare,
)
