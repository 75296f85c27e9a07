"""The ten trainers on rows with one image, two images or none, each with rewards or labels that it learns from."""

from contextlib import contextmanager

import pytest
import torch
from datasets import Dataset
from solution_chains import chain_of_steps
from support import SMALL_RUN, SUPERVISED_RUN, ParityGrader, drawn_rows, ends_often, ids_of

import trl_mmreason
from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel, Scores
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.generation.engine import Sample
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import make_problems

GRPO = ["AdaPOTrainer", "SRPOTrainer", "ChainOfStepGRPOTrainer", "MixedGroupsGRPOTrainer", "SelfEvolutionTrainer"]
DPO = "IterativeDPOTrainer"
TRAINERS = [  # in the order of the table in docs/engines.md
    "AdaPOTrainer",
    "SRPOTrainer",
    "ReflectionSFTTrainer",
    "ChainOfStepSFTTrainer",
    "ProcessRewardTrainer",
    DPO,
    "ChainOfStepGRPOTrainer",
    "OffPolicyRewardTrainer",
    "MixedGroupsGRPOTrainer",  # which trains the language model alone, as it does by default
    "SelfEvolutionTrainer",
]

PROBLEMS = make_problems(["adding", "counting"], 16)
CHAINS = [chain_of_steps(solve(problem)) for problem in PROBLEMS]
REFLECTION = "<think>a</think> <answer>7</answer> <reflection>{}</reflection> <answer>7</answer>"

# ------------------------------------------------------------------------------------------------- rows and settings


def labels_of(number):
    steps = len(solve(PROBLEMS[number]).steps)
    return [float((number + step) % 3 == 0) for step in range(steps)]


LEARNT = {
    "ReflectionSFTTrainer": lambda k: {"completion": REFLECTION.format("so " * (1 + k))},
    "ChainOfStepSFTTrainer": lambda k: {"completion": CHAINS[k]},
    "ProcessRewardTrainer": lambda k: {
        "completion": CHAINS[k],
        "step_labels": labels_of(k),
        "answer_label": float(k % 2),
    },
    "OffPolicyRewardTrainer": lambda k: {
        "completion": f"It is {k}." + " so" * k,
        "reward": [1.0, -0.5, 2.0, 0.25][k % 4],
    },
}
"""Trainer → what the row of a number has beside its question; the others answer the questions themselves."""


def rows_of(name):
    """What a trainer learns from unless it is given other rows."""
    rows = drawn_rows(16)
    if name in LEARNT:
        rows = [
            {"prompt": row["prompt"], "images": row["images"], **LEARNT[name](number)}
            for number, row in enumerate(rows)
        ]
    return Dataset.from_list(rows)


OWN = {
    "AdaPOTrainer": {"filter_zero_advantage": False, "filter_truncated": False},
    "SRPOTrainer": {"reflection_prompt": None, "filter_min_accuracy": 0.0},  # wrong answers train, too
    "SelfEvolutionTrainer": {"judge_max_tokens": 8, "judge_prompt": "Judge.", "actor_prompt": None},
    "OffPolicyRewardTrainer": {"beta": 0.1, "trainable_parts": ["vision", "projector", "language"]},
    DPO: {"rounds": 1, "num_paths": 2, "pair_threshold": 0.0, "max_completion_length": 4},
}


def run_of(name):
    """Two steps of a trainer, in float32 on a CPU."""
    if name in GRPO:
        return {**SMALL_RUN, "warmup_steps": 0, "beta": 0.1}
    return {**SUPERVISED_RUN, "warmup_steps": 0, "per_device_train_batch_size": 2 if name == DPO else 4}


STEPS, SAVED = 4, 2


