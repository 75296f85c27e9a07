"""Part 2: SRPO, plain GRPO and SRPO's ablations (Table 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trl_mmreason.generation.engine import Engine, Failure, SamplingParams
from trl_mmreason.generation.protocols import Answered, AnsweredTurn, RowSample, sample_units
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature.tasks import problems_dataset
from trl_mmreason.scripts.single_stage import train_once
from trl_mmreason.scripts.stages import do_once
from trl_mmreason.srpo.config import ReflectionSFTConfig, SRPOConfig
from trl_mmreason.srpo.recipe import QUICK_TAGGED_ANSWERS, TAGGED_ANSWERS, TAGGED_IN_WORDS, drawn_reflections
from trl_mmreason.srpo.response import first_answer
from trl_mmreason.srpo.sft import ReflectionSFTTrainer
from trl_mmreason.srpo.stopping import StopWhenReflecting
from trl_mmreason.srpo.trainer import SRPOTrainer

from .claims import Claim, Term, above, better_in
from .plain_grpo import train_plain_grpo
from .running import BEFORE, Part, Start, same_model

_MEASURED = 100  # problems, while the policy learns to reflect


@dataclass(frozen=True)
class FirstAndLast:
    """Grade the first and the last answer in a response, which are equal without a reflection."""

    turns = 2
    settings = {"name": "first and last"}

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        return [
            sample
            if isinstance(sample, Failure)
            else Answered(
                [AnsweredTurn(sample.text, first_answer(sample.text)), AnsweredTurn(sample.text, sample.text)],
                [sample.finish_reason],
                sample.tokens,
            )
            for sample in sample_units(units, engine, sampling_params, seed)
        ]


def train(start: Start, arm: str, folder: Path) -> None:
    """Train an arm: on reflections if `reflect`, then by reinforcement if `reinforce`."""
    start.refuse_source(arm)
    settings = start.settings(arm)
    reflect, reinforce = bool(settings.pop("reflect", True)), settings.pop("reinforce", "srpo")
    if reinforce not in ("srpo", "grpo", "none") or (reinforce == "none" and (settings or not reflect)):
        raise ValueError(
            f"The arm {arm!r} has reinforce={reinforce!r}, reflect={reflect} and {settings}, expected srpo, grpo, or "
            "none for a policy that learns from reflections alone, without other settings."
        )
    policy = reflecting_policy(start) if reflect else start.policy
    if reinforce == "srpo":
        args = SRPOConfig(str(folder), reflection_prompt=None, **start.of("rl", settings))
        train_once(SRPOTrainer(policy, args=args, train_dataset=start.train), folder / "model")
    elif reinforce == "grpo":
        train_plain_grpo(policy, start, settings, folder)
    else:
        same_model(policy, folder / "model")


def reflecting_policy(start: Start) -> str:
    """The policy after supervised training on reflections, which the arms of a seed share.

    With `complete_share` and `min_delta` in the section `prepared` it ends where these are reached. Reflections are on
    other problems than those of reinforcement; with `stream: 0` there they are on the same, so that arms without
    reflections see as many labelled problems.
    """
    folder = start.folder / "reflections"
    model = folder / "model"
    sft, prepared, limit = start.of("sft", {}), start.args.prepared, int(start.args.rl["max_completion_length"])

    def teach() -> None:
        problems = start.problems(prepared["problems"], stream=prepared.get("stream", 2))
        rows = drawn_reflections(
            TransformersEngine(start.policy, batch_size=250),
            problems,
            folder / "reflections.sqlite",
            max_new_tokens=limit,
            right_share=prepared["right_share"],
            seed=start.seed,
        )
        sampling = SRPOConfig(str(folder), reflection_prompt=None, **start.of("rl", {}))
        trainer = ReflectionSFTTrainer(start.policy, args=ReflectionSFTConfig(str(folder), **sft), train_dataset=rows)
        if "complete_share" in prepared:
            questions = problems_dataset(start.problems(_MEASURED, stream=3))
            ends = {name: prepared[name] for name in ("complete_share", "min_delta")}
            trainer.add_callback(StopWhenReflecting(trainer.processing_class, questions, sampling, **ends))
        train_once(trainer, model)

    do_once(folder, "train", {"sft": sft, "prepared": prepared, "max_completion_length": limit}, model, teach)
    return str(model)


CLAIMS = (
    *better_in(
        "Table 3",
        ("SRPO is better than plain GRPO", "53.5 against 49.8", "srpo", "grpo"),
        ("SRPO is better than plain GRPO of as many responses", "53.5 against 49.8", "srpo", "grpo-8"),
        ("SRPO is better than the policy that it began with", "53.5 against 44.4", "srpo", BEFORE),
        ("Without reflections in the cold start SRPO is worse", "53.5 against 51.2", "srpo", "no-reflection-sft"),
        (
            "Without reflections in the cold start it is still better than GRPO",
            "51.2 against 49.8",
            "no-reflection-sft",
            "grpo",
        ),
        ("Reflections in the cold start alone improve on the policy", "46.6 against 44.4", "sft-only", BEFORE),
    ),
    Claim(
        "Reinforcement behind them improves further",
        "Table 3, Section 4.3",
        '53.5 against 46.6; "explicitly rewarding reflection quality during RL is essential"',
        above("srpo", "sft-only", "accuracy"),
    ),
    Claim(
        "Plain GRPO is better than reflections in the cold start alone",
        "Table 3",
        "49.8 against 46.6",
        above("grpo", "sft-only", "accuracy"),
    ),
    Claim(
        "Rewarding the reflection is better than rewarding the first answer alone",
        "Eq. 4 and 6",
        "no number: R_total against R_task",
        above("srpo", "no-reflection-reward", "accuracy"),
    ),
    Claim(
        "Rewarding the reflection is better than rewarding the last answer alone",
        "Eq. 4 and 6",
        "not in it: R_total against the accuracy of the last answer",
        above("srpo", "answer-reward", "accuracy"),
    ),
    Claim(
        "SRPO's last answers are better than its first",
        "Section 4.4",
        '"correcting flawed reasoning steps and answers"',
        [Term(1, "srpo", "delta")],
    ),
    Claim(
        "Rewarding the length of the response lengthens first solutions that are shorter than what follows them",
        "Eq. 7",
        "no number: the target is twice the first solution",
        above("srpo", "no-length-reward", "last_length_first"),
        unit="number",
    ),
    Claim(
        "SRPO's responses are longer than plain GRPO's",
        "Fig. 4 (b)",
        "longer throughout",
        above("srpo", "grpo", "tokens"),
        unit="number",
    ),
)

LOGGED = ("length_first",)

METRICS = ("accuracy", "acc_t1", "acc_t2", "delta", "correction_rate", "misjudgment_rate", "tokens")
PANELS = {
    "reward": ("Reward (Fig. 4 a)", "mean reward"),
    "completions/mean_length": ("Length (Fig. 4 b)", "tokens"),
    "length_first": ("Length of first solutions", "tokens"),
    "response/complete": ("Reflection and second answer", "share of responses"),
}


def prepare(start: Start) -> str:
    """Train the policy that most arms of a seed share, if any do."""
    if any(arm.get("reflect", True) for arm in start.args.arms.values()):
        reflecting_policy(start)
    return start.policy


PART = Part(
    lessons=TAGGED_ANSWERS,
    other_lessons={"quick": QUICK_TAGGED_ANSWERS, "long": TAGGED_IN_WORDS},
    train=train,
    protocol=lambda start, arm: FirstAndLast(),
    claims=CLAIMS,
    prepare=prepare,
    prepares=("reflections",),
)
