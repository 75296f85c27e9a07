"""Part 5: self-evolution, majority voting, training on labels, and ablations (Tables 1, 2, 4, 6, 7, Figs. 3, 4)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from trl_mmreason.generation.protocols import Direct
from trl_mmreason.miniature.judging import JUDGE
from trl_mmreason.scripts.single_stage import train_once
from trl_mmreason.self_evolution.config import SelfEvolutionConfig
from trl_mmreason.self_evolution.prompts import judge_message
from trl_mmreason.self_evolution.recipe import judged_answers
from trl_mmreason.self_evolution.trainer import SelfEvolutionTrainer

from .claims import Claim, Term, above, better_in
from .plain_grpo import train_plain_grpo
from .running import BEFORE, Part, Start


def train(start: Start, arm: str, folder: Path) -> None:
    """Train an arm: self-evolution, or plain GRPO if `labels`."""
    start.refuse_source(arm)
    settings = start.settings(arm)
    if settings.pop("labels", False):
        train_plain_grpo(start.policy, start, settings, folder)
        return
    config = SelfEvolutionConfig(str(folder), **start.of("rl", settings))
    train_once(SelfEvolutionTrainer(start.policy, args=config, train_dataset=start.train), folder / "model")


def _rises(logged: str) -> list[Term]:
    """The contrast for a logged value being higher in the last quarter of training than in the first."""
    return [Term(1, "ours", f"last_{logged}"), Term(-1, "ours", f"first_{logged}")]


CLAIMS = (
    *better_in(
        "Table 2",
        ("It improves on the policy", "27.55 against 22.65", "ours", BEFORE),
        ("With 64 questions an update it improves on the policy", "27.55 against 22.65", "ours-64", BEFORE),
        ("It is better than majority voting", "27.55 against 24.45", "ours", "majority"),
        ("Majority voting improves on the policy", "24.45 against 22.65", "majority", BEFORE),
        ("Self-consistency alone brings less than majority voting", "22.85 against 24.45", "majority", "consistency"),
        ("The judge alone brings less than both", "24.20 against 26.90", "both", "judge"),
        (
            "A judge beside majority voting is better than voting alone",
            "25.55 against 24.45",
            "majority-judge",
            "majority",
        ),
        (
            "Self-consistency with a judge is better than majority voting with one",
            "26.90 against 25.55",
            "both",
            "majority-judge",
        ),
    ),
    *better_in(
        "Eq. 12–14",
        (
            "A loss that sums over tokens is better than one that averages over each response",
            "no number: the equations sum",
            "ours",
            "mean",
        ),
        ("With 64 questions an update it is better, too", "no number", "ours-64", "mean-64"),
    ),
    Claim(
        "A judge that counts for more (temperatures of 0.1) is better",
        "Eq. 7",
        "no number: the paper has 1",
        above("sharp", "ours", "accuracy"),
    ),
    Claim(
        "With 64 questions an update the average lets more responses be cut",
        "Eq. 12–14",
        "no number",
        above("mean-64", "ours-64", "truncated"),
    ),
    Claim(
        "Distributional advantages add to that",
        "Tables 2 and 6",
        "27.55 against 26.90",
        above("ours", "both", "accuracy"),
    ),
    *better_in(
        "Table 4",
        ("It keeps pass@10 better than majority voting", "0.54 against 0.48", "ours", "majority"),
        ("Majority voting lowers pass@10", "0.48 against 0.57", BEFORE, "majority"),
        ("It lowers pass@10 a little itself", "0.54 against 0.57", BEFORE, "ours"),
        metric="pass_at_10",
    ),
    Claim(
        "It is better than GRPO with labels",
        "Table 1",
        'comparable, and better "in some settings"',
        above("ours", "labels", "accuracy"),
    ),
    Claim(
        "Majority voting leaves fewer distinct answers than it",
        "Fig. 3",
        '"a sharp reduction in policy entropy"',
        above("ours", "majority", "distinct_answers"),
        unit="number",
    ),
    Claim(
        "Majority voting's responses are shorter than its own",
        "Fig. 3",
        '"shorter and more template-like responses"',
        above("ours", "majority", "tokens"),
        unit="number",
    ),
    Claim(
        "Votes and the judge agree more often at the end of training",
        "Table 7",
        "Agree@1 73.8 against 41.2",
        _rises("agreement"),
    ),
    Claim(
        "The most frequent answers are right more often at the end",
        "Table 7",
        "SC-winner 48.6 against 36.3",
        _rises("sc_winner_accuracy"),
    ),
    Claim(
        "The judge's best answers are right more often at the end, though it learns nothing",
        "Table 7",
        "J-winner 50.3 against 40.2",
        _rises("judge_winner_accuracy"),
    ),
    Claim(
        "The judge's best answers are right more often than the most frequent ones",
        "Table 7",
        "50.3 against 48.6",
        [Term(1, "ours", "last_judge_winner_accuracy"), Term(-1, "ours", "last_sc_winner_accuracy")],
    ),
)

LOGGED = ("agreement", "sc_winner_accuracy", "judge_winner_accuracy")
"""What Table 7 is about, as training logs it: the rollouts of a quarter of the steps stand for the paper's batch."""

METRICS = ("accuracy", "pass_at_10", "self_consistency_at_10", "distinct_answers", "tokens", "truncated")
PANELS = {
    ("accuracy", "rewards/accuracy_reward/mean"): ("Accuracy (Figs. 3 and 4)", "share right"),
    "entropy": ("Entropy (Figs. 3 and 4)", "nats per token"),
    "completions/mean_length": ("Length (Figs. 3 and 4)", "tokens"),
}

PART = Part(
    lessons=judged_answers(partial(judge_message, JUDGE), answers_every=4),
    train=train,
    protocol=lambda start, arm: Direct(),
    claims=CLAIMS,
)
