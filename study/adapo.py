"""Part 1: AdaPO and its paper's baselines (Tables 1 and 3, Fig. 2 and 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset

from trl_mmreason.adapo.config import AdaPOConfig
from trl_mmreason.adapo.prefilter import prefilter
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.adapo.recipe import quick_then_worked, two_answers
from trl_mmreason.adapo.trainer import AdaPOTrainer
from trl_mmreason.baselines.sft import PlainSFTConfig, PlainSFTTrainer
from trl_mmreason.baselines.star import make_revisions
from trl_mmreason.baselines.two_turns import FixedRewardsConfig, FixedRewardsTrainer, SCoReConfig, SCoReTrainer
from trl_mmreason.generation import SamplingParams
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.jobs.store import Store
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.scripts.single_stage import train_once

from .claims import Claim, Term, above, better_in
from .plain_grpo import train_plain_grpo
from .running import BEFORE, Part, Start

_BATCH = 250
_ITERATIONS = 2  # STaR: sampling and training, twice
_TWO_TURNS = {
    "adapo": (AdaPOTrainer, AdaPOConfig),
    "fixed": (FixedRewardsTrainer, FixedRewardsConfig),
    "score": (SCoReTrainer, SCoReConfig),
}


def prepare(start: Start) -> str:
    """Sample for the offline filter of the seed's questions, if the section `prepared` asks for it."""
    if start.args.prepared:
        prefiltered(start)
    return start.policy


def prefiltered(start: Start) -> Dataset:
    """The questions kept by the offline filter (A.2), equal for all arms of a seed.

    Raises:
        ValueError: `prepared` has no `prefilter`, the trajectories per question; or it keeps nothing.
    """
    if set(start.args.prepared) != {"prefilter"}:
        raise ValueError(
            f"The section prepared has {dict(start.args.prepared)}, expected prefilter: the trajectories that the "
            "offline filter samples to each question."
        )
    rl = start.args.rl
    with Store(start.folder / "prefilter.sqlite") as store:
        kept = prefilter(
            start.train,
            TransformersEngine(start.policy, batch_size=_BATCH),
            store,
            n=int(start.args.prepared["prefilter"]),
            sampling_params=SamplingParams(
                rl["max_completion_length"], rl["temperature"], rl["top_p"]
            ),  # as in training
            seed=start.seed,
            batch_size=_BATCH,
        )
    if not len(kept.rows):
        raise ValueError(f"The offline filter leaves nothing to learn from: {kept}.")
    return kept.rows


def train(start: Start, arm: str, folder: Path) -> None:
    """Train an arm by its setting `method`.

    An arm of two turns learns from the questions that the offline filter keeps if it has `prefiltered: true`.
    """
    start.refuse_source(arm)
    settings = start.settings(arm)
    method = settings.pop("method", arm)
    if method in _TWO_TURNS:
        trainer, config = _TWO_TURNS[method]
        rows = prefiltered(start) if settings.pop("prefiltered", False) else start.train
        args = config(str(folder), **start.of("rl", settings))
        train_once(trainer(start.policy, args=args, train_dataset=rows), folder / "model")
    elif method == "grpo":
        train_plain_grpo(start.policy, start, settings, folder)
    elif method == "sft":
        write = PART.taught(start.args).write
        solved = [write(solve(problem)) for problem in start.problems(start.args.train_rows)]
        _fine_tune(start, start.policy, start.train.add_column("completion", solved), folder, settings)
    elif method == "star":
        _star(start, folder, settings)
    else:
        raise ValueError(
            f"The arm {arm!r} has the method {method!r}, expected grpo, sft, star or one of {sorted(_TWO_TURNS)}."
        )


def _star(start: Start, folder: Path, settings: dict[str, Any]) -> None:
    policy, n = start.policy, int(settings.pop("n", 4))
    for iteration in range(1, _ITERATIONS + 1):
        last = iteration == _ITERATIONS
        inner = folder if last else folder / f"iteration-{iteration}"
        with Store(folder / "revisions.sqlite") as store:
            made = make_revisions(
                start.train,
                TransformersEngine(policy, batch_size=_BATCH),
                store,
                followup=EVALUATION_PROMPT,
                n=n,
                sampling_params=SamplingParams(start.args.rl["max_completion_length"]),
                stage=f"iteration-{iteration}",
                seed=start.seed,
                batch_size=_BATCH,
            )
        if not len(made.rows):
            raise ValueError(f"STaR: there is not one right revision to learn from: {made}.")
        _fine_tune(start, policy, made.rows, inner, settings)
        policy = str(inner / "model")


def _fine_tune(start: Start, policy: str, rows: Any, folder: Path, settings: dict[str, Any]) -> None:
    args = PlainSFTConfig(str(folder), **start.of("sft", settings))
    train_once(PlainSFTTrainer(policy, args=args, train_dataset=rows), folder / "model")


