"""Citation of the paper, for model cards."""

from __future__ import annotations

import textwrap

PAPER = {
    "title": "When Models Judge Themselves: Unsupervised Self-Evolution for Multimodal Reasoning",
    "citation": textwrap.dedent("""\
        @misc{judgethemselves,
            title        = {{When Models Judge Themselves: Unsupervised Self-Evolution for Multimodal Reasoning}},
            howpublished = {Anonymous ACL submission},
        }"""),
}
