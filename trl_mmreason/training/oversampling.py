"""Oversampling: more questions are in flight than an update takes, and nobody waits for the longest answers.

With `RolloutConfig.oversampling` a rollout of vLLM ends when as many groups are complete as an update needs
(partial rollouts, as in Kimi k1.5, arXiv:2501.12599, Sec. 2.6.2). The others keep what they have said and go on in the
next rollout, with newer weights: the prompt of each is then all that was read and answered so far. The log-probability
of each token is that of the weights that sampled it, and TRL's importance sampling corrects for the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from transformers.utils import logging
from trl.extras.profiling import profiling_context

from ..compat.replaced import replaced
from ..generation.batch import NextTurn
from .first_rollout import STOPS
from .group_prompts import joined
from .read_once import PLACE, numbered
from .refill import other_questions
from .rollout import Trajectory, add_turns, begin, roll_out

logger = logging.get_logger(__name__)

_PARTS = 8  # in which a server is asked for an answer: a rollout can end between two of them


@dataclass
class Flight:
    """One conversation in flight.

    Attributes:
        row: the question, as a rollout reads it.
        trajectory: what was said so far, in whole turns.
        unexpanded: tokens of its prompt with one placeholder for each image, as a colocated vLLM takes it.
        begun: the number of the rollout in which it was first asked.
        ids, logprobs: of the answer that is being given.
        ended: whether nothing more is said.
    """

    row: dict[str, Any]
    trajectory: Trajectory
    unexpanded: list[int]
    begun: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    ended: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens that were sampled."""
        return len(self.ids) + sum(len(turn.ids) for turn in self.trajectory.turns)

    def prompts(self) -> tuple[list[int], list[int]]:
        """What the policy has read and said, with as many placeholders as an image has tokens, and with one."""
        short = list(self.unexpanded)
        for number, turn in enumerate(self.trajectory.turns):
            short += turn.ids
            if number < len(self.trajectory.said):
                short += self.trajectory.said[number].unexpanded_ids
        return [*self.trajectory.context.ids, *self.ids], [*short, *self.ids]


Groups = list[list[Flight]]
"""Conversations, those about one question together."""


def is_complete(group: Sequence[Flight]) -> bool:
    """Whether all conversations of a group have ended."""
    return all(each.ended for each in group)


def is_enough(groups: Groups, needed: int, rollout: int, max_age: int) -> bool:
    """Whether as many groups are complete as an update needs, and all that may not wait any longer."""
    late = (is_complete(group) for group in groups if rollout - group[0].begun >= max_age)
    return sum(map(is_complete, groups)) >= needed and all(late)


def chosen_and_waiting(groups: Groups, needed: int) -> tuple[Groups, Groups]:
    """The first complete groups, as many as an update needs, and the others, in the order in which they were asked."""
    chosen = [number for number, group in enumerate(groups) if is_complete(group)][:needed]
    waiting = [group for number, group in enumerate(groups) if number not in chosen]
    return [groups[number] for number in chosen], waiting


def without_begun_stop(ids: list[int], stops: Sequence[str], decode: Callable[[list[int]], str]) -> list[int]:
    """An answer that goes on later, without the tokens at its end with which a stop string may have begun.

    vLLM looks for a stop string in what it writes itself, and would miss one that began in an earlier rollout.
    """

    def may_have_begun(text: str) -> bool:
        cut = text.endswith("\ufffd")  # amid a character
        return cut or any(text.endswith(stop[:length]) for stop in stops for length in range(1, len(stop)))

    kept = len(ids)
    while kept and stops and may_have_begun(decode(ids[:kept])):
        kept -= 1
    return ids[:kept]


def oversampled(trainer: Any, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Trajectory]]:
    """Sample until enough groups are complete; gives their rows and trajectories, and keeps the others for later.

    Args:
        trainer: a `GroupGRPOTrainer` with vLLM, whose `_waiting` are the groups in flight.
        rows: questions of this process that an update takes, each as often as a group has answers.
    """
    if trainer.state.global_step != trainer._last_loaded_step:  # as TRL does before a rollout
        trainer.vllm_generation.sync_weights()
        trainer._last_loaded_step = trainer.state.global_step
    needed = len(rows) // trainer.num_generations
    if trainer._kept is not None:
        trainer._waiting, trainer._kept = restored(trainer, trainer._kept), None
    lacking = math.ceil(trainer.args.oversampling * needed) - len(trainer._waiting)
    if lacking > 0:  # at the first rollout
        rows = rows + trainer._prepared(other_questions(trainer, lacking))
    groups: Groups = [*trainer._waiting, *_begun(trainer, rows)]
    for flight in (flight for group in groups for flight in group):
        flight.trajectory.older_tokens = flight.tokens
    _fly(trainer, groups, needed)
    chosen, trainer._waiting = chosen_and_waiting(groups, needed)
    _log(trainer, chosen)
    trainer._rollouts += 1
    flights = [flight for group in chosen for flight in group]
    for place, flight in enumerate(flights):
        flight.trajectory.place = place
    return [flight.row for flight in flights], [flight.trajectory for flight in flights]


