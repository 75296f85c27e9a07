"""What a run did: facts that every trainer gathers in `train` and states at its end; an error if it trained nothing.

A run can end with a saved model and plausible metrics although no weight could change, no group of answers had an
advantage, or every gradient was NaN. The facts are printed, written into `facts.json`, and kept as `trainer.facts`.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping, Sized
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback
from transformers.trainer_pt_utils import get_model_param_count
from transformers.trainer_utils import TrainOutput

from ..compat.sharding import local_part
from ..data.folders import write_whole
from .early_stopping import EarlyStopping
from .log_lines import log_in_lines
from .model_card import FACTS_FILE
from .model_checks import check_scores, check_trainable, is_float32, is_placed_later
from .resuming import newest_checkpoint

logger = logging.getLogger(__name__)

MAX_SKIPPED_IN_A_ROW = 5
MAX_DIFFERENCE = 0.1
"""Nats per token between sampled and trained policy, in the mean, above which they are two policies: bfloat16 makes
about 0.01, and a wrong prompt, image or LM head more than 1."""
_MAX_EXACT_DIFFERENCE = 0.02  # of any token, in float32 without noise

_CHUNK = 2**22  # entries of a weight that are summed at once, to bound memory


class NothingTrained(RuntimeError):
    """`train` has ended, and nothing was trained."""


class NonFiniteUpdates(RuntimeError):
    """Too many updates in a row had gradients with NaN or infinity, or an update has put them into weights."""


@dataclass
class RunFacts:
    """Facts of a training over all processes, with those up to the checkpoint that it was resumed from.

    Attributes:
        weights, trainable: numbers of all weights, and of those that may change.
        tensors, changed: numbers of the tensors that may change, and of those that did in this call of `train`.
        changed_frozen: names of frozen tensors that changed in it.
        updates, skipped: optimizer steps, and those of them that changed nothing as gradients were not finite.
        with_gradient: updates with a finite gradient other than 0; weight decay changes weights in others, too.
        earlier: updates before the checkpoint that training was resumed from.
        learning_rate: the highest of all updates.
        groups, taught: numbers of groups of answers, and of those with an advantage; 0 without rollouts.
        silent_rollouts: rollouts since the last one with a group that taught.
        dropped: reason → mean share of the answers that took no part in training.
        compared: number of sampled tokens whose log-probability was compared with that of the training pass.
        mean_difference, max_difference: between the two, in nats.
        start_difference: the largest between the model itself and the training pass on one row with images and one
            without, before training; `None` if none was scored.
        engine_differences: number of images → between vLLM and the model itself, on the first row with so many; see
            `compare_with_vllm`.
        evaluated: metric that says how good the policy is, of each evaluation set → its last value; `None` if nothing
            was graded.
        stopped_early: why early stopping ended training; "" if it did not.
    """

    weights: int = 0
    trainable: int = 0
    tensors: int = 0
    changed: int = 0
    changed_frozen: list[str] = field(default_factory=list)
    updates: int = 0
    skipped: int = 0
    with_gradient: int = 0
    earlier: int = 0
    learning_rate: float = 0.0
    groups: int = 0
    taught: int = 0
    silent_rollouts: int = 0
    dropped: dict[str, float] = field(default_factory=dict)
    compared: int = 0
    mean_difference: float = 0.0
    max_difference: float = 0.0
    start_difference: float | None = None
    engine_differences: dict[int, float] = field(default_factory=dict)
    evaluated: dict[str, float | None] = field(default_factory=dict)
    stopped_early: str = ""

    def __str__(self) -> str:
        lines = {
            "weights trained": f"{self.trainable:,} of {self.weights:,}",
            "tensors changed": f"{self.changed} of {self.tensors}",
            "updates": f"{self.updates}" + f", {self.skipped} skipped (gradients not finite)" * bool(self.skipped),
        }
        if self.evaluated:
            values = {name: "none" if value is None else f"{value:.4g}" for name, value in self.evaluated.items()}
            lines["last evaluation"] = ", ".join(f"{name} {value}" for name, value in values.items())
        if self.stopped_early:
            lines["ended early"] = self.stopped_early
        if self.start_difference is not None:
            lines["model / training pass"] = f"log-probabilities differ by {self.start_difference:.1e} at most"
        if nats := self.engine_differences:
            images = ", ".join(map(str, sorted(nats)))
            lines["model / vLLM"] = f"log-probabilities differ by {max(nats.values()):.1e} (images in a row: {images})"
        if self.groups:
            lines["groups that taught"] = f"{self.taught} of {self.groups}"
        if any(self.dropped.values()):
            lines["answers left out"] = self.shares_left_out()
        if self.compared:
            lines["sampled / trained policy"] = (
                f"log-probabilities differ by {self.mean_difference:.1e} in the mean, {self.max_difference:.1e} at most"
            )
        return "\n".join(f"{name:<26}{text}" for name, text in lines.items())

    def shares_left_out(self) -> str:
        """Reasons why answers were left out with their shares, the most frequent first."""
        shares = sorted(self.dropped.items(), key=lambda each: -each[1])
        return ", ".join(f"{share:.0%} {reason}" for reason, share in shares if share)


class RunFactsMixin(Trainer):
    """Mixin that gathers and states the facts of a run, skips updates that are not finite, and fails on none.

    Attributes:
        facts: of the current or last `train`.
        start_difference: see `RunFacts`.
        has_noise: whether passes in training differ from those in evaluation.
    """

    start_difference: float | None = None
    has_noise = False
    _made_since_log = 0  # updates that were not skipped
    _gradient_norm: Any = None  # before clipping, of the current update

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.facts = RunFacts()
        super().__init__(*args, **kwargs)
        log_in_lines(self)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as TRL does; then print the facts of the run, and write them into `facts.json` in the output folder.

        Raises:
            ValueError: no weight may change, or one is NaN or infinite.
            NonFiniteUpdates: in several updates in a row gradients were not finite, or weights are not.
            NothingTrained: nothing was trained, although the learning rate is not 0.
        """
        check_trainable(self)
        self.facts = RunFacts()
        observer = _Observer(self)
        self.add_callback(observer)
        try:
            output = super().train(*args, **kwargs)
        finally:
            self.remove_callback(observer)
        if self.facts.changed_frozen:
            logger.warning(
                "%s: %d frozen weights have changed, the first %s, so that a saved adapter is not the trained policy.",
                type(self).__name__,
                len(self.facts.changed_frozen),
                self.facts.changed_frozen[0],
            )
        if self.accelerator.is_main_process:
            sys.stdout.write(f"{self.facts}\n")
            if self.facts.updates > self.facts.earlier or not self.state.global_step:  # else those of before stay
                file = Path(str(self.args.output_dir)) / FACTS_FILE
                write_whole(file, json.dumps(asdict(self.facts), indent=2))
        self.accelerator.wait_for_everyone()
        if problem := self.why_nothing_trained():
            raise NothingTrained(f"{type(self).__name__}: nothing was trained. {problem}")
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, with the number of skipped updates, whose loss `Trainer` would log as 0."""
        if "loss" in logs and self.facts.skipped:
            logs["updates_skipped"] = self.facts.skipped
            logs["loss"] = logs["loss"] if self._made_since_log else float("nan")
        self._made_since_log = 0 if "loss" in logs else self._made_since_log
        super().log(logs, start_time)

    def why_nothing_trained(self) -> str | None:
        """The cause, and what to do; `None` if something was trained, or was not meant to be."""
        facts = self.facts
        if not self.args.learning_rate or self.state.global_step > facts.updates:
            return None  # not meant to train, or resumed from a checkpoint without facts
        if not facts.updates:
            return (
                "Not one update was made. Fix: more rows than one update takes, or a smaller batch "
                "(per_device_train_batch_size, gradient_accumulation_steps)."
            )
        if facts.skipped == facts.updates:
            return f"All {facts.updates} updates were skipped, as their gradients were not finite."
        if facts.groups and not facts.taught and self.only_groups_teach():
            return f"Not one of {facts.groups} groups of answers had anything to teach: {why_silent(facts)}"
        if not facts.with_gradient:
            return (
                f"Not one of {facts.updates} updates had a gradient other than 0. Fix: look at rewards, labels and "
                "masks, or give the adapter layers that take part in the forward pass."
            )
        if not facts.changed and not facts.earlier:
            fix = "a higher learning rate, or weights in float32" if facts.learning_rate else "fewer warmup_steps"
            return (
                f"Not one of {facts.tensors} tensors changed in {facts.updates} updates with a learning rate of "
                f"at most {facts.learning_rate:g}. Fix: {fix}."
            )
        return None

    def only_groups_teach(self) -> bool:
        """Whether the loss has no other term than that of advantages and of the KL divergence."""
        return True

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        self._gradient_norm = super()._get_grad_norm(*args, **kwargs)
        return self._gradient_norm

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        check_finite(self)
        super()._save_checkpoint(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.is_world_process_zero():
            write_whole(Path(output_dir) / FACTS_FILE, json.dumps(asdict(self.facts)))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not (file := Path(checkpoint) / FACTS_FILE).exists():
            return
        self.facts = RunFacts(**json.loads(file.read_text(encoding="utf-8")))
        self.facts.engine_differences.clear()  # this vLLM is another
        self.facts.earlier = self.facts.updates
        if not self.is_world_process_zero():
            self.facts.compared = 0  # which are summed over processes at the end


def check_finite(trainer: Trainer) -> None:
    """Stop before weights with NaN or infinity are saved, or trained.

    Raises:
        ValueError: they were so before the first update.
        NonFiniteUpdates: an update has made them so, with a finite gradient.
    """
    accelerator = trainer.accelerator
    weights = accelerator.unwrap_model(trainer.model).named_parameters()
    wrong = next((name for name, weight in weights if not _is_finite(local_part(weight))), None)
    if not accelerator.gather(torch.tensor([float(wrong is not None)], device=accelerator.device)).any():
        return
    where = f"{type(trainer).__name__}: weights hold NaN or infinity ({wrong or 'in another process'})"
    if not trainer.state.global_step:
        raise ValueError(f"{where} before the first update. Fix: another copy of the model, or dtype float32.")
    newest, _ = newest_checkpoint(str(trainer.args.output_dir))
    raise NonFiniteUpdates(
        f"{where} after update {trainer.state.global_step}, although its gradients were finite. Fix: a lower learning "
        f"rate or a higher adam_epsilon; then resume from the newest checkpoint, which is good: {newest or 'none'}."
    )


def check_fills_a_rollout(trainer: Any) -> None:
    """Refuse fewer questions than one rollout asks, of which TRL would make no rollout; a stream cannot be counted."""
    rows, args = trainer.train_dataset, trainer.args
    asked = args.generation_batch_size // trainer.num_generations
    if isinstance(rows, Sized) and len(rows) < asked:
        raise ValueError(
            f"{type(trainer).__name__}: train_dataset has {len(rows)} rows, but one rollout asks {asked} questions "
            f"({args.generation_batch_size} answers, num_generations={trainer.num_generations}), so that no "
            "update would be made. Fix: more rows, or a smaller per_device_train_batch_size, "
            "gradient_accumulation_steps or steps_per_generation."
        )


def why_silent(facts: RunFacts) -> str:
    """Why no group teaches, and what to do."""
    left_out = f"{facts.shares_left_out()}; " if any(facts.dropped.values()) else ""
    return (
        f"{left_out}the other answers to each question earn the same. Fix: look at completions and gold answers "
        "(log_completions=True), and leave out questions that are always or never answered (mmreason prefilter)."
    )


def observe_difference(facts: RunFacts, trained: Tensor, sampled: Tensor, mask: Tensor) -> None:
    """Compare log-probabilities of sampled tokens with those of the training pass, before the first update.

    Args:
        trained, sampled: (B, T) in nats.
        mask: (B, T), 1 for the tokens to compare.
    """
    differences = (trained.detach() - sampled).abs()[mask.bool()]
    count = differences.numel()
    if not count:
        return
    facts.compared += count
    facts.mean_difference += (differences.mean().item() - facts.mean_difference) * count / facts.compared
    facts.max_difference = max(facts.max_difference, differences.max().item())


class _Observer(TrainerCallback):
    """Observes one call of `train`."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._not_finite, self._skipped_in_a_row = trainer, False, 0
        self._before: dict[str, tuple[int, ...]] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._trainer
        model = trainer.accelerator.unwrap_model(trainer.model)
        if not state.global_step:
            check_finite(trainer)
        trainer.facts.weights = get_model_param_count(model)
        trainer.facts.trainable = get_model_param_count(model, trainable_only=True)
        self._before = _digests(model)
        if trainer.is_deepspeed_enabled:  # ZeRO-2 in bfloat16 looks if it is told to, other kinds of ZeRO always
            trainer.deepspeed.optimizer.check_grad_overflow = True
        if is_placed_later(trainer):  # last: FSDP2 leaves some weights whole after a pass
            trainer.start_difference = check_scores(trainer)
        trainer.facts.start_difference = trainer.start_difference

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, facts = self._trainer, self._trainer.facts
        facts.learning_rate = max([facts.learning_rate, *(group["lr"] for group in trainer.optimizer.param_groups)])
        norm = trainer._gradient_norm
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        norm = 1.0 if norm is None else float(norm)  # an engine may not say
        facts.with_gradient += math.isfinite(norm) and norm > 0
        # DeepSpeed and a scaler of float16's loss skip such steps themselves. Clipping by an infinite norm has made
        # finite gradients 0, with which momentum and weight decay would go on.
        scaled = trainer.is_deepspeed_enabled or trainer.accelerator.scaler is not None
        self._not_finite = not scaled and not math.isfinite(norm)
        if self._not_finite:
            trainer.optimizer.zero_grad()  # an optimizer leaves a weight without gradient as it is

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, facts = self._trainer, self._trainer.facts
        skipped = self._not_finite or trainer.accelerator.optimizer_step_was_skipped
        facts.updates += 1
        facts.skipped += skipped
        trainer._made_since_log += not skipped
        if facts.updates == 1 and facts.compared and _is_exact(trainer):
            _refuse_another_policy(trainer)
        if facts.updates == 1 and facts.mean_difference > MAX_DIFFERENCE:
            logger.warning(
                "%s: sampled tokens have log-probabilities that differ by %.2f in the mean from those of the training "
                "pass, %.2f at most: sampled and trained policy are not the same. Check dropout, and the engine's "
                "dtype, prompts and images.",
                type(trainer).__name__,
                facts.mean_difference,
                facts.max_difference,
            )
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row == 1:
            logger.warning("Update %d was skipped: its gradients are not finite.", state.global_step)
            check_finite(trainer)
        if self._skipped_in_a_row == MAX_SKIPPED_IN_A_ROW and not args.fp16:  # whose loss scale begins too high
            raise NonFiniteUpdates(
                f"{type(trainer).__name__}: the gradients of {MAX_SKIPPED_IN_A_ROW} updates in a row, up to update "
                f"{state.global_step}, were not finite. They were skipped, so that weights and checkpoints are as good "
                "as before. Fix: look for NaN and infinity in the loss, the images and the weights, or lower the "
                "learning rate; then resume from the last checkpoint."
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, facts = self._trainer, self._trainer.facts
        check_finite(trainer)
        telling = next(iter(getattr(trainer, "telling_metrics", ())), "loss")
        sets = [f"{each}_" for each in trainer.eval_dataset] if isinstance(trainer.eval_dataset, Mapping) else [""]
        names = [f"eval_{each}{telling}" for each in sets]
        logged = (item for entry in state.log_history for item in entry.items())
        facts.evaluated = {name: value for name, value in logged if name in names}
        stops = (each for each in trainer.callback_handler.callbacks if isinstance(each, EarlyStopping))
        facts.stopped_early = next((each.reason for each in stops), "")
        accelerator, model = trainer.accelerator, trainer.accelerator.unwrap_model(trainer.model)
        after = _digests(model)
        here = torch.tensor([float(after[name] != digest) for name, digest in self._before.items()])
        anywhere = accelerator.reduce(here.to(accelerator.device), reduction="sum").tolist()  # of sharded weights
        changed = {name for name, processes in zip(self._before, anywhere, strict=True) if processes}
        trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
        facts.tensors, facts.changed = len(trainable), len(trainable & changed)
        frozen = changed - trainable
        facts.changed_frozen = sorted(name for name in frozen if "ref" not in name.split("."))  # OFT's is projected
        total = torch.tensor([[facts.compared, facts.mean_difference * facts.compared, facts.max_difference]])
        counts, sums, largest = accelerator.gather(total.to(accelerator.device)).T
        facts.compared = int(counts.sum())
        facts.mean_difference, facts.max_difference = (
            float(sums.sum() / counts.sum().clamp(min=1)),
            float(largest.max()),
        )


def _is_exact(trainer: Any) -> bool:
    """Whether nothing but the model itself can make sampled and trained policy differ."""
    rounded = trainer.args.bf16 or trainer.args.fp16 or torch.get_float32_matmul_precision() != "highest"
    return not (trainer.use_vllm or trainer.has_noise or rounded) and is_float32(trainer.model)


def _refuse_another_policy(trainer: Any) -> None:
    """Raise if what `generate` sampled in float32 is not what the training pass says of it."""
    facts, model = trainer.facts, type(trainer.accelerator.unwrap_model(trainer.model)).__name__
    if facts.max_difference > _MAX_EXACT_DIFFERENCE:
        raise ValueError(
            f"{type(trainer).__name__}: what {model} samples with `generate` has log-probabilities that differ by up "
            f"to {facts.max_difference:.2g} nats from those of its forward pass, so that it would be trained on what "
            "another policy said. Fix: another model, use_vllm=True, or a report to transformers."
        )


def _digests(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Name of each weight → digest of what this process holds of it."""
    factors = torch.randint(2**62, (_CHUNK,), generator=torch.Generator().manual_seed(0))
    factors = factors.to(next(model.parameters()).device)
    return {name: _digest(weight, factors) for name, weight in model.named_parameters()}


def _digest(weight: Tensor, factors: Tensor) -> tuple[int, ...]:
    """For each chunk the sum of its entries' bits times random factors, so that changes do not cancel out."""
    values = local_part(weight).detach().contiguous()
    bits = values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])
    factors = factors.to(bits.device)  # parts of a model may lie elsewhere
    return tuple(int((chunk * factors[: len(chunk)]).sum()) for chunk in bits.flatten().split(_CHUNK))


def _is_finite(values: Tensor) -> bool:
    if values.element_size() == 1:  # quantised
        return True
    return all(bool(chunk.isfinite().all()) for chunk in values.detach().flatten().split(_CHUNK))
