"""Where a benchmark comes from: the Hub by real HTTP, copies of it, files, loaded datasets; and what fails."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import datasets
import pytest
from benchmark_rows import LAYOUTS
from benchmark_rows.layout import COLOURS, saved
from dataset_hub import DatasetHub
from datasets import Dataset, DatasetDict, load_dataset
from hub_stub import TOKEN, Repo, client_environment
from loopback import serving

from trl_mmreason.evaluation.benchmarks import BENCHMARKS, INSTRUCTION, TEMPLATE, BenchmarkError, load_benchmark

pytestmark = pytest.mark.usefixtures("own_cache")
EMMA = LAYOUTS["emma"]
SUBJECTS = BENCHMARKS["emma"].configs


def write_readme(folder, split, configs):
    """Write the README.md that declares a folder for each configuration, as on the Hub."""
    listed = "".join(
        f"- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {config}/{split}-*\n"
        for config in configs
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{listed}---\n", encoding="utf-8")


def emma_repository(folder, subjects=SUBJECTS, readme=True):
    """A row for each subject, in a folder each, as the repository on the Hub has them."""
    for number, subject in enumerate(subjects):
        row = {**EMMA.rows[1], "pid": f"{subject}_1", "subject": subject, "answer": str(number)}
        (folder / subject).mkdir(parents=True)
        shutil.move(saved(EMMA, folder, [row]), folder / subject / "test-00000-of-00001.parquet")
    if readme:
        write_readme(folder, "test", subjects)
    return folder


def assert_emma(rows):
    assert rows["id"][:] == [f"{subject}_1" for subject in SUBJECTS]
    assert rows["category"][:] == list(SUBJECTS)
    assert rows["answer"][:] == ["0", "1", "2", "3"]


# -------------------------------------------------------------------------------------------------------- repositories


@pytest.mark.parametrize("readme", [True, False], ids=["with a readme", "folders only"])
def test_a_copy_of_a_repository_with_configurations(readme, tmp_path):
    assert_emma(load_benchmark("emma", emma_repository(tmp_path / "EMMA", readme=readme)))


@pytest.mark.parametrize("readme", [True, False], ids=["with a readme", "folders only"])
def test_a_part_of_a_benchmark_is_another_benchmark(readme, tmp_path):
    copy = emma_repository(tmp_path / "EMMA", ["Math", "Physics"], readme)
    with pytest.raises(BenchmarkError, match=r"emma: .* lacks the configurations \['Chemistry', 'Coding'\]"):
        load_benchmark("emma", copy)


@pytest.mark.full
@pytest.mark.parametrize("readme", [True, False], ids=["with a readme", "folders only"])
def test_the_full_olympiadbench_has_rows_with_and_without_images(readme, tmp_path):
    """Ten configurations, those of text alone without columns of images; proofs (TP) are none of them."""
    layout, configs = LAYOUTS["olympiadbench"], BENCHMARKS["olympiadbench/full"].configs
    assert len(configs) == 10
    for number, config in enumerate([*configs, "TP_TO_maths_en_COMP"]):
        with_images = "_MM_" in config
        row = {**layout.rows[2], "id": number, "modality": "Multimodal" if with_images else "Text-only"}
        kinds = {name: kind for name, kind in layout.features.items() if with_images or not name.startswith("image_")}
        (tmp_path / "copy" / config).mkdir(parents=True)
        file = saved(replace(layout, features=kinds), tmp_path / "copy", [row])
        shutil.move(file, tmp_path / "copy" / config / "train-00000-of-00001.parquet")
    if readme:
        write_readme(tmp_path / "copy", "train", [*configs, "TP_TO_maths_en_COMP"])
    rows = load_benchmark("olympiadbench/full", tmp_path / "copy")
    assert rows["id"][:] == [str(number) for number in range(10)]
    assert [len(images) for images in rows["images"]] == [1] * 5 + [0] * 5


def test_a_copy_with_all_configurations_in_one(tmp_path):
    folder = tmp_path / "copy"
    rows = [{**EMMA.rows[1], "pid": f"{s}_1", "subject": s, "answer": str(n)} for n, s in enumerate(SUBJECTS)]
    saved(EMMA, folder, rows).rename(folder / "test-00000-of-00001.parquet")
    assert_emma(load_benchmark("emma", folder))


def test_variants_are_splits_and_have_ids_of_their_own(tmp_path):
    layout = LAYOUTS["dynamath"]
    (tmp_path / "copy/data").mkdir(parents=True)
    for number in range(1, 11):
        file = saved(layout, tmp_path / "copy", [{**layout.rows[1], "ground_truth": str(number)}])
        file.rename(tmp_path / f"copy/data/sample_variant{number}-00000-of-00001.parquet")
    rows = load_benchmark("dynamath", tmp_path / "copy")
    assert rows["answer"][:] == [str(number) for number in range(1, 11)]
    assert rows["id"][:] == ["2", *(f"2#{number}" for number in range(2, 11))]
    assert set(rows["group"]) == {"2"}


def test_numbered_ids_leave_out_those_that_there_are(tmp_path):
    layout = LAYOUTS["dynamath"]
    rows = [{**layout.rows[1], "id": one} for one in ("x", "x", "x#2", "x", "x#2")]
    loaded = load_benchmark("dynamath", saved(layout, tmp_path / "copy", rows))
    assert loaded["id"][:] == ["x", "x#3", "x#2", "x#4", "x#2#2"]


def test_a_missing_split_is_named_with_those_there_are(tmp_path):
    copy = emma_repository(tmp_path / "EMMA")
    with pytest.raises(BenchmarkError, match=r"emma: .* has no split 'dev': .*\['test'\]"):
        load_benchmark("emma", copy, split="dev")


@pytest.mark.full
def test_from_the_hub_with_configurations(tmp_path):
    """By real HTTP, in a process of its own: the client reads the Hub's address when it is imported."""
    folder = emma_repository(tmp_path / "EMMA")
    code = (
        "from trl_mmreason.evaluation.benchmarks import load_benchmark; "
        "print([[row['id'], row['answer'], row['category']] for row in load_benchmark('emma')])"
    )
    with serving(DatasetHub("tester", TOKEN)) as hub:
        files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        hub.repos["luckychao/EMMA"] = Repo(files, ["first"])
        environment = client_environment(hub.url, tmp_path / "home")
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([[f"{subject}_1", str(n), subject] for n, subject in enumerate(SUBJECTS)])
    assert hub.unknown == []


