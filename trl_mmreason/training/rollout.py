"""Rollouts of any number of turns: what the policy reads, what it answers, and what it is told next.

One loop for transformers and a vLLM server, in which all answers of a turn are sampled before the next turn; with a
colocated vLLM a conversation goes on as soon as its own answer has ended.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context

from ..data.images import images_of
from ..generation.batch import NextTurn, Prompt
from ..messages import checked_message
from .construction import refuse_plain_prompt
from .group_prompts import joined
from .padding import Fields
from .prompt_length import context_of, longest_prompt
from .tools import called_tools, results_of_tools

logger = logging.get_logger(__name__)

_OF_TRL = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters  # of which TRL gives rows some


@dataclass
class Turn:
    """One answer of the policy.

    Attributes:
        ids: its tokens as sampled, with the one that ended it.
        ended: whether it ended by itself, and not at the length limit.
        text: the answer without special tokens.
        logprobs: log-probability of each token; `None` if the sampler does not tell.
        calls: the tools that it calls, as `parse_response` returns them; such a turn is no answer.
    """

    ids: list[int]
    ended: bool
    text: str
    logprobs: list[float] | None = None
    calls: list[Any] = field(default_factory=list)


@dataclass
class Trajectory:
    """One conversation of a rollout, after the prompt.

    Attributes:
        row: the row of the data set, without columns that rewards may not see.
        place: its number among the rows of this process.
        prompt: the prompt, tokenised.
        images: images of the prompt, followed by those of the later messages.
        turns: what the policy wrote: answers, and calls of tools.
        said: what came after each turn: the user's message, or what the tools returned.
        calls_run, failed_calls: number of calls of tools, and of those that ended in an error.
        older_tokens: number of sampled tokens that weights before the last update have sampled.
        left_no_room: whether the last turn got no message because there was no room for another answer: in vLLM's
            context, or for what tools returned in the policy's context or in the tokens of a whole completion.
    """

    row: Mapping[str, Any]
    place: int
    prompt: Prompt
    images: list[Any]
    turns: list[Turn] = field(default_factory=list)
    said: list[NextTurn] = field(default_factory=list)
    calls_run: int = 0
    failed_calls: int = 0
    older_tokens: int = 0
    left_no_room: bool = False

    @property
    def answers(self) -> list[str]:
        """The texts of the policy's answers."""
        return [turn.text for turn in self.turns if not turn.calls]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages after the prompt."""
        messages: list[dict[str, Any]] = []
        for number, turn in enumerate(self.turns):
            calls = {"tool_calls": turn.calls} if turn.calls else {}
            messages.append({"role": "assistant", "content": turn.text, **calls})
            if number < len(self.said):
                messages += map(dict, self.said[number].messages)
        return messages

    @property
    def context(self) -> Prompt:
        """What the policy has read and answered so far."""
        context = self.prompt
        for number, turn in enumerate(self.turns):
            context = context.extended(turn.ids)
            if number < len(self.said):
                context = context.followed_by(self.said[number].prompt)
        return context

    @property
    def question(self) -> tuple[Prompt, list[Any]]:
        """The prompt and its images, without those of later messages."""
        later = sum(len(said.images) for said in self.said)
        return self.prompt, self.images[: len(self.images) - later]

    @property
    def completion_ids(self) -> list[int]:
        """All tokens after the prompt."""
        return self.context.ids[len(self.prompt.ids) :]

    @property
    def env_mask(self) -> list[int]:
        """1 for each sampled token, 0 for each token of the user's messages."""
        return self._by_token(lambda turn: [1] * len(turn.ids), 0)

    @property
    def logprobs(self) -> list[float] | None:
        """Log-probability of each sampled token, and 0 for the user's; `None` if the sampler does not tell."""
        if any(turn.logprobs is None for turn in self.turns):
            return None
        return self._by_token(lambda turn: turn.logprobs, 0.0)

    @property
    def answer_of_turn(self) -> list[int]:
        """The number of each turn's answer, from 1; a turn that calls tools belongs to the answer that comes of it."""
        answered = accumulate((not turn.calls for turn in self.turns), initial=1)
        return list(answered)[:-1]

    def _by_token(self, of_answer: Any, of_message: Any) -> list[Any]:
        values: list[Any] = []
        for number, turn in enumerate(self.turns):
            values += of_answer(turn)
            if number < len(self.said):
                values += [of_message] * len(self.said[number].prompt.ids)
        return values


