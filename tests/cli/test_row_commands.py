"""What commands that make rows do alike: two processes share the work, and a store refuses other settings."""

import re

import pytest
import test_annotate_command as annotate
import test_reflect_command as reflect
import test_steps_command as steps
import test_trajectories_command as trajectories
from chat_stub import chat_stub
from commands import rows_of, write_questions
from processes import launch

from trl_mmreason.cli.main import main

TOKENIZER = "a saved tokenizer"


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "options", "asked"),
    [
        (annotate, ["monte-carlo"], 22),
        (reflect, [], 8),
        (trajectories, ["--tokenizer", TOKENIZER], 16),
    ],
    ids=["annotate", "reflect", "trajectories"],
)
def test_two_processes_share_the_work(command, options, asked, checkpoints, tmp_path, capsys):
    """They ask `asked` times in all, nothing by both, and write and say what one process does."""
    questions = write_questions(tmp_path, command.QUESTIONS)
    options = [checkpoints("qwen2_5_vl") if option == TOKENIZER else option for option in options]
    outputs = [tmp_path / name for name in ("one.parquet", "two.parquet")]
    with chat_stub(command.Parties) as server:
        main(command.arguments(questions, outputs[0], server.url, *options))
        assert len(server.bodies) == asked
    with chat_stub(command.Parties) as server:
        said = launch("helpers/command_run.py", 2, *command.arguments(questions, outputs[1], server.url, *options))
        assert len(server.bodies) == asked
    assert said == capsys.readouterr().out.replace(str(outputs[0]), str(outputs[1]))
    one, two = (rows_of(output).to_list() for output in outputs)
    assert two == one
    assert len(one) == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "options", "other", "named"),
    [
        (annotate, ["monte-carlo"], ["--seed", "3"], "seed: 0 → 3"),
        (reflect, ["--size", "1"], ["--teacher-temperature", "0.5"], "temperature: 1.0 → 0.5"),
        (steps, [], ["--temperature", "0.5"], "temperature: 1.0 → 0.5"),
        (trajectories, ["--rule", "random"], ["--temperature", "0.5"], "temperature: 1.0 → 0.5"),
    ],
    ids=["annotate", "reflect", "steps", "trajectories"],
)
def test_other_settings_than_the_store_s_are_said_in_a_line(command, options, other, named, tmp_path):
    questions, name = write_questions(tmp_path, command.QUESTIONS), command.__name__.split("_")[1]
    with chat_stub(command.Parties) as server:
        line = command.arguments(questions, tmp_path / "rows.parquet", server.url, *options)
        main(line)
        with pytest.raises(SystemExit, match=rf"mmreason {name}: .*other settings.*\n.*{re.escape(named)}"):
            main([*line, *other])