def test_without_network_the_error_says_where_the_data_are(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(BenchmarkError) as caught:
        load_benchmark("mathvista")
    message = str(caught.value)
    assert message.startswith("mathvista: could not load 'AI4Math/MathVista': ")
    assert "The data are published at https://huggingface.co/datasets/AI4Math/MathVista. Fetch them where" in message
    assert "a folder of the parquet files, one .parquet file, or a .json or .jsonl file with image_root" in message


# -------------------------------------------------------------------------------------------- files and loaded datasets


def test_lines_of_json_beside_a_folder_of_images(tmp_path):
    """Under another name of a split, and with images elsewhere."""
    layout = LAYOUTS["we_math"]
    file = saved(layout, tmp_path / "copy")
    lines = [json.dumps(row) for row in json.loads(file.read_text())]
    copy = tmp_path / "lines.jsonl"
    copy.write_text("\n".join(lines) + "\n")
    rows = load_benchmark("we_math", copy, image_root=tmp_path / "copy", split="whatever")
    assert rows["id"][:] == ["2steps_1/1", "2steps_1/multi"]
    assert rows[1]["images"][0].getpixel((0, 0)) == COLOURS["blue"]
    with pytest.raises(BenchmarkError, match=r"images/red\.png' does not exist; fix the path, or give the folder"):
        load_benchmark("we_math", copy)


def test_a_folder_of_json(tmp_path):
    saved(LAYOUTS["we_math"], tmp_path / "copy").rename(tmp_path / "copy/testmini.json")
    assert len(load_benchmark("we_math", tmp_path / "copy")) == 2
    with pytest.raises(BenchmarkError, match=r"no file for the split 'test'; it has \['testmini\.json'\]"):
        load_benchmark("we_math", tmp_path / "copy", split="test")


def test_json_that_is_keyed_by_the_names_of_the_rows_as_mathvista_is(tmp_path, monkeypatch):
    layout = LAYOUTS["mathvista"]
    images = saved(LAYOUTS["mv_math"], tmp_path / "copy").parent / "images"
    rows = {}
    for row, colour in zip(layout.rows, ("red", "blue"), strict=False):
        rows[row["pid"]] = {**row, "image": f"images/{colour}.png"}
        del rows[row["pid"]]["decoded_image"]
    (images.parent / "annot_testmini.json").write_text(json.dumps(rows))
    loaded = load_benchmark("mathvista", images.parent / "annot_testmini.json")
    assert loaded["id"][:] == ["1", "2"]
    assert [row["images"][0].getpixel((0, 0)) for row in loaded] == [COLOURS["red"], COLOURS["blue"]]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load_benchmark("mathvista", "~/copy/annot_testmini.json")) == 2
    (images.parent / "annot_testmini.json").write_text(json.dumps(rows).replace('"2": {', '"1": {'))
    with pytest.raises(BenchmarkError, match="is not valid JSON: `1` comes twice"):  # one was lost
        load_benchmark("mathvista", images.parent / "annot_testmini.json")


def test_a_broken_line_is_named(tmp_path):
    file = saved(LAYOUTS["we_math"], tmp_path / "copy")
    good = json.dumps(json.loads(file.read_text())[0])
    (tmp_path / "copy/rows.jsonl").write_text(f"{good}\n{{broken\n")
    with pytest.raises(BenchmarkError, match="row 1 .*, column 'line': line is not JSON"):
        load_benchmark("we_math", tmp_path / "copy/rows.jsonl")


