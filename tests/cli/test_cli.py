"""The command line, as a process of its own."""

import argparse
import os
import re
import subprocess
import sys

import pytest

from trl_mmreason import __version__
from trl_mmreason.cli.commands import merge_command, prefilter_command
from trl_mmreason.cli.main import main
from trl_mmreason.training.documented import HelpFormatter

COMMAND = [sys.executable, "-m", "trl_mmreason.cli.main"]


def test_help_comes_at_once_and_names_the_commands():
    """Nothing heavy is imported for it; half a second is a hundred times less than torch and transformers take."""
    program = (
        "import sys; from trl_mmreason.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: print(sorted({'torch', 'transformers', 'datasets', 'fastapi', 'openai', 'PIL'} & set(sys.modules)))"
    )
    before = os.times()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    after = os.times()
    assert done.stdout.endswith("[]\n")
    assert "make a process reward model's data" in done.stdout
    # processor time, as the machine may be busy
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.5


COMMANDS = "train new doctor rows step-f1 evaluate report prefilter reflect revise steps annotate trajectories merge"


@pytest.mark.parametrize("command", COMMANDS.split())
def test_help_of_a_command_has_an_example_and_describes_every_option(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = capsys.readouterr().out
    assert re.search(rf"\nexamples?:\s+mmreason {command} ", said)
    assert "default: None" not in said
    texts = re.findall(r"^  (?:-\S.*?)(?:  +|\n {24})(\S.*)$", said, re.MULTILINE)
    assert texts
    assert not [text for text in texts if re.match("of |at |a |likewise", text)]  # whole phrases


def test_without_a_command_the_commands_are_listed(capsys):
    with pytest.raises(SystemExit, match="^2$"):
        main([])
    said = capsys.readouterr().err
    assert all(f"    {command} " in said or f"    {command}\n" in said for command in COMMANDS.split())


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"trl-mmreason {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--temperature", "-1"], "argument --temperature: expected a number ≥ 0, got '-1'"),
        (["--temperature", "nan"], "argument --temperature: expected a number ≥ 0, got 'nan'"),
        (["--top-p", "0"], "argument --top-p: expected a number above 0 and at most 1, got '0'"),
        (["--top-p", "1.5"], "argument --top-p: expected a number above 0 and at most 1, got '1.5'"),
        (["--low", "many"], "argument --low: expected a number from 0 to 1, got 'many'"),
        (["--batch-size", "0"], "argument --batch-size: expected an integer ≥ 1, got '0'"),
    ],
)
def test_numbers_out_of_range_are_named_by_their_flag(arguments, expected, capsys):
    with pytest.raises(SystemExit):
        main(["prefilter", "in.jsonl", "out.parquet", "--model", "model", *arguments])
    assert expected in capsys.readouterr().err


def test_help_names_the_defaults_that_say_something():
    parser = argparse.ArgumentParser(formatter_class=HelpFormatter)
    parser.add_argument("--seed", default=0, help="seed")
    parser.add_argument("--file", help="file")
    parser.add_argument("--fast", action="store_true", help="fast")
    assert re.findall(r"  (seed|file|fast)(.*)$", parser.format_help(), re.MULTILINE) == [
        ("seed", " (default: 0)"), ("file", ""), ("fast", "")
    ]  # fmt: skip


def test_an_interrupted_command_ends_in_a_line(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(merge_command, "run", interrupt)
    with pytest.raises(SystemExit) as caught:
        main(["merge", "one.sqlite", "two.sqlite", "--output", "both.sqlite"])
    assert caught.value.code == 130
    assert capsys.readouterr().err.endswith("interrupted: what was finished is saved. To go on: the same command\n")


@pytest.mark.parametrize("option", ["--max-new-tokens", "--max_new_tokens", "--max_completion_length"])
def test_options_are_written_as_in_training_too(option, monkeypatch):
    limits = []
    monkeypatch.setattr(prefilter_command, "run", lambda arguments: limits.append(arguments.max_new_tokens))
    main(["prefilter", "in.jsonl", "out.parquet", "--model", "model", option, "7"])
    main(["prefilter", "in.jsonl", "out.parquet", "--model", "model", f"{option}=8"])
    assert limits == [7, 8]
