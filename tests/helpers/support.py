"""What several tests build: small checkpoints, drawn rows, trainers."""

import hashlib
import io
import json
import math
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from trl_mmreason import AdaPOConfig, AdaPOTrainer, ReflectionSFTConfig, ReflectionSFTTrainer, SRPOConfig, SRPOTrainer
from trl_mmreason.adapo.trainer import TrajectoryType
from trl_mmreason.compat.chat_template import tokenizer_of
from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.compat.replaced import replaced
from trl_mmreason.grading import Verdict
from trl_mmreason.miniature.models import FAMILIES, build_model
from trl_mmreason.miniature.tasks import make_problems, problems_dataset
from trl_mmreason.training.facts import NothingTrained

FAMILY_NAMES = sorted(FAMILIES)


def full_but(everyday, values) -> list:
    """Parameters of a test, of which `make test` runs one and `make test-all` the others too."""
    return [pytest.param(value, marks=() if value == everyday else pytest.mark.full) for value in values]


def saved_model(family: str, folder: Path) -> Path:
    """A random model that ends about every fourth token with an end-of-turn token."""
    model, processor = build_model(family, "test")
    ends_often(model, processor.tokenizer)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def ends_often(model, tokenizer) -> None:
    """Let a quarter of the vocabulary end turns, as a random model would never emit the one token that does.

    Answers then end early or late or are cut off, as in training.
    """
    size = len(tokenizer)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(size - size // 4, size)]


def load(path: str):
    return AutoModelForImageTextToText.from_pretrained(path), AutoProcessor.from_pretrained(path)


def drawn_rows(n: int, *, seed: int = 0):
    """Questions with one image, with two, and without any, in turn."""
    problems = make_problems(["adding", "counting"], n, seed=seed)
    rows = problems_dataset(problems).to_list()
    for index, (row, problem) in enumerate(zip(rows, problems, strict=True)):
        row["images"] = [[problem.image], [problem.image, problems[index - 1].image], []][index % 3]
    return rows


class ParityGrader:
    """Calls an answer right when the characters' codes sum to an even number: about half, and known to the test."""

    works_elsewhere = True  # so that answers are graded while others are sampled

    def grade_batch(self, items):
        return [Verdict(is_even(item["completion"]), None, "") for item in items]


def is_even(text: str) -> bool:
    return sum(map(ord, text)) % 2 == 0


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
"""Two questions of four trajectories a step, in fp32 on a CPU."""

PATHS_RUN = {name: value for name, value in SMALL_RUN.items() if name != "num_generations"}
SUPERVISED_RUN = {name: value for name, value in PATHS_RUN.items() if name != "max_completion_length"}


def maker(trainer, config, *, arguments=None, **defaults):
    """A function `make(model, folder, rows, *, trainer_kwargs=None, **settings)` of such trainers.

    Args:
        arguments: of the trainer, unless `trainer_kwargs` has others.
        defaults: of the configuration, unless `settings` has others.
    """

    def make(model, folder, rows, *, trainer_kwargs=None, **settings):
        return trainer(
            model,
            args=config(str(folder), **{**defaults, **settings}),
            train_dataset=Dataset.from_list(rows) if isinstance(rows, list) else rows,
            **{**(arguments or {}), **(trainer_kwargs or {})},
        )

    return make


def types_of(numbers):
    """AdaPO's types in short: i→j is 2i + j, and 4 more if an answer was cut; NaN has no verdict."""
    return [
        None if math.isnan(number) else TrajectoryType(int(number) // 2 % 2 == 1, int(number) % 2 == 1, number >= 4)
        for number in numbers
    ]


def adapo_config(folder, **settings) -> AdaPOConfig:
    return AdaPOConfig(str(folder), **{**SMALL_RUN, **settings})


adapo_trainer = maker(AdaPOTrainer, AdaPOConfig, arguments={"grader": ParityGrader()}, **SMALL_RUN)
sft_trainer = maker(ReflectionSFTTrainer, ReflectionSFTConfig, **SUPERVISED_RUN)
# one step, without a prompt and without the accuracy filter
_OPEN = {"max_steps": 1, "reflection_prompt": None, "filter_min_accuracy": 0.0, "filter_max_accuracy": 1.0}
srpo_trainer = maker(SRPOTrainer, SRPOConfig, **{**SMALL_RUN, **_OPEN})


def train_on_anything(trainer) -> None:
    """Train, also on texts that teach nothing, which ends a run with an error."""
    with suppress(NothingTrained):
        trainer.train()


def losses_of(trainer) -> list[float]:
    """The losses that a run has logged."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def untimed(logged: dict) -> dict:
    """What was logged but for times, and the numbers that follow from them."""
    times = ("step_time", "epoch", "runtime", "per_second", "total_flos")
    return {name: value for name, value in logged.items() if not name.startswith("time/") and not name.endswith(times)}


def weights_of(model) -> dict[str, torch.Tensor]:
    """The weights of a model as they are now."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def changed_weights(model, before: dict[str, torch.Tensor]) -> set[str]:
    """The names of the weights that differ from `before`."""
    return {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}


def assert_weights(found, expected, *, atol: float = 0, rtol: float = 0) -> None:
    """Compare weights name by name; each side is a model or a dictionary."""
    found, expected = (each if isinstance(each, dict) else weights_of(each) for each in (found, expected))
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=atol, rtol=rtol, msg=lambda m, n=name: f"{n}: {m}")


def assert_resumes(make, folder, *, step: int = 2, atol: float = 0):
    """Check that a trainer that resumes from another's checkpoint ends with the other's weights; return the other.

    Args:
        make: makes a trainer that saves into `folder`.
    """
    whole, resumed = make(), make()
    before = weights_of(whole.model)
    whole.train()
    assert changed_weights(whole.model, before)
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
    assert_weights(resumed.model, whole.model, atol=atol)
    return whole


def assert_micro_batches_agree(train, sizes=(8, 4, 2), *, atol: float = 1e-5, rtol: float = 0):
    """Check that micro-batches of these sizes lead to the same weights after `sizes[0]` rows; return the trainers.

    Args:
        train: gives a trainer that has trained under the settings that it is called with.
    """
    first, *others = (
        train(per_device_train_batch_size=size, gradient_accumulation_steps=sizes[0] // size) for size in sizes
    )
    for other in others:
        assert_weights(other.model, first.model, atol=atol, rtol=rtol)
    return [first, *others]


def suppress_as_ours(trainer) -> None:
    """Let a trainer of TRL leave out all tokens of images and videos, of which it leaves out the images' alone."""
    trainer.generation_config.suppress_tokens = placeholder_ids(trainer.model.config)


def prepared_batch(trainer, rows=None) -> dict:
    """The batch of a first step: what is sampled, with advantages; of these rows or of the data loader's."""
    trainer.current_gradient_accumulation_steps = 1  # set by `train`
    trainer.model.train()
    torch.manual_seed(0)
    rows = next(iter(trainer.get_train_dataloader())) if rows is None else [dict(row) for row in rows]
    return trainer._generate_and_score_completions(rows)


def whole(batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, L) ids and attention mask of prompts and completions."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    return ids, torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)


def scored(trainer, batch, **flags) -> tuple:
    """Log-probabilities, entropies and auxiliary loss of a batch's completions, as the trainer computes them."""
    with replaced(trainer, _fields=batch.get("fields")):
        columns = batch["completion_ids"].shape[1]
        return trainer._get_per_token_logps_and_entropies(trainer.model, *whole(batch), columns, **flags)


def images_shown(batch) -> list[int]:
    """How many images the model is shown in each row: no field of the families here has fewer entries."""
    return [min(map(len, row["image"].values()), default=0) for row in batch["fields"]]


def logps_of(trainer, batch) -> torch.Tensor:
    """(B, T) log-probabilities of a batch's completions under the policy; 0 in padding."""
    with torch.no_grad():
        return scored(trainer, batch)[0] * batch["completion_mask"]


def assert_linear(read, piece: str, characters: int) -> None:
    """Check that reading a repeated piece takes CPU time in proportion to its length, on a machine of any speed.

    Args:
        characters: length of the longer of the two strings that are read.
    """
    seconds = []
    for length in (characters // 8, characters):
        text, tries = piece * (length // len(piece)), []
        for _ in range(3):
            start = time.process_time()
            read(text)
            tries.append(time.process_time() - start)
        seconds.append(min(tries))
    assert seconds[1] < 24 * seconds[0] + 0.02, seconds  # linear: 8 times, quadratic: 64 times


def plain_sum(problem) -> str:
    """The numbers of a problem of adding, with a + between them."""
    return "+".join(map(str, problem.facts.values()))


def words_and_digest(text: str) -> tuple[int, str]:
    """The number of words, and a digest of them in their order; white space does not count."""
    words = text.split()
    return len(words), hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def png(colour="red", size: tuple[int, int] = (2, 2)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def write_lines(file: Path, rows) -> Path:
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return file


def ids_of(processor, text: str) -> list[int]:
    """The token ids of `text`, without special tokens around it."""
    return tokenizer_of(processor)(text, add_special_tokens=False)["input_ids"]


def written_by_hand(trainer, texts: list[str]) -> None:
    """Let the policy write these texts, one a completion, instead of sampling."""
    ids = [[*ids_of(trainer.processing_class, text), trainer.processing_class.tokenizer.eos_token_id] for text in texts]
    trainer._generate_single_turn = lambda prompt_ids, *_, **__: (ids[: len(prompt_ids)], None)


def recorded_batches(trainer) -> list[dict]:
    """The batches that the trainer makes from here on, with rewards made into advantages, as it makes them."""
    batches, prepare = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: batches.append(prepare(inputs)) or batches[-1]
    return batches


def with_nan(trainer, steps):
    """Let the loss of these steps be NaN in the last process."""
    compute_loss, last = trainer.compute_loss, trainer.accelerator.num_processes - 1

    def spoilt(*args, **kwargs):
        loss = compute_loss(*args, **kwargs)
        is_spoilt = trainer.state.global_step in steps and trainer.accelerator.process_index == last
        return loss * math.nan if is_spoilt else loss

    trainer.compute_loss = spoilt
    return trainer
