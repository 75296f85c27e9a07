"""AdaPO's entries for shared reports."""

from ..evaluation.curves import Panel
from ..methods import Method

METHOD = Method(
    panels=(
        Panel("KL to the reference", "nats per token", {"kl_t1": "first turn", "kl_t2": "second turn"}),
        Panel("KL coefficient β", "coefficient", {"beta_1": "β1, first turn", "beta_2": "β2, second turn"}),
        Panel("Length", "tokens", {"length_t1": "first turn", "length_t2": "second turn"}),
        Panel(
            "Dropped by the filters",
            "share",
            {"dropped_truncated": "truncated", "dropped_zero_advantage": "zero advantage"},
            is_share=True,
        ),
    )
)
