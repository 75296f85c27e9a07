"""F1 of steps by hand, VisualProcessBench's rows, and the command on a model."""

import json
import math

import pytest
from support import png, write_lines

from trl_mmreason.cli.main import main
from trl_mmreason.evaluation.benchmarks import BenchmarkError
from trl_mmreason.evaluation.benchmarks.process import load_process_benchmark
from trl_mmreason.evaluation.step_f1 import format_step_f1, step_f1

pytestmark = pytest.mark.usefixtures("own_cache")


def test_f1_by_hand():
    scores = [[0.9, 0.2, 0.5, 0.1], [0.7, 0.4]]
    labels = [[1, 1, 0, None], [1, 0]]
    found = step_f1(scores, labels, ["MathVerse", "MMMU"])
    # MathVerse: 0.9 is right, 0.2 missed, 0.5 taken for correct; correct 2·1/(2·1+1+1) = 0.5, incorrect 0
    assert (found["MathVerse"].correct.value, found["MathVerse"].incorrect.value) == (0.5, 0.0)
    assert (found["MathVerse"].macro.value, found["MathVerse"].steps) == (0.25, 3)
    assert (found["MMMU"].macro.value, found["MMMU"].steps) == (1.0, 2)
    # pooled: correct 2·2/(2·2+1+1) = 2/3, incorrect 2·1/(2·1+1+1) = 1/2; no mean of 0.25 and 1
    assert found["overall"].macro.value == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["overall"].steps == 5
    assert list(found) == ["MathVerse", "MMMU", "overall"]


def test_the_threshold_decides_and_one_source_is_the_whole():
    found = step_f1([[0.6, 0.3]], [[1, 0]], [None], threshold=0.7)
    assert list(found) == ["overall"]
    assert found["overall"].correct.value == 0.0  # missed
    assert found["overall"].incorrect.value == pytest.approx(2 / 3)


def test_without_any_step_of_a_kind_its_f1_is_not_defined():
    found = step_f1([[0.9]], [[1]], [None])["overall"]
    assert math.isnan(found.incorrect.value)
    assert format_step_f1({"overall": found}).split()[-2:] == ["n/a", "1"]


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [([[0.5]], [[1, 0]], "1 scores and 2 labels"), ([[0.5]], [[0.5]], "the label 0.5, expected 1, 0 or None")],
)
def test_what_does_not_fit_is_refused(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        step_f1(scores, labels, [None])


@pytest.fixture
def benchmark(tmp_path):
    """As the card of OpenGVLab/VisualProcessBench describes its rows."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "red.png").write_bytes(png("red"))
    row = {"image": ["images/red.png"], "question": "Which colour?", "answer": "red", "policy_model": "gpt-4o"}
    responses = [(["Let me see.", "It is red."], [0, 1]), (["It is warm.", "So it is blue."], [1, -1])]
    rows = [
        {**row, "response": {"steps": steps, "process_correctness": labels}, "data_source": source}
        for (steps, labels), source in zip(responses, ("MathVerse", "MMMU"), strict=True)
    ]
    return write_lines(tmp_path / "test.jsonl", rows)


def test_rows_of_the_benchmark(benchmark):
    rows = load_process_benchmark(benchmark)
    assert rows["step_labels"][:] == [[None, 1.0], [1.0, 0.0]]
    assert rows["category"][:] == ["MathVerse", "MMMU"]
    assert rows["prompt"][0] == [{"role": "user", "content": "Which colour?"}]


def test_a_row_that_cannot_be_used_stops_the_benchmark(benchmark):
    rows = [json.loads(line) for line in benchmark.read_text().splitlines()]
    rows[1]["image"] = ["images/no.png"]
    with pytest.raises(BenchmarkError, match="1 of 2 rows cannot be used") as caught:
        load_process_benchmark(write_lines(benchmark, rows))
    assert "is published at https://huggingface.co/datasets/OpenGVLab/VisualProcessBench" in str(caught.value)


def test_the_command_scores_a_model(benchmark, tmp_path, capsys, chain_model):
    output = tmp_path / "f1.json"
    main(["step-f1", str(benchmark), "--process-reward", chain_model, "--output", str(output)])
    said = capsys.readouterr().out
    first, header, *lines, note, path = said.splitlines()
    assert first == "2 solutions, F1 in percent, threshold 0.5"
    assert header.split() == ["macro", "F1", "correct", "incorrect", "steps"]
    assert [line.split()[0] for line in lines] == ["MathVerse", "MMMU", "overall"]
    assert note == "VisualProcessBench has 2866 solutions of 26950 steps; these are 4 steps."
    written = json.loads(output.read_text())
    assert path == str(output)
    assert [len(one["scores"]) for one in written["solutions"]] == [2, 2]
    again = step_f1([one["scores"] for one in written["solutions"]], [[None, 1], [1, 0]], ["MathVerse", "MMMU"])
    assert written["f1"]["overall"]["correct"] == again["overall"].correct.value


def test_an_f1_that_is_not_defined_is_null_in_the_file(benchmark, tmp_path, chain_model):
    rows = [json.loads(line) for line in benchmark.read_text().splitlines()][:1]
    rows[0]["response"]["process_correctness"] = [-1, -1]
    output = tmp_path / "f1.json"
    source = str(write_lines(benchmark, rows))
    main(["step-f1", source, "--process-reward", chain_model, "--threshold", "1", "--output", str(output)])
    assert json.loads(output.read_text(), parse_constant=pytest.fail)["f1"]["overall"]["correct"] is None


@pytest.fixture(scope="module")
def chain_model(tmp_path_factory):
    """A saved process reward model of random weights."""
    from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
    from trl_mmreason.chain_of_step.tokens import add_chain_tokens
    from trl_mmreason.miniature.models import build_model

    model, processor = build_model("qwen2_5_vl", "test")
    add_chain_tokens(model, processor)
    folder = tmp_path_factory.mktemp("prm")
    ProcessRewardModel(model, processor).save_pretrained(folder)
    return str(folder)
