"""Chain-of-Step's recipe: its paper, curves, pieces of completions, tables, and the example's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..evaluation.curves import Panel, style_axes
from ..evaluation.logged_completions import answers_of
from ..evaluation.methods import Method, cite
from ..evaluation.metrics import Metric, aligned
from ..evaluation.trajectory import Piece, scored_pieces
from ..generation.engine import SamplingParams
from ..scripts.sections import StagedArguments, made_by
from ..training.documented import documented
from .chains import SAMPLING_PARAMS, ProcessReward, path_score, read_path

PAPER = cite(
    "article{chen2025unveiling",
    "Unveiling Chain of Step Reasoning for Vision-Language Models with Fine-grained Rewards",
    arxiv="2509.19003",
    author="Honghao Chen and Xingzhou Lou and Xiaokun Feng and Kaiqi Huang and Xinlong Wang",
    year="2025",
)


def _pieces(completion: Mapping[str, Any]) -> list[Sequence[Piece]] | None:
    """Cut a chain after each scored step."""
    texts = answers_of(completion)
    if len(texts) != 1 or not completion.get("step_scores"):
        return None
    scores = [float(score) for score in completion["step_scores"].split()]
    answer = completion.get("answer_score")
    ends = read_path(texts[0]).step_ends
    if len(ends) != len(scores):  # the table has another text than was scored
        return None
    return [scored_pieces(texts[0], ends, scores, float(answer) if answer else None)]


def _weighted_scores(sample: Mapping[str, Any]) -> dict[float, float] | None:
    """The trajectory score for w = 0, 0.1 … 1 (Fig. 3); it is linear in w, so its two ends give all of it."""
    if "step_scores" not in sample or "score" not in sample:  # a search's step scores are those of what it kept
        return None
    steps, answer = sample["step_scores"], sample.get("answer_score")
    low, high = (path_score(steps, answer, weight).total for weight in (0.0, 1.0))
    return {w: w * high + (1 - w) * low for w in (tenths / 10 for tenths in range(11))}


METHOD = Method(
    panels=(
        Panel("Score of the chain", "mean score", {"step_score": "steps", "answer_score": "answer"}, is_share=True),
        Panel("Chains", "share", {"chain/complete": "whole"}, is_share=True),
    ),
    pieces=_pieces,
    weighted_scores=_weighted_scores,
)

_SHARE = Metric("accuracy")
_ROUND_MEASURES = {
    "accuracy": "Accuracy",
    "trajectory_score": "Trajectory score",
    "steps": "Steps per chain",
    "step_tokens": "Tokens per step",
}
_ROUND_SETS = {"train": ("#0072b2", "sampled, training questions"), "eval": ("#d55e00", "greedy, other questions")}


def format_process_reward(metrics: Mapping[str, float]) -> str:
    """Format a line for each set of held-out chains, as in Table 3, with the AUROC."""
    columns = [f"{part}_{kind}" for kind in ("accuracy", "auroc") for part in ("step", "answer")]
    measured = [name.removeprefix("eval_") for name in metrics]
    sets = [name.removesuffix(f"_{one}") for name in measured for one in columns if name.endswith(f"_{one}")]
    lines = [["", "step acc", "answer acc", "step AUROC", "answer AUROC"]]
    for name in dict.fromkeys(sets):  # one may have labels of its steps alone, or of its answers
        shown = (metrics.get(f"eval_{name}_{column}", nan) for column in columns)
        lines.append([name, *map(_SHARE.text, shown)])
    return f"process reward model, in percent\n{aligned(lines, right=True)}"


def plot_rounds(rounds: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draw accuracy, score and lengths over the rounds of DPO (Fig. 6 and more) into a PNG file."""
    figure = Figure(figsize=(8.4, 5.8), layout="constrained")
    for axes, (measure, title) in zip(figure.subplots(2, 2).flat, _ROUND_MEASURES.items(), strict=True):
        for name, (colour, label) in _ROUND_SETS.items():
            points = [(entry["round"], entry[name][measure]) for entry in rounds if measure in entry.get(name, {})]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, marker="o", label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style_axes(axes, title, "rounds of DPO")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    figure.savefig(path, format="png", dpi=120)


_ASKED = ("dataset_name", "dataset_split", "train_rows", "cold_start_accuracy", "max_completion_length")
_MEASURED = ("process_reward", "eval_dataset_name", "eval_split", "eval_rows")


