"""Checkpoints between the optimizer steps of one rollout, and between rollouts whose conversations wait; and those of a
reference that moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate.utils import send_to_device
from transformers.utils import logging

from ..compat.sharding import load_whole_state, whole_state
from .checkpoint import CheckpointError, CheckpointRestoreMixin
from .oversampling import Groups, kept

logger = logging.get_logger(__name__)

_REFERENCE = "reference.pt"


class RolloutCheckpointMixin(CheckpointRestoreMixin):
    """For a `GRPOTrainer`: keeps the rest of a rollout in a checkpoint that is written in the middle of it.

    Rollouts serve several optimizer steps when `num_iterations` or `steps_per_generation` say so. Without their rest
    the resumed run would sample anew and lose its place in the data. With `oversampling` it keeps what was said in the
    conversations that wait, too, and with `sync_ref_model` the reference.
    """

    telling_metrics: ClassVar[Sequence[str]] = ("reward",)
    _buffered_inputs: Any  # `None`, or micro-batches
    _waiting: Groups
    _last_loaded_step: int  # whose weights vLLM has

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self._step % (self.args.steps_per_generation * self.num_iterations):
            torch.save({"step": self._step, "inputs": self._buffered_inputs}, self._rollouts_file(output_dir))
        if waiting := self._kept or kept(self._waiting):
            torch.save({"rollouts": self._rollouts, "groups": waiting}, self._own_file(output_dir, "waiting"))
        if self.args.sync_ref_model:
            reference = whole_state(self._reference_tensors(), keep=self.args.should_save)
            if self.args.should_save:
                torch.save(reference, Path(output_dir) / _REFERENCE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.args.sync_ref_model:
            self._load_reference(checkpoint)
        if checkpoint is not None and getattr(self.args, "oversampling", False):
            self._load_waiting(checkpoint)
        if checkpoint is None or not (files := sorted(Path(checkpoint).glob("rollouts_*.pt"))):
            return
        file = self._rollouts_file(checkpoint)
        if not file.exists():
            raise CheckpointError(
                f"{checkpoint} was written mid-rollout by a run with another number of processes: it has "
                f"{files[0].name}, this run needs {file.name}. Resume with as many processes, or from a checkpoint "
                "between rollouts."
            )
        saved = torch.load(file, map_location="cpu", weights_only=True)
        rows = [len(micro_batch["completion_ids"]) for micro_batch in saved["inputs"]]
        steps, size = self.args.steps_per_generation, self.args.per_device_train_batch_size
        if rows != [size] * steps:
            raise CheckpointError(
                f"{checkpoint} was written mid-rollout with steps_per_generation={len(rows)} (by default "
                f"gradient_accumulation_steps) and per_device_train_batch_size={rows[0]}; this run has {steps} and "
                f"{size}. Resume with the same, or from a checkpoint between rollouts."
            )
        self._step, self._buffered_inputs = saved["step"], send_to_device(saved["inputs"], self.accelerator.device)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self._last_loaded_step = -1  # vLLM has other weights of this step

    def _reference_tensors(self) -> dict[str, torch.Tensor]:
        return self.accelerator.unwrap_model(self.ref_model).state_dict(keep_vars=True)

    def _load_reference(self, checkpoint: str) -> None:
        file = Path(checkpoint) / _REFERENCE
        if file.exists():
            load_whole_state(self._reference_tensors(), torch.load(file, map_location="cpu", weights_only=True))
        else:
            logger.warning(
                f"{checkpoint} has no {file.name}: the reference of sync_ref_model is the initial policy again."
            )

    def _load_waiting(self, checkpoint: str) -> None:
        file = self._own_file(checkpoint, "waiting")
        if file.exists():
            saved = torch.load(file, map_location="cpu", weights_only=True)
            self._rollouts, self._kept = saved["rollouts"], saved["groups"]
        elif files := sorted(Path(checkpoint).glob("waiting_*.pt")):
            logger.warning(
                f"Answers that wait in {checkpoint} are those of a run with another number of processes: it has "
                f"{files[0].name}, this run would read {file.name}. Other questions are asked in their place."
            )

    def _rollouts_file(self, checkpoint: str | Path) -> Path:
        return self._own_file(checkpoint, "rollouts")

    def _own_file(self, checkpoint: str | Path, kind: str) -> Path:
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        return Path(checkpoint) / f"{kind}_{process}_of_{processes}.pt"
