"""`python -m benchmarks`: options are described, numbers are written, and failures end with their reasons."""

import json
from importlib import import_module

import pytest

from benchmarks import __main__ as runner
from benchmarks.common import Result
from trl_mmreason.training.documented import read_entries


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in runner.BENCHMARKS for name in runner.BENCHMARKS[module]]
)
def test_every_option_is_described_and_parsed(module, name):
    benchmark = getattr(import_module(f"benchmarks.{module}"), name)
    required = ["--policy", "folder"] if name == "reflections" else []
    arguments = vars(runner.parse(name, benchmark, required))
    defaults = benchmark.__kwdefaults__ or {}
    assert {**arguments, **defaults} == arguments
    assert set(arguments) - {"json", "rounds"} == set(read_entries(benchmark.__doc__, "Args"))


def test_numbers_are_written_and_a_failure_ends_with_its_reason(tmp_path, monkeypatch):
    def ceiling(*, rows: tuple[int, ...] = (1,), draws: int = 2) -> Result:
        """Fail.

        Args:
            rows: some.
            draws: others.
        """
        result = Result({"sum": sum(rows) + draws})
        result.check(draws < 3, "Too many draws.")
        return result

    monkeypatch.setattr("benchmarks.two_turns.ceiling", ceiling)
    runner.main(["ceiling", "--rows", "4", "5", "--json", str(tmp_path / "numbers.json")])
    assert json.loads((tmp_path / "numbers.json").read_text()) == {"arguments": {"rows": [4, 5], "draws": 2}, "sum": 11}
    with pytest.raises(SystemExit, match="Too many draws"):
        runner.main(["ceiling", "--draws", "3"])
    with pytest.raises(SystemExit, match="NAME is one of padding"):
        runner.main(["padding.py"])


def test_numbers_that_cannot_be_written_are_said_before_anything_is_measured(tmp_path, capsys):
    for wrong in (tmp_path, tmp_path / "nowhere" / "numbers.json"):
        with pytest.raises(SystemExit):
            runner.main(["on_paper", "--json", str(wrong)])
        said = capsys.readouterr()
        assert f"--json {wrong}: expected a file in a folder that exists" in said.err
        assert not said.out
