"""Citation of the paper, for model cards."""

from __future__ import annotations

import textwrap

PAPER = {
    "title": "Unveiling Chain of Step Reasoning for Vision-Language Models with Fine-grained Rewards",
    "id": "2509.19003",
    "citation": textwrap.dedent("""\
        @article{chen2025unveiling,
            title        = {{Unveiling Chain of Step Reasoning for Vision-Language Models with Fine-grained Rewards}},
            author       = {Honghao Chen and Xingzhou Lou and Xiaokun Feng and Kaiqi Huang and Xinlong Wang},
            year         = 2025,
            eprint       = {arXiv:2509.19003},
        }"""),
}
