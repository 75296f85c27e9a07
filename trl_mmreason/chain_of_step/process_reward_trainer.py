"""Trains a process reward model: binary cross entropy on the scores of steps and answers (arXiv:2509.19003, Eq. 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor
from torch.nn.functional import pad
from transformers import EvalPrediction
from trl import SFTTrainer

from ..compat.model_parts import freeze_vision_encoder
from ..training.checkpoint import CheckpointRestoreMixin
from ..training.construction import (
    NamedArguments,
    NamedEvaluations,
    check_rows,
    config_of,
    load_policy_processor,
    refuse_replaced,
    without_image_columns,
)
from ..training.facts import RunFactsMixin
from ..training.length_batching import Layout, LengthBatchingMixin
from ..training.preparation import prepare_loading, prepare_models
from ..training.sft import prepare_each
from .config import ProcessRewardConfig
from .objective import auroc, label_accuracy, prm_loss
from .process_reward import (
    ANSWER,
    DEFAULT_TOKENS,
    LAST,
    STEPS,
    TOKENS_RECORD,
    ChainEncoder,
    count_parts,
    label_token_ids,
    logit_differences,
    read_completion,
)
from .recipe import PAPER
from .tokens import add_chain_tokens

UNLABELLED = -100.0
"""Stands for "no label" in a batch, as `Trainer` counts and pads labels with it."""

_OWN_INPUTS = ("positions", "labels", "shift_labels")


class ProcessRewardTrainer(
    NamedArguments, NamedEvaluations, RunFactsMixin, CheckpointRestoreMixin, LengthBatchingMixin, SFTTrainer
):
    """Trains a vision-language model to score every step of a chain, and its answer.

    Every labelled position of an optimizer step weighs the same, however rows are shared out over processes and
    accumulated; they are sorted by length within the step. A model that lacks the template's tokens gets them. Accuracy
    and AUROC of steps and answers are logged, in training over the chains since the last log.

    Args:
        model: path or id of a checkpoint, or a model. With a `peft_config` it needs the template's tokens, and any
            tokens for right and wrong other than "+" and "-", beforehand, as an adapter keeps neither:
            `add_chain_tokens`, then `ProcessRewardModel(model, processor, ...).save_pretrained(folder)`.
        args: a `ProcessRewardConfig`.
        train_dataset, eval_dataset: rows with `prompt` (messages), `images`, `completion` (the chain, whole or partial,
            a string or a message), `step_labels` (one per step, in [0, 1], hard or soft, `None` or NaN for none) and
            `answer_label` (likewise).
        **kwargs: whatever `trl.SFTTrainer` takes, by keyword, but for what takes the place of loss, metrics or rows.

    Raises:
        ValueError: a chain is malformed or does not fit its labels; names the row.
    """

    _tag_names = ["trl", "trl-mmreason", "chain-of-step", "process-reward-model"]
    _name = "Chain-of-Step process reward model"
    _paper = PAPER

    args: ProcessRewardConfig
    data_collator: Any

    def __init__(
        self,
        model: Any,
        *,
        args: ProcessRewardConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        args = config_of(self, ProcessRewardConfig, args, model, "process-reward")
        refuse_replaced("ProcessRewardTrainer", kwargs)
        columns = {"prompt", "completion", "step_labels", "answer_label"}
        check_rows("ProcessRewardTrainer", train_dataset, eval_dataset, columns)
        padding = prepare_loading(model, args)
        processing_class = processing_class or load_policy_processor(model, args)
        check = partial(_checked, processing_class=processing_class)
        super().__init__(
            model,
            args=args,
            train_dataset=prepare_each("ProcessRewardTrainer", train_dataset, check),
            eval_dataset=prepare_each("ProcessRewardTrainer", eval_dataset, check),
            processing_class=processing_class,
            compute_metrics=_evaluation_metrics,
            **kwargs,
        )
        # So that `Trainer` counts the labels of an optimizer step: `compute_loss` divides by them, whatever the model's
        # own loss does. The models of some families say that their loss does not.
        self.model_accepts_loss_kwargs = True
        policy = self.accelerator.unwrap_model(self.model)
        add_chain_tokens(policy, self.processing_class)
        self._token_ids = _label_token_ids(policy, self.processing_class, args)
        self.data_collator = LabelledChains(ChainEncoder(policy.config, self.processing_class))
        if args.freeze_vision_encoder:
            freeze_vision_encoder(policy, merger=False)
        prepare_models(self, padding)
        self._since_log: list[Tensor] = []

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        differences, labels = self._differences(model, inputs), inputs["labels"]
        labelled = labels != UNLABELLED
        num_labels = labelled.sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
        loss = prm_loss(differences, labels, labelled, num_labels=num_labels.clamp(min=1))
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # labels count over processes, gradients are averaged
        if self.model.training:
            both = torch.stack([differences.detach(), labels], dim=1)  # (B, 2, P)
            both = self.accelerator.pad_across_processes(both, dim=2, pad_index=UNLABELLED)
            self._since_log.append(self.accelerator.gather(both).cpu())
        return (loss, {"logits": differences}) if return_outputs else loss

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[None, Tensor, Tensor]:
        """Return scores and labels; the loss is computed over the whole data set, not averaged over batches."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return None, self._differences(model, inputs), inputs["labels"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.model.training and self._since_log:
            width = max(both.shape[2] for both in self._since_log)
            both = [pad(part, (0, width - part.shape[2]), value=UNLABELLED) for part in self._since_log]
            logs.update(score_metrics(*torch.cat(both).unbind(dim=1)))
            self._since_log.clear()
        super().log(logs, start_time)

    def _differences(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        own = {name: value for name, value in inputs.items() if name not in _OWN_INPUTS}
        return logit_differences(model, own, inputs["positions"], self._token_ids)


class LabelledChains:
    """Collates rows into the model's inputs, the positions of their scores, and the labels (B, P) of these."""

    def __init__(self, encoder: ChainEncoder) -> None:
        self._encoder = encoder
        others = {"positions": LAST, "labels": UNLABELLED, "shift_labels": UNLABELLED}
        self.layout = Layout(encoder.pad_token_id, side="left", others=others)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        chains = [self._encoder.encode(row, f"row {number} of a batch") for number, row in enumerate(rows)]
        inputs, positions = self._encoder.collate(chains)
        labels = torch.full(positions.shape, UNLABELLED)
        for target, row, chain, number in zip(labels, rows, chains, range(len(rows)), strict=True):
            row_labels = _labels(row, len(chain.steps), chain.answer is not None, f"row {number} of a batch")
            target[: len(row_labels)] = torch.tensor(row_labels).nan_to_num(nan=UNLABELLED)
        # `Trainer` counts `shift_labels` as they are; of `labels` it would leave the first column out.
        return {**inputs, "positions": positions, "labels": labels, "shift_labels": labels}


def score_metrics(differences: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy (Table 3) and AUROC of steps and answers; undefined metrics are left out.

    Args:
        differences: (B, P) logit₊ − logit₋, the answer's first.
        labels: (B, P) in [0, 1], or `UNLABELLED`.
    """
    metrics = {}
    for part, columns in (("step", STEPS), ("answer", ANSWER)):
        labelled = labels[:, columns] != UNLABELLED
        scored, truth = differences[:, columns][labelled], labels[:, columns][labelled]
        metrics[f"{part}_accuracy"] = label_accuracy(scored.sigmoid(), truth).item()
        metrics[f"{part}_auroc"] = auroc(scored, truth).item()
    return {name: value for name, value in metrics.items() if not math.isnan(value)}


def _evaluation_metrics(prediction: EvalPrediction) -> dict[str, float]:
    differences, labels = torch.from_numpy(prediction.predictions), torch.from_numpy(prediction.label_ids)
    loss = prm_loss(differences, labels, labels != UNLABELLED)
    return {"loss": loss.item(), **score_metrics(differences, labels)}


def _checked(rows: Any, processing_class: Any) -> Any:
    """Check each chain against its labels, and turn completions into strings."""
    rows = without_image_columns(rows, processing_class, "ProcessRewardTrainer")

    def check(completion: Any, step_labels: Any, answer_label: Any, number: int) -> dict[str, str]:
        where = f"row {number}"
        text = read_completion(completion, where)
        _labels({"step_labels": step_labels, "answer_label": answer_label}, *count_parts(text), where)
        return {"completion": str(text)}

    return rows.map(check, input_columns=["completion", "step_labels", "answer_label"], with_indices=True)


def _labels(row: Mapping[str, Any], steps: int, answers: int, where: str) -> list[float]:
    """The answer's label, then the steps'; NaN for none."""
    step_labels = row["step_labels"] or []
    if len(step_labels) != steps:
        raise ValueError(
            f"ProcessRewardTrainer: {where} has {steps} step(s) and {len(step_labels)} step label(s), {step_labels}; "
            "expected one a step, None or NaN for a step without one."
        )
    labels = [math.nan if label is None else float(label) for label in (row["answer_label"], *step_labels)]
    if any(label < 0 or label > 1 for label in labels):
        raise ValueError(
            f"ProcessRewardTrainer: {where} has the step labels {step_labels} and the answer label "
            f"{row['answer_label']}, expected 0 to 1, or None or NaN for no label."
        )
    if not answers and not math.isnan(labels[0]):
        raise ValueError(
            f"ProcessRewardTrainer: {where} has the answer label {row['answer_label']}, but its chain has no answer; "
            "make it None."
        )
    return labels


def _label_token_ids(model: Any, processing_class: Any, args: ProcessRewardConfig) -> tuple[int, int]:
    """As `label_token_ids`; refuses own tokens on an adapter, whose checkpoint does not save them."""
    recorded = hasattr(model.config, TOKENS_RECORD)
    ids = label_token_ids(model, processing_class, args.right_token, args.wrong_token)
    tokens = getattr(model.config, TOKENS_RECORD)
    if is_peft_model(model) and not recorded and tokens != DEFAULT_TOKENS:
        raise ValueError(
            f"ProcessRewardTrainer: an adapter does not keep the tokens {tokens}. Let its base keep them: "
            "ProcessRewardModel(model, processor, right_token=..., wrong_token=...).save_pretrained(folder), then "
            "train an adapter of what is in that folder."
        )
    return ids
