"""Stop the cold start when the format is learnt and reflections improve answers."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, ProcessorMixin, TrainerControl, TrainerState

from ..compat.sharding import is_sharded
from ..evaluation.runner import evaluate
from ..generation.engine import Failure, SamplingParams
from ..generation.protocols import last_verdict
from ..generation.transformers_engine import TransformersEngine
from ..messages import completion_text
from ..training.stop_at_accuracy import StopAtAccuracy
from .config import SRPOConfig
from .protocols import Reflection
from .response import parse_reflection_response, problem_but_second_think

logger = logging.getLogger(__name__)

_EVERY_STEPS = 10

SAMPLING = ("temperature", "top_p", "top_k")
"""Settings of `GRPOConfig` by which the responses to measure are sampled."""


class Learnt(NamedTuple):
    """Measures of a cold start's progress.

    Attributes:
        complete: share of responses in the format.
        delta: acc@t2 − acc@t1, a missing answer counted as not right.
    """

    complete: float
    delta: float

    def __str__(self) -> str:
        return f"{self.complete:.0%} of the sampled responses complete, acc@t2 - acc@t1 {100 * self.delta:+.0f} points"


def have_second_think(rows: Dataset) -> bool:
    """Whether any completion has a second `<think>`, which the paper's template lacks."""
    return any(
        parse_reflection_response(completion_text(each, "completion")).second_think for each in rows["completion"]
    )


def learnt(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    dataset: Dataset,
    args: SRPOConfig,
    second_think: bool = True,
) -> Learnt:
    """Measure a cold start on one sampled response a row, with the temperature, top-p and top-k of reinforcement.

    Args:
        dataset: questions with answers; those whose gold answer cannot be used do not count.
        args: sampling settings (`SAMPLING`) and system prompt.
        second_think: the format has a second `<think>`; off where the cold start's rows have none.
    """
    assert args.max_completion_length is not None  # SRPOConfig always sets it
    protocol, size, template = Reflection(), args.per_device_eval_batch_size, args.chat_template_kwargs
    samples = evaluate(
        dataset,
        TransformersEngine(model, processing_class, batch_size=size, chat_template_kwargs=template),
        None,
        protocol,
        sampling_params=SamplingParams(args.max_completion_length, args.temperature, args.top_p, args.top_k or 0),
        batch_size=size,
        system_prompt=args.reflection_prompt,
        seed=args.seed,
        description="sampling responses",
    )
    complete, gains = [], []
    for (response,) in samples.samples:
        if isinstance(response, Failure):
            complete.append(False)
            gains.append(0.0)
        elif (second := last_verdict(response, protocol.turns)) is not None:
            text = " ".join(turn["text"] for turn in response["turns"])
            problem = response.get("problem") if second_think else problem_but_second_think(text)
            complete.append(problem is None)
            gains.append(float(second) - float(response["turns"][0]["correct"]))
    return Learnt(float(np.mean(complete)), float(np.mean(gains)))


class StopWhenReflecting(StopAtAccuracy):
    """Ends the cold start when sampled responses are complete and second answers beat first ones by a margin.

    Reinforcement that begins before unlearns the second answer, or never learns to reflect. Training that ends below
    the targets is warned about.

    Args:
        questions: rows that the policy answers, once each.
        complete_share: share of responses in the format.
        min_delta: acc@t2 − acc@t1, a fraction; `None` does not look at it.
        second_think: as for `learnt`; see `have_second_think`.
    """

    def __init__(
        self,
        processing_class: ProcessorMixin,
        questions: Dataset,
        args: SRPOConfig,
        *,
        complete_share: float,
        min_delta: float | None = None,
        second_think: bool = True,
    ) -> None:
        super().__init__(self._complete_share, complete_share, _EVERY_STEPS)
        self._sample = partial(
            learnt, processing_class=processing_class, dataset=questions, args=args, second_think=second_think
        )
        self.min_delta = -1.0 if min_delta is None else min_delta
        others = {"min_p": args.min_p, "repetition_penalty": args.repetition_penalty != 1.0}
        left_out = [name for name, value in {**others, **(args.generation_kwargs or {})}.items() if value]
        if left_out:
            logger.warning(
                f"SRPO's cold start is measured with {', '.join(SAMPLING)} only; {', '.join(left_out)} of "
                "reinforcement have no effect there."
            )
        self.learnt = Learnt(0.0, -1.0)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if is_sharded(kwargs["model"]):
            raise ValueError(
                "SRPO's cold start samples answers during training, and under ZeRO-3 or FSDP no process has the whole "
                "policy. Use DDP or ZeRO-2; or train the cold start by itself with `mmreason train reflection_sft`, "
                "which samples nothing, and give its folder as model_name_or_path, and no reflection_dataset."
            )

    def _complete_share(self, model: PreTrainedModel) -> float:
        """The share of complete responses; 0 while second answers are not good enough."""
        self.learnt = self._sample(model)
        return self.learnt.complete if self.learnt.delta >= self.min_delta else 0.0

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        super().on_train_end(args, state, control, model, **kwargs)  # raises nothing, as there is no advice
        if self.accuracy < self.target and state.is_world_process_zero:
            logger.warning(
                f"SRPO's cold start: {self.learnt} after {state.global_step} steps, expected {self.target:.0%} and "
                f"{100 * self.min_delta:+.0f} or more. Reinforcement may unlearn the second answer. Raise the number "
                "of steps or the learning rate, or give the cold start more rows."
            )
