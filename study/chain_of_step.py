"""Part 3: Chain-of-Step's process reward model for selecting samples, guiding search and rewarding GRPO."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

from trl_mmreason.chain_of_step.chains import SAMPLING_PARAMS, ProcessReward, path_score
from trl_mmreason.chain_of_step.config import (
    ChainOfStepGRPOConfig,
    ChainOfStepSFTConfig,
    IterativeDPOConfig,
    ProcessRewardConfig,
)
from trl_mmreason.chain_of_step.dpo import IterativeDPOTrainer
from trl_mmreason.chain_of_step.grpo import ChainOfStepGRPOTrainer
from trl_mmreason.chain_of_step.miniature import (
    LABELS,
    PLAIN_ANSWERS,
    drawn_chains,
    label_drawn_chains,
    labelled_chains,
    labels_file,
    stop_at,
)
from trl_mmreason.chain_of_step.process_reward_client import process_reward_from
from trl_mmreason.chain_of_step.process_reward_trainer import ProcessRewardTrainer
from trl_mmreason.chain_of_step.protocols import Chains, StepBeam
from trl_mmreason.chain_of_step.sft import ChainOfStepSFTTrainer
from trl_mmreason.data.folders import write_whole
from trl_mmreason.evaluation.evaluation_report import save_evaluation
from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.evaluation.results import summarise
from trl_mmreason.evaluation.runner import Samples
from trl_mmreason.generation.engine import Failure, SamplingParams
from trl_mmreason.generation.model_loading import load_model, load_processor
from trl_mmreason.generation.protocols import AnsweringProtocol
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature.tasks import problems_dataset
from trl_mmreason.scripts.cold_start import cold_start
from trl_mmreason.scripts.single_stage import train_once
from trl_mmreason.scripts.stages import do_once

from .claims import Claim, Term, above, better_in
from .figures import Figure
from .running import BEFORE, Part, Start, same_model
from .running import measure as let_answer

_BATCH = 256
_MEASURED = 100  # problems, while the policy learns to write chains
_DECIDING = ("family", "size", "tasks", "cold_start_accuracy", "cold_start_rows", "common", "prepared")
"""The arguments that the policy and the process reward model depend on."""

# ------------------------------------------------------------------------------------------------- policy and PRM


def prepare(start: Start) -> str:
    """Teach the policy to reason in steps, and train a process reward model on its chains, for all arms."""
    settings = {name: getattr(start.args, name) for name in _DECIDING} | {"max_new_tokens": _limit(start)}
    policy, finished = start.folder / "sft" / "model", start.folder / "prm" / "metrics.json"

    def work() -> None:
        _learn_steps(start, policy)
        _learn_rewards(start, policy, finished)

    do_once(start.folder, "prepared", settings, finished, work)
    return str(policy)


def _learn_steps(start: Start, policy: Path) -> None:
    if policy.exists():
        return
    # other problems than those of learning and of the comparison
    rows = drawn_chains(start.problems(start.args.prepared["chains"], stream=2), start.folder / "steps.sqlite")
    args = ChainOfStepSFTConfig(str(policy.parent), **_settings(start, "sft"))
    trainer = ChainOfStepSFTTrainer(start.policy, args=args, train_dataset=rows)
    target = start.args.prepared.get("sft_accuracy")
    if target is not None:
        measured = problems_dataset(start.problems(_MEASURED, stream=5, split="new_pictures"))
        trainer.add_callback(stop_at(trainer, measured, target, _limit(start)))
    train_once(trainer, policy)


def _learn_rewards(start: Start, policy: Path, finished: Path) -> None:
    if not labels_file(start.folder, LABELS[-1]).exists():
        drawn = dict(start.args.prepared["labels"])
        label_drawn_chains(
            start.problems(drawn.pop("problems"), stream=3),
            start.problems(drawn.pop("held_out"), stream=4),
            TransformersEngine(str(policy), batch_size=_BATCH),
            start.folder,
            sampling_params=SamplingParams(_limit(start), SAMPLING_PARAMS.temperature, SAMPLING_PARAMS.top_p),
            seed=start.seed,
            batch_size=_BATCH,
            **drawn,
        )
    chains, held_out = labelled_chains(start.folder)
    trainer = ProcessRewardTrainer(
        _stronger_base(start),
        args=ProcessRewardConfig(str(finished.parent), **_settings(start, "prm")),
        train_dataset=chains,
        eval_dataset=held_out,
    )
    train_once(trainer, finished.parent / "model")
    write_whole(finished, json.dumps(trainer.evaluate(), indent=2))


def reward_model(folder: Path) -> dict[str, float]:
    """Measure the process reward model of a seed.

    Args:
        folder: folder of the seed, with all arms done.

    Returns:
        Name → share: accuracy and AUROC of steps and answers on chains of held-out problems (Table 3), and of the
        chosen chains of each round of DPO the share whose answer is right.
    """
    held_out = json.loads((folder / "prm" / "metrics.json").read_text())
    found = {
        f"reward model, {part} {measure}": held_out[logged]
        for part, measure in product(("step", "answer"), ("accuracy", "auroc"))
        if (logged := f"eval_unseen_{part}_{measure}") in held_out  # an AUROC of labels that are all alike is none
    }
    for file in sorted(folder.glob("*/rounds.json")):
        for made in json.loads(file.read_text()):
            if "chosen_accuracy" in made.get("train", {}):
                round_ = f"{file.parent.name}, pairs of round {made['round'] + 1}"
                found[f"{round_}, chosen answers right"] = made["train"]["chosen_accuracy"]
    return found


def _stronger_base(start: Start) -> str:
    """Train the policy further, as a stronger base: the paper's process reward model has 38 B, its policy 8 B."""
    base = start.folder / "prm" / "base"
    if not base.exists():
        cold_start(
            load_model(start.policy)[0],
            load_processor(start.policy),
            list(start.args.tasks),
            base,
            lessons=PLAIN_ANSWERS,
            target_accuracy=start.args.prepared["base_accuracy"],
            level=start.args.tasks,
            problems=start.args.cold_start_rows,
            seed=start.seed,
        )
    return str(base)