def roll_out(prompts: list, trainer: Any) -> dict[str, Any]:
    """Sample answers, each followed by what `trainer.next_message` says to it, as a `rollout_func` of TRL.

    An answer that was cut is the last, and so is one that leaves no room for another in vLLM's context. Where an answer
    calls tools, they are called as in TRL, and `trainer.next_message` is asked after the answer that comes of it.

    Args:
        prompts: conversations, already repeated for every generation.
        trainer: a `GroupGRPOTrainer` with `max_turns` above 1, or with tools.
    """
    if trainer._ready is not None:
        trainer.trajectories, trainer._ready = trainer._ready, None
    else:
        prompt_ids, images, grouped = begin(trainer, prompts)
        if trainer.use_vllm and trainer.vllm_mode == "colocate":
            _without_barrier(trainer, prompt_ids, images)
        else:
            turn_after_turn(trainer, prompt_ids, images, grouped)
    trajectories = trainer.trajectories
    logprobs = [trajectory.logprobs for trajectory in trajectories]
    return {
        "prompt_ids": [trajectory.prompt.ids for trajectory in trajectories],
        "completion_ids": [trajectory.completion_ids for trajectory in trajectories],
        "logprobs": None if None in logprobs else logprobs,
        "env_mask": [trajectory.env_mask for trajectory in trajectories],
    }


def begin(trainer: Any, prompts: list) -> tuple:
    """Tokenise the prompts as `_tokenize_prompts`, and begin a trajectory with each."""
    refuse_plain_prompt(type(trainer).__name__, prompts[0])
    prompt_ids, images, grouped = trainer._tokenize_prompts(prompts)
    rows = dict(trainer._sampled)  # empty where a rollout is called by itself
    trainer.trajectories = [
        Trajectory(
            trainer.shown(rows.get(place, {})),
            place,
            grouped.prompt(place),
            list(images[place] or []) if images else [],
        )
        for place in range(len(prompts))
    ]
    return prompt_ids, images, grouped


def turn_after_turn(trainer: Any, prompt_ids: list, images: Any, grouped: Any) -> None:
    """Sample the answers of a turn for all conversations before the next turn.

    Every process continues equally many conversations, the most that any has; the spare ones repeat a prompt and are
    thrown away. Sharded models need every process in `generate`, and vLLM's server mode hands the results back in
    slices of equal length.
    """
    rows = dict(trainer._sampled)
    generations = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    sampled = trainer._generate_single_turn(prompt_ids, images, grouped, generations)
    goes_on = trainer.trajectories
    spare = goes_on[0].question
    while True:
        goes_on = add_turns(trainer, goes_on, *sampled)
        count = torch.tensor([len(goes_on)], device=trainer.accelerator.device)
        most = int(trainer.accelerator.gather(count).max())
        if most == 0:
            return
        asked = [(each.context, each.images) for each in goes_on] + [spare] * (most - len(goes_on))
        trainer._sampled = [(each.place, rows[each.place]) for each in goes_on if each.place in rows]
        sampled = trainer._generate_single_turn(*joined(*zip(*asked, strict=True)), num_generations=1)


