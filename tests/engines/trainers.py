"""The nine trainers as the engine tests run them: four steps on rows with one picture, two pictures or none."""

from contextlib import contextmanager

import torch
from datasets import Dataset
from peft import LoraConfig
from support import SMALL_RUN, ParityGrader, drawn_rows, ids_of
from transformers import AutoModelForImageTextToText

import trl_mmreason
from trl_mmreason.chain_of_step.process_reward import Scores
from trl_mmreason.chain_of_step.tokens import trainable_token_indices
from trl_mmreason.engines.sharding import loading_whole
from trl_mmreason.miniature.solutions import chain_of_steps, solve
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.sampling.engine import Sample

STEPS, SAVED = 4, 2
PROBLEMS = make_problems(["adding", "counting"], 16)
CHAINS = [chain_of_steps(solve(problem)) for problem in PROBLEMS]
REFLECTION = "<think>a</think> <answer>7</answer> <reflection>{}</reflection> <answer>7</answer>"

# Adam divides by the root of squared gradients; without a large epsilon it would make rounding errors of gradients near
# zero as large as the learning rate.
SHARED = {
    **SMALL_RUN,
    "per_device_train_batch_size": 4,
    "max_steps": STEPS,
    "save_strategy": "steps",
    "save_steps": SAVED,
    "learning_rate": 1e-2,
    "adam_epsilon": 1e-2,
    "warmup_steps": 0,
    "lr_scheduler_type": "constant",
}
SUPERVISED = {k: v for k, v in SHARED.items() if k not in ("num_generations", "max_completion_length")}
# Three updates of each rollout, so that the checkpoint of the second lies amid one, and a reference to be held to. The
# loss is a mean over all processes' tokens: a mean over trajectories would be 0 before the first update.
ONLINE = {**SHARED, "num_iterations": 3, "beta": 0.1, "loss_type": "dapo"}


class TextReward:
    """Scores a chain by its length: known to every process, and different for different chains."""

    settings = {"kind": "length"}

    def score(self, rows):
        values = [len(row["completion"]) % 10 / 10 for row in rows]
        return [Scores(torch.tensor([value]), value) for value in values]


def last_digit_reward(completions, **_):
    """An additional reward that differs within every group, whatever a random policy writes."""
    return [sum(map(ord, completion[-1]["content"])) % 5 / 5 for completion in completions]


def written_texts(trainer, texts):
    """Let the policy sample as ever, and then put these texts in the place of what it wrote."""
    sample, tokenizer = trainer._generate_single_turn, trainer.processing_class.tokenizer

    def generate(prompt_ids, *args, **kwargs):
        ids, logps = sample(prompt_ids, *args, **kwargs)
        assert len(ids) == len(prompt_ids)
        first = trainer.accelerator.process_index * len(ids) + trainer.state.global_step
        chosen = [texts[(first + row) % len(texts)] for row in range(len(ids))]
        return [[*ids_of(trainer.processing_class, text), tokenizer.eos_token_id] for text in chosen], logps

    trainer._generate_single_turn = generate
    return trainer


def questions():
    return Dataset.from_list(drawn_rows(16))


def completions_of(text_of):
    rows = drawn_rows(16)
    return Dataset.from_list(
        [{"prompt": row["prompt"], "images": row["images"], **text_of(k)} for k, row in enumerate(rows)]
    )


def adapo(model, folder, kwargs, settings, rows=None):
    settings = {"filter_zero_advantage": False, "filter_truncated": False, **ONLINE, **settings}
    args = trl_mmreason.AdaPOConfig(str(folder), **settings)
    rows = rows or questions()
    return trl_mmreason.AdaPOTrainer(model, args=args, train_dataset=rows, grader=ParityGrader(), **kwargs)


def srpo(model, folder, kwargs, settings, rows=None):
    own = {"reflection_prompt": None, "filter_min_accuracy": 0.0}  # wrong answers train, too
    args = trl_mmreason.SRPOConfig(str(folder), **{**ONLINE, **own, **settings})
    trainer = trl_mmreason.SRPOTrainer(model, args=args, train_dataset=rows or questions(), **kwargs)
    texts = [REFLECTION.format("so " * (1 + number)) for number in range(7)]
    return written_texts(trainer, [text.replace("7", str(number)) for number, text in enumerate(texts)])


def chain_of_step_grpo(model, folder, kwargs, settings, rows=None):
    args = trl_mmreason.ChainOfStepGRPOConfig(str(folder), **{**ONLINE, **settings})
    rows = rows or questions()
    trainer = trl_mmreason.ChainOfStepGRPOTrainer(model, TextReward(), args=args, train_dataset=rows, **kwargs)
    return written_texts(trainer, CHAINS)


def self_evolution(model, folder, kwargs, settings, rows=None):
    own = {"judge_max_tokens": 8, "judge_prompt": "Judge.", "actor_prompt": None}
    args = trl_mmreason.SelfEvolutionConfig(str(folder), **{**ONLINE, **own, **settings})
    rows = rows or questions()
    trainer = trl_mmreason.SelfEvolutionTrainer(
        model, args=args, train_dataset=rows, reward_funcs=[last_digit_reward], **kwargs
    )
    return written_texts(trainer, [rf"<think>a</think>\boxed{{{3 + place % 4 // 2}}}" for place in range(7)])


