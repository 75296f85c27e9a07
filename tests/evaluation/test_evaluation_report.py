"""The page of an evaluation in a real browser: hostile answers, coloured steps, filters, and two side by side."""

import json

import pytest
from datasets import Dataset
from pages import page_of
from PIL import Image
from written_samples import sample, samples

from trl_mmreason.cli.main import main
from trl_mmreason.evaluation.evaluation_report import save_evaluation, trajectories_of, write_evaluation_report
from trl_mmreason.evaluation.metrics import Estimate
from trl_mmreason.evaluation.results import summarise
from trl_mmreason.generation import Failure

RED = (255, 0, 0)
SCRIPT = "<script>document.documentElement.dataset.attacked = 'yes'</script>"
BROKEN = '</div></section><img src=x onerror="document.documentElement.dataset.attacked = 1"><table><'


def saved(folder, found, **about):
    """The report of these samples, with a red image beside every question."""
    rows = [{**row, "images": [Image.new("RGB", (40, 30), RED)]} for row in found.rows]
    about = {"command": "mmreason evaluate mine", "benchmark": {"title": "Mine", "name": "mine"}, **about}
    return save_evaluation(folder, Dataset.from_list(rows), found, summarise(found), about)


def said(*texts, correct, **fields):
    """A sample with these answers."""
    found = sample(*correct, **fields)
    for turn, text in zip(found["turns"], texts, strict=True):
        turn["text"] = text
    return found


@pytest.fixture
def two_turns(tmp_path):
    found = samples(
        [said(SCRIPT, BROKEN, correct=(False, True))],
        [said("cut off", correct=(False,), finish_reasons=["length"])],
        [said("7", "8", correct=(True, False))],
        [Failure("the image is torn")],
        category=["bars", "bars", "dots", "dots"],
    )
    return saved(tmp_path / "run", found)


def test_one_page_says_it_all(two_turns):
    page = page_of(two_turns)
    assert page.with_tag("h1")[0]["text"] == "Mine: 4 questions"
    cells = {" ".join(row["text"].split()) for row in page.with_tag("tr")}
    assert any(cell.startswith("acc@t1 25.0 [0.0, 75.0]") for cell in cells)
    assert any(cell.startswith("bars 2 0.0 [0.0, 0.0] 50.0 [0.0, 100.0]") for cell in cells)
    assert [one["attrs"]["data-type"] for one in page.with_class("trajectory")] == [
        "wrong→right",
        "wrong→wrong",
        "right→wrong",
        "wrong→wrong",
    ]
    assert [text["text"] for text in page.with_class("answer-text")] == [SCRIPT, BROKEN, "cut off", "7", "8"]
    assert "the image is torn" in page.texts("trajectory")[3]
    assert any("1 samples failed and count as wrong" in text["text"] for text in page.with_tag("li"))


def test_steps_are_coloured_by_their_scores(tmp_path):
    scores = {"step_ends": [4, 8], "step_scores": [0.9, 0.2], "answer_score": 0.6, "score": 0.55}
    page = page_of(saved(tmp_path, samples([said("one;two;so 7", correct=(True,), **scores)])))
    steps = [(one["text"], one["attrs"]["data-score"]) for one in page.with_class("step")]
    assert steps == [("one;", "0.90"), ("two;", "0.20"), ("so 7", "0.60")]
    assert "score 0.55" in page.texts("chips")[0]
    unscored = page_of(saved(tmp_path / "unscored", samples([said("one;two;so 7", correct=(True,), step_ends=[4, 8])])))
    assert unscored.with_class("step") == []


