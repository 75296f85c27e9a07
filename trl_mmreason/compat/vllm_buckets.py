"""Hand weights to vLLM in buckets.

TRL calls the `load_weights` of a colocated vLLM once for each weight, and each call lists all parameters of vLLM's
model anew. A bucket is one call. Sharded weights are gathered a bucket at a time (`sharding.whole_buckets`), and freed
when vLLM has loaded them: the memory of one bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from .replaced import replaced

BUCKET = 256 * 2**20
"""Bytes of weights after which a bucket is handed over."""


class Buckets:
    """Collects weights, and loads them when they are a bucket.

    Args:
        load: vLLM's `load_weights`, or what sends a bucket to a server.
        copies: whether the memory of a weight is given away when the next one comes.
        most: bytes of a bucket; a larger weight is one of its own.
    """

    def __init__(self, load: Callable[[list[tuple[str, Tensor]]], Any], *, copies: bool, most: int = BUCKET) -> None:
        self.load, self.copies, self.most = load, copies, most
        self.weights: list[tuple[str, Tensor]] = []

    def add(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take weights as `load_weights` does."""
        for name, weight in weights:
            if weight.nbytes + sum(each.nbytes for _, each in self.weights) > self.most:
                self.flush()
            self.weights.append((name, weight.clone() if self.copies else weight))

    def flush(self) -> None:
        """Load what has been collected."""
        weights, self.weights = self.weights, []
        if weights:
            self.load(weights)


@contextmanager
def in_buckets(llm: Any, *, copies: bool) -> Iterator[Buckets]:
    """Within the block, weights for a colocated vLLM wait until they are a bucket; at its end all are loaded."""
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    buckets = Buckets(model.load_weights, copies=copies)
    with replaced(model, load_weights=buckets.add):
        yield buckets
    buckets.flush()
