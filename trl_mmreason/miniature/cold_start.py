"""Supervised start of a miniature model: reading pictures, and answering in a method's format.

Reinforcement learning needs a policy that is sometimes right. Training stops at a given accuracy on other pictures,
because the step at which a tiny model learns to see varies with the seed.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, List
from PIL import Image as PILImage
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.trainer_callback import ProgressCallback
from trl import SFTConfig, SFTTrainer

from ..engines.patches import use_matrix_product_for_patches
from ..files import atomic_path
from ..rows import MESSAGES, stored_picture
from ..sampling.answering import answer_in_memory
from ..sampling.engine import Failure, SamplingParams
from ..sampling.protocols import Direct, last_verdict
from ..sampling.transformers_engine import TransformersEngine
from ..stopping import StopAtAccuracy
from .captions import caption
from .judging import verdict
from .solutions import (
    ERRORS,
    Solution,
    attempt,
    solve,
    worked_steps,
)
from .tasks import Problem, make_problems, problems_dataset

_BATCH = 32
_MAX_STEPS = 1500
_GLANCE = 50  # rows that are enough to tell an accuracy far below the target


@dataclass(frozen=True)
class Lessons:
    """Content of a cold start.

    Attributes:
        write: how a solution is written.
        answer_tokens: token limit of an answer when accuracy is measured.
        followup: user message before a second answer; `None` for one answer alone.
        write_again: how the second answer is written; `None` for the way of the first.
        again_every: one problem of so many is answered a second time.
        in_steps: whether the words of solutions in steps are to be known, for what comes after.
        describe: what the user says to have the picture described; `None` for answers alone.
        judge: what the user says to have a response judged, of its question and itself; `None` for answers alone.
        answers_every: one problem of so many is answered, so that what else is taught gets ahead of the answers.
    """

    write: Callable[[Solution], str]
    answer_tokens: int
    followup: str | None = None
    write_again: Callable[[Solution], str] | None = None
    again_every: int = 4
    in_steps: bool = False
    describe: str | None = None
    judge: Callable[[str, str], str] | None = None
    answers_every: int = 1

    @property
    def name(self) -> str:
        """A unique name of these lessons."""
        name = f"{self.write.__name__}-in-steps" if self.in_steps else self.write.__name__
        if self.describe:
            name = f"{name}-described-{_digest(self.describe)}"
        if self.judge:
            name = f"{name}-judged-{_digest(self.judge('', ''))}"
        if self.answers_every > 1:
            name = f"{name}-every-{self.answers_every}"
        if self.write_again:
            name = f"{name}-then-{self.write_again.__name__}"
        if self.again_every != 4:
            name = f"{name}-again-{self.again_every}"
        return f"{name}-{_digest(self.followup)}" if self.followup else name


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:6]


def demonstrations(problems: Sequence[Problem], lessons: Lessons, *, seed: int = 0) -> Dataset:
    """Make rows of supervised training: problems answered, answered again, described or judged, and sums in words.

    Only the last answer of a row is learnt (`completion`), so the wrong first answers are read and never imitated.
    The sums teach the addition table as text: a pair of digits that is held out as a picture can still be added.

    Args:
        problems: each is described, if the lessons have captions, and every one, or every so many, answered. If they
            have a second answer, one of so many is in another row answered again, after a first answer that is right or
            wrong. If they have verdicts, a response to every second is judged, and beside each of the others one to a
            sum; otherwise there is a sum beside every fourth. "Every fourth" is of each category: problems go round
            the categories, so that every fourth of all may be of one.
        lessons: how answers are written, and what the user says between two, or to have something described or judged.

    Returns:
        Shuffled rows with prompt (messages), completion (one message) and images (one, or none for a sum).
    """
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for serial, problem in enumerate(problems):
        number = seen[problem.category]
        seen[problem.category] += 1
        picture = [stored_picture(problem.image)]
        if lessons.describe is not None:
            rows.append(_row([_said(lessons.describe)], caption(problem), picture))
        right = lessons.write(solve(problem))
        if number % lessons.answers_every == 0:
            rows.append(_row(problem.prompt, right, picture))
        if lessons.followup is not None and number % lessons.again_every == 0:
            first = lessons.write(solve(problem, error=rng.choice([None, *ERRORS])))
            checked = [{"role": "assistant", "content": first}, _said(lessons.followup)]
            again = (lessons.write_again or lessons.write)(solve(problem))
            rows.append(_row([*problem.prompt, *checked], again, picture))
        if lessons.judge is not None:
            added, other = _sum_in_words(rng, serial), _sum_in_words(rng, serial)
            judged, other, shown = (added, other, []) if number % 2 else (problem, rng.choice(problems), picture)
            response = rng.choice(_responses(judged, other, lessons))
            asked = lessons.judge(judged.prompt[0]["content"], response)
            rows.append(_row([_said(asked)], verdict(judged, response), shown))
        elif number % 4 == 0:
            added = _sum_in_words(rng, serial)
            rows.append(_row(added.prompt, lessons.write(solve(added)), []))
    rng.shuffle(rows)
    features = Features({"prompt": MESSAGES, "completion": MESSAGES, "images": List(Image())})
    return Dataset.from_list(rows, features=features)


def _said(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}


def _row(prompt: list[dict[str, str]], completion: str, images: list[Any]) -> dict[str, Any]:
    return {"prompt": prompt, "completion": [{"role": "assistant", "content": completion}], "images": images}


def _responses(problem: Problem, other: Problem, lessons: Lessons) -> list[str]:
    """Responses to judge: equally many right and mistaken ones, another problem's, and an empty one.

    Among these alone the digits of a response are mostly right, and a judge would learn to copy them instead of looking
    at the picture. So there is the solution of another problem, and an empty response, too.
    """
    mistaken = [lessons.write(solve(problem, error=error)) for error in ERRORS]
    right = lessons.write(solve(problem))
    return [*[right] * len(mistaken), *mistaken, lessons.write(solve(other)), ""]


def _sum_in_words(rng: random.Random, serial: int) -> Problem:
    """A sum whose digits are in its question; `serial` distinguishes equal sums with different mistakes."""
    facts = {"first": rng.randrange(10), "second": rng.randrange(10)}
    added = attempt("adding", 1, facts, "")
    text = added.lead.removesuffix("=")
    return Problem(
        id=f"{text}-{serial}",
        category="adding",
        level=1,
        question=f"What is {text}?",
        image=PILImage.new("RGB", (1, 1)),  # never shown
        answer=added.stated,
        choices=None,
        facts=facts,
        asked="",
        steps=worked_steps("adding", "", added, None)[len(facts) :],
        seed=serial,
    )


def cold_start(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    categories: Sequence[str],
    output_dir: str | Path,
    *,
    lessons: Lessons,
    target_accuracy: float,
    level: int | Mapping[str, int] = 1,
    problems: int = 3000,
    seed: int = 0,
) -> Path:
    """Train `model` up to `target_accuracy` on new pictures, and save it.

    Under several processes they share each batch, and the main one saves.

    Args:
        model, processing_class: from `build_model`; the model is trained in place, on a CPU or a GPU.
        categories: kinds of problem, of `CATEGORIES`.
        output_dir: where the checkpoint goes.
        lessons: what is taught.
        target_accuracy: a fraction; greedy decoding, 200 pictures.
        level: difficulty of the problems, or of each category's.
        problems: how many to train on.
        seed: seed of the problems and their order.

    Returns:
        `output_dir`.

    Raises:
        RuntimeError: the target was not reached within the bound on steps.
    """
    rows = demonstrations(make_problems(categories, problems, level=level, seed=seed), lessons, seed=seed)
    validation = problems_dataset(make_problems(categories, 200, level=level, split="new_pictures", seed=seed))

    def accuracy(model: PreTrainedModel, rows: Dataset) -> float:
        bounds = {"max_new_tokens": lessons.answer_tokens, "batch_size": len(rows)}
        return greedy_accuracy(model, processing_class, rows, **bounds)

    def measure(model: PreTrainedModel) -> float:
        glance = accuracy(model, validation.select(range(_GLANCE)))
        # At the target a model hardly ever has less than half of it on these rows.
        return glance if glance < target_accuracy / 2 else accuracy(model, validation)

    return teach(model, processing_class, rows, output_dir, measure=measure, target_accuracy=target_accuracy, seed=seed)


def greedy_accuracy(
    model: PreTrainedModel, processing_class: ProcessorMixin, rows: Dataset, *, max_new_tokens: int, batch_size: int
) -> float:
    """Accuracy of a policy during training, with one greedy answer a row.

    A row whose gold answer cannot be used does not count; NaN if none can be used. An answer that failed is wrong.
    """
    engine = TransformersEngine(model, processing_class, batch_size=batch_size)
    greedy = SamplingParams(max_new_tokens, temperature=0.0)
    samples = answer_in_memory(rows, engine, Direct(), sampling_params=greedy, batch_size=batch_size)
    verdicts = [False if isinstance(one, Failure) else last_verdict(one, 1) for (one,) in samples]
    known = [verdict for verdict in verdicts if verdict is not None]
    return sum(known) / len(known) if known else float("nan")


class _LabelledProgress(ProgressCallback):
    """A progress bar that says what it counts: it usually ends long before its last step."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label = label

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description(self._label)


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
    """Train `model` on `rows` until `measure` returns `target_accuracy`, and save it.

    Args:
        model, processing_class: a model with its processor, or a text-only one with its tokenizer.
        rows: prompt and completion (messages), and images for a model that sees them.
        output_dir: where the checkpoint goes.
        measure: the share of what it is asked that the model gets right now.
        target_accuracy: a fraction.
        measure_every_steps: after how many steps it is measured each time.
        seed: seed of the rows' order.

    Returns:
        `output_dir`.

    Raises:
        RuntimeError: the target was not reached within the bound on steps.
    """
    use_matrix_product_for_patches(model)
    advice = "Use easier categories, a larger model or more problems."
    stop = StopAtAccuracy(measure, target_accuracy, measure_every_steps, advice)
    config = SFTConfig(
        str(Path(output_dir).parent),
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
    config.per_device_train_batch_size = max(1, _BATCH // config.world_size)
    trainer = SFTTrainer(model, args=config, train_dataset=rows, processing_class=processing_class, callbacks=[stop])
    if trainer.pop_callback(ProgressCallback) is not None:  # there is none where bars are switched off
        trainer.add_callback(_LabelledProgress(f"Supervised start, until {target_accuracy:.0%} are right"))
    trainer.train()
    if trainer.is_world_process_zero():
        with atomic_path(output_dir) as unfinished:
            model.save_pretrained(unfinished)
            processing_class.save_pretrained(unfinished)
    trainer.accelerator.wait_for_everyone()
    return Path(output_dir)