def kept(groups: Groups) -> list[dict[str, Any]]:
    """What a checkpoint keeps of groups that wait."""
    return [
        {
            "place": group[0].row[PLACE],
            "begun": group[0].begun,
            "flights": [
                {
                    "answers": [(turn.ids, turn.logprobs) for turn in flight.trajectory.turns],
                    "going_on": (flight.ids, flight.logprobs),
                    "ended": flight.ended,
                    "read": flight.prompts()[0],
                }
                for flight in group
            ],
        }
        for group in groups
    ]


def restored(trainer: Any, saved: list[dict[str, Any]]) -> Groups:
    """The groups that a checkpoint kept: what was said to their answers is asked of `next_message` again.

    Those that read otherwise now, as the data or a `next_message` that draws differ, are left out with a warning, and
    so are those of groups of another size.
    """
    size, count = trainer.num_generations, len(trainer.train_dataset)
    fits = [each for each in saved if each["place"] < count and len(each["flights"]) == size]
    rows = [numbered(trainer.train_dataset, each["place"]) for each in fits for _ in range(size)]
    groups = _begun(trainer, trainer._prepared(rows)) if rows else []
    for group, each in zip(groups, fits, strict=True):
        for flight, said in zip(group, each["flights"], strict=True):
            flight.begun, flight.ended = each["begun"], said["ended"]
            for ids, logprobs in said["answers"]:
                add_turns(trainer, [flight.trajectory], [ids], [logprobs])
            flight.ids, flight.logprobs = said["going_on"]
    same = [
        group
        for group, each in zip(groups, fits, strict=True)
        if [flight.prompts()[0] for flight in group] == [said["read"] for said in each["flights"]]
    ]
    if len(same) < len(saved):
        logger.warning(
            f"{type(trainer).__name__}: of {len(saved)} questions whose answers waited in the checkpoint "
            f"{len(saved) - len(same)} read otherwise now, and others are asked in their place. Resume with the same "
            "data, num_generations, processor and next_message to go on with them."
        )
    return same


def _begun(trainer: Any, rows: list[dict[str, Any]]) -> Groups:
    """Groups of which nothing is said yet."""
    trainer._rows, trainer._sampled = rows, list(enumerate(rows))
    begin(trainer, trainer._prompts_of(rows))
    unexpanded = trainer.vllm_generation.prompts.unexpanded if trainer.vllm_mode == "colocate" else lambda ids, _: ids
    flights = [
        Flight(row, each, unexpanded(each.prompt.ids, len(each.images)), begun=trainer._rollouts)
        for row, each in zip(rows, trainer.trajectories, strict=True)
    ]
    return [flights[first : first + trainer.num_generations] for first in range(0, len(rows), trainer.num_generations)]


def _fly(trainer: Any, groups: Groups, needed: int) -> None:
    """Let conversations go on until an update can be made of them."""
    enough = partial(is_enough, groups, needed, trainer._rollouts, trainer.args.oversampling_max_age)
    if trainer.vllm_mode == "server":
        _fly_served(trainer, groups, enough)
    elif not enough():
        _fly_colocated(trainer, groups, enough)
    else:  # in the rollout before several have ended at once
        trainer.vllm_generation.let_sleep()


def _open(trainer: Any, groups: Groups) -> list[Flight]:
    """The conversations that go on; from here on the trainer knows each by its place among them."""
    flights = [flight for group in groups for flight in group if not flight.ended]
    for place, flight in enumerate(flights):
        flight.trajectory.place = place
    trainer._sampled = [(place, flight.row) for place, flight in enumerate(flights)]
    return flights


def _answered(trainer: Any, flights: Sequence[Flight]) -> None:
    """Add answers that have ended to their conversations, with what is said to them."""
    said = [flight.ids for flight in flights], [flight.logprobs for flight in flights]
    going = {each.place for each in add_turns(trainer, [flight.trajectory for flight in flights], *said)}
    trainer._tell_ended([flight.trajectory.place for flight in flights], said[0])
    for flight in flights:
        flight.ids, flight.logprobs = [], []
        flight.ended = flight.trajectory.place not in going


