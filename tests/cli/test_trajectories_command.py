"""`mmreason trajectories` against a server on loopback: selections, and two reasoners."""

import json
import re
from pathlib import Path

import pytest
from chat_stub import Handler, chat_stub
from commands import rows_of, write_questions

from trl_mmreason.cli.commands.trajectories import _RULES
from trl_mmreason.cli.main import main
from trl_mmreason.sophia.objective import RULES

NEXT = "Next: mmreason train sophia --config sophia/your_model.yaml --trajectory_dataset"

QUESTIONS = {"id 0": "How many cats?", "id 1": "How many dogs?"}
TALLY = """\
kept 2 of 2 questions
captions: 4, 0 cut by the length limit, 0 failed
trajectories: 12, 0 cut by the length limit, 0 failed, 12 right
2 rows
"""


class Parties(Handler):
    """A policy that tells an image's green, and a reasoner that is right each time, and of any length."""

    def answer(self, body):
        text, images, _ = self.noted(body)
        if body["model"] == "policy":
            return self.say(f"It is green as {images[0][1]}.")
        said = f"<think>{'so ' * (body['seed'] % 50)}</think> \\boxed{{7}} {re.findall('as [0-9]', text)}"
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"logprob": -0.5}] * len(said)}
        return self.reply(200, {"choices": [choice]})


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path, QUESTIONS)


def arguments(questions, output, url, *more):
    models = ["--model", "policy", "--server", url, "--reasoner", "reasoner", "--reasoner-server", url]
    return ["trajectories", questions, str(output), *models, "--captions", "2", "--trajectories", "3", *more]


def test_trajectories_and_other_selections_of_the_same(questions, checkpoints, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    with chat_stub(Parties) as server:
        with pytest.raises(
            SystemExit, match="mmreason trajectories: Cannot select the shortest trajectories .*--tokenizer"
        ):
            main(arguments(questions, output, server.url))
        asked = [body["model"] for body in server.bodies]
        main(arguments(questions, output, server.url, "--tokenizer", checkpoints("qwen2_5_vl")))
        assert capsys.readouterr().out == f"{TALLY}{output}\n{NEXT} {output}\n"
        rows = rows_of(output)
        rest = ["--rule", "random", "--keep", "2", "--unselected", "--thinking-prompt", "null"]
        main(arguments(questions, tmp_path / "rest.parquet", server.url, *rest, "--store", f"{output}.sqlite"))
        assert sorted(asked) == ["policy"] * 4 + ["reasoner"] * 12
        assert len(server.bodies) == len(asked)  # nothing was asked again
    bodies = {model: [body for body in server.bodies if body["model"] == model] for model in asked}
    assert all(body["max_tokens"] == 32768 for body in server.bodies)
    assert not any("How many" in json.dumps(body) for body in bodies["policy"])
    assert all(isinstance(body["messages"][0]["content"], str) for body in bodies["reasoner"])

    everything = rows_of(tmp_path / "rest.parquet")
    assert everything["reward"][:].count(1.0) == 4
    assert len(everything) == 12
    for index, row in enumerate(rows):
        own = [one for one in everything if one["id"].startswith(f"id {index}#")]
        assert len(row["completion"]) == min(len(one["completion"]) for one in own)
        assert row["completion"].endswith(f"['as {index}']")  # of its own image
        assert row["images"][0].getpixel((0, 0)) == (0, index, 0)
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        assert [message["role"] for message in own[0]["prompt"]] == ["user"]


def test_hard_categories_and_log_probabilities(tmp_path, capsys):
    lines = Path(write_questions(tmp_path, QUESTIONS)).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    path = tmp_path / "categories.jsonl"
    path.write_text("\n".join(json.dumps({**row, "category": row["question"][9:13]}) for row in rows))
    output, without = tmp_path / "rows.parquet", tmp_path / "without.jsonl"
    without.write_text(f"{path.read_text()}\n{json.dumps({**rows[0], 'id': 'of no category'})}")
    with chat_stub(Parties) as server:
        hard = ["--hard-reasoner", "large", "--hard-reasoner-server", server.url]
        with pytest.raises(SystemExit, match=r"no question has one of \['Dogs'\]; categories are 'cats', 'dogs'"):
            main(arguments(str(without), output, server.url, *hard, "--hard-category", "Dogs"))
        assert server.bodies == []
        share = ["--hard-category", "Dogs", "--rule", "random", "--share", "1/2"]  # another machine may have the dogs
        main(arguments(str(path), tmp_path / "share.parquet", server.url, *hard, *share))
        assert {body["model"] for body in server.bodies} == {"policy", "reasoner"}
        server.bodies.clear()
        capsys.readouterr()
        hard += ["--hard-category", "dogs", "--hard-category", "owls"]
        main(
            arguments(str(path), output, server.url, *hard, "--logprobs", "--openai-only", "--caption-prompt", "Look.")
        )
        reasoned = [body for body in server.bodies if body["model"] != "policy"]
        described = [body for body in server.bodies if body["model"] == "policy"]
    assert {(body["model"], "cats" in json.dumps(body)) for body in reasoned} == {("reasoner", True), ("large", False)}
    assert all("top_k" in body for body in described)
    assert {body["messages"][0]["content"][-1]["text"] for body in described} == {"Look."}
    assert not any("top_k" in body for body in reasoned)
    made = rows_of(output)
    assert [len(logprobs) for logprobs in made["behavior_logps"]] == [len(text) for text in made["completion"]]
    assert {logp for logprobs in made["behavior_logps"] for logp in logprobs} == {-0.5}
    assert capsys.readouterr().out.startswith(TALLY)


def test_the_rules_are_those_of_the_objective():
    assert _RULES == RULES
