"""Supervised start of a miniature model: it learns to see, to answer in the format, and to answer a second time.

Reinforcement learning needs a policy that is sometimes right. Training stops at a given accuracy on other pictures,
because the step at which a tiny model learns to see varies with the seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, List, Value
from transformers import PreTrainedModel, ProcessorMixin, TrainerCallback, TrainerControl, TrainerState
from trl import SFTConfig, SFTTrainer

from ..evaluation.two_turn import evaluate_two_turns
from .solutions import ERRORS, plain, solve
from .tasks import Problem, make_problems, to_dataset

_BATCH = 32
_EVALUATE_EVERY = 10  # steps
_MAX_STEPS = 600


def demonstrations(problems: Sequence[Problem], followup: str, *, seed: int = 0) -> Dataset:
    """Rows for supervised training: problems answered, answered a second time, and sums without a picture.

    Only the last answer of a row is learnt (`completion`), so the wrong first answers are read and never imitated.
    The sums teach the addition table as text: a pair of digits that is held out as a picture can still be added.

    Args:
        problems: each is answered once and, in another row, again after a first answer that is right or wrong.
        followup: what the user says between the two answers.

    Returns:
        Shuffled rows with prompt (messages), completion (one message) and images (one, or none for a sum).
    """
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number, problem in enumerate(problems):
        right = [{"role": "assistant", "content": plain(solve(problem))}]
        rows.append({"prompt": problem.prompt, "completion": right, "images": [problem.image]})
        if number % 4 == 0:
            first = plain(solve(problem, error=rng.choice([None, *ERRORS])))
            checked = [{"role": "assistant", "content": first}, {"role": "user", "content": followup}]
            rows.append({"prompt": [*problem.prompt, *checked], "completion": right, "images": [problem.image]})
            rows.append(_sum_in_words(rng.randrange(10), rng.randrange(10)))
    rng.shuffle(rows)
    message = {"role": Value("string"), "content": Value("string")}
    features = Features({"prompt": List(message), "completion": List(message), "images": List(Image())})
    return Dataset.from_list(rows, features=features)


def _sum_in_words(a: int, b: int) -> dict[str, Any]:
    question = [{"role": "user", "content": f"What is {a}+{b}?"}]
    answer = [{"role": "assistant", "content": f"{a}+{b}=\\boxed{{{a + b}}}"}]
    return {"prompt": question, "completion": answer, "images": []}


def cold_start(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    categories: Sequence[str],
    output_dir: str | Path,
    *,
    followup: str,
    target_accuracy: float,
    level: int = 1,
    problems: int = 3000,
    seed: int = 0,
) -> Path:
    """Train `model` until its first answers reach `target_accuracy` on pictures it was not trained on, and save it.

    Under several processes they train together and the main one saves.

    Args:
        model, processing_class: from `build_model`; the model is trained in place, on a CPU or a GPU.
        categories: kinds of problem, of `CATEGORIES`.
        output_dir: where the checkpoint goes.
        followup: what the user says between the two answers.
        target_accuracy: a fraction; greedy decoding, 200 pictures.
        level: difficulty of the problems.
        problems: how many to train on.
        seed: of the problems and their order.

    Returns:
        `output_dir`.

    Raises:
        RuntimeError: the target was not reached within the bound on steps.
    """
    rows = demonstrations(make_problems(categories, problems, level=level, seed=seed), followup, seed=seed)
    validation = to_dataset(make_problems(categories, 200, level=level, split="new_pictures", seed=seed))
    stop = _StopAtAccuracy(processing_class, validation, followup, target_accuracy)
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
            f"cold_start: accuracy {stop.accuracy:.2f} after {_MAX_STEPS} steps, expected {target_accuracy:.2f}. "
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
    def __init__(self, processing_class: ProcessorMixin, validation: Dataset, followup: str, target: float) -> None:
        self.processing_class, self.validation, self.followup = processing_class, validation, followup
        self.target, self.accuracy = target, 0.0

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step % _EVALUATE_EVERY:
            return
        answers = evaluate_two_turns(
            model,
            self.processing_class,
            self.validation,
            self.followup,
            stage="cold start",
            max_new_tokens=16,
            batch_size=len(self.validation),
        )
        self.accuracy = sum(answer.first_correct for answer in answers) / len(answers)
        control.should_training_stop = self.accuracy >= self.target
        model.train()
