"""Overrides of TRL's GRPOTrainer that tokenise the prompts of a rollout and sample one answer to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.integrations import is_deepspeed_zero3_enabled
from trl import GRPOTrainer
from trl.data_utils import prepare_multimodal_messages

from ..compat.vllm import remember_prompts
from ..generation.batch import NextTurn, Prompt, encode_conversation, images_in, next_turn, own_settings_only
from ..generation.live_rows import (
    TOKEN_BY_TOKEN,
    SampledLogprobs,
    UnknownCacheError,
    can_decode,
    can_share_prompts,
    ended_rows_leave,
    step_aside,
)
from ..messages import text_of
from .group_prompts import GroupPrompts
from .rollout import Trajectory, roll_out


class SampledTurnsTrainer(GRPOTrainer):
    """`GRPOTrainer` that reads each prompt of a rollout once, and lets rows leave the batch that have ended."""

    trajectories: list[Trajectory]  # of the rollout at hand
    _next_text_turn: Callable[[str], NextTurn]  # of a message of the user without images
    _grouped: GroupPrompts | None = None  # prompts of the rollout at hand
    _sampled: list[tuple[int, dict[str, Any]]]  # place and row of each answer that is sampled

    def next_turn(self, messages: Sequence[Mapping[str, Any]]) -> NextTurn:
        """What comes after an answer, as the policy reads it by the trainer's chat template."""
        if messages[0]["role"] == "user" and isinstance(messages[0]["content"], str):
            return self._next_text_turn(messages[0]["content"])
        return self._next_turn(messages)

    def _next_turn(self, messages: Sequence[Mapping[str, Any]]) -> NextTurn:
        template = {"chat_template": self.chat_template, **self.chat_template_kwargs}
        return next_turn(self.processing_class, messages, eos_token_ids=self.eos_token_ids, **template)

    def answers_ended(self, rows: dict[int, dict[str, Any]], texts: list[str]) -> None:
        """Start grading finished answers, each turn by itself; an answer may come twice.

        Args:
            rows: place among this process's rows → row, hidden columns included.
            texts: what was answered to each.
        """

    def _tokenize_prompts(self, prompts: list) -> tuple:
        if self._sampled_by_others and self._calls_tools:  # TRL itself adds to these prompts
            tokenized = super()._tokenize_prompts(prompts)
        else:
            environments = [None] * len(prompts) if self.environment_factories is None else self._batch_environments
            self._grouped = GroupPrompts(self._encode, list(zip(prompts, environments, strict=True)))
            tokenized = (*self._grouped.without_fields(), self._grouped)
        if self.use_vllm:
            remember_prompts(self, prompts, tokenized)
        return tokenized

    def _generate_single_turn(
        self, prompt_ids: list, images: Any, multimodal_fields: Any, *args: Any, **kwargs: Any
    ) -> tuple:
        """As TRL's, with the trainer's sampling settings alone; unless another process needs this one at every token, a
        group's prompt is read once, and finished rows leave the batch.
        """
        grouped = multimodal_fields if isinstance(multimodal_fields, GroupPrompts) else None
        inputs = prompt_ids, images, multimodal_fields
        policy, prompt_of = self.accelerator.unwrap_model(self.model_wrapped), None
        with own_settings_only(policy):
            if not (self._rows_can_leave() and can_decode(policy)):
                if grouped is not None and self._samples_elsewhere:
                    inputs = prompt_ids, images, {}
                elif grouped is not None:
                    inputs = grouped.rows(range(len(prompt_ids)))
                generated = super()._generate_single_turn(*inputs, *args, **kwargs)
            else:
                if grouped is not None and can_share_prompts(policy, grouped.names, self.generation_config):
                    inputs, prompt_of = grouped.distinct(), torch.tensor(grouped.place, device=self.accelerator.device)
                elif grouped is not None:
                    inputs = grouped.rows(range(len(prompt_ids)))
                logprobs = SampledLogprobs(self.temperature) if self._compares_policies else None
                try:
                    with ended_rows_leave(policy, self._tell_ended, prompt_of, logprobs):
                        ids, _ = generated = super()._generate_single_turn(*inputs, *args, **kwargs)
                    if logprobs is not None:
                        generated = ids, logprobs.of_rows(ids)
                except UnknownCacheError as error:
                    step_aside(str(error))
                    inputs = grouped.rows(range(len(prompt_ids)))  # type: ignore[union-attr]  # prompts were shared
                    generated = super()._generate_single_turn(*inputs, *args, **kwargs)
        self._tell_ended(range(len(generated[0])), generated[0])
        return generated

    def _encode(self, asked: tuple[Any, str | None]) -> tuple[Prompt, list[Any]]:
        """A prompt's tokens, with the tools of its environment, and its images."""
        prompt, environment = asked
        if isinstance(prompt, str):
            return Prompt(list(self.processing_class(text=[prompt])["input_ids"][0]), {}, {}), []
        tools = self.tools if self.environment_factories is None else self._env_tools[environment]
        conversation = prepare_multimodal_messages(prompt) if self._is_vlm else _as_text(prompt)
        template = {"tools": tools or None, "chat_template": self.chat_template, **self.chat_template_kwargs}
        images = [image for message in conversation for image in images_in(message)]
        return encode_conversation(self.processing_class, conversation, **template), images

    def _tool_call_loop(
        self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, logprobs: Any, *rest: Any
    ) -> tuple:
        """As TRL's behind a rollout of the user's own; in ours the tools have been called already."""
        if self.rollout_func is not roll_out:
            return super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, logprobs, *rest)
        masks = [trajectory.env_mask for trajectory in self.trajectories]
        calls, failures = (
            sum(getattr(each, name) for each in self.trajectories) for name in ("calls_run", "failed_calls")
        )
        return masks, completions, completion_ids, logprobs, calls, failures, [[] for _ in masks]

    @property
    def _sampled_by_others(self) -> bool:
        """Whether a rollout of the user's own samples the answers."""
        return self.rollout_func not in (None, roll_out)

    @property
    def _calls_tools(self) -> bool:
        return bool(self.tools or self.environment_factories)

    @property
    def _samples_elsewhere(self) -> bool:
        return self.use_vllm or self.use_transformers_continuous_batching

    def _rows_can_leave(self) -> bool:
        """Whether transformers samples token by token, and no other process needs this one at every token."""
        if self._samples_elsewhere or is_deepspeed_zero3_enabled() or self.is_fsdp_enabled:
            return False
        return self.generation_config.get_generation_mode() in TOKEN_BY_TOKEN

    @property
    def _compares_policies(self) -> bool:
        """Whether to compare log-probabilities of sampled tokens with those of the training pass.

        That is before the first update, when they are of one policy. vLLM's are relative to what `top_p` and others
        leave, and cannot be compared then.
        """
        if not self.model.training or self.facts.updates or self.rollout_func not in (None, roll_out):
            return False
        return not (self.use_vllm and (self.top_p < 1 or self.top_k > 0 or self.min_p))

    def _tell_ended(self, places: Sequence[int], ids: list[list[int]]) -> None:
        known = [place for place in places if place < len(self._sampled)]  # spare rows of a second turn come after
        if known:
            texts = self.processing_class.batch_decode(ids[: len(known)], skip_special_tokens=True)
            self.answers_ended(dict(self._sampled[place] for place in known), texts)


def sampled_logps(logps: Sequence[Sequence[float | None]], columns: int, accelerator: Any) -> Tensor | None:
    """(B, columns) log-probabilities that the engine gave; `None`, in all processes, if one of them lacks a token's."""
    lacking = torch.tensor([any(None in row for row in logps)], device=accelerator.device)
    if accelerator.gather(lacking).any():
        return None
    rows = [pad(torch.tensor(row, dtype=torch.float32), (0, columns - len(row))) for row in logps]
    return torch.stack(rows).to(accelerator.device)


def _as_text(conversation: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a text-only policy, whose template takes strings."""
    return [
        {**message, "content": text_of(message["content"])}
        if isinstance(message.get("content"), list)
        else dict(message)
        for message in conversation
    ]
