"""One step ahead: a vLLM server samples the next rollout while this one is trained on.

With `RolloutConfig.generate_ahead` the server gets the weights when a rollout begins, and samples the rows of the next
one with them. Each rollout but the first is therefore of the weights before the last one was trained on. Its tokens
keep the log-probabilities of those weights, and TRL's importance sampling corrects for the difference.

The main process talks to the server in a thread, for all processes, so that no collective runs beside training's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet  # until Python 3.11 not the built-in one
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Any, NoReturn, TypeVar
from uuid import uuid4

from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset

from ..compat.vllm_client import LOST, ServerLost, leave_waiting_threads
from ..generation.batch import Prompt
from .interruption import end_with_checkpoint
from .rollout import Trajectory, add_turns, begin, roll_out

logger = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 3
"""How often a rollout or weights are sent to a server that is lost in between."""

MESSAGE_SECONDS = 60.0
"""Between two messages that say that training waits."""


@dataclass
class RolloutAhead:
    """A rollout that the server samples.

    Attributes:
        prompts: of the rows as the data set has them.
        rows: of this process, as a rollout reads them.
        trajectories: one per row, without turns until the rollout is taken.
        step: updates behind the weights that sample it.
        answers: the trajectories of all processes with their turns; `None` in other processes than the main one.
        left: whether nobody waits for it any more, and the thread may end.
    """

    prompts: list[Any]
    rows: list[dict[str, Any]]
    trajectories: list[Trajectory]
    step: int
    answers: Future[list[Trajectory]] | None
    left: Event


class Ahead:
    """Rollouts of a trainer that are sampled one ahead; within its context training runs.

    Args:
        trainer: a `GroupGRPOTrainer` that `why_not_ahead` has nothing against.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._flight: RolloutAhead | None = None
        self._weights = ""  # name of those that the server has; "" before the first
        self._run = uuid4().hex
        args = trainer.args
        self._updates = args.steps_per_generation * trainer.num_iterations // args.gradient_accumulation_steps

    def __enter__(self) -> Ahead:
        """Forget what an earlier training had in flight."""
        self._wait()
        self._flight = None
        return self

    def __exit__(self, *_: Any) -> None:
        """Leave what is in flight: it belongs to a rollout that does not come."""
        if self._flight is not None:
            _leave(self._flight)

    def rollout(self, inputs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Trajectory]]:
        """Take the rollout of the data loader's rows, and let the server begin the next one. Every process calls it."""
        trainer, begun = self._trainer, time.monotonic()
        flight = self._flight
        if flight is not None and flight.prompts != [row["prompt"] for row in inputs]:
            raise RuntimeError(
                f"{type(trainer).__name__}: generate_ahead has sampled other rows than the data loader gives next. It "
                "knows the order of TRL's sampler. Fix: generate_ahead=False; where the data set draws its prompts at "
                "random, dataloader_num_workers=0."
            )
        for _ in range(ATTEMPTS):
            if flight is None:
                self._sync()
                flight = self._flight = self._begin(inputs)
            if (why := self._take(flight)) is None:
                break
            flight = self._flight = None
        else:
            self._end(why)
        self._flight = None
        waited = time.monotonic() - begun
        trainer._sampled = list(enumerate(flight.rows))
        _tell_ended(trainer, flight.trajectories)
        self._sync()
        number = trainer.state.global_step // self._updates + 1
        if number * self._updates < trainer.state.max_steps:
            self._flight = self._begin(trainer.rows_of_rollout(number))
        age = trainer.state.global_step - flight.step
        if age:  # what is older is not compared with the present policy
            for each in flight.trajectories:
                each.older_tokens = sum(each.env_mask)
        metrics = trainer._metrics["train"]
        metrics["generate_ahead/age"].append(float(age))
        metrics["generate_ahead/waiting_seconds"].append(waited)
        return flight.rows, flight.trajectories

    def settle(self) -> None:
        """Before an evaluation: wait for what is in flight, and give the server the present weights."""
        self._wait()
        if self._weights or self._flight is not None:
            self._sync()

    def _begin(self, inputs: list[dict[str, Any]]) -> RolloutAhead:
        """Let the server sample a rollout of rows of this process and of the others."""
        trainer = self._trainer
        prompts = [row["prompt"] for row in inputs]
        rows = trainer._prepared(inputs)
        trainer._rows, trainer._sampled = rows, list(enumerate(rows))
        begin(trainer, trainer._prompts_of(rows))
        trainer._grouped = None
        flight = RolloutAhead(prompts, rows, trainer.trajectories, trainer.state.global_step, None, Event())
        talks = trainer.max_turns > 1  # else nobody reads rows
        own = [(each.row if talks else {}, each.prompt.ids, each.images) for each in flight.trajectories]
        everyone = gather_object(own)
        if trainer.accelerator.is_main_process:
            asked = [
                Trajectory(row, place, Prompt(ids, {}, {}), list(images))
                for place, (row, ids, images) in enumerate(everyone)
            ]
            weights = self._weights
            flight.answers = in_background(lambda: self._sampled(asked, weights, flight.left))
        return flight

    def _sampled(self, trajectories: list[Trajectory], weights: str, left: Event) -> list[Trajectory]:
        """In the thread: sample all turns, one after the other for all conversations.

        Raises:
            ServerLost: the server has other weights, before or afterwards.
        """
        trainer = self._trainer
        sent: dict[tuple[int, ...], Any] = {}
        client, sample = trainer.vllm_generation.vllm_client, trainer.vllm_generation.generate_alone
        client.check_weights(weights)
        goes_on, generations = trajectories, trainer.num_generations
        while goes_on and not left.is_set():
            contexts, images = [each.context.ids for each in goes_on], [list(each.images) for each in goes_on]
            goes_on = add_turns(trainer, goes_on, *sample(contexts, images, generations, sent))
            generations = 1
        client.check_weights(weights)
        return trajectories

    def _take(self, flight: RolloutAhead) -> Exception | None:
        """Wait for a rollout and give each process its turns; gives why there are none if the server is lost."""

        def wait() -> list[Any]:
            return [(each.turns, each.said, each.left_no_room) for each in self._waited(flight)]

        said, why = self._of_main(wait)
        if why is not None:
            if self._trainer.accelerator.is_main_process:
                logger.warning("A rollout is lost, and is sampled again: %s", why)
            _leave(flight)
            return why
        first = self._trainer.accelerator.process_index * len(flight.rows)
        for each, (turns, messages, left_no_room) in zip(
            flight.trajectories, said[first : first + len(flight.rows)], strict=True
        ):
            each.turns, each.said, each.left_no_room = turns, messages, left_no_room
            each.images += [image for message in messages for image in message.images]
        return None

    def _waited(self, flight: RolloutAhead) -> list[Trajectory]:
        """In the main process: what a flight's thread has sampled, or its error."""
        generation, client = self._trainer.vllm_generation, self._trainer.vllm_generation.vllm_client
        assert flight.answers is not None
        begun = answered = time.monotonic()
        while True:
            try:
                return flight.answers.result(timeout=MESSAGE_SECONDS)
            except NotYet:
                if flight.answers.done():  # an error of the thread itself
                    raise
            now = time.monotonic()
            answered = now if (up := client.is_up()) else answered
            state = "is at work" if up else f"has not answered for {now - answered:.0f} s"
            logger.warning(
                "Training has waited for %.0f s for a rollout of the vLLM server at %s, which %s.",
                *(now - begun, client.base_url, state),
            )
            if now - answered > generation.server_timeout:
                raise ServerLost(f"the vLLM server at {client.base_url} {state} (vllm_server_timeout)")

    def _wait(self) -> None:
        """Wait until nothing is in flight any more; what came of it is seen when it is taken."""
        if self._flight is not None and self._flight.answers is not None:
            try:
                self._waited(self._flight)
            except Exception:  # noqa: BLE001 - it is raised by `_take`
                return

    def _sync(self) -> None:
        """Give the server the present weights if it has others, also because it was started anew."""
        trainer = self._trainer
        generation, step = trainer.vllm_generation, trainer.state.global_step
        why: Exception | None = None
        for _ in range(ATTEMPTS):
            known, why = self._of_main(self._knows_weights)
            if why is not None:
                break
            if known and trainer._last_loaded_step == step:
                return
            name = f"{self._run}, {step} updates"
            error: Exception | None = None
            try:
                if trainer.accelerator.is_main_process:
                    with generation.vllm_client.naming_weights(name):
                        generation.sync_weights()
                else:
                    generation.sync_weights()
            except LOST as lost:
                error = lost
            _, why = self._of_main(partial(_raise, error))
            if why is None:
                self._weights, trainer._last_loaded_step = name, step
                return
        self._end(why)

    def _knows_weights(self) -> bool:
        """In the main process: wait for the server, and see whether it still has the weights that it was sent."""
        trainer = self._trainer
        generation, client = trainer.vllm_generation, trainer.vllm_generation.vllm_client
        client.wait_until_up(generation.server_timeout)
        found = client.weights_name()
        if found == self._weights:
            return True
        if self._weights:
            logger.warning(
                "The vLLM server at %s has the weights %r instead of %r: it was started anew, and is sent them again.",
                *(client.base_url, found, self._weights),
            )
            client.close_communicator()
            client.init_communicator(device=trainer.accelerator.device)
        return False

    def _of_main(self, work: Callable[[], T]) -> tuple[T, Exception | None]:
        """What the main process finds, in all processes, and the error if the server is lost; others are raised."""
        found: list[Any] = [None, None]
        own: Exception | None = None
        if self._trainer.accelerator.is_main_process:
            try:
                found[0] = work()
            except LOST as error:
                found[1] = ServerLost(str(error))
            except Exception as error:  # noqa: BLE001 - raised below, in all processes
                own, found[1] = error, f"{type(error).__name__}: {error}"
        broadcast_object_list(found)
        if own is not None:
            raise own
        if isinstance(found[1], str):
            raise RuntimeError(f"the main process ended with {found[1]}")
        return found[0], found[1]

    def _end(self, why: Exception | None) -> NoReturn:
        end_with_checkpoint(self._trainer, f"{why}. Fix: start the server again")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread that no process waits for at its end."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asks for the result
            future.set_exception(error)

    Thread(target=run, name="generate_ahead", daemon=True).start()
    return future


