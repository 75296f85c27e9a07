"""Every adapter on rows in its data set's own layout: what they become, how answers are graded, what is refused."""

from pathlib import Path

import pytest
import yaml
from benchmark_rows import LAYOUTS
from benchmark_rows.layout import COLOURS, Coloured, saved

from trl_mmreason.evaluation.benchmarks import BENCHMARKS, INSTRUCTION, BenchmarkError, load_benchmark
from trl_mmreason.grading import Grader
from trl_mmreason.grading.reward import grade_answers
from trl_mmreason.miniature.tasks import CATEGORIES, make_problems

pytestmark = pytest.mark.usefixtures("own_cache")
COLUMNS = ["prompt", "images", "answer", "choices", "id", "category", "hint", "group", "tolerance"]
ROOT = Path(__file__).parents[2]
MANY = [f"choice {number}" for number in range(27)]
each_layout = pytest.mark.parametrize(("name", "layout"), LAYOUTS.items(), ids=list(LAYOUTS))


def one_row(folder, name, number=0, **columns):
    """Load one row of a layout with changed columns."""
    row = {**LAYOUTS[name].rows[number], **columns}
    (loaded,) = load_benchmark(name, saved(LAYOUTS[name], folder / "copy", [row]))
    return loaded


def test_every_benchmark_has_a_layout():
    assert sorted(BENCHMARKS) == sorted([*LAYOUTS, *(f"miniature/{category}" for category in CATEGORIES)])


@each_layout
def test_rows_become_questions_and_answers_are_graded(name, layout, tmp_path):
    rows = load_benchmark(name, saved(layout, tmp_path / "copy"))
    assert rows.column_names == COLUMNS
    assert len(rows) == len(layout.questions)
    for row, asked in zip(rows, layout.questions, strict=True):
        assert row["prompt"] == [{"role": "user", "content": f"{asked.prompt}\n{INSTRUCTION}"}]
        assert [image.mode for image in row["images"]] == ["RGB"] * len(asked.images)
        assert [image.getpixel((3, 3)) for image in row["images"]] == [COLOURS[each] for each in asked.images]
        for column in COLUMNS[2:]:
            assert row[column] == getattr(asked, column), column
    right = grade_answers(Grader(), list(rows), [f"Thus \\boxed{{{asked.right}}}" for asked in layout.questions])
    wrong = grade_answers(Grader(), list(rows), [f"Thus \\boxed{{{asked.wrong}}}" for asked in layout.questions])
    assert [verdict.correct for verdict in right] == [True] * len(rows)
    assert [verdict.correct for verdict in wrong] == [False] * len(rows)


@each_layout
def test_a_missing_column_is_named(name, layout, tmp_path):
    with pytest.raises(BenchmarkError) as caught:
        load_benchmark(name, saved(layout, tmp_path / "copy", without=layout.needed))
    found = [column for column in layout.features or layout.rows[0] if column != layout.needed]
    wanted = layout.named or f"'{layout.needed}'"
    assert f"{name}: rows has no column {wanted}; it has {found}." in str(caught.value)
    assert BENCHMARKS[name].source in str(caught.value)