def _settings(start: Start, section: str) -> dict[str, Any]:
    return {**start.args.common, "seed": start.seed, **start.args.prepared[section]}


def _limit(start: Start) -> int:
    return int(start.args.evaluation["max_new_tokens"])


def _process_reward(start: Start) -> ProcessReward:
    return process_reward_from(start.folder / "prm" / "model")


# ----------------------------------------------------------------------------------------------------------- arms


def train(start: Start, arm: str, folder: Path) -> None:
    """Train an arm, or link the policy of the arm that it is made of.

    A trained arm's `method` is dpo or grpo; its `reward` is that of the process reward model (prm) or that of right
    answers alone (outcome). Of the others each has one setting:

        round: 1           the policy of iterative DPO after so many rounds
        scored: true       the other arm's policy, its chains scored
        beam: 4            the other arm's policy, by step-level beam search among so many candidates per step
        step_weight: 0.4   the scored chains of the other arm, with another weight of the steps
    """
    settings, source = start.settings(arm), start.source(arm)
    if source is not None:
        same_model(_policy_of(start, arm, source), folder / "model")
        return
    method, reward = settings.pop("method", "dpo"), settings.pop("reward", "prm")
    if method not in ("dpo", "grpo") or reward not in ("prm", "outcome"):
        raise ValueError(
            f"The arm {arm!r} has method={method!r} and reward={reward!r}, expected dpo or grpo, and prm or outcome."
        )
    process_reward = _process_reward(start) if reward == "prm" else None
    bounds = {"max_completion_length": _limit(start)}
    trainer: Any
    if method == "grpo":
        grpo = ChainOfStepGRPOConfig(str(folder), **{**bounds, **start.of("rl", settings)})
        trainer = ChainOfStepGRPOTrainer(start.policy, process_reward, args=grpo, train_dataset=start.train)
    else:
        bounds |= {"sampling_batch_size": _BATCH, "scoring_batch_size": _BATCH}
        dpo = IterativeDPOConfig(str(folder), **{**bounds, **start.of("dpo", settings)})
        trainer = IterativeDPOTrainer(start.policy, process_reward, args=dpo, train_dataset=start.train)
    train_once(trainer, folder / "model")