def add_turns(
    trainer: Any, trajectories: Sequence[Trajectory], ids: Sequence[list[int]], logprobs: Sequence[Any] | None
) -> list[Trajectory]:
    """Add an answer to each conversation, and what is said to it; return those that go on.

    Args:
        ids, logprobs: of each conversation's answer; further ones are left out.
    """
    ids = ids[: len(trajectories)]
    texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True) if ids else []
    longest, context = longest_prompt(trainer) or math.inf, context_of(trainer) or math.inf
    for number, (trajectory, answer, text) in enumerate(zip(trajectories, ids, texts, strict=True)):
        turn = Turn(
            list(answer), answer[-1] in trainer.eos_token_ids, text, list(logprobs[number]) if logprobs else None
        )
        trajectory.turns.append(turn)
        messages = _reply(trainer, trajectory) if turn.ended else []
        if not messages:
            continue
        said = trainer.next_turn(messages)
        read, completed = (
            len(ids) + len(said.prompt.ids) for ids in (trajectory.context.ids, trajectory.completion_ids)
        )
        # as TRL: what tools return has to fit into the completion and the context
        overflows = turn.calls and (completed > trainer.max_completion_length or read >= context)
        if overflows or read > longest:
            trajectory.left_no_room = True
        else:
            trajectory.said.append(said)
            trajectory.images += said.images
    return [each for each in trajectories if len(each.said) == len(each.turns)]


def _reply(trainer: Any, trajectory: Trajectory) -> Sequence[Mapping[str, Any]]:
    """What comes after the last turn: what the tools return that it calls, or what the user says; empty at the end."""
    turn = trajectory.turns[-1]
    if trainer.tools:
        turn.calls, turn.text = called_tools(trainer, trajectory)
        if turn.calls:
            if sum(bool(each.calls) for each in trajectory.turns) > trainer.max_tool_calling_iterations:
                return []
            messages, failed = results_of_tools(trainer, trajectory.place, turn.calls)
            trajectory.calls_run += len(messages)
            trajectory.failed_calls += failed
            return messages
    if len(trajectory.answers) == trainer.max_turns:
        return []
    message = trainer.next_message(trajectory.row, trajectory.answers)
    return [] if message is None else [checked_message(message)]


def answer_of_token(trajectories: Sequence[Trajectory], like: Tensor) -> Tensor:
    """The number of each token's answer, from 1, with the tokens of the calls that led to it.

    Args:
        trajectories: of a rollout, in order.
        like: (B, C), whose shape and device the result has.
    """
    numbers = torch.ones_like(like)
    for row, each in zip(numbers, trajectories, strict=True):
        answers = iter(each.answer_of_turn)
        found = each._by_token(lambda turn, answers=answers: [next(answers)] * len(turn.ids), 1)
        row[: len(found)] = torch.tensor(found)
    return numbers


def _without_barrier(trainer: Any, prompt_ids: list, images: Any) -> None:
    """Sample all turns with a colocated vLLM, request by request."""
    trajectories = trainer.trajectories

    def reply(answers: Mapping[int, list[int]]) -> dict[int, NextTurn]:
        asked = [trajectories[place] for place in answers]
        return {each.place: each.said[-1] for each in add_turns(trainer, asked, list(answers.values()), None)}

    logprobs, read, cached = trainer.vllm_generation.generate_turns(
        prompt_ids, images, reply, trainer._tell_ended, profiler=profiling_context(trainer, "vLLM.generate")
    )
    for trajectory, values in zip(trajectories, logprobs, strict=True):
        sampled = iter(values)
        for number, turn in enumerate(trajectory.turns):
            turn.logprobs = [next(sampled) for _ in turn.ids]
            if number < len(trajectory.said):
                for _ in trajectory.said[number].prompt.ids:
                    next(sampled)
    tokens = torch.tensor([[read, cached]], device=trainer.accelerator.device)
    read, cached = trainer.accelerator.gather(tokens).sum(dim=0).tolist()
    if read:
        metrics = trainer._metrics[trainer._mode]
        metrics["prefix_cache_hit_rate_t2"].append(cached / read)