def reflection_sft(model, folder, kwargs, settings, rows=None):
    args = trl_mmreason.ReflectionSFTConfig(str(folder), **{**SUPERVISED, **settings})
    rows = rows or completions_of(lambda k: {"completion": REFLECTION.format("so " * (1 + k))})
    return trl_mmreason.ReflectionSFTTrainer(model, args=args, train_dataset=rows, **kwargs)


def chain_of_step_sft(model, folder, kwargs, settings, rows=None):
    args = trl_mmreason.ChainOfStepSFTConfig(str(folder), **{**SUPERVISED, **settings})
    rows = rows or completions_of(lambda k: {"completion": CHAINS[k]})
    return trl_mmreason.ChainOfStepSFTTrainer(model, args=args, train_dataset=rows, **kwargs)


def process_reward(model, folder, kwargs, settings, rows=None):
    args = trl_mmreason.ProcessRewardConfig(str(folder), **{**SUPERVISED, **settings})
    rows = rows or completions_of(
        lambda k: {"completion": CHAINS[k], "step_labels": labels_of(k), "answer_label": float(k % 2)}
    )
    return trl_mmreason.ProcessRewardTrainer(model, args=args, train_dataset=rows, **kwargs)


def labels_of(number):
    steps = len(solve(PROBLEMS[number]).labels)
    return [float((number + step) % 3 == 0) for step in range(steps)]


def off_policy(model, folder, kwargs, settings, rows=None):
    own = {"beta": 0.1, "trainable_parts": ["vision", "projector", "language"]}
    args = trl_mmreason.OffPolicyRewardConfig(str(folder), **{**SUPERVISED, **own, **settings})
    rows = rows or completions_of(
        lambda k: {"completion": f"It is {k}." + " so" * k, "reward": [1.0, -0.5, 2.0, 0.25][k % 4]}
    )
    return trl_mmreason.OffPolicyRewardTrainer(model, args=args, train_dataset=rows, **kwargs)


class _Rewriting:
    """The engine, whose answers are replaced by chains: what a path says follows from its seed."""

    def __init__(self, engine):
        self.engine, self.settings = engine, engine.settings

    def sample(self, requests, decoding):
        self.engine.sample(requests, decoding)
        return [
            [Sample(CHAINS[(request.seed + n) % len(CHAINS)], "stop", token_ids=[1]) for n in range(request.n)]
            for request in requests
        ]


def iterative_dpo(model, folder, kwargs, settings, rows=None):
    own = {"rounds": 2, "num_paths": 2, "pair_threshold": 0.0, "max_completion_length": 4, "max_steps": STEPS // 2}
    settings = {**SUPERVISED, "save_strategy": "no", "per_device_train_batch_size": 2, **own, **settings}
    args = trl_mmreason.IterativeDPOConfig(str(folder), **settings)
    rows = rows or questions()
    trainer = trl_mmreason.IterativeDPOTrainer(model, TextReward(), args=args, train_dataset=rows, **kwargs)
    engine_of = trainer._engine

    @contextmanager
    def engine(finished):
        with engine_of(finished) as found:
            yield _Rewriting(found)

    trainer._engine = engine
    return trainer


TRAINERS = {
    "AdaPOTrainer": adapo,
    "SRPOTrainer": srpo,
    "ReflectionSFTTrainer": reflection_sft,
    "ChainOfStepSFTTrainer": chain_of_step_sft,
    "ProcessRewardTrainer": process_reward,
    "IterativeDPOTrainer": iterative_dpo,
    "ChainOfStepGRPOTrainer": chain_of_step_grpo,
    "OffPolicyRewardTrainer": off_policy,
    "SelfEvolutionTrainer": self_evolution,
}


# whose loss has a reference, and which write the template's tokens, so that an adapter may train their rows
REFERENCE = {name for name in TRAINERS if "SFT" not in name and name != "ProcessRewardTrainer"}
TOKENS = {"ChainOfStepSFTTrainer", "ProcessRewardTrainer"}


def lora(model_path, *, tokens=False):
    """An adapter of everything, vision included; with the rows of the template's tokens, if that is asked for."""
    indices = None
    if tokens:
        with loading_whole():
            indices = trainable_token_indices(AutoModelForImageTextToText.from_pretrained(model_path))
    return LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"], trainable_token_indices=indices)


def make(name, model, folder, *, adapter=None, rows=None, **settings):
    """A trainer of that name; `model` is a path or a model, `rows` a data set in the place of its own."""
    kwargs = {} if adapter is None else {"peft_config": adapter}
    return TRAINERS[name](model, folder, kwargs, settings, rows)


def ways_of(name, engine):
    """How the table trains each under an engine: see `cell_run.py`."""
    ways = ["full", "tied", "lora"]
    if name in REFERENCE:
        ways += ["memory", "memory, whole"] if engine == "zero3" else ["memory"]
    if name in TOKENS:
        ways.append("lora, tokens")
    if name == "SelfEvolutionTrainer":
        ways.append("no judge")
    return ways


def changed_policy(path):
    """A policy in memory that differs from its checkpoint, in pieces where the engine loads it so."""
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            (weight.ds_tensor if hasattr(weight, "ds_tensor") else weight).mul_(1.05)
    return model
