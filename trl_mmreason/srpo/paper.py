"""Citation of the paper, for model cards."""

from __future__ import annotations

import textwrap

PAPER = {
    "title": "SRPO: Enhancing Multimodal LLM Reasoning via Reflection-Aware Reinforcement Learning",
    "id": "2506.01713",
    "citation": textwrap.dedent("""\
        @article{wan2025srpo,
            title        = {{SRPO: Enhancing Multimodal LLM Reasoning via Reflection-Aware Reinforcement Learning}},
            author       = {Zhongwei Wan and Zhihao Dou and Che Liu and Yu Zhang and Dongfei Cui and Qinjian Zhao and Hui Shen and Jing Xiong and Yi Xin and Yifan Jiang and Yangfan He and Mi Zhang and Shen Yan},
            year         = 2025,
            eprint       = {arXiv:2506.01713},
        }"""),  # noqa: E501
}
