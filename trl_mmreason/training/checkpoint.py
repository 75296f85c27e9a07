"""Restore a checkpoint's weights, or raise an error if they did not reach the model.

`Trainer` reads a checkpoint with `load_state_dict(strict=False)`. Several vision-language families are saved under
the key names of their published checkpoints and not under those of the live module, so nothing matches, a warning is
printed, and training continues from the base weights. `from_pretrained` knows the renaming.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, is_peft_model
from huggingface_hub import constants
from peft import PeftModel, load_peft_weights
from safetensors import SafetensorError
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel, Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput

from ..compat.adapters import CheckpointError, adapter_tensors, check_adapter_restored, check_names, check_scaling
from ..compat.sharding import buffers_are_sent, is_sharded, load_whole_state, loading_whole, whole_state
from ..compat.special_tokens import own_padding
from ..data.folders import atomic_path, lock_folder, unlock_folder
from .best_model import BestModelMixin
from .interruption import ends_on_signal
from .model_card import edit_card, warn_of_local_base
from .pushing import pushes_models_only
from .resuming import (
    UNFINISHED,
    NoCheckpoint,
    best_of,
    check_same_place,
    newest_checkpoint,
    publish_checkpoint,
    resolve_checkpoint,
    rotate_checkpoints,
)

logger = logging.getLogger(__name__)

_TORCH_CANNOT_WRITE = ("inline_container.cc", "iostream error", "PytorchStreamWriter")  # it raises RuntimeError

_OPTIMIZERS = ("optimizer*", "global_step*")  # the second of DeepSpeed


def save_whole(trainer: Trainer, folder: Path, **saving: Any) -> None:
    """Save a trainer's model and its `trainer_state.json` into `folder` atomically.

    Args:
        trainer: call it on all processes; they wait for each other.
        folder: not there yet.
        **saving: arguments of `Trainer.save_model`.
    """
    is_main = trainer.is_world_process_zero()
    with explained_writing(folder), atomic_path(folder, replace=is_main) as unfinished:
        trainer.save_model(str(unfinished), **saving)
        if is_main:
            trainer.state.save_to_json(str(unfinished / TRAINER_STATE_NAME))
    trainer.accelerator.wait_for_everyone()


@contextmanager
def explained_writing(path: Path) -> Iterator[None]:
    """Name the path if the disk does not take what the block writes, such as a full one.

    Raises:
        CheckpointError: in the place of what torch, safetensors and the system say of that.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _TORCH_CANNOT_WRITE):
            raise
        reason, free = str(error).splitlines()[0], shutil.disk_usage(path.parent).free >> 20
        newest, _ = newest_checkpoint(path.parent)
        raise CheckpointError(
            f"{path} could not be written: {reason} ({free} MiB are free there). Fix: free some space, then resume; "
            f"the newest complete checkpoint: {newest or 'none'}"
        ) from error


def restore_weights(model: PreTrainedModel, checkpoint: str | Path) -> None:
    """Load all weights of `checkpoint` into `model` in place; for a sharded model the first process reads them.

    Raises:
        CheckpointError: the checkpoint lacks a weight of the model, or holds one that the model does not have.
    """
    state: dict[str, torch.Tensor] = {}
    problems: list[dict[str, list[str]]] = [{}]
    reads = not is_sharded(model) or torch.distributed.get_rank() == 0
    if reads:
        # FSDP2 puts a class of its own before the model's. Read as float32 whatever the model is: parts of it may be in
        # float32 (a head, a trained half), and each weight is cast to the type that it has in the model.
        model_class: Any = next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))
        with loading_whole():
            saved, report = model_class.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
        state, problems = saved.state_dict(), [{name: sorted(map(str, keys)) for name, keys in report.items() if keys}]
    if is_sharded(model):
        broadcast_object_list(problems)
    if problems[0]:
        raise CheckpointError(
            f"The checkpoint {checkpoint} does not fit {type(model).__name__}: {problems[0]}. Training would have "
            "continued from other weights. Resume with the model and the library versions that wrote the checkpoint."
        )
    load_whole_state(model.state_dict(keep_vars=True), state)


def restore_adapter(model: PeftModel, checkpoint: str | Path) -> None:
    """Load the adapter in `checkpoint` into the active adapter of `model` in place, sharded or not.

    Raises:
        CheckpointError: the two do not have the same weights, or not the same scaling of them.
    """
    check_scaling(model, checkpoint)
    live, saved = adapter_tensors(model), load_peft_weights(str(checkpoint), device="cpu")
    check_names(live.keys(), saved.keys(), checkpoint)
    load_whole_state(live, saved)


