"""Citation of the paper, for model cards."""

from __future__ import annotations

import textwrap

PAPER = {
    "title": "Semi-off-Policy Reinforcement Learning for Vision-Language Slow-thinking Reasoning",
    "id": "2507.16814",
    "citation": textwrap.dedent("""\
        @article{shen2025semioffpolicy,
            title        = {{Semi-off-Policy Reinforcement Learning for Vision-Language Slow-thinking Reasoning}},
            author       = {Junhao Shen and Haiteng Zhao and Yuzhe Gu and Songyang Gao and Kuikun Liu and Haian Huang and Jianfei Gao and Dahua Lin and Wenwei Zhang and Kai Chen},
            year         = 2025,
            eprint       = {arXiv:2507.16814},
        }"""),  # noqa: E501
}
