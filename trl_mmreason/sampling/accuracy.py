"""Accuracy of a policy during training."""

from __future__ import annotations

from datasets import Dataset
from transformers import PreTrainedModel, ProcessorMixin

from .answering import answer_in_memory
from .engine import Failure, SamplingParams
from .protocols import Direct, last_verdict


def greedy_accuracy(
    model: PreTrainedModel, processing_class: ProcessorMixin, rows: Dataset, *, max_new_tokens: int, batch_size: int
) -> float:
    """Accuracy of a policy during training, with one greedy answer a row.

    A row whose gold answer cannot be used does not count; NaN if none can be used. An answer that failed is wrong.
    """
    from .transformers_engine import TransformersEngine  # here: it loads the models' libraries

    engine = TransformersEngine(model, processing_class, batch_size=batch_size)
    greedy = SamplingParams(max_new_tokens, temperature=0.0)
    samples = answer_in_memory(rows, engine, Direct(), sampling_params=greedy, batch_size=batch_size)
    verdicts = [False if isinstance(one, Failure) else last_verdict(one, 1) for (one,) in samples]
    known = [verdict for verdict in verdicts if verdict is not None]
    return sum(known) / len(known) if known else float("nan")
