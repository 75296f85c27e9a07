"""SOPHIA's recipe: its paper and system prompt, what a miniature learns from, and the example's arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evaluation.methods import Method, cite
from ..generation.engine import Engine, SamplingParams
from ..jobs.store import Store
from ..miniature.captions import DESCRIBE
from ..miniature.lessons import Lessons
from ..miniature.reasoner import RuleReasoner, ask_miniature
from ..miniature.solutions import plain
from ..miniature.tasks import Problem, problems_dataset
from ..scripts.sections import StagedArguments, optional_section, setting_faults
from ..scripts.system_prompts import parse_optional_text, read_optional_text
from ..training.documented import documented
from .prompts import THINKING_PROMPT
from .sampling import OffPolicyData, OffPolicySampling, make_off_policy_data

if TYPE_CHECKING:
    from ..generation.transformers_engine import TransformersEngine

PAPER = cite(
    "article{shen2025semioffpolicy",
    "Semi-off-Policy Reinforcement Learning for Vision-Language Slow-thinking Reasoning",
    arxiv="2507.16814",
    author="Junhao Shen and Haiteng Zhao and Yuzhe Gu and Songyang Gao and Kuikun Liu and Haian Huang and Jianfei Gao "
    "and Dahua Lin and Wenwei Zhang and Kai Chen",
    year="2025",
)
METHOD = Method(system_prompts={"sophia": THINKING_PROMPT})

CAPTIONS_AND_ANSWERS = Lessons(plain, answer_tokens=16, in_steps=True, describe=DESCRIBE, answers_every=4)
r"""To describe an image ("The first digit is 3. The second digit is 4.") and to answer `3+4=\boxed{7}`.

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
        problems: are reasoned about.
        replies: the file that keeps every caption and trajectory.
        reasoner: by default the rule that knows the problems, and slips and rambles at known rates.
        caption_tokens, tokens: bounds of a caption and of a trajectory.
        **sampling: fields of `OffPolicySampling`.

    Raises:
        ValueError: no trajectory earned anything.
    """
    from ..compat.chat_template import token_counter  # imported late: reports do not need transformers

    bounds = {"caption_sampling_params": SamplingParams(caption_tokens), "sampling_params": SamplingParams(tokens)}
    drawing = OffPolicySampling(**{"caption_prompt": DESCRIBE, "reason": ask_miniature, **bounds, **sampling})
    options: dict[str, Any] = {"count_tokens": token_counter(policy.processing_class), "batch_size": batch_size}
    reasoner = RuleReasoner(problems) if reasoner is None else reasoner
    with Store(replies) as store:
        data = make_off_policy_data(problems_dataset(problems), policy, reasoner, store, drawing, **options)
    if not len(data.rows):
        raise ValueError(f"SOPHIA: there is nothing to learn from: {data}. Give the policy a longer warm-up.")
    return data


# Those have arguments of their own, or no form in a file.
_NOT_IN_SAMPLING = ("reason", "caption_sampling_params", "sampling_params", "thinking_prompt")
_REINFORCED = (
    *("difficulty", "thinking_prompt", "judge_model"),
    *("max_completion_length", "dataset_name", "train_rows"),
)


@documented
@dataclass
class SophiaArguments(StagedArguments):
    """Questions, captions, trajectories, and the settings of each stage.

    Attributes:
        output_dir: output folder.
        max_completion_length: token limit of an answer, in GRPO and when accuracy is measured.
        thinking_prompt: system message of rows that think in tags, of GRPO and of the comparison; null for none, and by
            default the paper's (Fig. A4).
        warm_up_dataset: rows with prompt, images and completion (captions, general questions): a Hub id or a parquet
            file. Without it the policy starts as it is; a miniature one has been taught to describe and to answer.
        trajectory_dataset: rows as `mmreason trajectories` makes them; "miniature" has them sampled here.
        reasoner: for the miniature, "model" for a tiny language model, or "rule" for the rule that taught it.
        drawn_problems: for the miniature, how many problems the reasoner thinks about.
        sampling: for the miniature, fields of `OffPolicySampling`, such as captions and rule, and caption_tokens and
            tokens, bounds of a caption and of a trajectory. captions_as_data reads its caption_prompt for files too:
            what `mmreason trajectories` was given, if not the paper's.
        mixed_in: name → `dataset` and `share` of the rows of general data that are mixed in; null for none.
        captions_as_data: "none"; "beside" learns the captions of reward 1 as rows of their own, "before" writes them
            before their trajectories (Table A2). Captions take their share of the rows that are not mixed in.
        warm_up, update: fields of `OffPolicyRewardConfig`; the warm-up has rewards of 1.
        grpo: fields of `MixedGroupsGRPOConfig`, of both stages of GRPO.
        difficulty: n, low and high of the questions that GRPO keeps; with n 0 it keeps all, as where `mmreason
            prefilter --rule share` has selected them, which can ask a server.
        evaluation: fields of `SamplingParams`, when accuracy is measured.
    """

    STAGES = {
        "warm_up": "warm_up/model",
        "trajectories": "trajectories.parquet",
        "update": "update/model",
        "grpo": "grpo/model",
        "base_grpo": "base_grpo/model",
    }
    READS = {
        "warm_up": ("warm_up_dataset", "cold_start_accuracy", "dataset_name"),
        "trajectories": ("trajectory_dataset", "reasoner", "drawn_problems", "sampling", "thinking_prompt"),
        "update": ("mixed_in", "captions_as_data", "sampling", "thinking_prompt"),
        "grpo": _REINFORCED,
        "base_grpo": ("grpo", *_REINFORCED),
    }
    ASKING = ("grpo", "base_grpo")
    SECTIONS = {
        "warm_up": "OffPolicyRewardConfig",
        "sampling": (
            *(each.name for each in fields(OffPolicySampling) if each.name not in _NOT_IN_SAMPLING),
            *("caption_tokens", "tokens"),
        ),
        "update": "OffPolicyRewardConfig",
        "grpo": "MixedGroupsGRPOConfig",
        "difficulty": ("n", "low", "high"),
        "evaluation": SamplingParams,
    }

    output_dir: str = "runs/sophia"
    max_completion_length: int = 1024
    thinking_prompt: str | None = THINKING_PROMPT
    warm_up_dataset: str | None = None
    trajectory_dataset: str = "miniature"
    reasoner: str = "model"
    drawn_problems: int = 500
    sampling: dict = field(default_factory=dict)
    mixed_in: dict | str | None = field(default_factory=dict)
    captions_as_data: str = "none"
    warm_up: dict = field(default_factory=dict)
    update: dict = field(default_factory=dict)
    grpo: dict = field(default_factory=dict)
    difficulty: dict = field(default_factory=dict)
    evaluation: dict = field(default_factory=dict)

    def unknown_settings(self) -> Iterator[tuple[str, str, str]]:
        yield from super().unknown_settings()
        for name, one in self.mixed_in.items():  # type: ignore[union-attr]  # a dict since __post_init__
            if isinstance(one, dict):
                yield from ((f"mixed_in.{name}", *fault) for fault in setting_faults(one, ("dataset", "share")))
            else:
                yield "mixed_in", name, f"got {one!r}, expected `dataset` and `share`; --mixed_in null mixes nothing in"

    def __post_init__(self) -> None:
        from .mixture import CAPTIONS_AS_DATA  # imported late: it imports TRL

        super().__post_init__()
        self.mixed_in = optional_section("mixed_in", self.mixed_in, "names with `dataset` and `share`")
        self.thinking_prompt = read_optional_text("thinking_prompt", self.thinking_prompt)
        self.warm_up_dataset = parse_optional_text("warm_up_dataset", self.warm_up_dataset)
        for name, known in (("reasoner", ("model", "rule")), ("captions_as_data", CAPTIONS_AS_DATA)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}, expected one of {', '.join(known)}.")
