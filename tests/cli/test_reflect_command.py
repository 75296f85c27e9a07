"""`mmreason reflect` against servers on loopback: once, again, with other prompts, and what the server refuses."""

import json

import pytest
from chat_stub import Handler, chat_stub
from commands import rows_of, write_questions

from trl_mmreason.cli.main import main

NEXT = "Next: mmreason new reflection_sft --model MODEL --data"

# The stub repeats what it is asked, so these questions bring their solutions along; the right answer is always 7.
SOLUTIONS = ["<think>3 and 4</think><answer>7</answer>", "<think>3, 4?</think><answer>8</answer>", "I do not know."]
QUESTIONS = {str(index): solution for index, solution in enumerate(SOLUTIONS)}


class Parties(Handler):
    """As the stub; asked for a score or a reflection it answers in JSON, on a wrong solution only when asked again."""

    def answer(self, body):
        if body["model"] == "absent":
            return self.reply(404, {"error": {"message": "never heard of it"}})
        if "-- Input --" not in self.read(body["messages"])[0]:
            return super().answer(body)
        text, _, times = self.noted(body)
        content = {"score": 5} if '{"score": 5}' in text else {"reflection": "Look again."}
        return self.say("hm" if "Predicted Answer (Based on CoT): 8" in text and times == 1 else json.dumps(content))


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path, QUESTIONS)


def arguments(questions, output, url, *more):
    servers = [word for party in ("--server", "--teacher-server", "--scorer-server") for word in (party, url)]
    models = ["--model", "policy", "--teacher", "teacher", "--scorer", "scorer"]
    return ["reflect", questions, str(output), *models, *servers, "--right-share", "0.5", *more]


def test_reflect(questions, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    with chat_stub(Parties) as server:
        main(arguments(questions, output, server.url))
        said = capsys.readouterr().out
        asked = [(body["model"], body["messages"][0]["role"]) for body in server.bodies]
        main(arguments(questions, output, server.url))
        assert len(server.bodies) == len(asked)  # all is there already
    assert said == f"kept 2 of 3 answers\ndropped 1: answer: no <think>, or an empty one\n{output}\n{NEXT} {output}\n"
    assert capsys.readouterr().out == said
    # 3 solutions, 2 of which are rated; the teacher's first reply about one of them is malformed
    assert sorted(asked) == [("policy", "system")] * 3 + [("scorer", "user")] * 2 + [("teacher", "system")] * 3
    assert sorted(server.images) == [(0, 0, 0)] * 3 + [(0, 1, 0)] * 4 + [(0, 2, 0)]
    rows = rows_of(output)
    reflected = "\n<reflection>Look again.</reflection>\n<answer>7</answer>"
    assert rows["completion"][:] == [
        "<think>3 and 4</think>\n<answer>7</answer>" + reflected,
        "<think>3, 4?</think>\n<answer>8</answer>" + reflected,
    ]
    assert rows["rating"][:] == [5.0, 5.0]
    assert rows["first_correct"][:] == [True, False]
    assert [row["images"][0].getpixel((0, 0)) for row in rows] == [(0, 0, 0), (0, 1, 0)]


def test_what_the_server_refuses_is_said_in_a_line(questions, tmp_path):
    with (
        chat_stub(Parties) as server,
        pytest.raises(SystemExit, match="mmreason reflect: HTTP 404 .* There is no model 'absent'"),
    ):
        main(arguments(questions, tmp_path / "rows.parquet", server.url, "--model", "absent"))


def test_prompts_can_be_taken_out_or_replaced(questions, tmp_path):
    output = tmp_path / "rows.parquet"
    with chat_stub(Parties) as server:
        more = ["--cot-prompt", "null", "--system-prompt", "Think twice.", "--openai-only", "--n", "2"]
        main(arguments(questions, output, server.url, *more))
        policy = [body for body in server.bodies if body["model"] == "policy"]
        teacher = [body for body in server.bodies if body["model"] == "teacher"]
    assert [message["role"] for body in policy for message in body["messages"]] == ["user"] * 6
    assert all("top_k" in body for body in policy)
    assert not any("top_k" in body for body in teacher)
    rows = rows_of(output)
    assert len(rows) == 4
    assert rows[0]["prompt"][0] == {"role": "system", "content": "Think twice."}
