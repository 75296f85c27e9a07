"""`mmreason report` on training runs and evaluations, and what it refuses."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pages import page_of

from trl_mmreason.chain_of_step.template import Chain, Step, render_chain
from trl_mmreason.cli.main import main

CHAIN = render_chain(Chain([Step("See", "3 and 4.", "Yes."), Step("Add", "It is 8.", "Hm.")], "8"))
FIRST_STEP_END = CHAIN.index("<|reasoning_proceed|>")
SECOND_STEP_END = CHAIN.index("<|reasoning_end|>")


def run_with(folder, *completions, **columns):
    """A training run whose table has these completions of one question, and these columns."""
    (folder / "completions").mkdir()
    lines = [
        {
            "step": 3,
            "prompt": [{"role": "user", "content": "What is 3+4?"}],
            "completion": [{"role": "assistant", "content": text}],
            **{name: values[place] for name, values in columns.items()},
            "advantage": 0.0,
        }
        for place, text in enumerate(completions)
    ]
    pq.write_table(pa.Table.from_pylist(lines), folder / "completions" / "completions_00003.parquet")
    history = [{"step": step, "reward": 1.0} for step in (1, 2, 3)]
    state = {"global_step": 3, "log_history": history, "max_steps": 3}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def reported(folder, *more):
    main(["report", str(folder), *more])
    return page_of(folder / "training.html")


def test_steps_are_cut_where_their_scores_belong(tmp_path, capsys):
    cut = CHAIN[:-3]  # the answer is not closed, and was not scored
    scores = {"step_scores": ["0.900 0.100", "0.900 0.100", ""], "answer_score": ["0.250", "", ""]}
    verdicts = {"problem": ["", "malformed", "no_chain"], "correct": [False, False, None]}
    run = run_with(tmp_path, CHAIN, cut, "It is 7.", **scores, **verdicts)
    page = reported(run)
    assert capsys.readouterr().out == f"{run / 'training.html'}\n"
    steps = [(step["text"], step["attrs"]["data-score"]) for step in page.with_class("step")]
    two = [(CHAIN[:FIRST_STEP_END], "0.90"), (CHAIN[FIRST_STEP_END:SECOND_STEP_END], "0.10")]
    assert steps == [*two, (CHAIN[SECOND_STEP_END:], "0.25"), *two]
    assert [text["text"] for text in page.with_class("answer-text")] == [CHAIN, cut, "It is 7."]
    assert page.texts("verdict") == ["Answer ✗ wrong", "Answer ✗ wrong", "Answer – not graded"]
    assert page.texts("chips") == ["answer_score 0.25 advantage 0", *["answer_score n/a advantage 0"] * 2]
    for place, problem in ((1, "malformed"), (2, "no_chain")):
        assert f"Form: {problem}" in page.texts("trajectory")[place]


def test_scores_of_another_text_are_not_shown(tmp_path):
    page = reported(run_with(tmp_path, CHAIN, step_scores=["0.5 0.5 0.5"], answer_score=["0.5"]))
    assert page.with_class("step") == []
    assert page.with_class("answer-text")[0]["text"] == CHAIN


def test_both_answers_of_a_reflecting_response_are_told_apart(tmp_path):
    first = "<think>3, 4</think><answer>8</answer>"
    second = "<reflection>No.</reflection><answer>7</answer>"
    columns = {"problem": ["", "missing <reflection>", "missing <answer>"]}
    columns |= {"first_correct": [False, False, False], "second_correct": [True, False, False]}
    page = reported(run_with(tmp_path, f"{first}\n{second}", first, "7", **columns))
    assert [text["text"] for text in page.with_class("answer-text")] == [first, second, first, "7"]
    assert page.texts("type") == ["wrong→right", "wrong→wrong", "wrong→wrong"]
    assert page.texts("turn")[3] == "There is no second answer."


def test_the_page_can_be_put_elsewhere_and_keeps_groups_whole(tmp_path, capsys):
    run = run_with(tmp_path, *"abcd", correct=[True, True, False, False])
    output = tmp_path / "elsewhere.html"
    main(["report", str(run), "--output", str(output), "--shown", "3"])
    assert capsys.readouterr().out == f"{output}\n"
    assert not (run / "training.html").exists()
    page = page_of(output)
    assert page.texts("type") == ["right", "right", "wrong", "wrong"]
    assert page.texts("notes") == ["Images and ids of the questions were not logged at step 3."]


def test_what_the_examples_write_is_kept(tmp_path):
    run = run_with(tmp_path, "a", correct=[True])
    (run / "report.html").write_text("before and after")
    reported(run)
    assert (run / "report.html").read_text() == "before and after"


def test_a_run_without_completions_says_how_to_get_some(tmp_path):
    history = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    (tmp_path / "checkpoint-2").mkdir()
    state = {"global_step": 2, "log_history": history}
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "checkpoint-2" / "config.json").write_text(
        json.dumps({"model_type": "qwen2_5_vl", "architectures": ["A", "B"]})
    )
    page = reported(tmp_path)
    assert [heading["text"] for heading in page.with_tag("h2")] == ["Start and end of training", "Training curves"]
    assert page.texts("notes") == ["No completions were logged; train with log_completions=True to see some here."]
    assert [value["text"] for value in page.with_tag("dd")] == ["2", "qwen2_5_vl", "A, B"]


def test_what_cannot_be_meant_is_said_in_a_line(tmp_path):
    empty, evaluation = tmp_path / "empty", tmp_path / "evaluation"
    empty.mkdir()
    evaluation.mkdir()
    (evaluation / "samples.jsonl").write_text("")
    with pytest.raises(SystemExit, match=r"empty has neither the samples.jsonl of an evaluation, nor what a trainer"):
        main(["report", str(empty)])
    with pytest.raises(SystemExit, match=rf"Fix: give an evaluation inside it: {evaluation}$"):
        main(["report", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"cannot be compared, and there is no samples.jsonl in .*empty"):
        main(["report", str(evaluation), str(empty)])
    with pytest.raises(SystemExit, match=r"--output .*absent/page.html: there is no folder .*absent"):
        main(["report", str(evaluation), "--output", str(tmp_path / "absent/page.html")])
    with pytest.raises(SystemExit, match=r"--output .*empty is a folder, expected a file to write"):
        main(["report", str(evaluation), "--output", str(empty)])


def test_training_runs_are_compared_by_name(tmp_path):
    for name in ("lr=1", "b"):
        (tmp_path / name).mkdir()
        run_with(tmp_path / name, "a", "b", correct=[True, False])
    main(["report", str(tmp_path / "lr=1"), f"ours={tmp_path / 'b'}", "--output", str(tmp_path / "both.html")])
    page = page_of(tmp_path / "both.html")
    assert page.with_tag("h1")[0]["text"] == "Training runs lr=1, ours"  # a folder with "=" in its name is a folder
    assert [heading["text"] for heading in page.with_tag("h2")] == ["Comparison", "Training curves", "Trajectories"]
    assert [one["attrs"]["data-run"] for one in page.with_class("trajectory")] == ["lr=1"] * 2 + ["ours"] * 2
    with pytest.raises(SystemExit, match="two runs are called a; give NAME=FOLDER"):
        main(["report", f"a={tmp_path / 'lr=1'}", f"a={tmp_path / 'b'}"])
