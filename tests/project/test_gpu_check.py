"""The check of a GPU: here on the CPU at small size, where two parts have nothing to run on."""

import json
import multiprocessing
import operator
import subprocess
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.__main__ import main
from benchmarks.common import run_apart
from benchmarks.gpu_check import CPU, PARTS, TEXT_3B, VISION_3B, Part, Row, attention, table
from benchmarks.training import build_config
from trl_mmreason.cli.doctor.memory import build_without_weights, count_parameters

FORKS = multiprocessing.get_context("fork")


def test_all_parts_end_within_nine_minutes():
    assert sum(part.seconds for part in PARTS) <= 530  # the command's own imports take the rest


def test_the_table_has_a_row_for_each_part():
    rows = [Row("one", "ok", 1.4, ["first", "second"], {}), Row("other", "FAIL", 60.0, ["ValueError: no"], {})]
    assert [line.split() for line in table(rows).splitlines()[1:]] == [
        ["one", "ok", "1", "first"],
        ["second"],
        ["other", "FAIL", "60", "ValueError:", "no"],
    ]


def test_a_process_is_killed_at_its_time_bound_with_those_that_it_started(tmp_path):
    file = tmp_path / "pid"
    with pytest.raises(TimeoutError, match="did not end within 3 s"):
        run_apart(subprocess.run, ["sh", "-c", f"echo $$ > {file}; exec sleep 600"], context=FORKS, seconds=3)
    state = Path(f"/proc/{file.read_text().strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"  # ended, and not waited for


def test_the_large_model_is_as_large_as_the_page_says():
    """3.75 B: 3.09 of the language model with tied embeddings, and 0.67 of the encoder."""
    config, _ = build_config(VISION_3B, TEXT_3B)
    assert count_parameters(build_without_weights(config)) == pytest.approx(3.7546e9, rel=1e-4)


@pytest.mark.parametrize("first", [pytest.param(2, marks=pytest.mark.full), pytest.param(0, marks=pytest.mark.slow)])
def test_every_part_has_a_row_and_one_that_fails_costs_no_other(first, tmp_path, capsys, monkeypatch):
    """The slow test also trains the quickstart; its supervised start takes most of a minute."""
    others = PARTS[first:]
    monkeypatch.setattr(gpu_check, "PARTS", (Part("fails", 60, operator.truediv), *others))
    with pytest.raises(SystemExit, match="^fails: TypeError: unsupported operand"):
        main(["gpu-check", "--output", str(tmp_path / "of/gpu-check.json")])
    output = capsys.readouterr().out.splitlines()
    parts = json.loads((tmp_path / "of/gpu-check.json").read_text())["parts"]
    assert output[0].startswith("gpu-check on the CPU at small size")
    assert list(parts) == ["fails", *(part.name for part in others)]
    for name, row in parts.items():
        status = {"fails": "FAIL", "flash attention": "not run", "colocated vLLM": "not run"}.get(name, "ok")
        assert row["status"] == status
        (line,) = (line for line in output if line.startswith(name))
        assert line.endswith(row["lines"][0])
    assert parts["memory estimate"]["numbers"]["measured_gib"] > 0
    if first == 0:  # trained in bfloat16 from the supervised start: a tenth of its answers are right
        assert parts["quickstart in bf16"]["numbers"]["acc_t2"][0] > 0


@pytest.mark.full
def test_kernels_of_attention_are_compared_by_what_they_score(tmp_path):
    """With eager attention, as there is no flash attention on a CPU."""
    _, result = attention(CPU, tmp_path, kernel="eager")
    assert result.failures == []
    assert result.numbers["entropy"]["eager"] == pytest.approx(result.numbers["entropy"]["sdpa"], rel=1e-4)