def _policy_of(start: Start, arm: str, source: Path) -> str | Path:
    """The policy of an arm that is made of another."""
    settings, others = start.settings(arm), start.settings(source.name)
    fits = {
        "round": source.name != BEFORE and start.source(source.name) is None and others.get("method", "dpo") == "dpo",
        "scored": True,
        "beam": True,
        "step_weight": "scored" in others,
    }
    asked_again = "step_weight" in settings and "evaluation" in start.args.arms[arm]
    if len(settings) != 1 or asked_again or not all(fits.get(name, False) for name in settings):
        raise ValueError(
            f"The arm {arm!r} is made of {source.name!r} and has {settings}, expected one setting: round of an arm by "
            "DPO, scored, beam, or step_weight of an arm that is scored, with that one's evaluation."
        )
    if source.name == BEFORE:
        return start.policy
    if "round" in settings:
        asked, rounds = int(settings["round"]), start.of("dpo", others).get("rounds", IterativeDPOConfig.rounds)
        if not 1 <= asked <= rounds:
            raise ValueError(f"The arm {arm!r} is round {asked} of {source.name!r}, expected 1 to {rounds}.")
        made = len(list(source.glob("round-*/policy")))  # fewer than asked for, if there were no more pairs
        return source / f"round-{min(asked, made)}" / "policy"
    return source / "model"


def protocol(start: Start, arm: str) -> AnsweringProtocol:
    """Chains; scored, searched for, or neither."""
    if start.source(arm) is None:
        return Chains()
    settings = start.settings(arm)
    if "beam" in settings:
        return StepBeam(_process_reward(start), n=int(settings["beam"]))
    if "step_weight" in settings:
        return Chains(_process_reward(start), step_weight=float(settings["step_weight"]))
    return Chains(_process_reward(start) if settings.get("scored") else None)


def measure(start: Start, asked: AnsweringProtocol, arm: str, model: Path, folder: Path) -> None:
    """Evaluate a policy on the new images; another weight of the steps reuses the samples."""
    source, settings = start.source(arm), start.settings(arm)
    if source is None or "step_weight" not in settings:
        let_answer(start, asked, arm, model, folder)
        return
    found = read_evaluation(source / "evaluation")
    made = {**found.about, "settings": {**found.about["settings"], "protocol": asked.settings}}
    made["benchmark"] = {"name": start.title(arm), "title": start.title(arm)}
    samples = weighed(found.samples, float(settings["step_weight"]))
    save_evaluation(folder / "evaluation", start.evaluation, samples, summarise(samples), made)


def weighed(samples: Samples, step_weight: float) -> Samples:
    """Recompute the trajectory scores of chains with another weight of the steps."""

    def again(sample: dict[str, Any] | Failure) -> dict[str, Any] | Failure:
        if isinstance(sample, Failure):
            return sample
        score = path_score(sample["step_scores"], sample.get("answer_score"), step_weight)
        return {**sample, "score": score.total}

    return Samples(samples.rows, samples.n, samples.turns, [[again(one) for one in row] for row in samples.samples])


# --------------------------------------------------------------------------------------------------------- claims

_BEST, _NOT_BEST = (Term(weight, "best-of-16", "best_of_16") for weight in (1, -1))