def _leave(flight: RolloutAhead) -> None:
    """Let a flight's thread end after its turn, and the process at any time."""
    flight.left.set()
    if flight.answers is not None and not flight.answers.done():
        leave_waiting_threads()


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _tell_ended(trainer: Any, trajectories: Sequence[Trajectory]) -> None:
    """Let grading of all answers begin, turn after turn, beside what comes before the rewards."""
    for turn in range(trainer.max_turns):
        there = [each for each in trajectories if len(each.turns) > turn]
        trainer._tell_ended([each.place for each in there], [each.turns[turn].ids for each in there])


def why_not_ahead(trainer: Any) -> str | None:
    """Why nothing corrects for older weights, or why rollouts are not those of a server."""
    args = trainer.args
    micro_batches = args.steps_per_generation * trainer.num_iterations
    if not trainer.use_vllm or trainer.vllm_mode != "server":
        return "answers are not sampled by a vLLM server (use_vllm, vllm_mode='server')"
    if not args.vllm_importance_sampling_correction or args.sampled_as_old:
        return "nothing corrects for older weights (vllm_importance_sampling_correction=True, sampled_as_old=False)"
    if trainer.tools or trainer.environment_factories is not None or trainer.rollout_func not in (None, roll_out):
        return "tools, environments or a rollout of your own are not sampled ahead"
    if args.oversampling or args.refill_attempts:
        return "oversampling and refill_attempts ask other questions than the next ones"
    if micro_batches % args.gradient_accumulation_steps:
        return (
            f"a rollout of {micro_batches} micro-batches ends amid an update of {args.gradient_accumulation_steps} "
            "(steps_per_generation, gradient_accumulation_steps)"
        )
    if args.ignore_data_skip:
        return "with ignore_data_skip a resumed run has another order of rows"
    if not isinstance(trainer.train_dataset, Dataset):
        return "the rows are a stream, whose next ones are not known"
    return None
