"""OUTPUT of the commands that make rows: the old file stays until the new one is whole."""

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import rows_of, write_questions

from trl_mmreason.cli.commands import command_options as options
from trl_mmreason.cli.main import main
from trl_mmreason.generation.patience import patient_state


class OnAFullDisk:
    """Rows of which the disk takes only the beginning."""

    def __len__(self):
        return 1

    def to_parquet(self, path):
        Path(path).write_bytes(b"PAR1")
        raise OSError("No space left on device")


def test_what_fails_while_it_is_written_leaves_the_old_file_whole(tmp_path):
    questions, output = write_questions(tmp_path, {"one": "2+5=?", "two": "4+3=?"}), tmp_path / "rows.parquet"
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    arguments = parser.parse_args([questions, str(output), "--model", "policy"])
    options.run_pipeline(arguments, lambda rows, store, settings: SimpleNamespace(rows=rows), "train")
    old = output.read_bytes()
    assert rows_of(output)["id"][:] == ["one", "two"]

    with pytest.raises(OSError, match="No space left"):
        options.run_pipeline(arguments, lambda rows, store, settings: SimpleNamespace(rows=OnAFullDisk()), "train")
    assert output.read_bytes() == old


def test_a_process_alone_writes_whatever_rank_a_batch_system_gave_it(tmp_path, monkeypatch, capsys):
    patient_state()
    monkeypatch.setenv("RANK", "1")
    questions, output = write_questions(tmp_path, {"one": "2+5=?"}), tmp_path / "rows.parquet"
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    arguments = parser.parse_args([questions, str(output), "--model", "policy"])
    options.run_pipeline(arguments, lambda rows, store, settings: SimpleNamespace(rows=rows), "train")
    assert rows_of(output)["id"][:] == ["one"]
    assert str(output) in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        "rows {questions} --output {folder}",
        "step-f1 {questions} --process-reward nowhere --output {folder}",
        "prefilter {questions} {folder} --model nowhere",
    ],
)
def test_a_folder_in_the_place_of_the_output_is_refused_before_anything_is_loaded(command, tmp_path):
    folder = tmp_path / "rows.parquet"
    folder.mkdir()
    given = command.format(questions=write_questions(tmp_path, {"one": "2+5=?"}), folder=folder)
    with pytest.raises(SystemExit, match="rows.parquet is a folder, expected a file to write"):
        main(given.split())
