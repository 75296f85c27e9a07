"""Self-evolution's entries for shared reports."""

from ..evaluation.curves import Panel
from ..methods import Method

METHOD = Method(
    panels=(
        Panel("Score of the judge", "mean score", {"judge/score": "score"}, is_share=True),
        Panel("Replies without a score", "share of replies", {"judge/neutral": "neutral"}, is_share=True),
        Panel("Majority is the judge's best", "share of groups", {"agreement": "agreement"}, is_share=True),
        Panel("Distinct answers", "answers a question", {"distinct_answers": "distinct answers"}),
    )
)
