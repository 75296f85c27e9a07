"""What several tests build: small checkpoints, drawn rows, trainers."""

from pathlib import Path

from transformers import AutoModelForImageTextToText, AutoProcessor

from trl_mmreason import (
    AdaPOConfig,
    AdaPOTrainer,
    ReflectionSFTConfig,
    ReflectionSFTTrainer,
    SRPOConfig,
    SRPOTrainer,
)
from trl_mmreason.grading import Verdict
from trl_mmreason.miniature.models import FAMILIES, build_model
from trl_mmreason.miniature.tasks import make_problems, to_dataset

FAMILY_NAMES = sorted(FAMILIES)


def saved_model(family: str, folder: Path) -> Path:
    """A random model that ends about every fourth token with an end-of-turn token.

    A random model would never emit the one token that ends a turn, so a quarter of the vocabulary ends turns too.
    Answers then end early or late or are cut off, as in training.
    """
    model, processor = build_model(family, "test")
    size = len(processor.tokenizer)
    model.generation_config.eos_token_id = [processor.tokenizer.eos_token_id, *range(size - size // 4, size)]
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def load(path: str):
    return AutoModelForImageTextToText.from_pretrained(path), AutoProcessor.from_pretrained(path)


def drawn_rows(n: int, *, seed: int = 0):
    """Questions with one picture, with two, and without any, in turn."""
    problems = make_problems(["adding", "counting"], n, seed=seed)
    rows = to_dataset(problems).to_list()
    for index, (row, problem) in enumerate(zip(rows, problems, strict=True)):
        row["images"] = [[problem.image], [problem.image, problems[index - 1].image], []][index % 3]
    return rows


class ParityGrader:
    """Calls an answer right when the characters' codes sum to an even number: about half, and known to the test."""

    def grade_batch(self, items):
        return [Verdict(is_even(item["completion"]), None, "") for item in items]


def is_even(text: str) -> bool:
    return sum(map(ord, text)) % 2 == 0


def adapo_config(folder, **settings) -> AdaPOConfig:
    """Two questions of four trajectories a step, in fp32 on a CPU; `settings` override."""
    return AdaPOConfig(str(folder), **{**SMALL_RUN, **settings})


SMALL_RUN = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 6,
    "max_steps": 2,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "model_init_kwargs": {"dtype": "float32"},
}


def adapo_trainer(model, folder, rows, *, trainer_kwargs=None, **settings) -> AdaPOTrainer:
    from datasets import Dataset

    return AdaPOTrainer(
        model,
        args=adapo_config(folder, **settings),
        train_dataset=Dataset.from_list(rows),
        grader=ParityGrader(),
        **(trainer_kwargs or {}),
    )


def srpo_trainer(model, folder, rows, *, trainer_kwargs=None, **settings) -> SRPOTrainer:
    """As `adapo_trainer`, one step, without a prompt and without the accuracy filter, with Grader."""
    from datasets import Dataset

    own = {"max_steps": 1, "reflection_prompt": None, "filter_min_accuracy": 0.0, "filter_max_accuracy": 1.0}
    return SRPOTrainer(
        model,
        args=SRPOConfig(str(folder), **{**SMALL_RUN, **own, **settings}),
        train_dataset=Dataset.from_list(rows),
        **(trainer_kwargs or {}),
    )


def sft_trainer(model, folder, rows, *, trainer_kwargs=None, **settings) -> ReflectionSFTTrainer:
    """As `adapo_trainer`, on completions; `rows` may be a Dataset."""
    from datasets import Dataset

    run = {name: value for name, value in SMALL_RUN.items() if name not in ("num_generations", "max_completion_length")}
    return ReflectionSFTTrainer(
        model,
        args=ReflectionSFTConfig(str(folder), **{**run, **settings}),
        train_dataset=rows if isinstance(rows, Dataset) else Dataset.from_list(rows),
        **(trainer_kwargs or {}),
    )


def ids_of(processor, text: str) -> list[int]:
    """The token ids of `text`, without special tokens around it."""
    return processor.tokenizer(text, add_special_tokens=False)["input_ids"]


def written_by_hand(trainer, texts: list[str]) -> None:
    """Let the policy write these texts, one a completion, instead of sampling."""
    ids = [[*ids_of(trainer.processing_class, text), trainer.processing_class.tokenizer.eos_token_id] for text in texts]
    trainer._generate_single_turn = lambda prompt_ids, *_, **__: (ids[: len(prompt_ids)], None)


def recorded_batches(trainer) -> list[dict]:
    """The batches that the trainer makes from here on, with rewards made into advantages, as it makes them."""
    batches, prepare = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: batches.append(prepare(inputs)) or batches[-1]
    return batches