def _fly_colocated(trainer: Any, groups: Groups, enough: Callable[[], bool]) -> None:
    """With a vLLM of this process, which is stopped as soon as there is enough."""
    flights = _open(trainer, groups)

    def reply(answers: Mapping[int, tuple[list[int], list[float | None]]]) -> dict[int, NextTurn]:
        """Add answers that have ended, and say what comes after them."""
        for place, (ids, logprobs) in answers.items():
            leave(place, ids, logprobs)
        _answered(trainer, [flights[place] for place in answers])
        return {place: flights[place].trajectory.said[-1] for place in answers if not flights[place].ended}

    def leave(place: int, ids: list[int], logprobs: list[float | None]) -> None:
        """Keep what has been said of an answer."""
        flights[place].ids = [*flights[place].ids, *ids]
        flights[place].logprobs = [*flights[place].logprobs, *logprobs]

    trainer.vllm_generation.generate_until(
        [flight.prompts() for flight in flights],
        [list(flight.trajectory.images) for flight in flights],  # to which later messages add
        [len(flight.ids) for flight in flights],
        reply,
        leave,
        enough,
        profiler=profiling_context(trainer, "vLLM.generate"),
    )
    stops = (trainer.args.generation_kwargs or {}).get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    decode = partial(trainer.processing_class.decode, skip_special_tokens=True)
    for flight in flights:
        flight.ids = without_begun_stop(flight.ids, stops, decode)
        flight.logprobs = flight.logprobs[: len(flight.ids)]


def _fly_served(trainer: Any, groups: Groups, enough: Callable[[], bool]) -> None:
    """With a server, which is asked for a part of each answer at a time, until all processes have enough.

    TRL sends the requests of all processes together, as many of each: the spare ones of a process that has fewer are
    thrown away.
    """
    generation, bound = trainer.vllm_generation, trainer.vllm_generation.max_completion_length
    while True:
        flights = _open(trainer, groups)
        lacking = min((bound - len(flight.ids) for flight in flights), default=bound)
        state = torch.tensor([[enough(), len(flights), -lacking]], device=trainer.accelerator.device)
        everyone = trainer.accelerator.gather(state)
        if everyone[:, 0].all():
            return
        most, part = int(everyone[:, 1].max()), min(int(-everyone[:, 2].max()), math.ceil(bound / _PARTS))
        asked = [(each.trajectory.context.extended(each.ids), each.trajectory.images) for each in flights]
        asked += [groups[0][0].trajectory.question] * (most - len(flights))  # shorter than any that has ended
        sampled, trainer._sampled = trainer._sampled, []  # most of these answers have not ended
        with replaced(generation, max_completion_length=part, longest_prompt=generation.context - part):
            ids, logprobs = trainer._generate_single_turn(*joined(*zip(*asked, strict=True)), num_generations=1)
        trainer._sampled = sampled
        for flight, *said in zip(flights, ids, logprobs, strict=False):
            flight.ids, flight.logprobs = [*flight.ids, *said[0]], [*flight.logprobs, *said[1]]
        answered = [
            flight
            for flight, said in zip(flights, ids, strict=False)
            if len(said) < part or said[-1] in trainer.eos_token_ids or len(flight.ids) == bound
        ]
        if answered:
            _answered(trainer, answered)


def _log(trainer: Any, chosen: Groups) -> None:
    """Log how old the chosen answers are, and how long beside those that wait."""
    flights = [flight for group in chosen for flight in group]
    waiting = [flight for group in trainer._waiting for flight in group]
    tokens = sum(flight.tokens for flight in flights)
    ages = [trainer._rollouts - group[0].begun for group in chosen]
    found = {
        "oversampling/older_tokens": sum(flight.trajectory.older_tokens for flight in flights) / max(tokens, 1),
        "oversampling/age": fmean(ages),
        "oversampling/max_age": float(max(ages)),
        "oversampling/waiting_tokens": sum(flight.tokens for flight in waiting) / max(len(waiting), 1),
    }
    means = trainer.accelerator.gather(torch.tensor([[*found.values()]], device=trainer.accelerator.device))
    for (name, _), mean, most in zip(found.items(), means.mean(dim=0), means.amax(dim=0), strict=True):
        trainer._metrics["train"][name].append((most if name.endswith("max_age") else mean).item())


def why_not_oversampled(trainer: Any) -> str | None:
    """Why conversations cannot wait, or why nothing corrects for what they were sampled with."""
    args, colocated = trainer.args, trainer.vllm_mode == "colocate"
    if not trainer.use_vllm or (colocated and args.vllm_tensor_parallel_size > 1):
        return "answers are not sampled by vLLM: by a server, or a colocated one of each process alone"
    if not args.vllm_importance_sampling_correction or args.sampled_as_old:
        return "nothing corrects for older weights (vllm_importance_sampling_correction=True, sampled_as_old=False)"
    if trainer.tools or trainer.environment_factories is not None or trainer.rollout_func not in (None, roll_out):
        return "tools, environments or a rollout of your own cannot wait"
    if (rows := args.per_device_train_batch_size * args.steps_per_generation) % trainer.num_generations:
        return f"a process has {rows} rows of a rollout, no whole groups of num_generations={trainer.num_generations}"
    if args.vllm_structured_outputs_regex or {*(args.generation_kwargs or {})} - (STOPS if colocated else set()):
        return "structured outputs and generation_kwargs, but for stops of a colocated vLLM, would begin anew"
    if args.refill_attempts:
        return "refill_attempts asks other questions within a rollout"
    if not isinstance(trainer.train_dataset, Dataset):
        return "the rows are a stream, from which no others can be drawn"
    return None
