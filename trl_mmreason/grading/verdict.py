"""The result of grading."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """The grader's decision.

    Attributes:
        correct: True or False; `None` when the gold answer itself cannot be used, or a judge's reply is missing or
            cannot be read, which must train nothing.
        extracted: the answer that was read off the completion, if there was one.
        reason: one line for a person.
        decided_by: "rules", "judge", "unreadable" (a judge's reply, so that nobody decided), "tolerance" or "text" (a
            benchmark's own comparison), or "size": too large to compare, which makes the answer wrong.
    """

    correct: bool | None
    extracted: str | None
    reason: str
    decided_by: str = "rules"
