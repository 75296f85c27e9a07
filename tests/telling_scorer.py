"""A process reward whose scores a reader can derive, and short chains to score."""

import threading

import torch

from trl_mmreason.chain_of_step.process_reward import Scores

STEP = (
    "<|reasoning_step_start|><|reasoning_step_name_start|>a<|reasoning_step_name_end|><|reasoning_step_thought_start|>"
    "{}<|reasoning_step_thought_end|><|reasoning_step_reflection_start|>c<|reasoning_step_reflection_end|>"
    "<|reasoning_step_end|>"
)


def chain(*thoughts, answer="7"):
    """A chain with a step for each thought; partial if the answer is `None`."""
    steps = "<|reasoning_start|>" + "<|reasoning_proceed|>".join(map(STEP.format, thoughts))
    return steps if answer is None else f"{steps}<|reasoning_end|><|answer_start|>{answer}<|answer_end|>"


class TellingScorer:
    """Scores a row by its number, which is its question, in batches of two; remembers its calls."""

    settings = {"kind": "telling"}

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()
        self._busy = threading.Lock()

    def score_batches(self, rows, batch_size):
        assert self._busy.acquire(blocking=False), "called twice at once"
        try:
            for start in range(0, len(rows), batch_size):
                batch = rows[start : start + batch_size]
                questions = [row["prompt"][-1]["content"] for row in batch]
                self.batches.append(questions)
                assert self.gate.wait(10)
                if "crash" in questions:
                    raise RuntimeError("out of something")
                if "too large" in questions:
                    raise torch.OutOfMemoryError("row 0 does not fit")
                yield {start + k: self.scores(row) for k, row in enumerate(batch)}
        finally:
            self._busy.release()

    def scores(self, row):
        number = float(row["prompt"][-1]["content"]) / 1024
        pictures = [sum(image.convert("RGB").getpixel((0, 0))) / 1024 for image in row["images"]]
        return Scores(torch.tensor([number, *pictures]), number if "<|answer_end|>" in row["completion"] else None)
