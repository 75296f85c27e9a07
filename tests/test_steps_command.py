"""`mmreason steps` against a server on loopback: once, again, and what it refuses."""

import json
from contextlib import contextmanager

import datasets
import pytest
from chat_stub import _Handler, chat_stub
from PIL import Image

from trl_mmreason.chain_of_step.prompts import STEP_DATA_PROMPT, step_data_prompt, steps_as_text
from trl_mmreason.chain_of_step.template import Chain, Step, render_chain
from trl_mmreason.cli import main

STEPS = [Step("Look", "There are 3 and 4.", "Plain.")] * 4 + [Step("Add", "3+4=7", "Twice.")]
ANSWERS = {"cats": "7", "dogs": "8", "owls": "7"}  # the teacher's; the right one is always 7
MALFORMED = "dropped 1: malformed reply: another answer than the reference"


class Teacher(_Handler):
    """Writes five steps, but for owls only when asked again."""

    def answer(self, body):
        text, pictures = self.read(body["messages"])
        with self.server.lock:
            self.server.attempts[text] += 1
            self.server.pictures += pictures
            times = self.server.attempts[text]
        name = next(name for name in ANSWERS if name in text)
        reply = f"{steps_as_text(STEPS)}\n\n### <Answer>\n{ANSWERS[name]}"
        said = "Sure!" if name == "owls" and times == 1 else reply
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return self.reply(200, {"choices": [choice]})


@contextmanager
def teacher():
    with chat_stub() as server:
        server.RequestHandlerClass = Teacher
        yield server


@pytest.fixture
def questions(tmp_path):
    rows = []
    for index, name in enumerate(ANSWERS):
        path = tmp_path / f"{index}.png"
        Image.new("RGB", (4, 4), (0, index, 0)).save(path)
        rows.append({"id": name, "question": f"How many {name}?", "image": str(path), "solution": "7"})
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def arguments(questions, output, url, *more):
    return ["steps", questions, str(output), "--teacher", "teacher", "--teacher-server", url, *more]


def test_steps(questions, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    with teacher() as server:
        command = arguments(questions, output, server.url, "--system-prompt", "In steps.", "--openai-only")
        main(command)
        said = capsys.readouterr().out
        asked = len(server.bodies)
        main(command)
        assert len(server.bodies) == asked == 1 + 3 + 2  # all is there already
    assert said == f"kept 2 of 3 questions\n{MALFORMED}\n{output}\n"
    assert capsys.readouterr().out == said
    for body in server.bodies:
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
        assert body["messages"][0]["content"] == STEP_DATA_PROMPT
        assert body["messages"][1]["content"][-1]["text"].endswith("?\nReference answer: 7")
        assert "top_k" not in body
    assert sorted(server.pictures) == [(0, 0, 0)] + [(0, 1, 0)] * 3 + [(0, 2, 0)] * 2
    rows = datasets.load_dataset("parquet", data_files=str(output), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows.column_names == ["id", "prompt", "images", "completion"]
    assert rows["id"][:] == ["cats", "owls"]
    assert rows["completion"][:] == [render_chain(Chain(STEPS, "7"))] * 2
    assert rows[0]["prompt"] == [
        {"role": "system", "content": "In steps."},
        {"role": "user", "content": "How many cats?"},
    ]
    assert [row["images"][0].getpixel((0, 0)) for row in rows] == [(0, 0, 0), (0, 2, 0)]


def test_other_numbers_of_steps_are_asked_for(questions, tmp_path):
    with teacher() as server:
        command = arguments(questions, tmp_path / "rows.parquet", server.url, "--max-steps", "4", "--min-steps", "3")
        with pytest.raises(SystemExit, match=r"mmreason steps: not one row was made.*\n.*\n.*too many steps"):
            main([*command, "--attempts", "1"])
        assert len(server.bodies) == 3
        assert server.bodies[0]["messages"][0]["content"] == step_data_prompt(3, 4)
    assert not (tmp_path / "rows.parquet").exists()


def test_settings_that_cannot_be_meant_are_said_in_a_line(questions, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    with teacher() as server:
        command = arguments(questions, output, server.url)
        main(command)
        with pytest.raises(SystemExit, match=r"mmreason steps: .*other settings.*\n.*temperature: 1.0 → 0.5"):
            main([*command, "--temperature", "0.5"])
    alone = ["steps", questions, str(output), "--teacher", "teacher"]
    with pytest.raises(SystemExit, match="--openai-only came without --teacher-server"):
        main([*alone, "--openai-only"])
    with pytest.raises(SystemExit, match="got --min-steps 11 --max-steps 10, expected the smaller number first"):
        main([*alone, "--min-steps", "11"])
    for wrong in (["--min-steps", "0"], ["--model", "policy"]):  # there is no policy in this
        with pytest.raises(SystemExit) as caught:
            main([*alone, *wrong])
        assert caught.value.code == 2
    assert "unrecognized arguments: --model policy" in capsys.readouterr().err