@pytest.mark.full
@each_layout
def test_an_image_that_is_missing_or_broken_is_named(name, layout, tmp_path):
    position = 1 if BENCHMARKS[name].keep else 0
    rows = [dict(row) for row in layout.rows]
    if layout.features is None:
        value, reason = "images/none.png", "missing image file"
    elif name == "m3cot":  # whose rows may be without
        value, reason = Coloured("none"), "unreadable image"
    else:
        value, reason = None, "missing image"
    rows[position][layout.image] = value
    with pytest.raises(BenchmarkError) as caught:
        load_benchmark(name, saved(layout, tmp_path / "copy", rows))
    count = BENCHMARKS[name].questions_per_row
    problem, *others = caught.value.problems
    assert [one.row for one in others] == [position] * (count - 1)
    assert (problem.row, problem.column, problem.reason) == (position, layout.image, reason)
    assert problem.id == ("none" if name == "logicvista" else layout.questions[0].id)  # named after its image
    summary = f"{name}, from rows: 1 of {len(layout.questions) // count} rows cannot be used:\nrow {position} "
    assert str(caught.value).startswith(summary)
    assert str(problem) in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "column", "value", "expected"),
    [
        ("mathvista", "answer", "", "(id '1'), column 'answer': empty: it holds ''; every row needs a string there"),
        ("mathvista", "answer", "Maybe", "none of the choices ['Yes', 'No']"),
        ("mathvision", "answer", "F", "the answer is 'F' but the choices are A, B, C, D, E"),
        ("we_math", "answer", "F", "the answer is 'F' but the choices are A, B, C, D, E"),
        ("olympiadbench", "final_answer", [], "column 'final_answer': empty"),
        ("olympiadbench", "error", "a tenth", "column 'error': not a number: 'a tenth' is not a list of numbers"),
        ("mmmu", "options", "['a', __import__('os')]", "column 'options': not a list"),
        ("mmmu", "options", "('a', 'b')", "column 'options': not a list"),
        ("mmmu_pro/vision", "options", "[]", "column 'options': empty"),
        ("m3cot", "answer", None, "column 'answer': empty: it holds None"),
        ("olympiadbench", "error", "nan", "column 'error': not a number: 'nan' is not a tolerance; expected"),
        ("olympiadbench", "error", "-1e-1", "'-1e-1' is not a tolerance; expected finite numbers ≥ 0"),
        ("emma", "answer", "C", "the answer is 'C' but the choices are A, B"),
        ("emma", "options", ["a", "", "c"], "the answer is 'B' but the choices are A, C"),
        ("ai2d", "options", ["a", "", "c"], "column 'answer': answer not among the choices: the answer is '1'"),
        ("mathvista", "choices", MANY, "column 'choices': too many choices: it holds 27 choices; expected at most 26"),
        ("mathvision", "options", MANY, "column 'options': too many choices: it holds 27 choices"),
        ("mmmu", "options", str(MANY), "column 'options': too many choices: it holds 27 choices"),
        ("mmmu_pro/standard", "options", str(MANY), "column 'options': too many choices: it holds 27 choices"),
        ("m3cot", "choices", MANY, "column 'choices': too many choices: it holds 27 choices"),
        ("emma", "options", MANY, "column 'options': too many choices: it holds 27 choices"),
        ("ai2d", "options", MANY, "column 'options': too many choices: it holds 27 choices"),
        ("ai2d", "answer", "4", "expected the position of one of 4 choices, counted from 0"),
        ("chartqa", "label", [], "column 'label': empty"),
        ("charxiv/descriptive", "descriptive_q1", 20, "unknown kind of question: it holds '20'; expected 1 to 19"),
    ],
)
def test_an_answer_that_cannot_be_used_is_named(name, column, value, expected, tmp_path):
    layout = LAYOUTS[name]
    position = 1 if name == "mathvista" and value == "Maybe" else 0
    rows = [dict(row) for row in layout.rows]
    rows[position][column] = value
    with pytest.raises(BenchmarkError) as caught:
        load_benchmark(name, saved(layout, tmp_path / "copy", rows))
    assert f"row {position} (id " in str(caught.value)
    assert expected in str(caught.value)


def test_all_bad_rows_are_counted_and_twenty_of_them_shown(tmp_path):
    good, bad = LAYOUTS["ai2d"].rows[0], {**LAYOUTS["ai2d"].rows[0], "answer": "9"}
    source = saved(LAYOUTS["ai2d"], tmp_path / "copy", [good, *[bad] * 25])
    with pytest.raises(BenchmarkError) as caught:
        load_benchmark("ai2d", source)
    first, *lines = str(caught.value).splitlines()
    assert first == "ai2d, from rows: 25 of 26 rows cannot be used:"
    assert lines[0].startswith("row 1 (id 'ai2d-1'), column 'answer': answer not among the choices: ")
    assert (len(lines), lines[-1]) == (21, "… and 5 more")
    assert len(caught.value.problems) == 25


def test_a_gold_answer_that_the_grader_cannot_use_is_loaded_and_gets_no_verdict(tmp_path):
    row = one_row(tmp_path, "mmk12", 1, answer="\\frac{1}{")
    assert row["answer"] == "\\frac{1}{"
    assert grade_answers(Grader(), [row], ["\\boxed{1}"])[0].correct is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("[0, 1)", "[0, 1)"), ("['0.5', \"1/2\"]", ["0.5", "1/2"]), ("[]", "[]"), ("[1, 2.50]", ["1", "2.5"])],
)
def test_open_answers_of_mmmu(answer, expected, tmp_path):
    row = one_row(tmp_path, "mmmu", 1, answer=answer)
    assert row["answer"] == expected


@pytest.mark.parametrize(
    ("error", "answer_type", "tolerance"),
    [
        ("1e-2", "Numerical", {"absolute": 0.01}),
        ("1e-1,,2", "Numerical", {"absolute": [0.1, 1e-8, 2.0]}),
        ("1e-2", "Tuple", None),
        ("", "Expression", None),
    ],
)
def test_errors_of_olympiadbench(error, answer_type, tolerance, tmp_path):
    row = one_row(tmp_path, "olympiadbench", 2, error=error, answer_type=answer_type)
    assert row["tolerance"] == tolerance


def test_an_empty_choice_takes_its_letter_along(tmp_path):
    """The gold C stays the third option, and empty ones at the end are none."""
    row = {**LAYOUTS["emma"].rows[0], "answer": "C"}
    rows = [{**row, "options": options} for options in (["a", "", "c", "d"], ["a", "b", "c", "", ""])]
    loaded = load_benchmark("emma", saved(LAYOUTS["emma"], tmp_path / "copy", rows))
    assert loaded["choices"][:] == [{"A": "a", "C": "c", "D": "d"}, {"A": "a", "B": "b", "C": "c"}]
    assert set(loaded["answer"]) == {"C"}
    assert loaded[0]["prompt"][0]["content"].endswith(f"first one.\n(A) a\n(C) c\n(D) d\n{INSTRUCTION}")