def four_steps(name):
    """Settings of the engine tests: four steps, of which GRPO's first three, and so a checkpoint's, are on one rollout.

    Adam divides by the root of squared gradients; without a large epsilon it would make rounding errors of gradients
    near zero as large as the learning rate.
    """
    settings = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": SAVED}
    settings |= {"learning_rate": 1e-2, "adam_epsilon": 1e-2, "lr_scheduler_type": "constant"}
    if name == DPO:
        return {**settings, "save_strategy": "no", "rounds": 2, "max_steps": STEPS // 2}
    if name in GRPO:
        settings |= {"per_device_train_batch_size": 4, "num_iterations": 3}
    else:  # rows of similar length share a micro-batch
        settings |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    return settings


# -------------------------------------------------------------------------------------------------------- the trainers


class TextReward:
    """Scores a chain by its length: known to every process, and different for different chains."""

    settings = {"kind": "length"}

    def score(self, rows):
        values = [len(row["completion"]) % 10 / 10 for row in rows]
        return [Scores(torch.tensor([value]), value) for value in values]


def last_digit_reward(completions, **_):
    """An additional reward that differs within every group, whatever a random policy writes."""
    return [sum(map(ord, completion[-1]["content"])) % 5 / 5 for completion in completions]


ARGUMENTS = {
    "AdaPOTrainer": lambda: {"grader": ParityGrader()},
    "MixedGroupsGRPOTrainer": lambda: {"grader": ParityGrader()},
    "ChainOfStepGRPOTrainer": lambda: {"process_reward_model": TextReward()},
    "SelfEvolutionTrainer": lambda: {"reward_funcs": [last_digit_reward]},
    DPO: lambda: {"process_reward_model": TextReward()},
}
BY_OUTCOME = {"chains": False, "trainer_kwargs": {"process_reward_model": None, "grader": ParityGrader()}}
"""Arguments of `make` for iterative DPO with a policy that does not know the chain's tokens."""
WRITTEN = {
    "SRPOTrainer": [REFLECTION.format("so " * (1 + n)).replace("7", str(n)) for n in range(7)],
    "ChainOfStepGRPOTrainer": CHAINS,
    "SelfEvolutionTrainer": [rf"<think>a</think>\boxed{{{3 + place % 4 // 2}}}" for place in range(7)],
}
"""Trainer → what stands in the place of what its policy wrote."""


def make(name, model, folder, *, adapter=None, rows=None, trainer_kwargs=None, **settings):
    """A trainer of that name; `settings` override those of its configuration.

    Args:
        model: a path, as `saved_base` gives it, or a model.
        adapter: configuration of an adapter.
        rows: a data set in the place of its own.
        trainer_kwargs: further arguments of the trainer.
    """
    kwargs = {**ARGUMENTS.get(name, dict)(), **(trainer_kwargs or {})}
    if adapter is not None:
        kwargs["peft_config"] = adapter
    config = getattr(trl_mmreason, name.replace("Trainer", "Config"))
    args = config(str(folder), **{**run_of(name), **OWN.get(name, {}), **settings})
    rows = rows_of(name) if rows is None else rows
    trainer = getattr(trl_mmreason, name)(model, args=args, train_dataset=rows, **kwargs)
    if name in WRITTEN:
        write(trainer, WRITTEN[name])
    if name == DPO:
        write_paths(trainer)
    return trainer


def write(trainer, texts):
    """Let the policy sample as ever, and then put these texts in the place of what it wrote."""
    sample, eos_id = trainer._generate_single_turn, trainer._tokenizer.eos_token_id

    def generate(prompt_ids, *args, **kwargs):
        ids, _ = sample(prompt_ids, *args, **kwargs)
        assert len(ids) == len(prompt_ids)
        first = trainer.accelerator.process_index * len(ids) + trainer.state.global_step
        chosen = [texts[(first + row) % len(texts)] for row in range(len(ids))]
        return [[*ids_of(trainer.processing_class, text), eos_id] for text in chosen], None

    trainer._generate_single_turn = generate


class _Rewriting:
    """The engine, whose answers are replaced by texts: what a path says follows from its seed."""

    def __init__(self, engine, texts):
        self.engine, self.settings, self.texts = engine, engine.settings, texts

    def sample(self, requests, sampling_params):
        self.engine.sample(requests, sampling_params)
        return [
            [Sample(self.texts[(request.seed + n) % len(self.texts)], "stop", token_ids=[1]) for n in range(request.n)]
            for request in requests
        ]


def write_paths(trainer):
    """Put chains, or answers of other lengths, in the place of the paths that the policy samples."""
    engine_of, texts = trainer._engine, CHAINS if trainer.args.chains else ["It is 3" + "!" * n for n in range(16)]

    @contextmanager
    def engine(finished):
        with engine_of(finished) as found:
            yield _Rewriting(found, texts)

    trainer._engine = engine


# ----------------------------------------------------------------------------------------------- saved and resumed runs


def saved_base(family, folder):
    """A random policy and process reward model in one: it knows the chain's tokens, and ends turns often."""
    model, processor = build_model(family, "test")
    add_chain_tokens(model, processor)
    ends_often(model, processor.tokenizer)
    ProcessRewardModel(model, processor).save_pretrained(folder)
    return str(folder)


class Interrupted(Exception):
    pass


def whole(name, model, folder, **settings):
    """A trainer of two steps that writes a checkpoint behind each."""
    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "num_train_epochs": 2, **settings}
    return make(name, model, folder, **settings)


def resumed(name, model, folder, *, trainer_kwargs=dict, **settings):
    """The trainer after a run that was interrupted behind its first step, and resumed by another trainer.

    Args:
        trainer_kwargs: a function, as each trainer needs arguments of its own.
    """
    folder = folder / "interrupted"
    killed = whole(name, model, folder, trainer_kwargs=trainer_kwargs(), **settings)
    step, count = killed.training_step, iter(range(2))

    def train_once(*args, **kwargs):
        if next(count):
            raise Interrupted
        return step(*args, **kwargs)

    killed.training_step = train_once
    with pytest.raises(Interrupted):
        killed.train()
    trainer = whole(name, model, folder, trainer_kwargs=trainer_kwargs(), **settings)
    trainer.train(**({} if name == DPO else {"resume_from_checkpoint": True}))
    return trainer