def test_two_evaluations_side_by_side(tmp_path, capsys):
    for name, right in (("before", 2), ("after", 5)):
        saved(tmp_path / name, samples(*([sample(k < right)] for k in range(6))), settings={"n": right})
    main(["report", str(tmp_path / "before"), str(tmp_path / "after"), "--output", str(tmp_path / "both.html")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "both.html")
    page = page_of(tmp_path / "both.html")
    assert "Comparison" in [heading["text"] for heading in page.with_tag("h2")]
    cells = [" ".join(row["text"].split()) for row in page.with_tag("tr")]
    # three of six questions became right: the mean of the change is 50, and its interval is above 0
    assert any(cell.startswith("accuracy 33.3") and "+50.0 [+16.7, +83.3]" in cell for cell in cells)
    assert [one["attrs"]["data-run"] for one in page.with_class("trajectory")[:2]] == ["before", "after"]
    assert "before: 2; after: 5" in page.with_tag("dl")[0]["text"]


def test_the_page_has_the_numbers_of_the_results(tmp_path):
    """Votes are not counted again, by another grader perhaps."""
    found = samples([sample(True, answer="0.502"), sample(True, answer="1/2"), sample(False, answer="9")])
    rows = Dataset.from_list([{**row, "images": []} for row in found.rows])
    results = summarise(found)
    results.metrics["self_consistency_at_3"] = Estimate(0.123, (0.0, 0.5))
    about = {"command": "", "benchmark": {"title": "Mine"}}
    page = page_of(save_evaluation(tmp_path, rows, found, results, about))
    assert any("12.3 [0.0, 50.0]" in " ".join(row["text"].split()) for row in page.with_tag("tr"))


def test_prompts_may_differ(tmp_path):
    for name in ("plain", "asked"):
        found = samples([sample(True)])
        found.rows[0]["prompt"][0]["content"] = f"How many? {name}"
        saved(tmp_path / name, found)
    page = page_of(write_evaluation_report({name: tmp_path / name for name in ("plain", "asked")}))
    assert page.with_class("asked")[0]["text"] == "How many? plain"
    assert any(note["text"] == "asked was asked with other prompts than plain." for note in page.with_tag("li"))
    assert (tmp_path / "plain" / "compared.html").is_file()


def test_evaluations_of_other_questions_are_not_compared(tmp_path):
    for name, questions in (("before", 2), ("after", 3)):
        saved(tmp_path / name, samples(*([sample(True)] for _ in range(questions))))
    with pytest.raises(SystemExit, match="2 questions before and 3 after, of which 2 are the same"):
        main(["report", str(tmp_path / "before"), str(tmp_path / "after")])


def test_only_so_many_questions_are_shown(tmp_path):
    report = saved(tmp_path, samples(*([sample(True)] for _ in range(5))))
    write_evaluation_report({"": tmp_path}, shown=2)
    assert len(page_of(report).with_class("question")) == 2
    assert "Trajectories: the first 2 of 5 questions." in report.read_text("utf-8")
    assert json.loads((tmp_path / "results.json").read_text())["counts"]["questions"] == 5


@pytest.mark.parametrize(("n", "shown"), [(8, 8), (9, 8)])
def test_the_page_says_that_it_shows_the_first_samples_alone(n, shown, tmp_path):
    """Beside a question that is right in one of 9 stood "0 of 8 right", and nothing of the ninth."""
    report = saved(tmp_path, samples([sample(k == 8) for k in range(n)]))
    page = page_of(report)
    assert len(page.with_class("trajectory")) == shown
    assert ("Trajectories: the first 8 of 9 samples of a question." in report.read_text("utf-8")) == (n > shown)


def test_no_curves_of_an_earlier_evaluation_stay_in_the_folder(tmp_path):
    saved(tmp_path, samples([sample(True), sample(False)]))
    assert (tmp_path / "report.png").exists()
    saved(tmp_path, samples([sample(True)]))
    assert not (tmp_path / "report.png").exists()


def test_every_answer_of_a_sample_has_a_name():
    """Five answers, of which the last was never given."""
    found = samples([sample(False, False, False, True)], [sample(*[True] * 5)])
    one, _ = trajectories_of(found, {}, 2, "", {"q0": "?", "q1": "?"})
    labels = [turn and turn.label for turn in one.turns]
    assert labels == ["First answer", "Second answer", "Answer 3", "Answer 4", None]
