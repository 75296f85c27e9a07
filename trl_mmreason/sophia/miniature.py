"""Lessons that prepare a miniature policy for SOPHIA, and trajectories by a reasoner with known error rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..miniature.captions import DESCRIBE
from ..miniature.lessons import Lessons
from ..miniature.reasoner import RuleReasoner, ask_miniature
from ..miniature.solutions import plain
from ..miniature.tasks import Problem, problems_dataset
from ..sampling.engine import Engine, SamplingParams
from ..sampling.store import Store
from ..sampling.transformers_engine import TransformersEngine
from ..turns import token_counter
from .sampling import OffPolicyData, OffPolicySampling, make_off_policy_data

CAPTIONS_AND_ANSWERS = Lessons(plain, answer_tokens=16, in_steps=True, describe=DESCRIBE, answers_every=4)
r"""To describe a picture ("The first digit is 3. The second digit is 4.") and to answer `3+4=\boxed{7}`.

Captions are mostly right by the time that half the answers are."""


def drawn_trajectories(
    policy: TransformersEngine,
    problems: Sequence[Problem],
    replies: Path,
    *,
    reasoner: Engine | None = None,
    caption_tokens: int,
    tokens: int,
    batch_size: int,
    **sampling: Any,
) -> OffPolicyData:
    """Make training rows: the policy describes drawn problems, a reasoner answers, the best trajectories are kept.

    Args:
        policy: describes.
        problems: are reasoned about.
        replies: the file that keeps every caption and trajectory.
        reasoner: by default the rule that knows the problems, and slips and rambles at known rates.
        caption_tokens, tokens: bounds of a caption and of a trajectory.
        batch_size: replies asked for at once.
        **sampling: fields of `OffPolicySampling`.

    Raises:
        ValueError: no trajectory earned anything.
    """
    bounds = {"caption_sampling_params": SamplingParams(caption_tokens), "sampling_params": SamplingParams(tokens)}
    drawing = OffPolicySampling(**{"caption_prompt": DESCRIBE, "reason": ask_miniature, **bounds, **sampling})
    options: dict[str, Any] = {"count_tokens": token_counter(policy.processing_class), "batch_size": batch_size}
    reasoner = RuleReasoner(problems) if reasoner is None else reasoner
    with Store(replies) as store:
        data = make_off_policy_data(problems_dataset(problems), policy, reasoner, store, drawing, **options)
    if not len(data.rows):
        raise ValueError(f"SOPHIA: there is nothing to learn from: {data}. Give the policy a longer warm-up.")
    return data
