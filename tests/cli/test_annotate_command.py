"""`mmreason annotate` against servers on loopback: both ways, again, and without one chain."""

import pytest
from chat_stub import Handler, chat_stub
from commands import rows_of, write_questions

from trl_mmreason.chain_of_step.prompts import JUDGE_PROMPT, step_judge_message
from trl_mmreason.chain_of_step.template import ANSWER_END, ANSWER_START, REASONING_END, Chain, Step, render_chain
from trl_mmreason.cli.main import main
from trl_mmreason.data.row_sources import read_completions

NEXT = "Next: mmreason train chain_of_step --config chain_of_step/your_model.yaml --label_dataset"

STEPS = [Step("Look", "There are 3 and 4.", "Plain."), Step("Add", "3+4=7", "Twice.")]
# What the policy says, however often it is asked; the right answer is always 7.
PATHS = {"cats": render_chain(Chain(STEPS, "7")), "dogs": render_chain(Chain(STEPS, "8")), "owls": "I do not know."}
QUESTIONS = {name: f"How many {name}?" for name in PATHS}
KEPT = "kept 2 of 6 chains\n"
DROPPED = "dropped 2: repeated\ndropped 2: no_chain\n"


class Parties(Handler):
    """A policy of which three of four continuations are right, and a judge who forgets the list once."""

    def answer(self, body):
        text, _, times = self.noted(body)
        if body["model"] == "judge":
            self.say("Good, bad." if times == 1 else "### Step Label: [0,-1]")
        elif body["messages"][-1]["role"] == "assistant":
            with self.server.lock:
                step = (text, str(body["messages"][-1]["content"]))
                self.server.attempts[step] += 1
                answer = "7787"[self.server.attempts[step] - 1]
            self.say(f"{REASONING_END}{ANSWER_START}{answer}{ANSWER_END}")
        else:
            self.say(next(path for name, path in PATHS.items() if name in text))


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path, QUESTIONS)


def arguments(questions, output, url, by, *more):
    sampling = ["--model", "policy", "--server", url, "--paths", "2", "--n", "4"]
    judge = ["--judge", "judge", "--judge-server", url] if by == "judge" else []
    return ["annotate", questions, str(output), "--by", by, *sampling, *judge, *more]


@pytest.mark.full
def test_by_monte_carlo(questions, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    with chat_stub(Parties) as server:
        command = arguments(questions, output, server.url, "monte-carlo")
        main(command)
        said = capsys.readouterr().out
        main(command)
        assert capsys.readouterr().out == said == f"{KEPT}{DROPPED}{output}\n{NEXT} {output}\n"
        asked = 3 * 2 + 2 * 2 * 4  # two paths a question, two steps a chain with four continuations; and nothing twice
        assert len(server.bodies) == asked
        hard = tmp_path / "hard.parquet"
        main(
            [*arguments(questions, hard, server.url, "monte-carlo"), "--labels", "hard", "--store", f"{output}.sqlite"]
        )
        assert len(server.bodies) == asked
    assert {body["top_p"] for body in server.bodies[6:]} == {0.95}
    asked = {body["messages"][0]["content"][-1]["text"] for body in server.bodies}
    assert asked == {f"How many {name}?" for name in PATHS}  # the answer is in none
    rows = rows_of(output)
    assert rows.column_names == ["id", "prompt", "images", "completion", "step_labels", "answer_label"]
    assert rows["id"][:] == ["cats#0", "dogs#0"]
    assert rows["completion"][:] == [PATHS["cats"], PATHS["dogs"]]
    assert rows["step_labels"][:] == [[0.75, 0.75]] * 2
    assert rows["answer_label"][:] == [1.0, 0.0]
    assert [row["images"][0].getpixel((0, 0)) for row in rows] == [(0, 0, 0), (0, 1, 0)]
    assert rows_of(hard)["step_labels"][:] == [[1.0, 1.0]] * 2


def test_by_a_judge(questions, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    with chat_stub(Parties) as server:
        command = arguments(questions, output, server.url, "judge", "--openai-only", "--system-prompt", "In steps.")
        main(command)
    assert capsys.readouterr().out == f"{KEPT}{DROPPED}{output}\n{NEXT} {output}\n"
    judged = [body for body in server.bodies if body["model"] == "judge"]
    assert len(judged) == 2 * 2
    assert judged[0]["messages"][0] == {"role": "system", "content": JUDGE_PROMPT}
    assert {body["messages"][1]["content"][-1]["text"] for body in judged} == {
        step_judge_message(f"How many {name}?", "7", STEPS) for name in ("cats", "dogs")
    }
    assert not any("top_k" in body for body in judged)
    rows = rows_of(output)
    assert rows["step_labels"][:] == [[1.0, 0.0], [0.0, 0.0]]  # Neutral and Bad, of a right and of a wrong chain
    assert rows["answer_label"][:] == [1.0, 0.0]
    assert rows[0]["prompt"][0] == {"role": "system", "content": "In steps."}
    with pytest.raises(SystemExit, match="system_prompt: 'In steps.' → None"):
        main(command[:-2])  # its chains would be written beside prompts that the policy never saw


@pytest.mark.full
def test_both_ways_label_the_same_chains_into_one_folder(questions, tmp_path):
    """As the recipes do: half of the labels by each way (section 3.3), on chains that one store has."""
    labels, store = tmp_path / "labels", ["--store", str(tmp_path / "labels.sqlite")]
    with chat_stub(Parties) as server:
        main([*arguments(questions, labels / "judged.parquet", server.url, "judge"), *store])
        main([*arguments(questions, labels / "sampled.parquet", server.url, "monte-carlo"), *store])
        paths = [body for body in server.bodies if body["model"] == "policy" and len(body["messages"]) == 1]
    assert len(paths) == 3 * 2  # two paths a question, asked once
    rows = read_completions(str(labels))
    assert rows["id"][:] == ["cats#0", "dogs#0"] * 2
    assert rows["step_labels"][:] == [[1.0, 0.0], [0.0, 0.0], [0.75, 0.75], [0.75, 0.75]]


class Silent(Handler):
    def answer(self, body):
        self.say("I do not know.")


@pytest.mark.parametrize("by", ["monte-carlo", "judge"])
def test_sampling_without_one_chain_is_an_error(questions, tmp_path, by):
    output = tmp_path / "rows.parquet"
    message = r"^mmreason annotate: no row was made; OUTPUT is not written\nkept 0 of 6 chains\n.*6: no_chain"
    with chat_stub(Silent) as server, pytest.raises(SystemExit, match=message):
        main(arguments(questions, output, server.url, by))
    assert not output.exists()