class CheckpointRestoreMixin(BestModelMixin):
    """Mixin that writes checkpoints whole, restores their weights for every model family, and saves before it pushes.

    A checkpoint is written into a folder of another name, which is renamed when all of it is there. A signal ends
    training after a checkpoint (`interruption.py`). The model card names the real base model, shows the results, and
    has an example with an image.
    """

    _unfinished: Path | None = None
    """Where a checkpoint is being written, in the place of `output_dir`."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as `Trainer` does, alone in `output_dir`.

        Args:
            resume_from_checkpoint: `True` for the newest complete checkpoint in `output_dir`; "auto" for that one if
                there is one, so that one call starts and resumes; or a path.
            *args, **kwargs: as for `Trainer`.

        Raises:
            NoCheckpoint: there is none, or the one that was named is incomplete.
            FolderInUse: another process is training in `output_dir`.
            TrainingInterrupted: a signal asked to end; there is a checkpoint to resume from.
            KeyboardInterrupt: Ctrl-C; says what was saved.
        """
        folder = self.args.output_dir
        locks = self.is_world_process_zero() and lock_folder(folder)
        try:
            with ends_on_signal(self), buffers_are_sent(), own_padding():
                return super().train(self._resolve_checkpoint(resume_from_checkpoint), *args, **kwargs)
        except KeyboardInterrupt as interrupt:
            newest, _ = newest_checkpoint(folder)
            since = f"since {newest}" if newest else f"yet: {folder} has no checkpoint"
            step = f"step {self.state.global_step} of {self.state.max_steps}"
            raise KeyboardInterrupt(f"training stopped at {step}; nothing is saved {since}") from interrupt
        finally:
            if locks:
                unlock_folder(folder)

    def _resolve_checkpoint(self, value: str | bool | None) -> str | None:
        """The checkpoint to resume from, which the first process chooses; it names those that it passes over."""
        outcome: list[Any] = [None]
        if self.is_world_process_zero():
            try:
                checkpoint, passed_over = resolve_checkpoint(value, self.args.output_dir)
                outcome = [str(checkpoint) if checkpoint else None]
                if passed_over:
                    from_where = checkpoint or "the beginning"
                    logger.warning(f"Training resumes from {from_where}; passed over: {'; '.join(passed_over)}")
                elif checkpoint is None and (newest := newest_checkpoint(self.args.output_dir)[0]) is not None:
                    logger.warning(
                        f"{newest} was written by an earlier run, but training starts anew, and its checkpoints "
                        "replace those of the same names. To resume that run: resume_from_checkpoint=True; to keep "
                        "it: another output_dir"
                    )
            except NoCheckpoint as error:
                outcome = [error]
        (chosen,) = broadcast_object_list(outcome)
        if isinstance(chosen, NoCheckpoint):
            raise chosen
        return chosen

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        counted = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, checkpoint, trial
        )
        by_epochs = self.args.max_steps <= 0
        # `Trainer` has it rounded up, so that a quarter of an epoch would look like all of it to `finished_state`
        self.state.num_train_epochs = (
            self.args.num_train_epochs if by_epochs else max_steps / num_update_steps_per_epoch
        )
        if checkpoint is not None:
            if is_peft_model(self.model):
                check_scaling(self.model, checkpoint)
            check_same_place(self.state, num_update_steps_per_epoch, by_epochs=by_epochs)
            self.state.best_model_checkpoint = best_of(Path(checkpoint), self.args.output_dir)
            state = self.state
            is_lost = state.best_global_step and state.best_model_checkpoint is None
            if is_lost and self.args.load_best_model_at_end and self.is_world_process_zero():
                logger.warning(
                    f"The best checkpoint, checkpoint-{state.best_global_step} with {self.args.metric_for_best_model}="
                    f"{state.best_metric:.4g}, is no longer there: the end of training saves the last weights, unless "
                    "a later evaluation is better than that."
                )
        return counted

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # `Trainer` takes an epoch's first step before it looks whether all are done: one too many on a finished run.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._unfinished is None else str(self._unfinished)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder, name = Path(self._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        checkpoint, unfinished = folder / name, folder / UNFINISHED / name
        if self.args.should_save:
            shutil.rmtree(unfinished.parent, ignore_errors=True)  # left by a run that was killed
        self.accelerator.wait_for_everyone()
        self._unfinished = unfinished.parent
        try:
            with explained_writing(checkpoint):
                super()._save_checkpoint(model, trial)  # rotates nothing, as it is alone in there
        except CheckpointError:
            shutil.rmtree(unfinished.parent, ignore_errors=True)  # a full disk needs the space
            raise
        finally:
            self._unfinished = None
        self.accelerator.wait_for_everyone()
        is_best = self.state.best_model_checkpoint == str(unfinished)
        if is_best:
            self.state.best_model_checkpoint = str(checkpoint)
        if self.args.should_save:
            with explained_writing(checkpoint):
                if is_best:
                    self.state.save_to_json(str(unfinished / TRAINER_STATE_NAME))
                publish_checkpoint(unfinished, checkpoint)
            rotate_checkpoints(checkpoint, self.args.save_total_limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._unfinished is None:  # else `_save_checkpoint` does it when the checkpoint has its name
            with pushes_models_only():
                super()._push_from_checkpoint(checkpoint_folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        target = self.model if model is None else model
        load = partial(super()._load_from_checkpoint, resume_from_checkpoint, model)
        self._restore(target, resume_from_checkpoint, load)

    def _restore(self, model: Any, checkpoint: str, load: Callable[[], None]) -> None:
        """Restore a model as `load` does, and check an adapter; a whole model's weights are restored here."""
        by_engine = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if isinstance(model, PreTrainedModel) and not by_engine:
            restore_weights(model, checkpoint)
            return
        types = {name: weight.dtype for name, weight in model.named_parameters()}
        load()
        if is_peft_model(model) and not by_engine:
            check_adapter_restored(model, checkpoint)
            for name, weight in model.named_parameters():  # PEFT loads the bfloat16 adapter of a QLoRA as float32
                weight.data = weight.data.to(types[name])

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint and not any(part for name in _OPTIMIZERS for part in Path(checkpoint).glob(name)):
            logger.warning(
                "%s has no state of the optimizer (save_only_model writes none): training resumes with a new one, and "
                "so does not go on as if it had not been interrupted.",
                checkpoint,
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as `Trainer` does; a sharded model is saved whole, an adapter with its frozen weights.

        `Trainer` asks DeepSpeed's engine, which leaves frozen weights of an adapter out and does not outlive a round.
        """
        if not (self.is_deepspeed_enabled or is_sharded(self.model)):
            super().save_model(output_dir, _internal_call)
            return
        tensors = self.model.state_dict(keep_vars=True)
        if is_peft_model(self.model):
            adapter = {id(weight) for weight in adapter_tensors(self.model, tensors).values()}
            tensors = {name: weight for name, weight in tensors.items() if id(weight) in adapter}
        state = whole_state(tensors, keep=self.args.should_save)
        if self.args.should_save:
            self._save(output_dir, state_dict=state)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _load_best_model(self) -> None:
        self._restore(self.model, self.state.best_model_checkpoint, super()._load_best_model)

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Create the repository as `Trainer` does, after a warning of a base that nobody else has."""
        if self.is_world_process_zero():
            warn_of_local_base(self)
            logger.warning(f"Pushing to {constants.ENDPOINT}: asking for the repository of the model")
        super().init_hf_repo(*args, **kwargs)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Push the model after saving it, so that a refused token does not lose the training.

        What holds rows, or what the policy wrote, stays here; see `pushing.py`.
        """
        if not self.args.push_to_hub:  # then `Trainer` creates the repository before it saves
            self.save_model(_internal_call=True)
        if self.is_world_process_zero():
            logger.warning(f"Pushing {self.args.output_dir} to {constants.ENDPOINT}/{self.hub_model_id or ''}")
        with pushes_models_only():
            return super().push_to_hub(*args, **kwargs)

    def _finish_current_push(self) -> None:
        push = getattr(self, "push_in_progress", None)
        if push is not None and not push.is_done():
            logger.warning(
                f"Pushing to {constants.ENDPOINT}/{self.hub_model_id}: waiting for the last checkpoint's upload"
            )
        super()._finish_current_push()
        for job in getattr(getattr(self, "push_in_progress", None), "jobs", ()):  # nobody else looks at its error
            if (error := job.exception()) is not None:
                logger.warning(
                    "A push during training was refused; the checkpoint is in %s: %s", self.args.output_dir, error
                )

    def create_model_card(self, model_name: Any = None, dataset_name: Any = None, tags: Any = None) -> None:
        """Write the card as TRL does, and add what TRL leaves out; see `model_card.py`."""
        super().create_model_card(model_name or Path(self.args.output_dir).name, dataset_name, tags)
        if self.is_world_process_zero():
            edit_card(self, dataset_name)