def recorded(trainer: Any, generated: Sequence[Any]) -> list[Trajectory]:
    """The trajectories of a rollout in one turn without tools, or of the user's own: answers between other tokens.

    Args:
        generated: what TRL's `_generate` returned.
    """
    prompt_ids, completion_ids, env_mask, completions, logprobs, _, images, _ = generated
    trajectories = []
    for place, (ids_read, ids, row) in enumerate(zip(prompt_ids, completion_ids, trainer._rows, strict=True)):
        prompt = Prompt(list(ids_read), {}, {})
        if trainer._grouped is not None and trainer._grouped.prompt(place).ids == prompt.ids:
            prompt = trainer._grouped.prompt(place)
        shown = images[place] if images else images_of(row)
        trajectory = Trajectory(trainer.shown(row), place, prompt, list(shown or []))
        runs = groupby(zip(env_mask[place] if env_mask else [1] * len(ids), ids, strict=True), key=lambda pair: pair[0])
        spans = [(sampled, [token for _, token in run]) for sampled, run in runs]
        at = 0
        for sampled, tokens in spans:
            if not sampled:
                if not trajectory.turns:  # TRL's rollout began with words of the user
                    trajectory.turns.append(Turn([], True, "", [] if logprobs else None))
                trajectory.said.append(NextTurn([], Prompt(tokens, {}, {}), tokens, []))
            else:
                values = logprobs and list(logprobs[place][at : at + len(tokens)])
                text = trainer.processing_class.decode(tokens, skip_special_tokens=True)
                trajectory.turns.append(Turn(tokens, tokens[-1] in trainer.eos_token_ids, text, values))
            at += len(tokens)
        trajectories.append(trajectory)
    return trajectories


def log_turns(trainer: Any) -> None:
    """Log the mean length of each turn, and the share of rows whose answer left no room for a further one."""
    turns = range(trainer.max_turns)
    facts = []
    for each in trainer.trajectories:
        tokens = [0] * trainer.max_turns
        for number, turn in zip(each.answer_of_turn, each.turns, strict=True):
            tokens[number - 1] += len(turn.ids)
        facts.append([*tokens, *(each.left_no_room and len(each.answers) == turn for turn in turns)])
    lengths, no_room = (
        trainer.accelerator.gather(torch.tensor(facts, device=trainer.accelerator.device)).float().T.chunk(2)
    )
    metrics = trainer._metrics[trainer._mode]
    for turn in turns:
        if (answered := lengths[turn] > 0).any():
            metrics[f"length_t{turn + 1}"].append(lengths[turn][answered].mean().item())
        if turn or trainer.tools:
            metrics[f"no_room_t{turn + 1}"].append(no_room[turn].mean().item())
    if no_room.any():
        fix = "raise max_completion_length, or let tools return less"
        if trainer.use_vllm:
            held = f"{trainer.vllm_generation.context_setting}, for {trainer.vllm_generation.context} tokens now"
            fix = f"raise {held}, or lower max_prompt_length or max_completion_length"
        logger.warning_once(
            f"{type(trainer).__name__}: {int(no_room.sum())} of {no_room.shape[1]} trajectories of a batch left no "
            f"room for another answer, and got none (no_room_t2). Fix: {fix}."
        )


def fields_of_rows(trainer: Any) -> list[Fields]:
    """What the model reads of each trajectory of a rollout besides its ids; equal images are one tensor."""
    moved: dict[int, Tensor] = {}
    contexts = [each.context for each in trainer.trajectories]
    for context in contexts:
        for value in context.image_fields.values():
            moved.setdefault(id(value), trainer._prepare_input(value))
    return [
        {
            "token": context.token_fields,
            "image": {name: moved[id(value)] for name, value in context.image_fields.items()},
            "axes": context.image_axes,
        }
        for context in contexts
    ]


def with_fields(batch: Mapping[str, Any], fields: list[Fields] | None) -> dict[str, Any]:
    """A scored batch with the fields of its rows, in the place of those that TRL knows by their names.

    Args:
        batch: as TRL's `_generate_and_score_completions` returns it.
        fields: result of `fields_of_rows`; `None` leaves the batch as it is.
    """
    if fields is None:
        return dict(batch)
    return {**{name: values for name, values in batch.items() if name not in _OF_TRL}, "fields": fields}
