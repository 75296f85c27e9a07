"""Step-level searches whose every candidate and score is known by hand."""

import torch

from trl_mmreason.chain_of_step.process_reward import Scores
from trl_mmreason.chain_of_step.search import step_beam_search
from trl_mmreason.chain_of_step.template import ANSWER_END, STEP_END, Chain, Step, parse_chain, render_chain
from trl_mmreason.generation import Failure, Sample

START, PROCEED, END = "<|reasoning_start|>", "<|reasoning_proceed|>", "<|reasoning_end|>"


def step(name):
    return render_chain(Chain([Step(name, "", "")])).removeprefix(START)


def answer(text):
    return f"{END}<|answer_start|>{text}{ANSWER_END}"


class ScriptedEngine:
    """Gives the candidates that stand in the script behind the kept text; each counts as many tokens as it has letters.

    Attributes:
        script: question → kept text → candidates, or a `Failure`. A candidate without a closing token was cut.
        calls: of each call, question → (kept text, n, seed).
        tokens: what it gave away, in tokens.
    """

    settings = {"kind": "script"}

    def __init__(self, script):
        self.script, self.calls, self.tokens = script, [], 0

    def sample(self, requests, sampling_params):
        assert sampling_params.stop == (STEP_END, ANSWER_END)
        self.calls.append({r.messages[0]["content"]: (r.prefix, r.n, r.seed) for r in requests})
        return [self.answer(request) for request in requests]

    def answer(self, request):
        candidates = self.script[request.messages[0]["content"]][request.prefix]
        if isinstance(candidates, Failure):
            return candidates
        assert len(candidates) == request.n
        self.tokens += sum(map(len, candidates))
        return [
            Sample(text, "stop" if text.endswith((STEP_END, ANSWER_END)) else "length", [0] * len(text))
            for text in candidates
        ]


class ScriptedReward:
    """A step's score is the number in its name, an answer's the number behind its comma: "7,0.9"."""

    settings = {"kind": "script"}

    def __init__(self):
        self.calls = []

    def score(self, rows):
        self.calls.append([row["completion"] for row in rows])
        found = []
        for row in rows:
            chain = parse_chain(row["completion"])
            steps = torch.tensor([float(one.name.split()[-1]) for one in chain.steps])
            found.append(Scores(steps, None if chain.answer is None else float(chain.answer.split(",")[1])))
        return found


def rows_of(script):
    return [{"id": name, "prompt": [{"role": "user", "content": name}], "images": []} for name in script]


def searched(script, n=2, **settings):
    engine, reward = ScriptedEngine(script), ScriptedReward()
    return step_beam_search(rows_of(script), engine, reward, n=n, **settings), engine, reward


A, B = START + step("a 0.4"), START + step("b 0.7")
B_C = B + PROCEED + step("c 0.2")
TWO_STEPS = {
    "": [A, B],  # b is kept
    B: [PROCEED + step("c 0.2"), "\n" + PROCEED + step("d 0.1")],  # c is, although a scored more than it
    B_C: [answer("7,0.9"), answer("8,0.3")],
}
