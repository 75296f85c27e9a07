"""Trains a policy on completions from any source, weighted by rewards (arXiv:2507.16814, Eq. 7)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import add_fused_lm_head

from ..compat.chat_template import tokenizer_of
from ..compat.model_parts import train_parts, without_adapters
from ..functional import k3_divergence
from ..training.construction import check_rows, refuse_replaced
from ..training.model_problems import changes_base
from ..training.preparation import prepare_policy
from ..training.reference import initial_policy, prepare_reference
from ..training.sft import CompletionSFTTrainer
from .config import OffPolicyRewardConfig
from .objective import importance_weights, off_policy_loss
from .recipe import PAPER
from .rewarded_rows import RewardedCompletions, check_behavior, rewarded_rows
from .statistics import metrics_of, row_sums, summed

_OWN_INPUTS = ("rewards", "behavior_logps", "shift_labels")


class OffPolicyRewardTrainer(CompletionSFTTrainer):
    """Policy-gradient training on any data set of completions and rewards.

    Rows of reward 0 have no gradient, and are left out before training: they cost nothing, and batches are made of the
    others. The loss of a batch is the same however it is shared out over processes and accumulated.

    It logs, over the completions since the last log, and in evaluation with `eval_` before the names: `reward`,
    `completion_tokens` (mean length), `logps`, `entropy` and `mean_token_accuracy` (means over tokens); with `beta`
    `kl`; with importance sampling, over completions or tokens, `importance_weight/mean`, `/max`, `/truncated_frac` and
    `/effective_sample_size`, (Σw)²/Σw².

    Args:
        model: path or id of a checkpoint, or a model.
        args: an `OffPolicyRewardConfig`.
        train_dataset, eval_dataset: rows with `prompt` (messages), `images`, `completion` (a string or one message of
            the assistant) and `reward` (any real number, negative included). For importance sampling `behavior_logps`,
            the log-probabilities of the completion's tokens under the policy that wrote it, in nats; of its end of turn
            too, if that was sampled.
        **kwargs: whatever `trl.SFTTrainer` takes, by keyword, but for what takes the place of loss, metrics or rows.

    Attributes:
        parts: what is trained and frozen of vision, projector and language.

    Raises:
        ValueError: a row has no reward, or not the behaviour's log-probabilities that are needed; names the row.
    """

    _config = OffPolicyRewardConfig
    _suffix = "off-policy"
    _format = "<think>\nThoughts.\n</think>\n\nAn answer."  # as thinking models' templates write it
    _tag_names = ["trl", "trl-mmreason", "sophia", "off-policy-reward"]
    _token_fields = {**CompletionSFTTrainer._token_fields, "behavior_logps": math.nan}
    _name = "SOPHIA"
    _paper = PAPER

    args: OffPolicyRewardConfig

    def __init__(
        self,
        model: Any,
        *,
        args: OffPolicyRewardConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        refuse_replaced("OffPolicyRewardTrainer", kwargs)
        check_rows("OffPolicyRewardTrainer", train_dataset, eval_dataset, {"prompt", "completion", "reward"})
        # A new adapter mostly leaves the initial policy as it is; otherwise a KL term needs a copy of it.
        reference, adapter = None, kwargs.get("peft_config")
        if isinstance(args, OffPolicyRewardConfig) and args.beta and (adapter is None or changes_base(adapter)):
            reference = initial_policy(model, args, kwargs.get("quantization_config"))
            add_fused_lm_head(without_adapters(reference))
        super().__init__(model, args=args, train_dataset=train_dataset, eval_dataset=eval_dataset, **kwargs)
        if self.aux_loss_enabled:
            raise ValueError(
                "OffPolicyRewardTrainer: the auxiliary loss of a mixture of experts is not supported; set "
                "router_aux_loss_coef=0.0."
            )
        self.data_collator = RewardedCompletions(
            self.data_collator,
            tokenizer_of(self.processing_class).eos_token_id,
            level=self.args.importance_sampling,
            count_rows=self.args.sequence_reduction == "sum",
        )
        self.parts = train_parts(self, self.args.trainable_parts)
        if reference is not None:
            prepare_policy(reference, self.processing_class, reference_of=self.accelerator.unwrap_model(self.model))
        self.reference = reference and prepare_reference(reference, self)
        self._since_log: dict[bool, list[Tensor]] = {True: [], False: []}  # in training and in evaluation

    def prepare_rows(self, rows: Any, args: OffPolicyRewardConfig, processing_class: Any) -> Any:  # type: ignore[override]
        """Select and check the rows with a non-zero reward."""
        name = type(self).__name__
        prepared = super().prepare_rows(rewarded_rows(rows, name), args, processing_class)
        if args.importance_sampling == "none":
            return prepared
        return check_behavior(prepared, name, args.importance_sampling, processing_class)

    @staticmethod
    def problem_of(completion: str) -> str | None:
        """Return a fault for an empty completion; any other is accepted."""
        return None if completion else "it is empty"

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        args = self.args
        rewards, behavior = inputs["rewards"], inputs.get("behavior_logps")
        inputs = {name: value for name, value in inputs.items() if name not in _OWN_INPUTS}
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        logps, mask = outputs.log_probs, outputs.label_mask  # (B, T − 1): of each token but the first
        rows = len(rewards) - self._repeated_rows(len(rewards))
        mask = mask * (torch.arange(len(rewards), device=mask.device) < rows).unsqueeze(1)
        if behavior is not None:
            # Where the behaviour policy said nothing, such as what only the template writes, the weight is 1.
            behavior = behavior[:, 1:].where(~behavior[:, 1:].isnan(), logps.detach())
        normalizer = num_items_in_batch
        if normalizer is None:
            normalizer = rows if args.sequence_reduction == "sum" else mask.sum()
        normalizer = torch.as_tensor(normalizer, device=logps.device).clamp(min=1)
        loss = off_policy_loss(
            logps,
            rewards,
            mask,
            behavior_logps=behavior,
            importance_sampling=args.importance_sampling,
            clip=args.importance_clip,
            sequence_reduction=args.sequence_reduction,
            normalizer=normalizer,
        )
        divergence = torch.zeros_like(logps)
        if args.beta:
            divergence = k3_divergence(logps, self._reference_logps(model, inputs)) * mask
            loss = loss + args.beta * divergence.sum() / normalizer
        if num_items_in_batch is not None and args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # items count over processes, gradients are averaged
        weights = None
        if behavior is not None:
            weights = importance_weights(logps, behavior, mask, args.importance_sampling, args.importance_clip)
        sums, training = row_sums(outputs, rewards, divergence, weights), self.model.training
        # In evaluation by row, so that those which fill the last batch of several processes can be left out.
        gather = self.accelerator.gather if training else self.accelerator.gather_for_metrics
        self._since_log[training].append(gather(summed(sums) if training else sums))
        return (loss, outputs) if return_outputs else loss

    def _repeated_rows(self, rows: int) -> int:
        """How many rows at the end of an evaluation's batch of this process are the first ones again: they fill the
        last batch of several processes, and `gather_for_metrics` leaves them out."""
        state = self.accelerator.gradient_state
        if self.model.training or not state.end_of_dataloader or state.remainder <= 0:
            return 0
        return min(max((self.accelerator.process_index + 1) * rows - state.remainder, 0), rows)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._since_log[False].clear()  # drops the values of a prediction, which logs nothing
        return super().evaluation_loop(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        training = self.model.training
        if sums := self._since_log[training]:
            metrics = metrics_of(torch.cat(sums))
            if not self.args.beta:
                del metrics["kl"]
            self._metrics["train" if training else "eval"].update({name: [value] for name, value in metrics.items()})
            sums.clear()
        super().log(logs, start_time)

    @torch.no_grad()
    def _reference_logps(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.reference is not None:
            return self.reference(**inputs, use_cache=False, fused_lm_head=True).log_probs
        with self.accelerator.unwrap_model(model).disable_adapter():
            return model(**inputs, use_cache=False, fused_lm_head=True).log_probs
