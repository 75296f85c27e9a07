"""`mmreason revise` against a server on loopback: what STaR learns from, again, and what it refuses."""

import pytest
from chat_stub import Handler, chat_stub
from commands import rows_of, write_questions

from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.cli.main import main
from trl_mmreason.sophia.prompts import THINKING_PROMPT

NEXT = "Next: mmreason train sft --config sft/qwen2_5_vl_7b_star.yaml --dataset_name"

# Each question says what is answered in turn; the right answer is always 7.
QUESTIONS = {"fixed": "8 7 7", "fixed late": "8 9 7", "right": "7 7 7", "never": "8 9 8"}


class Turns(Handler):
    """Answers with the word of the question that stands at the place of this turn."""

    def answer(self, body):
        said = sum(message["role"] == "assistant" for message in body["messages"])
        text, _, _ = self.noted(body)
        self.say(rf"\boxed{{{text.split()[said]}}}")


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path, QUESTIONS)


def arguments(questions, output, url, *more):
    return ["revise", questions, str(output), "--model", "policy", "--server", url, *more]


def test_revise(questions, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    with chat_stub(Turns) as server:
        main(arguments(questions, output, server.url, "--system-prompt", "Box it."))
        said = capsys.readouterr().out
        assert len(server.bodies) == 3 * len(QUESTIONS)  # an answer and two revisions of each
        main(arguments(questions, output, server.url, "--system-prompt", "Box it."))
        assert len(server.bodies) == 3 * len(QUESTIONS)  # all is there already
    assert capsys.readouterr().out == said
    assert said == (
        f"kept 2 of 4 trajectories\ndropped 1: never wrong before right\ndropped 1: never right\n"
        f"{output}\n{NEXT} {output}\n"
    )
    rows = {row["id"]: row for row in rows_of(output)}
    assert {id_: row["completion"] for id_, row in rows.items()} == {
        id_: [{"role": "assistant", "content": r"\boxed{7}"}] for id_ in ("fixed#0", "fixed late#0")
    }
    late = rows["fixed late#0"]
    assert [(message["role"], message["content"]) for message in late["prompt"]] == [
        ("system", "Box it."), ("user", "8 9 7"), ("assistant", r"\boxed{8}"), ("user", EVALUATION_PROMPT),
        ("assistant", r"\boxed{9}"), ("user", EVALUATION_PROMPT),
    ]  # fmt: skip
    assert late["images"][0].getpixel((0, 0)) == (0, 1, 0)


def test_a_system_prompt_by_its_name_is_asked_under_and_written(questions, tmp_path):
    output = tmp_path / "rows.parquet"
    with chat_stub(Turns) as server:
        main(arguments(questions, output, server.url, "--system-prompt", "sophia"))
        system = {"role": "system", "content": THINKING_PROMPT}
        assert [body["messages"][0] for body in server.bodies] == [system] * len(server.bodies)
    assert [prompt[0] for prompt in rows_of(output)["prompt"]] == [system] * 2


def test_one_revision_after_other_words(questions, tmp_path):
    output = tmp_path / "rows.parquet"
    with chat_stub(Turns) as server:
        main(arguments(questions, output, server.url, "--revisions", "1", "--followup", "Check it.", "--n", "2"))
        assert len(server.bodies) == 2 * 2 * len(QUESTIONS)
    rows = rows_of(output)
    assert rows["id"][:] == ["fixed#0", "fixed#1"]
    assert rows[0]["prompt"][-1] == {"role": "user", "content": "Check it."}


def test_without_a_right_revision_nothing_is_written(tmp_path):
    questions, output = write_questions(tmp_path, {"right": "7 7 7"}), tmp_path / "rows.parquet"
    with chat_stub(Turns) as server, pytest.raises(SystemExit, match="mmreason revise: no row was made"):
        main(arguments(questions, output, server.url))
    assert not output.exists()
