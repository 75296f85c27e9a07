"""Adapter from an engine to a judge's chat: one reply to each conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .engine import Engine, Failure, Request, SamplingParams


@dataclass(frozen=True)
class Chat:
    """`JudgeGrader(Chat(engine))`.

    Attributes:
        engine: engine that replies.
        sampling_params: sampling parameters; greedy by default, as the same question should get the same judgement.
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
