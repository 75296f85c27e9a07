"""GroupGRPOTrainer: TRL's GRPOTrainer with group-level rewards and filters, credit per token, and several turns.

Overrides of TRL's private methods stand here and in `sampled_turns.py`, those of transformers in `checkpoint.py`,
`rollout_checkpoint.py` and `read_once.py`, those of TRL's vLLM in `compat/`. Each calls `super()` and edits the result;
`tests/compat/test_trl_contract.py` says what changed when they do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.trainer_utils import TrainOutput
from trl import GRPOConfig
from trl.trainer import grpo_trainer

from ..compat.chat_template import warn_of_dropped_thoughts
from ..compat.replaced import replaced
from ..compat.vllm import corrected_vllm
from ..data.images import with_plain_images
from ..functional import SEQUENCE_NORMALISED_LOSSES, turn_of_token
from ..generation.batch import warn_of_ignored_settings
from ..messages import with_system_message
from . import rollout
from .ahead import Ahead, why_not_ahead
from .construction import (
    NamedArguments,
    NamedEvaluations,
    check_turns,
    load_policy_processor,
    pad_left,
    refuse_missing_template,
)
from .credit import GroupOutcome, by_token, check_credit, kl_difference, observe_outcome, own_advantages
from .facts import RunFactsMixin, check_fills_a_rollout, observe_difference
from .first_rollout import compare_with_vllm
from .group_prompts import images_in_prompt
from .logged_questions import LoggedQuestionsMixin, gather_without_images
from .oversampling import Groups, oversampled, why_not_oversampled
from .padding import Fields, adds_up, carries_loss, score_by_length, sort_by_length
from .preparation import prepare_loading, prepare_models
from .processor_checks import needs_image_token
from .prompt_length import check_context, leave_out_unreadable
from .read_once import PLACE, RowsOfRolloutsMixin
from .reference import reference_from_policy
from .refill import refilled, why_not_refilled
from .reward_values import checked_rewards, refuse_infinite
from .rollout_checkpoint import RolloutCheckpointMixin
from .sampled_turns import SampledTurnsTrainer, sampled_logps
from .timing import Stopwatch, TimedRolloutsMixin
from .token_bound import loss_by_parts, split_by_tokens, why_not_bounded

_OF_SCORING = ("batch_size", "compute_entropy", "compute_aux_loss")
_CHECKED: dict[str, tuple[Callable[[Any], str | None], str]] = {  # option → why it cannot be had, and the fix
    "max_tokens_per_micro_batch": (why_not_bounded, "leave it out"),
    "refill_attempts": (why_not_refilled, "refill_attempts=0"),
    "oversampling": (why_not_oversampled, "oversampling=0"),
    "generate_ahead": (why_not_ahead, "generate_ahead=False"),
}


class GroupGRPOTrainer(
    NamedArguments,
    NamedEvaluations,
    TimedRolloutsMixin,
    LoggedQuestionsMixin,
    RowsOfRolloutsMixin,
    RunFactsMixin,
    RolloutCheckpointMixin,
    SampledTurnsTrainer,
):
    """GRPO whose rewards, filters and KL coefficients may depend on whole groups, with one turn or several.

    A subclass overrides `score_groups`, and `log_rollouts` if it has measures of its own. With a `followup`, the policy
    answers, is told the follow-up and answers again; a subclass that overrides `next_message` may say something else to
    each answer, also with images. `max_completion_length` bounds each turn by itself, and only answers carry loss.

    Reward functions get, besides the columns, `trajectory`: a `Trajectory` per row, with each turn's text and tokens.

    It takes what `GRPOTrainer` takes, and differs in three more points: a processor that pads right is set to pad
    left, the KL reference is the policy that was passed even if that policy was never saved, and a resumed run
    continues from the checkpoint's weights for every model family.

    Args:
        model, reward_funcs, args: as in `GRPOTrainer`.
        followup: user message after the first answer; `None` for one turn.
        max_turns: answers of a trajectory at most; by default 2 with a `followup`, else 1.
        system_prompt: system message put before every question; `None` leaves prompts as they are.
        **kwargs: the other arguments of `GRPOTrainer`, by keyword.

    Attributes:
        hidden_columns: columns of the data set that no reward function gets to see.
        system_prompt, eval_system_prompt: the system message in training, and that of `evaluate`, which a subclass may
            set to another one.
    """

    hidden_columns: ClassVar[frozenset[str]] = frozenset()
    reward_funcs: list[Any]

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *,
        followup: str | None = None,
        max_turns: int | None = None,
        system_prompt: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.system_prompt = self.eval_system_prompt = system_prompt
        self.max_turns = (1 if followup is None else 2) if max_turns is None else max_turns
        check_turns(self, followup, kwargs.get("rollout_func"))
        if kwargs.get("processing_class") is None:
            kwargs["processing_class"] = load_policy_processor(model, args)
        pad_left(kwargs["processing_class"])
        refuse_missing_template(type(self).__name__, kwargs["processing_class"], kwargs.get("train_dataset"))
        leave_out_unreadable(type(self).__name__, args, kwargs, system_prompt)
        padding = prepare_loading(model, args)
        checked = needs_image_token(type(self).__name__)
        with checked, corrected_vllm(args), reference_from_policy(model, args, kwargs.get("peft_config")):
            super().__init__(model, reward_funcs, args, **kwargs)
        check_fills_a_rollout(self)
        for option, (why_not, fix) in _CHECKED.items():
            if (value := getattr(self.args, option, None)) and (reason := why_not(self)):
                raise ValueError(f"{type(self).__name__}: {option}={value}, but {reason}. Fix: {fix}.")
        self._ahead = Ahead(self) if getattr(self.args, "generate_ahead", False) else None

        if not self.use_vllm and self.accelerator.is_main_process:
            warn_of_ignored_settings(type(self).__name__, self.model, self.generation_config)
        prepare_models(self, padding)
        self.followup = followup
        self.trajectories: list[rollout.Trajectory] = []  # of the rollout at hand
        self._fields: list[Fields] | None = None  # of its rows, or of those whose loss is computed
        self._outcome: GroupOutcome | None = None
        self._policy_logps: Tensor | None = None
        self._old_logps: list[list[float | None]] | None = None  # of the engine, until they have served
        self._waiting: Groups = []  # conversations that go on in the next rollout
        self._kept: list[dict[str, Any]] | None = None  # those of the checkpoint that a run begins with
        self._ready: list[rollout.Trajectory] | None = None  # of the rollout at hand, if they were sampled before it
        self._rollouts = 0  # in which conversations may wait for the next
        self._draws = -1, 0  # the last update for which other questions were drawn, and how often
        self._compared: set[int] = set()  # numbers of images in the rows that vLLM has been compared on
        self._compared_updated = False  # and whether that was so after an update
        self._score: Callable[..., tuple] = score_by_length
        self._most_tokens: int | None = getattr(self.args, "max_tokens_per_micro_batch", None)  # of a pass
        # TRL gathers images on the processes alone whose rows have some, which then wait for the others for ever.
        self.log_multimodal = False
        self._stopwatch = Stopwatch()
        self._rows: list[dict[str, Any]] = []  # of the rollout at hand
        self._sampled: list[tuple[int, dict[str, Any]]] = []  # place and row of each answer that is sampled
        self._questions: deque[dict[str, str]] = deque(maxlen=self.args.generation_batch_size)
        self._next_text_turn = lru_cache(lambda text: self._next_turn([{"role": "user", "content": text}]))
        if self.max_turns > 1:
            warn_of_dropped_thoughts(self)
            said = {"role": "user", "content": followup or "?"}
            self._followup_ids = self.next_turn([said]).prompt.ids  # refuses a template that cannot go on
            # Generation was set up with the bound of one turn. From here on the attribute is what `dr_grpo` divides
            # by, and that is what a whole trajectory may hold.
            self.max_completion_length *= self.max_turns
        oversampling = getattr(self.args, "oversampling", 0)
        sampled_before = oversampling or self._ahead is not None  # and handed to `roll_out` as `_ready`
        if self.max_turns > 1 or sampled_before or (self._calls_tools and not self._sampled_by_others):
            self.rollout_func = rollout.roll_out

    def next_message(self, row: Mapping[str, Any], answers: Sequence[str]) -> Mapping[str, Any] | None:
        """What the user says after an answer that ended by itself; `None` ends the conversation.

        It is asked at most `max_turns` - 1 times for a trajectory. Evaluate with the same function:
        `sample_turns(…, trainer.next_message, …)`.

        Args:
            row: row of the data set, without `hidden_columns`.
            answers: texts of the answers so far.

        Returns:
            Role and content, which is text or parts that may hold images:
            `{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "So?"}]}`.
        """
        return {"role": "user", "content": self.followup} if self.followup and len(answers) == 1 else None

    def shown(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row without the columns that rewards may not see."""
        return {name: value for name, value in row.items() if name not in {PLACE, *self.hidden_columns}}

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        """Turn the reward functions' values into rewards, filters and KL coefficients of whole groups.

        Args:
            rewards: (N, K) gathered over all processes; the G rows of a question are consecutive. NaN where a reward
                function returned `None`.
        """
        return GroupOutcome(rewards, keep=torch.ones(len(rewards), dtype=torch.bool, device=rewards.device))

    def log_rollouts(self, rows: list[dict[str, Any]], completion_ids: list[list[int]]) -> None:
        """Log metrics of sampled rows; called after rewards are computed."""

    def answers_ended(self, rows: dict[int, dict[str, Any]], texts: list[str]) -> None:
        if self.max_turns == 1 and not self._calls_tools:
            for function in self.reward_funcs:
                if hasattr(function, "begin"):
                    function.begin(list(rows.values()), texts)

    def without_dropped(self, rewards: Tensor, keep: Tensor) -> Tensor:
        """(N, K) rewards, with NaN where (N,) `keep` is False if TRL takes a std over all groups, dropped ones too.

        In evaluation they stay, where nothing is trained and their mean is that of all answers.
        """
        over_all = self.args.scale_rewards == "batch" or self.args.multi_objective_aggregation == "normalize_then_sum"
        if over_all and self.model.training:
            return rewards.masked_fill(~keep.unsqueeze(1), torch.nan)
        return rewards

    def in_groups(self, values: Tensor) -> Tensor:
        """(N,) → (Q, G), with the group size of training or of evaluation."""
        return values.view(-1, self.num_generations if self.model.training else self.num_generations_eval)

    def _generate(self, prompts: list) -> tuple:
        with self._timed("generation") if self._ready is None else nullcontext():
            generated = list(super()._generate(prompts))
        extra = generated[5]
        if self.rollout_func is rollout.roll_out:
            generated[3] = [each.messages for each in self.trajectories]  # TRL decodes all turns into one text
            extra.pop("env_mask", None)  # which TRL has where there are tools
            rollout.log_turns(self)
        else:
            self.trajectories = rollout.recorded(self, generated)
        if self.use_vllm and self.model.training and not self._sampled_by_others:
            if self.state.global_step and not self._compared_updated:  # once more: do weights arrive?
                self._compared, self._compared_updated = set(), True
            seen, found = self.facts.engine_differences, compare_with_vllm(self, self._compared)
            self._compared |= {*found}
            seen.update({images: max(nats, seen.get(images, 0.0)) for images, nats in found.items()})
        if getattr(self.args, "sampled_as_old", False) and self.model.training:
            self._old_logps = generated[4]
        if not any("trajectory" in row for row in self._rows[:1]):  # a column of the data set stays
            extra["trajectory"] = self.trajectories
        # TRL would process all images again, and knows the fields of some families
        if self._grouped is not None or self.rollout_func is rollout.roll_out:
            self._fields, generated[6] = rollout.fields_of_rows(self), None
        return tuple(generated)

    def _calculate_rewards(self, inputs: list, prompts: list, completions: list, completion_ids_list: list) -> Tensor:
        inputs = [{**row, **own} for row, own in zip(inputs, self._rows, strict=True)]
        shown = [self.shown(row) for row in inputs]
        functions, names = self.reward_funcs, self.reward_func_names
        self.reward_funcs = [checked_rewards(*each) for each in zip(functions, names, strict=True)]
        try:
            with self._timed("rewards"):
                rewards = super()._calculate_rewards(shown, prompts, completions, completion_ids_list)
        finally:
            self.reward_funcs = functions
        refuse_infinite(rewards, names)
        self._outcome = self.score_groups(rewards)
        self.log_rollouts(inputs, completion_ids_list)
        return self._outcome.rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        processes, size = self.accelerator.num_processes, self.num_generations_eval
        if not self.model.training and len(inputs) * processes % size:  # TRL looks only with an `eval_strategy`
            raise ValueError(
                f"{type(self).__name__}: per_device_eval_batch_size={self.args.per_device_eval_batch_size} on "
                f"{processes} processes, expected whole groups of num_generations_eval={size} over all of them."
            )
        if self._ahead is not None and self.model.training:
            with self._timed("generation"):
                rows, self._ready = self._ahead.rollout(inputs)
        else:
            rows = self._prepared(inputs)
            if self._ahead is not None:
                self._ahead.settle()
            elif self.model.training and getattr(self.args, "oversampling", 0):
                with self._timed("generation"):
                    rows, self._ready = oversampled(self, rows)
        batch = self._rolled_out(rows)
        if self.model.training and getattr(self.args, "refill_attempts", 0):
            batch = refilled(self, batch, lambda others: self._rolled_out(self._prepared(others)))
        return self._weighed(batch)

    def _prepared(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of the data set as a rollout reads them: with the system message, and with images in one form."""
        system_prompt = self.system_prompt if self.model.training else self.eval_system_prompt
        inputs = [with_plain_images(row) for row in inputs]
        for row in inputs:
            if system_prompt is not None:
                if self.environment_factories is not None:  # it may bring the prompt; TRL then begins with an empty one
                    row.setdefault("prompt", [{"role": "user", "content": ""}])
                row["prompt"] = with_system_message(row["prompt"], system_prompt)
        return inputs

    def _prompts_of(self, rows: list[dict[str, Any]]) -> list[Any]:
        """Prompts of prepared rows, with their images inside, as `rollout_func` gets them."""
        return [images_in_prompt(row)["prompt"] for row in rows]

    def _rolled_out(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A rollout of prepared rows with the rewards, advantages and coefficients of its groups, all of one weight."""
        if self.log_completions:
            self._keep_questions(inputs)
        as_they_are = self._sampled_by_others or self.environment_factories is not None
        # With images inside the prompts TRL does not process them a second time.
        asked = inputs if as_they_are else [images_in_prompt(row) for row in inputs]
        self._rows = inputs
        self._sampled = [] if self._sampled_by_others else list(enumerate(inputs))
        goes_on = self.max_turns > 1 or (self._calls_tools and not self._sampled_by_others)  # behind the first message
        with self._timed("scoring"), replaced(grpo_trainer, gather_object=gather_without_images):
            try:
                # Cut trajectories stay in attention, in which their later images are; below they carry no loss.
                with replaced(self, mask_truncated_completions=self.mask_truncated_completions and not goes_on):
                    batch = super()._generate_and_score_completions(asked)
                batch = rollout.with_fields(batch, self._fields)
            finally:
                self._grouped = self._fields = None
        assert self._outcome is not None
        outcome, self._outcome = self._outcome, None
        start = self.accelerator.process_index * len(inputs)
        local = slice(start, start + len(inputs))

        env_mask = batch.get("tool_mask", torch.ones_like(batch["completion_mask"]))
        turn = rollout.answer_of_token(self.trajectories, env_mask) if self.tools else turn_of_token(env_mask)
        if self.mask_truncated_completions and goes_on:
            ended = torch.tensor([each.turns[-1].ended for each in self.trajectories], device=env_mask.device)
            env_mask = env_mask * ended.unsqueeze(1)
        if outcome.advantages is not None:
            batch["advantages"] = own_advantages(self, outcome.advantages, local, turn)
        batch["tool_mask"] = env_mask * outcome.keep[local].unsqueeze(1)
        if self.model.training:
            observe_outcome(self, outcome)
        check_credit(self, outcome, local)
        if outcome.kl_coefs is not None:
            batch["kl_coefs"] = by_token(outcome.kl_coefs[local], turn, self.max_turns)
        return {**batch, "turn": turn, "keep": outcome.keep[local]}

    def _weighed(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A rollout's rows with the weight of each in the loss."""
        keep, turn = batch.pop("keep"), batch.pop("turn")
        kept_tokens = (batch["completion_mask"] * batch["tool_mask"]).sum()
        counts = self.accelerator.gather(torch.stack([kept_tokens, keep.sum()])).view(-1, 2).sum(dim=0)
        batch["num_items_in_batch"] = counts[0]

        # These losses average over all sequences. Weighing the kept ones by N / #kept averages over the kept ones,
        # and does so however the batch is split over micro-batches and processes.
        weight = 1.0
        if self.loss_type in SEQUENCE_NORMALISED_LOSSES:
            weight = len(keep) * self.accelerator.num_processes / max(counts[1].item(), 1)
            batch["advantages"] = batch["advantages"] * weight
        if self.beta != 0.0 and ("kl_coefs" in batch or weight != 1.0):
            coefs = batch.get("kl_coefs", torch.full(turn.shape, self.beta, device=turn.device))
            batch |= {"kl_coefs": coefs * weight, "turn": turn}
        return batch

    def only_groups_teach(self) -> bool:
        adds = type(self).compute_loss is not GroupGRPOTrainer.compute_loss  # a term of a subclass's own
        return not (adds or self._entropy_bonus_enabled or self.aux_loss_enabled)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Compare prompts and answers with the context, and train, from a rollout of its own."""
        check_context(self)
        # An earlier training may have left answers of other weights, and in vLLM the weights of an equal step.
        self._step, self._buffered_inputs, self._ready = 0, None, None
        self._rollouts, self._waiting, self._kept, self._draws = 0, [], None, (-1, 0)
        self._last_loaded_step = -1
        with self._ahead or nullcontext():
            return super().train(*args, **kwargs)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """As TRL's, with rows of similar length in one micro-batch where that leaves the update unchanged."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        unmovable = self._is_vlm and self._sampled_by_others  # rows whose fields only TRL can tell apart
        if self._buffered_inputs is before or unmovable or not adds_up(self):
            return inputs
        steps = self.args.steps_per_generation
        window = math.gcd(steps, self.args.gradient_accumulation_steps)  # never in two optimizer steps
        together = None if self._most_tokens is None else 1
        self._buffered_inputs = sort_by_length(self._buffered_inputs, window, self.accelerator, together)
        return self._buffered_inputs[self._step % steps]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple:
        old, self._old_logps = self._old_logps, None  # TRL scores by the policy first, then by the reference
        if old is not None and (served := sampled_logps(old, logits_to_keep, self.accelerator)) is not None:
            return served, None, None
        score = super()._get_per_token_logps_and_entropies
        if self._fields is None and kwargs.get("pixel_values") is not None:  # sampled by a rollout of the user's
            outputs = score(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs)
        else:
            options = {name: kwargs[name] for name in _OF_SCORING if name in kwargs}
            if self._most_tokens is not None and not torch.is_grad_enabled():  # else `loss_by_parts` has split them
                options["split"] = lambda sizes: split_by_tokens(sizes, self._most_tokens, self.accelerator)[0]
            outputs = self._score(
                lambda fields, *inputs, **flags: score(partial(model, **fields), *inputs, **flags),
                *(input_ids, attention_mask, logits_to_keep, *args),
                fields=self._fields or [{"token": {}, "image": {}}] * len(input_ids),
                multiple=self.pad_to_multiple_of or 1,
                **options,
            )
        self._policy_logps = outputs[0]  # the KL term of `compute_loss` reads them: no second forward pass
        return outputs

    def compute_loss(
        self, model: Any, inputs: dict, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """GRPO's loss, whose KL term has the coefficient `beta`, plus (β_turn − β)·KL (Eq. 6 of AdaPO).

        Rows that carry no loss are not scored: they get the log-probabilities that they had, which say that nothing
        has changed. With a bound of tokens the backward passes of all parts but the last are done.
        """
        if self._most_tokens is None or not self.model.training:
            return self._loss_of(model, inputs)
        return loss_by_parts(self, model, inputs, self._most_tokens, self._loss_of)

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        metrics = self._metrics[self._mode]
        logged = {name: len(values) for name, values in metrics.items()}
        score = self._score
        if not self.aux_loss_enabled:  # to which every row adds
            rows, before = carries_loss(inputs), inputs.get("old_per_token_logps")
            score = partial(score_by_length, rows=rows, otherwise=before)
        with replaced(self, _fields=inputs.get("fields"), _score=score):
            loss = super().compute_loss(model, inputs)
        logps, self._policy_logps = self._policy_logps, None
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        if self.accelerator.reduce(mask.sum(), reduction="sum") == 0:
            for name, values in metrics.items():  # TRL has logged a mean over no token as 0
                del values[logged.get(name, 0) :]
            return loss
        assert logps is not None  # `super()` has just scored this batch
        if self._compares_policies and (sampled := inputs.get("sampling_per_token_logps")) is not None:
            observe_difference(self.facts, logps, sampled, mask.bool() & ~sampled.isnan())
        if "kl_coefs" not in inputs:
            return loss
        return loss + kl_difference(self, logps, inputs, mask)
