"""`mmreason steps` against a server on loopback: once, again, and for other numbers of steps."""

import pytest
from chat_stub import Handler, chat_stub
from commands import rows_of, write_questions

from trl_mmreason.chain_of_step.prompts import STEP_DATA_PROMPT, step_data_prompt, steps_as_text
from trl_mmreason.chain_of_step.template import Chain, Step, render_chain
from trl_mmreason.cli.main import main

NEXT = "Next: mmreason train chain_of_step --config chain_of_step/your_model.yaml --step_dataset"

STEPS = [Step("Look", "There are 3 and 4.", "Plain.")] * 4 + [Step("Add", "3+4=7", "Twice.")]
ANSWERS = {"cats": "7", "dogs": "8", "owls": "7"}  # the teacher's; the right one is always 7
QUESTIONS = {name: f"How many {name}?" for name in ANSWERS}
MALFORMED = "dropped 1: malformed reply: another answer than the reference"


class Parties(Handler):
    """A teacher who writes five steps, but for owls only when asked again."""

    def answer(self, body):
        text, _, times = self.noted(body)
        name = next(name for name in ANSWERS if name in text)
        reply = f"{steps_as_text(STEPS)}\n\n### <Answer>\n{ANSWERS[name]}"
        self.say("Sure!" if name == "owls" and times == 1 else reply)


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path, QUESTIONS)


def arguments(questions, output, url, *more):
    return ["steps", questions, str(output), "--teacher", "teacher", "--teacher-server", url, *more]


def test_steps(questions, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    with chat_stub(Parties) as server:
        command = arguments(questions, output, server.url, "--system-prompt", "In steps.", "--openai-only")
        main(command)
        said = capsys.readouterr().out
        asked = len(server.bodies)
        main(command)
        assert len(server.bodies) == asked == 1 + 3 + 2  # all is there already
    assert said == f"kept 2 of 3 questions\n{MALFORMED}\n{output}\n{NEXT} {output}\n"
    assert capsys.readouterr().out == said
    for body in server.bodies:
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
        assert body["messages"][0]["content"] == STEP_DATA_PROMPT
        assert body["messages"][1]["content"][-1]["text"].endswith("?\nReference answer: 7")
        assert "top_k" not in body
    assert sorted(server.images) == [(0, 0, 0)] + [(0, 1, 0)] * 3 + [(0, 2, 0)] * 2
    rows = rows_of(output)
    assert rows.column_names == ["id", "prompt", "images", "completion"]
    assert rows["id"][:] == ["cats", "owls"]
    assert rows["completion"][:] == [render_chain(Chain(STEPS, "7"))] * 2
    assert rows[0]["prompt"] == [
        {"role": "system", "content": "In steps."},
        {"role": "user", "content": "How many cats?"},
    ]
    assert [row["images"][0].getpixel((0, 0)) for row in rows] == [(0, 0, 0), (0, 2, 0)]


def test_other_numbers_of_steps_are_asked_for(questions, tmp_path):
    with chat_stub(Parties) as server:
        command = arguments(questions, tmp_path / "rows.parquet", server.url, "--max-steps", "4", "--min-steps", "3")
        with pytest.raises(SystemExit, match=r"mmreason steps: no row was made.*\n.*\n.*too many steps"):
            main([*command, "--attempts", "1"])
        assert len(server.bodies) == 3
        assert server.bodies[0]["messages"][0]["content"] == step_data_prompt(3, 4)
    assert not (tmp_path / "rows.parquet").exists()
