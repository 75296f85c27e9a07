"""Supervised start of a miniature model: it learns to see, and to answer in the format of the method that follows.

Reinforcement learning needs a policy that is sometimes right. Training stops at a given accuracy on other pictures,
because the step at which a tiny model learns to see varies with the seed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, List, Value
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from trl import SFTConfig, SFTTrainer

from ..evaluation.answers import accuracy
from .captions import DESCRIBE, caption
from .judging import verdict
from .solutions import ERRORS, Solution, boxed_thoughts, plain, solve, tagged
from .tasks import Problem, make_problems, to_dataset

_BATCH = 32
_MAX_STEPS = 600


@dataclass(frozen=True)
class Lessons:
    """What is taught.

    Attributes:
        write: how a solution is written.
        answer_tokens: bound of an answer when accuracy is measured.
        followup: what the user says before a second answer; `None` for one answer alone.
        in_steps: whether the words of solutions in steps are to be known, for what comes after.
        describe: what the user says to have the picture described; `None` for answers alone.
        judge: what the user says to have a response judged, of its question and itself; `None` for answers alone.
    """

    write: Callable[[Solution], str]
    answer_tokens: int
    followup: str | None = None
    in_steps: bool = False
    describe: str | None = None
    judge: Callable[[str, str], str] | None = None

    @property
    def name(self) -> str:
        """A name that other lessons do not have."""
        name = f"{self.write.__name__}-in-steps" if self.in_steps else self.write.__name__
        if self.describe:
            name = f"{name}-described-{_digest(self.describe)}"
        if self.judge:
            name = f"{name}-judged-{_digest(self.judge('', ''))}"
        return f"{name}-{_digest(self.followup)}" if self.followup else name


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:6]


def two_answers(followup: str) -> Lessons:
    r"""To answer `3+4=\boxed{7}`, and to answer again after the user said `followup`."""
    return Lessons(plain, answer_tokens=16, followup=followup)


def judged_answers(judge: Callable[[str, str], str]) -> Lessons:
    r"""To answer `<think>3+4=7</think>\boxed{7}`, and to judge such answers, one by one.

    Args:
        judge: question, response → what the user says to have it judged.
    """
    return Lessons(boxed_thoughts, answer_tokens=32, judge=judge)


PLAIN_ANSWERS = Lessons(plain, answer_tokens=16, in_steps=True)
r"""To answer `3+4=\boxed{7}`, as a start for learning to reason in steps."""

CAPTIONS_AND_ANSWERS = Lessons(plain, answer_tokens=16, in_steps=True, describe=DESCRIBE)
r"""To describe a picture ("The first digit is 3. The second digit is 4.") and to answer `3+4=\boxed{7}`."""

TAGGED_ANSWERS = Lessons(tagged, answer_tokens=32)
"""To answer `<think>3+4=7</think> <answer>7</answer>`."""


def demonstrations(problems: Sequence[Problem], lessons: Lessons, *, seed: int = 0) -> Dataset:
    """Rows for supervised training: problems answered, answered again, described or judged, and sums in words.

    Only the last answer of a row is learnt (`completion`), so the wrong first answers are read and never imitated.
    The sums teach the addition table as text: a pair of digits that is held out as a picture can still be added.

    Args:
        problems: each is answered once; if the lessons have captions or verdicts, each is described or has a response
            judged, about half of them right ones, and every fourth is answered, as captions and verdicts are then
            mostly right by the time that half the answers are. If they have a second answer, every fourth is in another
            row answered again, after a first answer that is right or wrong. Beside every fourth there is a sum.
        lessons: how answers are written, and what the user says between two, or to have a picture described.

    Returns:
        Shuffled rows with prompt (messages), completion (one message) and images (one, or none for a sum).
    """
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    answers_every = 1 if lessons.describe is None and lessons.judge is None else 4
    for number, problem in enumerate(problems):
        if lessons.describe is not None:
            asked = [{"role": "user", "content": lessons.describe}]
            described = [{"role": "assistant", "content": caption(problem)}]
            rows.append({"prompt": asked, "completion": described, "images": [problem.image]})
        right = [{"role": "assistant", "content": lessons.write(solve(problem))}]
        if lessons.judge is not None:
            error = rng.choice(ERRORS) if rng.random() < 0.5 else None
            response = lessons.write(solve(problem, error=error))
            asked = [{"role": "user", "content": lessons.judge(problem.prompt[0]["content"], response)}]
            judged = [{"role": "assistant", "content": verdict(problem, response)}]
            rows.append({"prompt": asked, "completion": judged, "images": [problem.image]})
        if number % answers_every == 0:
            rows.append({"prompt": problem.prompt, "completion": right, "images": [problem.image]})
        if number % 4:
            continue
        if lessons.followup is not None:
            first = lessons.write(solve(problem, error=rng.choice([None, *ERRORS])))
            checked = [{"role": "assistant", "content": first}, {"role": "user", "content": lessons.followup}]
            rows.append({"prompt": [*problem.prompt, *checked], "completion": right, "images": [problem.image]})
        rows.append(_sum_in_words(rng.randrange(10), rng.randrange(10), lessons))
    rng.shuffle(rows)
    message = {"role": Value("string"), "content": Value("string")}
    features = Features({"prompt": List(message), "completion": List(message), "images": List(Image())})
    return Dataset.from_list(rows, features=features)


def _sum_in_words(a: int, b: int, lessons: Lessons) -> dict[str, Any]:
    text = f"{a}+{b}"
    solution = Solution(text, steps=(), labels=(True,), lead=f"{text}=", result=str(a + b), answer=str(a + b))
    answer = [{"role": "assistant", "content": lessons.write(solution)}]
    return {"prompt": [{"role": "user", "content": f"What is {text}?"}], "completion": answer, "images": []}


def cold_start(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    categories: Sequence[str],
    output_dir: str | Path,
    *,
    lessons: Lessons,
    target_accuracy: float,
    level: int = 1,
    problems: int = 3000,
    seed: int = 0,
) -> Path:
    """Train `model` until its answers reach `target_accuracy` on pictures it was not trained on, and save it.

    Under several processes they train together and the main one saves.

    Args:
        model, processing_class: from `build_model`; the model is trained in place, on a CPU or a GPU.
        categories: kinds of problem, of `CATEGORIES`.
        output_dir: where the checkpoint goes.
        lessons: what is taught.
        target_accuracy: a fraction; greedy decoding, 200 pictures.
        level: difficulty of the problems.
        problems: how many to train on.
        seed: of the problems and their order.

    Returns:
        `output_dir`.

    Raises:
        RuntimeError: the target was not reached within the bound on steps.
    """
    rows = demonstrations(make_problems(categories, problems, level=level, seed=seed), lessons, seed=seed)
    validation = to_dataset(make_problems(categories, 200, level=level, split="new_pictures", seed=seed))

    def measure(model: PreTrainedModel) -> float:
        bounds = {"max_new_tokens": lessons.answer_tokens, "batch_size": len(validation)}
        return accuracy(model, processing_class, validation, **bounds)

    return teach(model, processing_class, rows, output_dir, measure=measure, target_accuracy=target_accuracy, seed=seed)


def teach(
    model: PreTrainedModel,
    processing_class: ProcessorMixin | PreTrainedTokenizerBase,
    rows: Dataset,
    output_dir: str | Path,
    *,
    measure: Callable[[PreTrainedModel], float],
    target_accuracy: float,
    measure_every_steps: int = 10,
    seed: int = 0,
) -> Path:
    """Train `model` on `rows` until `measure` reaches `target_accuracy`, and save it.

    Args:
        model, processing_class: a model with its processor, or a text-only one with its tokenizer.
        rows: prompt and completion (messages), and images for a model that sees them.
        output_dir: where the checkpoint goes.
        measure: the share of what it is asked that the model gets right now.
        target_accuracy: a fraction.
        measure_every_steps: after how many steps it is measured each time; a divisor of the bound on steps, so that the
            last of them counts.
        seed: of the rows' order.

    Returns:
        `output_dir`.

    Raises:
        RuntimeError: the target was not reached within the bound on steps.
    """
    stop = _StopAtAccuracy(measure, target_accuracy, measure_every_steps)
    config = SFTConfig(
        str(Path(output_dir).parent),
        per_device_train_batch_size=_BATCH,
        learning_rate=1e-3,
        adam_beta2=0.98,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=20,
        max_steps=_MAX_STEPS,
        max_length=None,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=model.device.type == "cpu",
        save_strategy="no",
        dataloader_num_workers=1,  # pictures are prepared on the second core
        report_to=[],
        logging_strategy="no",
        seed=seed,
    )
    trainer = SFTTrainer(model, args=config, train_dataset=rows, processing_class=processing_class, callbacks=[stop])
    trainer.train()
    if stop.accuracy < target_accuracy:
        raise RuntimeError(
            f"supervised start: accuracy {stop.accuracy:.2f} after {_MAX_STEPS} steps, expected {target_accuracy:.2f}. "
            "Use easier categories, a larger model or more problems."
        )
    if trainer.is_world_process_zero():
        unfinished = Path(f"{output_dir}.unfinished")  # a run that is killed while saving leaves no half checkpoint
        model.save_pretrained(unfinished)
        processing_class.save_pretrained(unfinished)
        unfinished.replace(output_dir)
    trainer.accelerator.wait_for_everyone()
    return Path(output_dir)


class _StopAtAccuracy(TrainerCallback):
    def __init__(self, measure: Callable[[PreTrainedModel], float], target: float, every_steps: int) -> None:
        self.measure, self.target, self.every_steps = measure, target, every_steps
        self.accuracy = 0.0

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step % self.every_steps:
            return
        self.accuracy = self.measure(model)
        control.should_training_stop = self.accuracy >= self.target
        model.train()
