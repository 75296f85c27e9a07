"""Lessons that prepare a miniature policy for Chain-of-Step, chains by a teacher of known truth, and labels.

The example on the miniature and the study make what they train on here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedModel

from ..data.folders import atomic_path
from ..generation.engine import Engine
from ..jobs.store import Store
from ..miniature.lessons import Lessons
from ..miniature.solutions import plain
from ..miniature.tasks import Problem, problems_dataset
from ..miniature.teacher import KnownTruthTeacher
from ..scripts.cold_start import greedy_accuracy
from ..scripts.sections import made_by
from ..training.stop_at_accuracy import StopAtAccuracy
from .data import annotate_by_judge, annotate_by_monte_carlo, chains_of, make_step_data
from .protocols import sample_paths
from .sft import ChainOfStepSFTTrainer

PLAIN_ANSWERS = Lessons(plain, answer_tokens=16, in_steps=True)
r"""To answer `3+4=\boxed{7}`, as a start for learning to reason in steps."""

LABELS = ("train", "seen", "unseen")
"""Labelled chains to train a process reward model on, and to measure it on: other chains to the questions of training,
and chains to other questions."""


def drawn_chains(problems: Sequence[Problem], replies: Path) -> Dataset:
    """The teacher's chain to each problem, as rows for `ChainOfStepSFTTrainer`; the file keeps every reply."""
    with Store(replies) as store:
        return make_step_data(problems_dataset(problems), KnownTruthTeacher(problems), store, min_steps=3).rows


def stop_at(trainer: ChainOfStepSFTTrainer, questions: Dataset, target: float, max_new_tokens: int) -> StopAtAccuracy:
    """Make a callback that ends training on chains when the policy's own chains are right often enough.

    Chains are learnt within a few dozen steps, and which ones they are varies with the seed. Where training ends below
    the target it raises RuntimeError, before anything is saved.

    Args:
        trainer: its rows are chains.
        questions: others than those of the chains; the greedy answers to them are measured every tenth step.
        target: a share of right answers.
        max_new_tokens: token limit of a chain.
    """

    def measure(model: PreTrainedModel) -> float:
        processor, size = trainer.processing_class, len(questions)
        return greedy_accuracy(model, processor, questions, max_new_tokens=max_new_tokens, batch_size=size)

    return StopAtAccuracy(measure, target, 10, "Give more chains or epochs.")


def label_drawn_chains(
    seen: Sequence[Problem],
    unseen: Sequence[Problem],
    engine: Engine,
    folder: Path,
    *,
    paths: int,
    monte_carlo: int,
    continuations: int,
    seed: int,
    **sampling: Any,
) -> None:
    """Sample a policy's chains on drawn problems, label them, and write one file for each of `LABELS`.

    Under several processes each samples its share; call it on all of them.

    Args:
        seen: problems to train on; of as many as are unseen there are other chains to measure on.
        unseen: other problems to measure on.
        engine: the policy.
        folder: for the labels, and the stores of what was sampled.
        paths: chains a problem.
        monte_carlo: so many of the training chains are labelled by Monte Carlo, the others by the judge.
        continuations: continuations of each of their steps.
        **sampling: `sampling_params` of chains and continuations, and `batch_size`.

    Raises:
        ValueError: the policy writes no chains.
    """
    for number, (name, problems) in enumerate(zip(LABELS, (seen, seen[: len(unseen)], unseen), strict=True)):
        rows, judge = problems_dataset(problems), KnownTruthTeacher(problems)
        with Store(folder / f"labels_{name}.sqlite") as store:
            sampled = sample_paths(rows, engine, store, "paths", n=paths, seed=seed + number, **sampling)
            chain_rows = chains_of(rows, sampled)
            if not len(chain_rows.rows):
                raise ValueError(f"There is nothing to label: {chain_rows}. Give the policy more chains or epochs.")
            chains = chain_rows.rows.shuffle(seed=seed)
            by_rollouts = min(monte_carlo, len(chains)) if name == "train" else 0
            labelled = []
            if by_rollouts < len(chains):
                judged = chains.select(range(by_rollouts, len(chains)))
                labelled.append(annotate_by_judge(judged, judge, store).rows)
            if by_rollouts:
                rollouts = {"n": continuations, "seed": seed, **sampling}
                tried = chains.select(range(by_rollouts))
                labelled.append(annotate_by_monte_carlo(tried, engine, store, **rollouts).rows)
        if PartialState().is_main_process:
            with atomic_path(labels_file(folder, name)) as unfinished:
                concatenate_datasets(labelled).to_parquet(str(unfinished))


def labels_file(folder: Path, name: str) -> Path:
    """The file with the labelled chains of one of the names in `LABELS`."""
    return folder / f"labels_{name}.parquet"


def labelled_chains(folder: Path) -> tuple[Dataset, dict[str, Dataset]]:
    """Load the chains of `label_drawn_chains`: those that train a process reward model, and those that evaluate it.

    Raises:
        FileNotFoundError: it was not done.
    """
    train, *held_out = (Dataset.from_parquet(made_by("annotate", labels_file(folder, name))) for name in LABELS)
    return train, dict(zip(LABELS[1:], held_out, strict=True))
