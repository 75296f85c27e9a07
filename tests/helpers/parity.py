"""A grader whose verdicts are known, and an engine that answers with the question and the number of the sample."""

import threading

from scripted import Scripted
from support import is_even

from trl_mmreason.grading import Verdict


class Parity:
    """Finds answers right whose characters' codes sum to an even number; keeps what it was asked, and in which thread.

    Args:
        overlaps: whether it may be asked while the engine answers.
        refuses: raises at an answer that ends so.
    """

    def __init__(self, overlaps, refuses="never"):
        self.works_elsewhere, self.refuses = overlaps, refuses
        self.asked = []

    def __repr__(self):
        return "Parity()"

    def grade_batch(self, items):
        here = threading.current_thread() is threading.main_thread()
        self.asked += [(here, item["completion"]) for item in items]
        if any(item["completion"].endswith(self.refuses) for item in items):
            raise ValueError(f"no verdict on {self.refuses}")
        return [Verdict(is_even(item["completion"]), item["completion"], item["question"]) for item in items]


def questions(n):
    return [
        {"id": f"row {k}", "prompt": [{"role": "user", "content": f"question {k}?"}], "answer": "7"} for k in range(n)
    ]


def echo(**given):
    return Scripted(lambda request, times: f"{request.messages[-1]['content']} {times}", **given)
