"""Interface of engines: conversations with images in, sampled answers out."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from numbers import Integral, Real
from typing import Any, Literal, Protocol

import PIL.Image

from ..replies import Failure as Failure
from ..replies import UnsuitableEngine as UnsuitableEngine


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of answers.

    Attributes:
        max_new_tokens: token limit of an answer; one that reaches it ends with finish reason "length".
        temperature: 0 is greedy.
        top_p: the smallest set of tokens with this share of the probability; 1 is all.
        top_k: the most probable tokens; 0 is all.
        stop: an answer ends after the first of these strings, which stays in it.
        logprobs: whether to return each token's log-probability, under the model itself (temperature 1, all tokens).
    """

    max_new_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    logprobs: bool = False

    def __post_init__(self) -> None:
        rules: dict[str, tuple[Any, float, float, str]] = {
            "max_new_tokens": (Integral, 1, inf, "an integer ≥ 1"),
            "temperature": (Real, 0, sys.float_info.max, "a number ≥ 0"),
            "top_p": (Real, sys.float_info.min, 1, "a number above 0 and at most 1"),
            "top_k": (Integral, 0, inf, "an integer ≥ 0"),
        }
        for name, (kind, least, most, expected) in rules.items():
            value = getattr(self, name)
            if (
                not isinstance(value, kind) or isinstance(value, bool) or not least <= value <= most
            ):  # NaN is in no range
                raise ValueError(f"SamplingParams: {name}={value!r}, expected {expected}.")
        if isinstance(self.stop, str):  # each of its characters would be a stop string
            raise ValueError(f"SamplingParams: stop={self.stop!r}, expected a tuple of strings.")


@dataclass(frozen=True)
class Request:
    """One conversation to answer.

    Attributes:
        messages: role and content of each message, the last one the user's. The content is text, or after an answer
            parts that may hold images.
        images: one for each `<image>` in the texts of users, or for each part {"type": "image"}; if there are not as
            many of these, put before the first user message, as TRL does.
        prefix: what the assistant has said already; answers continue it and do not repeat it.
        n: number of answers.
        seed: answer k of the same request with the same seed is the same, whatever else is asked at the same time.
            (vLLM and servers promise less: the same for the same server under the same load.)
        answer_ids: the assistant's last answers among `messages` as they were sampled, in tokens with their end of
            turn, each followed by one message of the user. An engine that takes tokens shows the policy these, as
            training does; a chat endpoint takes text alone and renders `messages`.
    """

    messages: Sequence[Mapping[str, Any]]
    images: Sequence[PIL.Image.Image] = ()
    prefix: str = ""
    n: int = 1
    seed: int = 0
    answer_ids: Sequence[Sequence[int]] = ()

    @property
    def first_messages(self) -> Sequence[Mapping[str, Any]]:
        """The messages before the first answer of `answer_ids`."""
        return self.messages[: len(self.messages) - 2 * len(self.answer_ids)]

    @property
    def next_messages(self) -> Sequence[Mapping[str, Any]]:
        """The user's messages after the answers of `answer_ids`."""
        return self.messages[len(self.first_messages) + 1 :: 2]

    def __post_init__(self) -> None:
        if self.n < 1 or not self.messages:
            raise ValueError(
                f"Request: got n={self.n} and {len(self.messages)} messages, expected at least one of each."
            )
        behind = [message["role"] for message in self.messages[len(self.first_messages) :]]
        if not self.first_messages or behind != ["assistant", "user"] * len(self.answer_ids):
            raise ValueError(
                f"Request: got {len(self.answer_ids)} answers in tokens, and messages of "
                f"{[message['role'] for message in self.messages]}; expected a prompt, followed by a message of the "
                "assistant and one of the user for each."
            )


@dataclass(frozen=True)
class Sample:
    """One answer; `token_ids` and `logprobs` if the engine provides them, else maybe `counted_tokens`."""

    text: str
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = field(default=None, repr=False)
    logprobs: list[float] | None = field(default=None, repr=False)
    counted_tokens: int | None = field(default=None, repr=False, compare=False)

    @property
    def tokens(self) -> int | None:
        """Number of tokens, including a sampled end of turn; `None` if the engine does not report it."""
        per_token = self.logprobs if self.token_ids is None else self.token_ids  # both have one entry per token
        return self.counted_tokens if per_token is None else len(per_token)


class Engine(Protocol):
    """Turns conversations into answers."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines this engine's answers, as JSON: kind, model, precision … ; no secrets."""
        ...

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Sample n answers to each request, in order. A faulty request gets a `Failure`; a fault of the engine itself
        (no connection, no memory) raises."""
        ...


@dataclass(frozen=True)
class Chat:
    """An engine as the chat of a judge, with one reply per conversation: `JudgeGrader(Chat(engine))`.

    Attributes:
        engine: engine that replies.
        sampling_params: greedy by default, as the same question should get the same judgement.
    """

    engine: Engine
    sampling_params: SamplingParams = SamplingParams(max_new_tokens=512, temperature=0.0)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the replies."""
        return {"engine": self.engine.settings, "sampling_params": asdict(self.sampling_params)}

    @property
    def works_elsewhere(self) -> bool:
        """Whether the engine runs in another process."""
        return getattr(self.engine, "works_elsewhere", False)

    def __call__(self, conversations: Sequence[list[dict[str, str]]]) -> list[str | Failure]:
        """Reply to each conversation, or say why there is no reply."""
        replies = self.engine.sample([Request(conversation) for conversation in conversations], self.sampling_params)
        return [reply if isinstance(reply, Failure) else reply[0].text for reply in replies]


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on these parts only: `derive_seed(seed, row id, index)`."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1