CLAIMS = (
    # what who answers once gives up for it: the second answer against the one that plain GRPO is trained for
    Claim(
        "AdaPO's second answers are better than plain GRPO's first answers, of as many rollouts",
        "Table 1",
        "MathVista 74.0 against 70.6",
        [Term(1, "adapo", "acc_t2"), Term(-1, "grpo-8", "acc_t1")],
    ),
    Claim(
        "AdaPO's second answers are better than plain GRPO's first answers, of as many sampled answers",
        "Table 1",
        "MathVista 74.0 against 70.6",
        [Term(1, "adapo", "acc_t2"), Term(-1, "grpo", "acc_t1")],
    ),
    Claim(
        "AdaPO's second answers are better than its first",
        "Table 1",
        "MathVista 71.0 → 74.0, all eight benchmarks rise",
        [Term(1, "adapo", "delta")],
    ),
    *better_in(
        "Table 1",
        ("AdaPO's second answers are better than plain GRPO's", "MathVista 74.0 against 71.1", "adapo", "grpo"),
        (
            "AdaPO's second answers are better than plain GRPO's of as many rollouts",
            "MathVista 74.0 against 71.1",
            "adapo",
            "grpo-8",
        ),
        ("AdaPO's second answers are better than SCoRe's", "MathVista 74.0 against 70.7", "adapo", "score"),
        metric="acc_t2",
    ),
    *better_in(
        "Table 1",
        ("AdaPO's first answers are better than plain GRPO's", "MathVista 71.0 against 70.6", "adapo", "grpo"),
        (
            "AdaPO's first answers are better than plain GRPO's of as many rollouts",
            "MathVista 71.0 against 70.6",
            "adapo",
            "grpo-8",
        ),
        (
            "SCoRe's first answers are worse than plain GRPO's",
            "MathVista 69.4 against 70.6, MathVerse 42.1 against 52.3",
            "grpo",
            "score",
        ),
        metric="acc_t1",
    ),
    Claim(
        "AdaPO gains more from the second turn than plain GRPO",
        "Table 1",
        "MathVista +3.0 against +0.5",
        above("adapo", "grpo", "delta"),
    ),
    Claim(
        "AdaPO spoils a smaller share of its right answers than SFT",
        "Fig. 4",
        "SFT-based methods spoil more than 7 %, AdaPO fewest of all",
        above("sft", "adapo", "misjudgment_rate"),
    ),
    *(
        Claim(
            f"{name} lowers the second answers below the first",
            "Table 1",
            f"MathVista {paper}",
            [Term(-1, arm, "delta")],
        )
        for name, paper, arm in (("SFT", "−10.9", "sft"), ("STaR", "−4.0", "star"))
    ),
    Claim(
        "SCoRe's second answers are better than its first",
        "Table 1",
        "MathVista +1.3",
        [Term(1, "score", "delta")],
    ),
    Claim(
        "Fixed rewards with R01 > R11 let first answers collapse",
        "Fig. 2",
        'first-turn accuracy "Collapses"',
        above(BEFORE, "fixed-correction", "acc_t1"),
    ),
    Claim(
        "Fixed rewards with R11 > R01 teach less self-evaluation than AdaPO",
        "Fig. 2",
        '"Fails to Learn Self-Evaluation": hardly any gain from the second turn',
        above("adapo", "fixed-preservation", "delta"),
    ),
    *better_in(
        "Table 3",
        ("Without the adaptive rewards second answers are worse", "60.2 against 53.8", "adapo", "no-arm"),
        ("Without the filters second answers are worse", "60.2 against 57.5", "adapo", "no-filters"),
        metric="acc_t2",
    ),
    Claim(
        "Without the adaptive rewards less is gained from the second turn",
        "Table 3",
        "+2.6 against −1.3",
        above("adapo", "no-arm", "delta"),
    ),
    Claim(
        "Without the reward-aware KL first answers are worse",
        "Table 3",
        "57.6 against 56.2",
        above("adapo", "no-split-kl", "acc_t1"),
    ),
)

PART = Part(
    lessons=two_answers(EVALUATION_PROMPT),
    other_lessons={"quick": quick_then_worked(EVALUATION_PROMPT)},
    train=train,
    protocol=lambda start, arm: TwoTurn(EVALUATION_PROMPT),
    claims=CLAIMS,
    prepare=prepare,
)

METRICS = ("acc_t1", "acc_t2", "delta", "correction_rate", "misjudgment_rate")
PANELS = {
    ("acc_t1", "rewards/accuracy_reward/mean"): ("First answers (Fig. 2)", "share right"),
    "acc_t2": ("Second answers (Fig. 2)", "share right"),
    "entropy": ("Entropy", "nats per token"),
}
"""What is drawn of the training: logged name, plain GRPO's behind ours → title and unit."""