@documented
@dataclass
class ChainOfStepArguments(StagedArguments):
    """Questions, chains, labels, and the settings of each stage.

    Attributes:
        output_dir: output folder.
        max_completion_length: token limit of a chain.
        step_dataset: chains for the sft stage, as `mmreason steps` makes them: a Hub id or a parquet file; "miniature"
            has a teacher of known truth write them.
        label_dataset: labelled chains for the prm stage, as `mmreason annotate` makes them, or steps with labels as
            VisualPRM400K has them: a Hub id, a file or a folder; "miniature" has chains of the policy labelled, some
            by Monte Carlo, the others by a judge of known truth.
        label_eval_datasets: name → labelled chains to evaluate the process reward model on; the miniature makes "seen"
            and "unseen" questions.
        process_reward_base: what the process reward model is trained from; the sft stage's policy by default. The paper
            has a larger model; a miniature one is taught to answer until `process_reward_accuracy`.
        process_reward_accuracy: for the miniature, the accuracy at which that one's supervised start ends.
        process_reward: where the score comes from in dpo, grpo and search: "prm" is that of the prm stage; a path; the
            address of `vllm serve`; or "outcome", for dpo and grpo by right answers alone (Table 2 and 5).
        drawn_chains: for the miniature, how many problems the teacher writes a chain for.
        sft_accuracy: for the miniature, the share of right answers at which the sft stage ends; `None` for all of its
            epochs. It is an error not to reach it.
        drawn_labels: for the miniature, how many problems to train on (`problems`) and to measure on (`held_out`), with
            how many chains each (`paths`); how many of the chains to train on are labelled by Monte Carlo
            (`monte_carlo`), with how many `continuations` a step.
        dpo_questions, search_questions: use no more questions in these stages.
        sft: fields of `ChainOfStepSFTConfig`.
        prm: fields of `ProcessRewardConfig`.
        dpo: fields of `IterativeDPOConfig`.
        grpo: fields of `ChainOfStepGRPOConfig`.
        search: `n`, chains a question and most candidates per step (64 in the paper); `step_weight` of the trajectory
            score; `max_steps` of a search.
    """

    STAGES = {
        "sft": "sft/model",
        "annotate": "labels_unseen.parquet",
        "prm": "prm/table.txt",
        "dpo": "dpo/rounds.png",
        "grpo": "grpo/curves.png",
        "search": "search/table.txt",
    }
    READS = {
        "sft": (*_ASKED, "step_dataset", "drawn_chains", "sft_accuracy"),
        "annotate": (*_ASKED, "label_dataset", "drawn_labels"),
        "prm": (*_ASKED, "label_dataset", "label_eval_datasets", "process_reward_base", "process_reward_accuracy"),
        "dpo": (*_ASKED, *_MEASURED, "dpo_questions"),
        "grpo": (*_ASKED, "process_reward"),
        "search": (*_ASKED, *_MEASURED, "search_questions"),
    }
    ASKING = ("dpo", "grpo", "search")
    SECTIONS = {
        "sft": "ChainOfStepSFTConfig",
        "prm": "ProcessRewardConfig",
        "dpo": "IterativeDPOConfig",
        "grpo": "ChainOfStepGRPOConfig",
        "search": ("n", "step_weight", "max_steps"),
        "drawn_labels": ("problems", "held_out", "paths", "monte_carlo", "continuations"),
    }
    WHOLE = ("sft", "prm")  # the format's tokens are new rows of the embeddings

    output_dir: str = "runs/chain_of_step"
    max_completion_length: int = 1024
    step_dataset: str = "miniature"
    label_dataset: str = "miniature"
    label_eval_datasets: dict = field(default_factory=dict)
    process_reward_base: str | None = None
    process_reward_accuracy: float = 0.95
    process_reward: str = "prm"
    drawn_chains: int = 1000
    sft_accuracy: float | None = None
    drawn_labels: dict = field(default_factory=dict)
    dpo_questions: int | None = None
    search_questions: int | None = None
    sft: dict = field(default_factory=dict)
    prm: dict = field(default_factory=dict)
    dpo: dict = field(default_factory=dict)
    grpo: dict = field(default_factory=dict)
    search: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "search" in self.wanted and (self.eval_dataset_name is None or self.process_reward == "outcome"):
            raise ValueError(
                f"The search stage came with eval_dataset_name={self.eval_dataset_name!r} and "
                f"process_reward={self.process_reward!r}, expected questions and a process reward model. Fix: leave "
                "search out of --stages, or give both."
            )

    def process_reward_model(self) -> ProcessReward | None:
        """Load the process reward model, or connect to its server; `None` pairs by right answers only."""
        from .process_reward_client import process_reward_from  # imported late: it imports the model

        source = self.process_reward
        if source == "outcome":
            return None
        return process_reward_from(made_by("prm", self.folder / "prm/model") if source == "prm" else source)

    @property
    def sampling_params(self) -> SamplingParams:
        """The paper's sampling parameters, with this token limit."""
        return SamplingParams(self.max_completion_length, SAMPLING_PARAMS.temperature, SAMPLING_PARAMS.top_p)