def test_the_answer_of_ai2d_counts_empty_options(tmp_path):
    row = one_row(tmp_path, "ai2d", options=["a", "", "c"], answer="2")
    assert (row["answer"], row["choices"]) == ("C", {"A": "a", "C": "c"})


@pytest.mark.parametrize(
    ("skill", "category"), [(["inductive", "spatial"], "inductive, spatial"), ("spatial", "spatial"), ([], None)]
)
def test_skills_of_logicvista(skill, category, tmp_path):
    assert one_row(tmp_path, "logicvista", skill=skill)["category"] == category


def test_26_choices_are_not_too_many(tmp_path):
    row = one_row(tmp_path, "m3cot", choices=[*MANY[:26], ""], answer="Z")
    assert list(row["choices"].items())[-1] == ("Z", "choice 25")


@pytest.mark.parametrize(
    ("final_answer", "expected"),
    [
        (["$\\frac{1}{2}$, $3$"], "\\frac{1}{2}, 3"),
        (["$1$", " $2$ "], "1, 2"),
        (["$$4$$", "$ $"], "4"),
        (["\\$5"], "\\$5"),  # money
    ],
)
def test_answers_of_olympiadbench_lose_their_dollars(final_answer, expected, tmp_path):
    row = one_row(tmp_path, "olympiadbench", 2, final_answer=final_answer, error="1e-1")
    assert row["answer"] == expected


def test_the_error_of_olympiadbench_counts_for_each_of_several_answers(tmp_path):
    row = one_row(tmp_path, "olympiadbench", 1, final_answer=["$\\frac{1}{2}$, $3$"], error="1e-1")
    verdicts = grade_answers(Grader(), [row, row], ["\\boxed{0.55, 3.05}", "\\boxed{0.65, 3.05}"])
    assert [verdict.correct for verdict in verdicts] == [True, False]


@pytest.mark.parametrize(
    ("number", "columns", "expected"),
    [
        (2, {"modality": "Multimodal"}, "missing image: the row is multimodal"),  # though no tag names it
        (1, {}, "missing image"),  # the context does
    ],
)
def test_a_row_of_olympiadbench_needs_the_image_that_it_speaks_of(number, columns, expected, tmp_path):
    with pytest.raises(BenchmarkError, match=f"column 'image_1': {expected}"):
        one_row(tmp_path, "olympiadbench", number, image_1=None, **columns)


@pytest.mark.parametrize(
    ("precision", "answer_type", "hint"),
    [
        (
            2.0,
            "float",
            "a floating-point number with two decimal places and provide the final value, e.g., 1.23, 1.34, ",
        ),
        (3.0, "float", "a floating-point number with 3 decimal places and provide the final value at the end."),
        (None, "list", "a Python list as an answer and provide the final list, e.g., [1, 2, 3], [1.2, 1.3, 1.4], at"),
    ],
)
def test_hints_of_mathvista(precision, answer_type, hint, tmp_path):
    """Those of its own queries, as SOPHIA's Fig. A5 shows three."""
    row = one_row(tmp_path, "mathvista", precision=precision, answer_type=answer_type)
    assert row["hint"].startswith(f"Please answer the question requiring {hint}")
    assert row["hint"].endswith(" at the end.")
    assert row["prompt"][0]["content"].startswith(f"{row['hint']}\nWhat is the force?")


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_miniature_is_drawn_and_asked_as_in_training(category):
    rows = load_benchmark(f"miniature/{category}")
    problems = make_problems([category], 200, split="new_pictures", seed=0)
    assert rows.column_names == COLUMNS
    assert rows["prompt"][:] == [problem.prompt for problem in problems]
    assert rows["id"][:] == [problem.id for problem in problems]
    assert rows["answer"][:] == [problem.answer for problem in problems]
    assert rows[7]["images"][0].tobytes() == problems[7].image.tobytes()


def test_by_default_the_miniature_asks_what_was_trained_in_images_that_were_not():
    """What `examples/adapo.py` compares on, too, so that a policy of the quickstart answers it."""
    adapo = yaml.safe_load((ROOT / "configs/adapo/miniature.yaml").read_text())
    assert BENCHMARKS[adapo["eval_dataset_name"]].split == adapo["eval_split"]
    trained = make_problems("adding", 2000)
    asked = make_problems("adding", 200, split=BENCHMARKS["miniature/adding"].split)
    contents, sums = ({tuple(sorted(one.facts.values())) for one in each} for each in (trained, asked))
    assert sums <= contents
    assert not {one.image.tobytes() for one in trained} & {one.image.tobytes() for one in asked}


def test_other_rows_of_the_miniature():
    rows = load_benchmark("miniature/clock", split="train", max_rows=3, instruction="Say it.")
    assert rows["id"][:] == [f"clock-1-train-00000{number}" for number in range(3)]
    assert rows[0]["prompt"][0]["content"] == "What hour does the clock show?\nSay it."
