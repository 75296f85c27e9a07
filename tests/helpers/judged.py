"""Self-evolution's trainer on tiny models, and judges whose scores are known."""

import json

from scripted import Scripted
from support import SMALL_RUN, drawn_rows, maker

from trl_mmreason import SelfEvolutionConfig, SelfEvolutionTrainer

RUN = {**SMALL_RUN, "judge_max_tokens": 8, "judge_prompt": "Judge.", "actor_prompt": None, "beta": 0.1}


make = maker(SelfEvolutionTrainer, SelfEvolutionConfig, **RUN)


def trainer_for(model, folder, rows=None, **settings):
    return make(model, folder, drawn_rows(4) if rows is None else rows, **settings)


def reply(score):
    """A reply of the judge whose three parts are `score`."""
    scores = dict.fromkeys(("answer_correctness", "reasoning_quality", "visual_grounding"), score)
    return f"[BEGIN THOUGHT]\nHm.\n[END THOUGHT]\n\n[BEGIN SCORES]\n{json.dumps(scores)}\n[END SCORES]"


def candidate(request):
    """What the judge was shown of a response."""
    return request.messages[-1]["content"].partition("Candidate solution:\n")[2]


def judge_by(scores):
    """An engine that gives the score of the first key that the response holds."""
    return Scripted(lambda request, _: reply(next(s for key, s in scores.items() if key in candidate(request))))


# The worked example of the specification: answers 4, 4, 4, 5 with the scores 1, 1, 0.4, 0.
FOURS = [r"<think>one</think>\boxed{4}", r"<think>two</think>\boxed{4}", r"<think>three</think>\boxed{4}"]
WORKED = [*FOURS, r"<think>five</think>\boxed{5}"]
SCORES = {"one": 1.0, "two": 1.0, "three": 0.4, "five": 0.0}
REWARDS = [0.77372, 0.77372, 0.72988, 0.23401]
ADVANTAGES = [-1.26413, -1.26413, -1.30798, -1.80385]
