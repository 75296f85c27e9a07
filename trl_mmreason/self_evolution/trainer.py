"""Self-evolution on top of GRPO; only the reward, which reads no label, and the advantages differ."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import gather_object, is_peft_model
from peft import PeftModel
from torch import Tensor
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import use_adapter

from ..compat.model_parts import keep_adapters_frozen
from ..generation.engine import Engine
from ..generation.transformers_engine import TransformersEngine
from ..grading import Grader, grader_or_rules
from ..grading.reward import items_of
from ..training.construction import all_rewards, check_rows, config_of, load_policy_processor
from ..training.credit import GroupOutcome, without_ungraded
from ..training.grpo import GroupGRPOTrainer
from ..training.model_problems import changes_base, what_changes_base
from ..training.reference import initial_policy, prepare_reference
from .config import SelfEvolutionConfig
from .objective import log_sum_exp_advantages
from .recipe import PAPER
from .rewards import SelfEvolutionRewards

logger = logging.getLogger(__name__)


class SelfEvolutionTrainer(GroupGRPOTrainer):
    """Trains a policy without labels, on the agreement of its answers and a frozen judge's scores.

    The judge is the initial policy. With LoRA that is the base with its adapter off, otherwise the KL reference: it
    costs no memory. Only without either (no adapter, and `beta=0` or a reference that moves) a copy is made for it.

    It logs, besides what `GRPOTrainer` does: `distinct_answers` (a question's, mean), `no_answer` and
    `format_violations` (shares of responses); of the judge `judge/score` (mean), `judge/neutral` (share of the judged
    whose reply could not be read twice), `agreement` (share of questions where the most frequent answer is also that
    of the best mean score; Agree@1 of Table 7); `time/judge` (seconds of waiting a batch, of `time/rewards`). With an
    `answer` in the rows also `accuracy`, `sc_winner_accuracy` and `judge_winner_accuracy`: nothing else ever sees the
    answers.

    Args:
        model: path or id of a checkpoint, or a model.
        args: a `SelfEvolutionConfig`.
        train_dataset, eval_dataset: rows with `prompt` and `images`, optionally `answer` and `choices`.
        judge: an engine that judges in place of the initial policy, such as a server.
        grader: grader of the accuracy that is logged; `Grader()` by default.
        reward_funcs: further reward functions, which are added, and get no column `answer` either;
            `args.reward_weights` then weighs the two of this method first.
        **kwargs: whatever `trl.GRPOTrainer` takes, by keyword.

    Raises:
        ValueError: the judge would have to be the initial policy, and nothing keeps that.
    """

    _tag_names = ["trl", "trl-mmreason", "self-evolution"]
    _name = "Self-evolution"
    _paper = PAPER

    hidden_columns = frozenset({"answer"})
    args: SelfEvolutionConfig

    def __init__(
        self,
        model: Any,
        *,
        args: SelfEvolutionConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        judge: Engine | None = None,
        grader: Grader | None = None,
        reward_funcs: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        args = config_of(self, SelfEvolutionConfig, args, model, "self-evolution")
        for option in ("followup", "tools", "rollout_func", "environment_factory"):
            if kwargs.get(option):
                raise ValueError(f"SelfEvolutionTrainer: a response is one turn; leave `{option}` out.")
        check_rows("SelfEvolutionTrainer", train_dataset, eval_dataset, {"prompt"})
        if judge is not None and not args.judge:
            raise ValueError("SelfEvolutionTrainer: got a judge, but args.judge=False; set it True or pass none.")
        if judge is not None and (isinstance(judge, type) or not callable(getattr(judge, "sample", None))):
            raise TypeError(
                f"SelfEvolutionTrainer: judge is {judge!r:.80}, expected an engine. Fix: ServerEngine(model, url) or "
                "TransformersEngine(path)."
            )
        if args.pays_for_length:
            logger.warning(
                "SelfEvolutionTrainer: log-sum-exp advantages are all below 0, by about log num_generations, and %s. "
                "Fix: loss_type='dr_grpo' and mask_truncated_completions=False, or centre_advantages=True.",
                args.pays_for_length,
            )
        processing_class = processing_class or load_policy_processor(model, args)
        self.judge, self.grader = judge, grader_or_rules(grader, "SelfEvolutionTrainer")
        self._judging_copy = self._copy_for_judge(model, args, kwargs) if args.judge and judge is None else None
        self.rewards = SelfEvolutionRewards(
            processing_class,
            args,
            lambda: self.num_generations if self.model.training else self.num_generations_eval,
            self.judging,
            lambda: self.model.training or self.eval_system_prompt == self.system_prompt,
            judge,
        )
        super().__init__(
            model,
            reward_funcs=all_rewards("SelfEvolutionTrainer", self.rewards.functions, reward_funcs),
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            system_prompt=args.actor_prompt,
            **kwargs,
        )
        self.eval_system_prompt = args.eval_system_prompt
        if self._judging_copy is not None:
            self._judging_copy = prepare_reference(self._judging_copy, self)
        if args.judge and judge is None and self.is_fsdp_enabled:
            raise ValueError(
                "SelfEvolutionTrainer: under FSDP the policy's own weights cannot judge, as they are sharded. Pass "
                "judge=ServerEngine(…) with the initial policy behind it."
            )

    @staticmethod
    def _copy_for_judge(model: Any, args: SelfEvolutionConfig, kwargs: dict[str, Any]) -> Any:
        """Copy the initial policy unless something keeps it: an adapter that can be off, or a fixed KL reference."""
        if isinstance(model, PeftModel) and args.beta == 0.0:
            raise ValueError(
                "SelfEvolutionTrainer: the model came with an adapter, and beta=0 keeps no copy of that for the judge. "
                "Set beta above 0, pass a judge, or merge the adapter and give a peft_config for a new one."
            )
        adapter = kwargs.get("peft_config")
        if adapter is not None and changes_base(adapter):
            raise ValueError(
                f"SelfEvolutionTrainer: an adapter with {what_changes_base(adapter)[0]} changes the weights below it, "
                "so that the initial policy cannot judge by switching it off. Use bias='none' and "
                "init_lora_weights=True, or pass a judge."
            )
        if adapter is not None or isinstance(model, PeftModel) or (args.beta != 0.0 and not args.sync_ref_model):
            return None
        return initial_policy(model, args, kwargs.get("quantization_config"))

    @contextmanager
    def judging(self) -> Iterator[Engine]:
        """Yield the judge: an engine with the initial policy's weights, for the duration of this context."""
        if self.judge is not None:
            yield self.judge
            return
        frozen = self._judging_copy or self.ref_model or self.model_wrapped
        with unwrap_model_for_generation(
            frozen, self.accelerator, gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs
        ) as policy:
            adapter_off: Any = nullcontext()
            if is_peft_model(policy):
                keep_adapters_frozen(policy)
                adapter_off = use_adapter(policy, adapter_name="ref" if "ref" in policy.peft_config else None)
                policy = policy.get_base_model()
            with adapter_off:
                size = self.args.judge_batch_size or self.args.per_device_train_batch_size
                kwargs = self.args.chat_template_kwargs
                yield TransformersEngine(policy, self.processing_class, batch_size=size, chat_template_kwargs=kwargs)

    def answers_ended(self, rows: dict[int, dict[str, Any]], texts: list[str]) -> None:
        if (
            self.args.oversampling
        ):  # the place among the rows that are trained on, which the judge's seed has, is not known
            return
        first = self.accelerator.process_index * len(self._sampled)
        self.rewards.begin({first + place: row for place, row in rows.items()}, texts, self.state.global_step)

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        """Rewards with their log-sum-exp advantages; rows are dropped if the judge alone rewards and gave no score."""
        outcome = without_ungraded(rewards)
        if self.args.advantages == "grpo":
            return outcome
        total = (outcome.rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        groups = self.in_groups(total.masked_fill(~outcome.keep, torch.nan))
        advantages = log_sum_exp_advantages(groups, self.args.alpha, centred=self.args.centre_advantages)
        return replace(outcome, advantages=advantages.flatten().nan_to_num(nan=0.0))

    def log_rollouts(self, rows: list[dict[str, Any]], completion_ids: list[list[int]]) -> None:
        """Log accuracies, if the data have answers."""
        if "answer" not in rows[0]:
            return
        texts = self.rewards.texts(completion_ids, [row["prompt"] for row in rows])
        labelled = [number for number, row in enumerate(rows) if row["answer"] not in (None, "")]  # others have no gold
        items = items_of([rows[number] for number in labelled], [texts[number] for number in labelled])
        verdicts: list[bool | None] = [None] * len(rows)
        for number, verdict in zip(labelled, self.grader.grade_batch(items), strict=True):
            verdicts[number] = verdict.correct
        right = gather_object(verdicts)
        measures: dict[str, list[bool]] = {"accuracy": [one for one in right if one is not None]}
        begin = self.accelerator.process_index * len(rows)
        winners = gather_object(
            [
                tuple(None if place is None else group.first + place for place in group.winners(self.rewards.equal))
                for group in self.rewards.groups
                if begin <= group.first < begin + len(rows)  # another process has the first response, and says so
            ]
        )
        for position, name in enumerate(("sc_winner_accuracy", "judge_winner_accuracy")):
            places = [winner[position] for winner in winners]
            measures[name] = [right[place] for place in places if place is not None and right[place] is not None]
        metrics = self._metrics[self._mode]
        for name, values in measures.items():
            if values:
                metrics[name].append(sum(values) / len(values))
