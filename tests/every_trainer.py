"""Every trainer on one tiny checkpoint, with rewards or labels that it learns from: for what holds for all of them."""

import pytest
from datasets import Dataset
from support import SMALL_RUN, ParityGrader, drawn_rows, is_even

from trl_mmreason import (
    AdaPOConfig,
    AdaPOTrainer,
    ChainOfStepGRPOConfig,
    ChainOfStepGRPOTrainer,
    ChainOfStepSFTConfig,
    ChainOfStepSFTTrainer,
    IterativeDPOConfig,
    IterativeDPOTrainer,
    OffPolicyRewardConfig,
    OffPolicyRewardTrainer,
    ProcessRewardConfig,
    ProcessRewardTrainer,
    ReflectionSFTConfig,
    ReflectionSFTTrainer,
    SelfEvolutionConfig,
    SelfEvolutionTrainer,
    SRPOConfig,
    SRPOTrainer,
)
from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import chain_of_steps, solve
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.sampling.engine import Sample

GRPO = ["adapo", "srpo", "chain_of_step_grpo", "self_evolution"]
SUPERVISED = ["reflection_sft", "chain_of_step_sft", "process_reward", "off_policy"]
NAMES = [*GRPO, *SUPERVISED, "dpo"]

REFLECTION = (
    "<think>3+4=8</think>\n<answer>8</answer>\n<reflection>Not so.</reflection>\n"
    "<think>3+4=7</think>\n<answer>7</answer>"
)


def saved_base(family, folder):
    """A random policy and process reward model in one: it knows the chain's tokens, and ends turns often."""
    model, processor = build_model(family, "test")
    add_chain_tokens(model, processor)
    size = len(processor.tokenizer)
    model.generation_config.eos_token_id = [processor.tokenizer.eos_token_id, *range(size - size // 4, size)]
    ProcessRewardModel(model, processor).save_pretrained(folder)
    return str(folder)


def parity_reward(completions, **kwargs):
    """1 for a completion whose characters' codes sum to an even number, 0 for another."""
    return [float(is_even(completion[-1]["content"])) for completion in completions]


class Pairs:
    """A sampler: its engine writes a right chain, a wrong one and no chain, in turn."""

    settings = {"kind": "pairs"}

    def __call__(self, folder):
        return self

    def sample(self, requests, decoding):
        problem = make_problems(["adding"], 1)[0]
        texts = [chain_of_steps(solve(problem)), chain_of_steps(solve(problem, error="slip")), "no chain"]
        return [[Sample(texts[number % 3], "stop", token_ids=[1])] for number in range(len(requests))]


def rows_of(name):
    """Eight rows of a supervised trainer, with one picture, two or none."""
    rows = []
    for number, (row, problem) in enumerate(zip(drawn_rows(8), make_problems(["adding", "counting"], 8), strict=True)):
        solution = solve(problem, error=[None, "slip"][number % 2])
        row = {"prompt": row["prompt"], "images": row["images"], "completion": chain_of_steps(solution)}
        labels = {"step_labels": [float(label) for label in solution.labels], "answer_label": float(solution.correct)}
        rows.append(
            {
                "reflection_sft": {**row, "completion": REFLECTION},
                "chain_of_step_sft": row,
                "process_reward": {**row, **labels},
                "off_policy": {**row, "reward": [1.0, -0.5, 2.0, 0.25][number % 4]},
            }[name]
        )
    return Dataset.from_list(rows)


def questions():
    return Dataset.from_list(drawn_rows(24))


def trainer_of(name, model, folder, *, trainer_kwargs=None, **settings):
    """A trainer by its name, on a CPU; `settings` override those of its configuration.

    Args:
        name: one of `NAMES`.
        model: a checkpoint of `saved_base`, or a model that was loaded from it.
        folder: output folder.
        trainer_kwargs: further arguments of the trainer.
    """
    run = {**SMALL_RUN, "warmup_steps": 0, "max_steps": 2, **settings}
    kwargs = trainer_kwargs or {}
    if name in GRPO:
        return _grpo_trainer(name, model, folder, {"beta": 0.05, **run}, kwargs)
    run = {key: value for key, value in run.items() if key not in ("num_generations", "max_completion_length")}
    if name == "dpo":
        run |= {"rounds": 1, "num_paths": 3, "per_device_train_batch_size": 2, "max_completion_length": 6}
        args = IterativeDPOConfig(str(folder), **{**run, **settings})
        answer = make_problems(["adding"], 1)[0].answer  # of what `Pairs` writes
        train = Dataset.from_list([{**row, "answer": answer} for row in drawn_rows(4)])
        return IterativeDPOTrainer(model, None, args=args, train_dataset=train, **{"sampler": Pairs(), **kwargs})
    run = {**run, "per_device_train_batch_size": 4, **settings}
    trainer, config, own = {
        "reflection_sft": (ReflectionSFTTrainer, ReflectionSFTConfig, {}),
        "chain_of_step_sft": (ChainOfStepSFTTrainer, ChainOfStepSFTConfig, {}),
        "process_reward": (ProcessRewardTrainer, ProcessRewardConfig, {}),
        "off_policy": (OffPolicyRewardTrainer, OffPolicyRewardConfig, {"beta": 0.05}),
    }[name]
    return trainer(model, args=config(str(folder), **{**own, **run}), train_dataset=rows_of(name), **kwargs)


def _grpo_trainer(name, model, folder, run, kwargs):
    rows = {"train_dataset": questions()}
    if name == "adapo":
        args = AdaPOConfig(str(folder), **{"filter_zero_advantage": False, "filter_truncated": False, **run})
        return AdaPOTrainer(model, args=args, grader=ParityGrader(), **rows, **kwargs)
    rows["reward_funcs"] = parity_reward
    if name == "srpo":
        args = SRPOConfig(str(folder), **{"reflection_prompt": None, "filter_min_accuracy": 0.0, **run})
        return SRPOTrainer(model, args=args, **rows, **kwargs)
    if name == "chain_of_step_grpo":
        return ChainOfStepGRPOTrainer(model, None, args=ChainOfStepGRPOConfig(str(folder), **run), **rows, **kwargs)
    own = {"judge_max_tokens": 8, "judge_prompt": "Judge.", "actor_prompt": None}
    return SelfEvolutionTrainer(model, args=SelfEvolutionConfig(str(folder), **{**own, **run}), **rows, **kwargs)


STEPS = 2
"""Of a run that is resumed behind its first one."""


class Interrupted(Exception):
    pass


def whole(name, model, folder, **settings):
    """A trainer of two steps that writes a checkpoint behind each."""
    settings = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "num_train_epochs": 2, **settings}
    return trainer_of(name, model, folder, **settings)


def resumed(name, model, folder, *, trainer_kwargs=dict, **settings):
    """The trainer after a run that was interrupted behind its first step, and resumed by another trainer.

    Args:
        trainer_kwargs: a function, as each trainer needs arguments of its own.
    """
    folder = folder / "interrupted"
    killed = whole(name, model, folder, trainer_kwargs=trainer_kwargs(), **settings)
    step, count = killed.training_step, iter(range(STEPS))

    def train_once(*args, **kwargs):
        if next(count):
            raise Interrupted
        return step(*args, **kwargs)

    killed.training_step = train_once
    with pytest.raises(Interrupted):
        killed.train()
    trainer = whole(name, model, folder, trainer_kwargs=trainer_kwargs(), **settings)
    trainer.train(**({} if name == "dpo" else {"resume_from_checkpoint": True}))
    return trainer
