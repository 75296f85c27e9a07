"""Protocol of a reasoner that never sees the image (arXiv:2507.16814, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..generation.engine import Engine, Failure, SamplingParams, UnsuitableEngine
from ..generation.protocols import Answered, Direct, RowSample
from ..jobs.store import Store
from ..messages import question_text


@dataclass(frozen=True)
class FromCaption:
    """Ask question and caption, and take one answer; a cut answer has no final answer, whatever its boxes.

    Rows have, beside question and gold answer, `question` (the question's id) and `caption` (which of its captions).

    Attributes:
        store: holds the captions.
        stage: stage of the captions in the store.
        reason: question, caption → what the reasoner is asked.
    """

    store: Store
    stage: str
    reason: Callable[[str, str], str]
    turns = 1

    @property
    def settings(self) -> dict[str, Any]:
        return {"name": "from-caption", "prompt": self.reason("{question}", "{caption}")}

    def answer(
        self, units: Sequence[RowSample], engine: Engine, sampling_params: SamplingParams, seed: int
    ) -> Sequence[Answered | Failure]:
        caption_ids = dict.fromkeys((row["question"], row["caption"]) for row, _ in units)
        records = self.store.find(self.stage, caption_ids)
        captions = {(record.id, record.index): record.payload["turns"][0]["text"] for record in records}
        reasoning_units = []
        for row, index in units:
            message = self.reason(question_text(row["prompt"]), captions[row["question"], row["caption"]])
            reasoning_units.append(({"id": row["id"], "prompt": [{"role": "user", "content": message}]}, index))
        answers = Direct(grades_cut=False).answer(reasoning_units, engine, sampling_params, seed)
        if sampling_params.logprobs and any(not isinstance(one, Failure) and one.logprobs is None for one in answers):
            raise UnsuitableEngine(
                "make_off_policy_data: sampling_params.logprobs is True, and the reasoner's engine gives no "
                f"log-probabilities ({engine.settings}). Take one that does, or sample with logprobs=False."
            )
        return answers
