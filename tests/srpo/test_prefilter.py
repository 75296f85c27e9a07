"""The accuracy filter of SRPO asks as its trainer does, and counts first answers."""

from datasets import Dataset

from trl_mmreason.generation import Sample, derive_seed
from trl_mmreason.jobs.difficulty import difficulty_filter
from trl_mmreason.jobs.store import Store
from trl_mmreason.srpo.protocols import FirstSolution

# question → first and second answer of its two responses; the right answer is always 7
SCRIPT = {
    "mixed first": [("7", "7"), ("8", "7")],
    "right first": [("7", "8"), ("7", "8")],
    "wrong first": [("8", "7"), ("8", "7")],
}


class ScriptedEngine:
    settings = {"kind": "script"}

    def sample(self, requests, sampling_params):
        return [[self.answer(request)] for request in requests]

    def answer(self, request):
        assert [message["role"] for message in request.messages] == ["system", "user"]
        assert request.messages[0]["content"] == "Reflect."
        name = request.messages[1]["content"]
        first, second = SCRIPT[name][[derive_seed(0, name, index) for index in (0, 1)].index(request.seed)]
        return Sample(
            f"<think>a</think> <answer>{first}</answer> <reflection>b</reflection> <answer>{second}</answer>", "stop"
        )


def test_first_answers_decide_and_rows_stay_as_they_are(tmp_path):
    rows = [{"id": name, "prompt": [{"role": "user", "content": name}], "answer": "7"} for name in SCRIPT]
    with Store(tmp_path / "s.sqlite") as store:
        kept = difficulty_filter(
            Dataset.from_list(rows),
            ScriptedEngine(),
            store,
            low=0.1,
            high=0.9,
            n=2,
            system_prompt="Reflect.",
            protocol=FirstSolution(),
        )
    assert kept.rows.to_list() == rows[:1]
    assert kept.dropped == {"too easy: more than 90% right": 1, "too hard: fewer than 10% right": 1}
