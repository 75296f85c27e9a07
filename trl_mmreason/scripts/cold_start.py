"""Supervised start of a miniature model: reading images, and answering in a method's format.

Reinforcement learning needs a policy that is sometimes right. Training stops at a given accuracy on other images,
because the step at which a tiny model learns to see varies with the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.trainer_callback import ProgressCallback
from trl import SFTConfig, SFTTrainer

from ..data.folders import atomic_path
from ..generation.engine import Failure, SamplingParams
from ..generation.protocols import Direct, last_verdict
from ..generation.transformers_engine import TransformersEngine
from ..jobs.answering import answer_in_memory
from ..miniature.lessons import Lessons, demonstrations
from ..miniature.tasks import make_problems, problems_dataset
from ..training.log_lines import BarLines
from ..training.preparation import prepare_loading, prepare_models
from ..training.stop_at_accuracy import StopAtAccuracy

_BATCH = 32
_MAX_STEPS = 1500
_GLANCE = 50  # rows that are enough to tell an accuracy far below the target


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
    """Train `model` up to `target_accuracy` on new images, and save it.

    Under several processes they share each batch, and the main one saves.

    Args:
        model, processing_class: from `build_model`; the model is trained in place, on a CPU or a GPU.
        categories: kinds of problem, of `CATEGORIES`.
        target_accuracy: a fraction; greedy decoding, 200 images.
        level: difficulty of the problems, or of each category's.

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


class _LabelledProgress(BarLines):
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
        measure: the share of what it is asked that the model gets right now.
        target_accuracy: a fraction.

    Raises:
        RuntimeError: the target was not reached within the bound on steps.
    """
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
        dataloader_num_workers=1,  # images are prepared on the second core
        report_to=[],
        logging_strategy="no",
        seed=seed,
    )
    config.per_device_train_batch_size = max(1, _BATCH // config.world_size)
    padding = prepare_loading(model, config)
    trainer = SFTTrainer(model, args=config, train_dataset=rows, processing_class=processing_class, callbacks=[stop])
    prepare_models(trainer, padding)
    if trainer.pop_callback(ProgressCallback) is not None:  # there is none where bars are switched off
        trainer.add_callback(_LabelledProgress(f"Supervised start, until {target_accuracy:.0%} are right"))
    trainer.train()
    if trainer.is_world_process_zero():
        with atomic_path(output_dir) as unfinished:
            model.save_pretrained(unfinished)
            processing_class.save_pretrained(unfinished)
    trainer.accelerator.wait_for_everyone()
    AcceleratorState._reset_state()  # or the next trainer could have no other precision
    return Path(output_dir)