def test_vision_only_rows_of_json_are_told_apart_too(tmp_path):
    layout = LAYOUTS["mathverse/vision_only"]
    folder = saved(LAYOUTS["mv_math"], tmp_path / "copy").parent
    rows = [{**row, "image": f"images/{row['image'].colour}.png"} for row in layout.rows]
    (folder / "testmini.json").write_text(json.dumps(rows))
    assert load_benchmark("mathverse/vision_only", folder / "testmini.json")["id"][:] == ["5", "10"]
    assert load_benchmark("mathverse", folder / "testmini.json")["id"][:] == ["1", "5", "10"]


def test_loaded_datasets(tmp_path):
    loaded = load_dataset("parquet", data_files=str(saved(LAYOUTS["ai2d"], tmp_path / "copy")), split="train")
    assert len(load_benchmark("ai2d", loaded)) == 2
    assert len(load_benchmark("ai2d", DatasetDict(test=loaded, train=loaded), split="test+train")) == 4
    with pytest.raises(BenchmarkError, match=r"ai2d: the DatasetDict has no split 'test'; it has \['train'\]"):
        load_benchmark("ai2d", DatasetDict(train=loaded))


def test_other_copies_of_the_same_data():
    """lmms-lab/ChartQA has other names; We-Math and LogicVista have their images inside on the Hub."""
    red, blue = (row["image"] for row in LAYOUTS["chartqa"].rows[:2])
    stored = [{"bytes": each.png, "path": None} for each in (red, blue)]
    chart = {"question": "How many?", "answer": "100"}
    charts = [
        {**chart, "type": "human_test", "image": stored[0]},
        {**chart, "type": "augmented_test", "image": stored[1]},
    ]
    rows = load_benchmark("chartqa", Dataset.from_list(charts))
    assert rows["category"][:] == ["human", "augmented"]
    assert rows["answer"][:] == ["100", "100"]
    steps = [{**LAYOUTS["we_math"].rows[0], "image_path": stored[1]}]
    assert load_benchmark("we_math", Dataset.from_list(steps))[0]["images"][0].getpixel((0, 0)) == COLOURS["blue"]
    puzzle = {"question": "Which one? Select from A-D", "answer": "B", "image": stored[1]}
    (row,) = load_benchmark("logicvista", Dataset.from_list([puzzle]))
    assert (row["id"], row["answer"], row["category"]) == ("logicvista-0", "B", None)
    assert row["images"][0].getpixel((0, 0)) == COLOURS["blue"]


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("mathvist", None, "there is no benchmark 'mathvist'; there are mathvista, mathverse, "),
        ("mv_math", None, "mv_math cannot be loaded from the Hub. The data are published at https://github.com/"),
        ("ai2d", 7, "ai2d: cannot load rows from a int. The data are published at "),
        ("ai2d", "no/such/file.parquet", "ai2d: 'no/such/file.parquet' does not exist here. The data are published at"),
    ],
)
def test_what_is_no_source(name, source, expected):
    with pytest.raises(BenchmarkError) as caught:
        load_benchmark(name, source)
    assert str(caught.value).startswith(expected)


# -------------------------------------------------------------------------------------------------- rows and the prompt


def test_the_first_rows_for_a_trial(tmp_path):
    source = saved(LAYOUTS["mathvision"], tmp_path / "copy")
    assert load_benchmark("mathvision", source, max_rows=2)["id"][:] == ["55", "59"]
    assert len(load_benchmark("mathvision", source, max_rows=9)) == 3
    with pytest.raises(BenchmarkError, match="max_rows is 0, expected at least 1"):
        load_benchmark("mathvision", source, max_rows=0)


def test_a_template_and_an_instruction_of_ones_own(tmp_path):
    source = saved(LAYOUTS["m3cot"], tmp_path / "copy")
    rows = load_benchmark("m3cot", source, prompt_template="{hint}\nQ: {question}\n\n{choices}", instruction="Go.")
    assert rows[0]["prompt"][0]["content"] == "The sky is grey.\nQ: What is next?\n\n(A) rain\n(B) snow"
    assert rows[1]["prompt"][0]["content"] == "Q: How much?\n\n(A) 1\n(B) 2\n(C) 3"  # no hint
    rows = load_benchmark("m3cot", source, instruction="")
    assert rows[1]["prompt"][0]["content"] == "How much?\n(A) 1\n(B) 2\n(C) 3"
    rows = load_benchmark("m3cot", source)
    assert rows[1]["prompt"][0]["content"] == f"How much?\n(A) 1\n(B) 2\n(C) 3\n{INSTRUCTION}"
    assert TEMPLATE == "{hint}\n{question}\n{choices}\n{instruction}"  # SOPHIA, appendix C: before the query


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{question} {option}", r"has the fields \['question', 'option'\]; expected {question} and any of {choices}, "),
        ("{}", r"has the fields \[''\]; expected {question}"),
        ("{hint}", r"has the fields \['hint'\]; expected {question}"),
        ("{question", "cannot be read: "),
        ("{question.__class__}", r"has the fields \['question.__class__'\]"),
    ],
)
def test_a_bad_template_is_named(template, expected):
    with pytest.raises(BenchmarkError, match=f"miniature/clock: the template .*{expected}"):
        load_benchmark("miniature/clock", prompt_template=template)