CLAIMS = (
    Claim(
        "The best of 16 chains by the process reward model beats the most frequent answer",
        "Fig. 5",
        '"a significant advantage over Self Consistency"',
        [_BEST, Term(-1, "best-of-16", "self_consistency_at_16")],
    ),
    Claim(
        "The best of 16 chains beats one that was sampled likewise",
        "Fig. 5",
        '"appealing inference-time property"',
        [_BEST, Term(-1, "best-of-16", "accuracy")],
    ),
    Claim(
        "The best of 16 chains beats the greedy one",
        "Fig. 5",
        '"appealing inference-time property"',
        [_BEST, Term(-1, BEFORE, "accuracy")],
    ),
    Claim(
        "Step-level beam search beats the best of as many chains",
        "Fig. 5",
        '"consistent improvement over PRM"',
        [Term(1, "beam-16", "accuracy"), _NOT_BEST],
    ),
    Claim(
        "Scores of steps beside the answer's choose better than the answer's alone",
        "Fig. 3",
        '"solely on either the final answer or the intermediate reasoning steps is not optimal"',
        [_BEST, Term(-1, "w-0", "best_of_16")],
    ),
    Claim(
        "Scores of steps beside the answer's choose better than those of steps alone",
        "Fig. 3",
        '"solely on either the final answer or the intermediate reasoning steps is not optimal"',
        [_BEST, Term(-1, "w-1", "best_of_16")],
    ),
    Claim(
        "Iterative DPO on steps and answers improves the policy",
        "Table 2, M3CoT",
        "71.7 against 67.4",
        above("dpo", BEFORE, "accuracy"),
    ),
    Claim(
        "Its later rounds improve the policy of the first",
        "Section 3.4",
        '"to progressively enhance the model’s reasoning"',
        above("dpo", "dpo-1", "accuracy"),
    ),
    *better_in(
        "Table 2, M3CoT",
        ("Pairs by steps and answers are better than pairs by outcome", "71.7 against 70.0", "dpo", "dpo-outcome"),
        (
            "Pairs by outcome are better than pairs by the model's score of answers",
            "70.0 against 69.7",
            "dpo-outcome",
            "dpo-answer",
        ),
        ("Pairs by steps and answers are better than pairs by answers", "71.7 against 69.7", "dpo", "dpo-answer"),
    ),
    Claim(
        "GRPO with the process reward is better than with the outcome",
        "Table 5, average",
        "63.0 against 61.2",
        above("grpo", "grpo-outcome", "accuracy"),
    ),
    Claim(
        "DPO by outcome lengthens chains",
        "Fig. 6",
        '"the reasoning step length progressively increases"',
        above("dpo-outcome", BEFORE, "tokens"),
        unit="number",
    ),
    Claim(
        "DPO by the process reward shortens them at first",
        "Fig. 6",
        '"tends to initially reduce the length of reasoning"',
        above(BEFORE, "dpo-1", "tokens"),
        unit="number",
    ),
)

METRICS = (
    "accuracy",
    "tokens",
    "truncated",
    "pass_at_16",
    "self_consistency_at_16",
    "best_of_16",
)
PANELS = {
    "rewards/margins": ("Margin of pairs in DPO", "β log-ratio"),
    "rewards/accuracies": ("Pairs ranked rightly in DPO", "share"),
    "reward": ("Reward in GRPO", "mean reward"),
    "accuracy": ("Right answers in GRPO", "share of samples"),
}
FIGURES: tuple[Figure, ...] = (
    Figure(
        "Weight of the steps (Fig. 3)",
        "w",
        "right, percent",
        {
            "best of 16": [
                (0.0, "w-0", "best_of_16"),
                (0.2, "best-of-16", "best_of_16"),
                *((weight / 10, f"w-0.{weight}", "best_of_16") for weight in (4, 6, 8)),
                (1.0, "w-1", "best_of_16"),
            ]
        },
    ),
    Figure(
        "Samples a question (Fig. 5)",
        "N",
        "right, percent",
        {
            label: [(1, "best-of-16", "accuracy"), *((n, "best-of-16", f"{metric}_{n}") for n in (2, 4, 8, 16))]
            for label, metric in (
                ("pass@N", "pass_at"),
                ("self-consistency", "self_consistency_at"),
                ("best of N", "best_of"),
            )
        }
        | {"step beam": [(1, "best-of-16", "accuracy"), *((n, f"beam-{n}", "accuracy") for n in (4, 16))]},
    ),
    Figure(
        "Length over the rounds of DPO (Fig. 6)",
        "round",
        "tokens a chain",
        {
            label: [(0, BEFORE, "tokens"), (1, f"{arm}-1", "tokens"), (2, f"{arm}-2", "tokens"), (3, arm, "tokens")]
            for label, arm in (("process reward", "dpo"), ("outcome", "dpo-outcome"))
        },
    ),
)

BY_SEED = reward_model

PART = Part(
    lessons=PLAIN_ANSWERS,
    train=train,
    protocol=protocol,
    claims=CLAIMS,
    prepare=prepare,
    prepares=("sft", "prm"),
    measure=measure,
)
