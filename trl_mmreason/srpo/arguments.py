"""Arguments of `examples/srpo.py`."""

from __future__ import annotations

from dataclasses import dataclass

from ..documented import documented
from ..scripts import DataArguments
from ..system_prompts import parse_optional_text


@documented
@dataclass
class ReflectionArguments(DataArguments):
    """Questions, and the cold start on reflections.

    Attributes:
        reflection_dataset: rows for the cold start, as `mmreason reflect` makes them: a Hub id or a parquet file;
            "miniature" has them made on drawn problems, by the policy and a teacher of known truth; `None` leaves the
            cold start out, for a policy that had it or for the ablation.
        reflection_problems: for "miniature", how many problems the policy solves.
        reflection_right_share: for "miniature", share of right first answers among the rows.
        sft_complete_share: the cold start ends when this share of responses is in full format; they are sampled by
            the temperature, top-p and top-k of RL.
        sft_min_delta: and when their acc@t2 - acc@t1 is this or more, a fraction: the form is learnt before what a
            reflection says. `None` does not look at it.
        sft_max_steps: and after so many steps in any case.
        sft_learning_rate, sft_batch_size: of the cold start; the batch size is that of each process.
    """

    reflection_dataset: str | None = None
    reflection_problems: int = 1000
    reflection_right_share: float = 0.3
    sft_complete_share: float = 0.95
    sft_min_delta: float | None = None
    sft_max_steps: int = 500
    sft_learning_rate: float = 1e-5
    sft_batch_size: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reflection_dataset = parse_optional_text("reflection_dataset", self.reflection_dataset)
        least = self.sft_min_delta
        known = 0 <= self.sft_complete_share <= 1 and (least is None or -1 <= least <= 1)
        if not known or self.sft_max_steps < 1:
            raise ValueError(
                f"ReflectionArguments: sft_complete_share={self.sft_complete_share}, sft_min_delta={least} and "
                f"sft_max_steps={self.sft_max_steps}, expected a share from 0 to 1, a delta from -1 to 1 and at least "
                "one step."
            )
