"""Rows in the layouts of public data sets, made by hand: what each becomes, and which columns are left out.

Each layout says where it is described. Images are a red one and a blue one.
"""

import base64
from pathlib import Path
from typing import Any, NamedTuple

import PIL.Image
import pytest
from datasets import Dataset, Features, Image, List, Value
from support import png, write_lines

from trl_mmreason.data.row_loading import DataError, load_completions, load_rows

pytestmark = pytest.mark.usefixtures("own_cache")

RED, BLUE = (255, 0, 0), (0, 0, 255)
TEXT = Value("string")
MESSAGES = List({"role": TEXT, "content": TEXT})


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def human(text):
    return {"from": "human", "value": text}


def gpt(text):
    return {"from": "gpt", "value": text}


class Layout(NamedTuple):
    source: str
    rows: Any  # called with the folder of red.png and blue.png
    becomes: list[dict[str, Any]]
    left_out: list[str]
    kind: str = "questions"
    features: Features | None = None  # then it is parquet


LLAVA_COT = (
    "<SUMMARY> I will count. </SUMMARY>\n\n<CAPTION> Three dots. </CAPTION>\n\n"
    "<REASONING> One, two, three. </REASONING>\n\n<CONCLUSION> 3 </CONCLUSION>"
)
VERL = Features(
    {
        "data_source": TEXT,
        "prompt": MESSAGES,
        "images": List(Image()),
        "ability": TEXT,
        "reward_model": {"ground_truth": TEXT, "style": TEXT},
        "extra_info": {"answer": TEXT, "index": Value("int64"), "question": TEXT},
    }
)
RED_FILE = {"bytes": png("red", (3, 2)), "path": None}


def verl_row(ground_truth):
    return {
        "data_source": "vstar",
        "prompt": [system("You may zoom in."), user("<image>\nWhich colour?")],
        "images": [RED_FILE],
        "ability": "vl_agent",
        "reward_model": {"ground_truth": ground_truth, "style": "model"},
        "extra_info": {"answer": ground_truth, "index": 7, "question": "Which colour?"},
    }


VERL_ROW = {
    "prompt": [system("You may zoom in."), user("Which colour?")],
    "images": [RED],
    "answer": "red",
}
VERL_LEFT_OUT = ["data_source", "ability", "reward_model.style", "extra_info"]

LAYOUTS = {
    "MM-Eureka": Layout(
        "https://github.com/ModalMinds/MM-EUREKA, README, 'Custom dataset'; of it FanqingM/MM-Eureka-Dataset",
        lambda folder: [
            {
                "id": "0",
                "conversations": [system("Think."), user("Which is red?")],
                "answer": "the first",
                "image_urls": [f"file://{folder}/red.png", "file://blue.png"],
            },
            {"id": "1", "conversations": [user("<image>3+4?")], "answer": "$7$", "image_urls": ["file:///no.png"]},
        ],
        [
            {
                "id": "0",
                "prompt": [system("Think."), user("Which is red?")],
                "images": [RED, BLUE],
                "answer": "the first",
            }
        ],
        [],
    ),
    "R1-OneVision": Layout(
        "https://huggingface.co/datasets/Fancy-MLLM/R1-Onevision as two converters on GitHub read it: id, image in "
        "base64, conversations of from and value; thoughts in tags as in arXiv:2503.10615. Its card was not at hand",
        lambda folder: [
            {
                "id": "a",
                "image": "red.png",
                "conversations": [
                    human("<image>\nHow many?\nA. 2\nB. 3"),
                    gpt("<think>\nPerhaps 2. No.\n</think>\n\nThere are three.\n\n**Final Answer:** B"),
                ],
            },
            {
                "id": "b",
                "image": base64.b64encode(png("blue", (40, 30))).decode(),
                "conversations": [human("<image>\nHow many?"), gpt("<think> 3? </think>\n\n\\boxed{3}")],
            },
            {
                "id": "c",
                "image": "red.png",
                "conversations": [human("<image>\nWhy?"), gpt("<think> Well. </think>\n\nFirst this.\nThen that.")],
            },
        ],
        [
            {"id": "a", "prompt": [user("How many?\nA. 2\nB. 3")], "images": [RED], "answer": "B"},
            {"id": "b", "prompt": [user("How many?")], "images": [BLUE], "answer": "3"},
        ],
        [],
    ),
    "DeepEyes": Layout(
        "https://huggingface.co/datasets/ChenShawn/DeepEyes-Datasets-47k, as "
        "https://redai-infra.github.io/Relax/en/examples/deepeyes.html tables its columns",
        lambda folder: [verl_row("red"), verl_row("")],
        [VERL_ROW],
        VERL_LEFT_OUT,
        features=VERL,
    ),
    "verl": Layout(
        "https://verl.readthedocs.io/en/latest/preparation/prepare_data.html",
        lambda folder: [verl_row("red")],
        [VERL_ROW],
        VERL_LEFT_OUT,
        features=VERL,
    ),
    "OpenMMReasoner-RL": Layout(
        "https://huggingface.co/datasets/OpenMMReasoner/OpenMMReasoner-RL-74K, a configuration per source; as verl",
        lambda folder: [{**verl_row("red"), "data_source": "wemath_standard"}],
        [VERL_ROW],
        VERL_LEFT_OUT,
        features=VERL,
    ),
    "OpenMMReasoner-SFT": Layout(
        "https://huggingface.co/datasets/OpenMMReasoner/OpenMMReasoner-SFT-874K: chats in OpenAI's parts, as "
        "its trainer lmms-engine takes them. Its card was not at hand",
        lambda folder: [
            {
                "id": "x",
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "red.png"}},
                            {"type": "text", "text": "Which colour?"},
                        ],
                    },
                    {"role": "assistant", "content": [{"type": "text", "text": "<think>red?</think>\\boxed{red}"}]},
                ],
            }
        ],
        [
            {
                "id": "x",
                "prompt": [user("Which colour?")],
                "images": [RED],
                "completion": "<think>red?</think>\\boxed{red}",
            }
        ],
        [],
        kind="completions",
    ),
    "LLaVA-CoT": Layout(
        "https://huggingface.co/datasets/Xkev/LLaVA-CoT-100k, train.jsonl; stages as in arXiv:2411.10440, section 3.1",
        lambda folder: [
            {"id": "q1", "image": "red.png", "conversations": [human("How many dots?"), gpt(LLAVA_COT)]},
            {
                "id": "q2",
                "image": "blue.png",
                "conversations": [human("<image>\nWhich?"), gpt("Blue."), human("Sure?"), gpt(LLAVA_COT)],
            },
            {"id": "q3", "image": "red.png", "conversations": [human("How many dots?"), gpt(" ")]},
        ],
        [
            {"id": "q1", "prompt": [user("How many dots?")], "images": [RED], "completion": LLAVA_COT},
            {
                "id": "q2",
                "prompt": [user("Which?"), {"role": "assistant", "content": "Blue."}, user("Sure?")],
                "images": [BLUE],
                "completion": LLAVA_COT,
            },
        ],
        [],
        kind="completions",
    ),
    "LLaVA-CoT, to be rewarded": Layout(
        "as above; the conclusion is the answer",
        lambda folder: [{"id": "q1", "image": "red.png", "conversations": [human("How many dots?"), gpt(LLAVA_COT)]}],
        [{"id": "q1", "prompt": [user("How many dots?")], "images": [RED], "answer": "3"}],
        [],
    ),
    "MMPR": Layout(
        "https://huggingface.co/datasets/OpenGVLab/MMPR, README: image, question, chosen, rejected",
        lambda folder: [
            {
                "image": ["red.png", "blue.png"],
                "question": "Image-1: <image>\nImage-2: <image>\nWhich is red?",
                "chosen": "It is the first.",
                "rejected": "It is the second.",
            },
            {"image": "red.png", "question": "<image>\nWhich?", "chosen": "Red.", "rejected": "Red."},
        ],
        [
            {
                "id": "rows-0",
                "prompt": [user("Image-1: <image>\nImage-2: <image>\nWhich is red?")],
                "images": [RED, BLUE],
                "chosen": [{"role": "assistant", "content": "It is the first."}],
                "rejected": [{"role": "assistant", "content": "It is the second."}],
            }
        ],
        [],
        kind="preferences",
    ),
    "VisualPRM400K": Layout(
        "https://huggingface.co/datasets/OpenGVLab/VisualPRM400K; turns as OpenGVLab/InternVL writes them in "
        "tools/reasoning_data_pipeline",
        lambda folder: [
            {
                "id": -1,
                "image": "red.png",
                "conversations": [
                    {"from": "system", "value": "Judge the steps."},
                    human("### Question:\n<image>\nWhich colour?\n\n### Solution Process:\nIt is warm."),
                    gpt("+"),
                    human("So it is blue."),
                    gpt("-"),
                ],
            },
            {"id": -1, "image": "red.png", "conversations": [human("Which colour?"), gpt("Red.")]},
        ],
        [
            {
                "id": "-1",
                "prompt": [user("Which colour?")],
                "images": [RED],
                "steps": ["It is warm.", "So it is blue."],
                "step_labels": [1.0, 0.0],
            }
        ],
        [],
        kind="steps",
    ),
    "VisualPRM400K-Raw": Layout(
        "https://huggingface.co/datasets/OpenGVLab/VisualPRM400K-v1.1-Raw, README, 'Data fields'; a step is right if "
        "its expected accuracy is above 0 (README of VisualPRM400K)",
        lambda folder: [
            {
                "image": "red.png",
                "question": "<image>\nWhich colour?",
                "answer": "red",
                "steps_with_score": [
                    {"step": "It is warm.", "score": 0.0625, "num_mc_correct": 1, "num_mc_total": 16},
                    {"step": "So it is blue.", "score": 0.0, "num_mc_correct": 0, "num_mc_total": 16},
                ],
                "num_mc_sequences": 16,
            },
            {"image": "red.png", "question": "Which?", "steps_with_score": [{"step": "Red.", "score": 1.5}]},
        ],
        [
            {
                "id": "rows-0",
                "prompt": [user("Which colour?")],
                "images": [RED],
                "steps": ["It is warm.", "So it is blue."],
                "step_labels": [1.0, 0.0],
            }
        ],
        ["answer", "num_mc_sequences"],
        kind="steps",
    ),
    "VisualProcessBench": Layout(
        "https://huggingface.co/datasets/OpenGVLab/VisualProcessBench, README: 1, 0 and -1 are correct, neutral and "
        "incorrect",
        lambda folder: [
            {
                "image": ["red.png"],
                "question": "Which colour?",
                "answer": "red",
                "response": {"steps": ["Let me see.", "Red.", "No, blue."], "process_correctness": [0, 1, -1]},
                "policy_model": "gpt-4o",
                "data_source": "MathVerse",
            },
            {
                "image": ["red.png"],
                "question": "Which?",
                "response": {"steps": ["Red."], "process_correctness": [1, 1]},
            },
        ],
        [
            {
                "id": "rows-0",
                "prompt": [user("Which colour?")],
                "images": [RED],
                "steps": ["Let me see.", "Red.", "No, blue."],
                "step_labels": [None, 1.0, 0.0],
            }
        ],
        ["answer", "policy_model", "data_source"],
        kind="steps",
    ),
    "We-Math 2.0": Layout(
        "https://huggingface.co/datasets/We-Math/We-Math2.0-Standard, split 'standard', as converters on GitHub read "
        "it: question, answer, image",
        lambda folder: [
            {
                "id": "5",
                "image": RED_FILE,
                "question": "<image>\nWhich angle is right?\nA. α\nB. β",
                "answer": "B",
                "knowledge": "Angles",
            }
        ],
        [{"id": "5", "prompt": [user("Which angle is right?\nA. α\nB. β")], "images": [RED], "answer": "B"}],
        ["knowledge"],
        features=Features({"id": TEXT, "image": Image(), "question": TEXT, "answer": TEXT, "knowledge": TEXT}),
    ),
}
REFUSED = {
    "MM-Eureka": ("image_urls", "missing image file", "'/no.png' does not exist"),
    "R1-OneVision": ("conversations", "no answer in the solution", "is a whole solution"),
    "DeepEyes": ("reward_model.ground_truth", "empty answer", "the answer is ''"),
    "LLaVA-CoT": ("conversations", "empty answer", "the answer is ' '"),
    "MMPR": ("rejected", "equal answers", "chosen and rejected are the same, 'Red.'"),
    "VisualPRM400K": ("conversations", "no labelled steps", "expected the turns of VisualPRM400K"),
    "VisualPRM400K-Raw": ("steps_with_score", "no labelled steps", "the score 1.5; expected a share from 0 to 1"),
    "VisualProcessBench": ("response", "no labelled steps", "there are 1 steps and 2 labels"),
}


@pytest.fixture
def folder(tmp_path):
    PIL.Image.new("RGB", (3, 2), "red").save(tmp_path / "red.png")
    PIL.Image.new("RGB", (3, 2), "blue").save(tmp_path / "blue.png")
    return tmp_path


def saved(layout: Layout, folder: Path) -> Path:
    rows = layout.rows(folder)
    if layout.features is None:
        return write_lines(folder / "rows.jsonl", rows)
    Dataset.from_list(rows, features=layout.features).to_parquet(folder / "rows.parquet")
    return folder / "rows.parquet"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_and_what_cannot_be_is_named(folder, name):
    layout = LAYOUTS[name]
    file = saved(layout, folder)
    for _ in ("read", "from the cache"):
        loaded = load_rows(file, kind=layout.kind)
        rows = list(loaded.dataset)
        assert len(rows) == len(layout.becomes)
        for row, expected in zip(rows, layout.becomes, strict=True):
            assert [image.getpixel((0, 0)) for image in row["images"]] == expected["images"]
            known = {**row, "images": expected["images"]}
            assert {column: known[column] for column in expected} == expected
        assert loaded.left_out == layout.left_out
        refused = [(problem.column, problem.reason) for problem in loaded.problems]
        assert refused == ([REFUSED[name][:2]] if name in REFUSED else [])
        assert all(REFUSED[name][2] in problem.message for problem in loaded.problems)


def test_a_field_inside_a_column_can_be_named(folder):
    rows = [{"q": {"text": "Which?", "image": "red.png"}, "meta": {"gold": "red", "level": 3}}]
    columns = {"prompt": "q.text", "images": "q.image", "answer": "meta.gold"}
    file = write_lines(folder / "rows.jsonl", rows)
    Dataset.from_list(rows).to_parquet(folder / "rows.parquet")
    for source in (file, folder / "rows.parquet"):
        loaded = load_rows(source, columns=columns)
        (row,) = loaded.dataset
        assert (row["prompt"], row["answer"]) == ([user("Which?")], "red")
        assert row["images"][0].getpixel((0, 0)) == RED
        assert (loaded.columns, loaded.left_out) == (columns, ["meta.level"])
    with pytest.raises(DataError, match=r"no column 'meta.golden' for answer; it has \['q', 'meta'\]"):
        load_rows(file, columns={**columns, "answer": "meta.golden"})


def test_the_cache_notices_an_image_in_a_field_or_behind_a_url(folder):
    rows = [{"q": {"image": "red.png"}, "prompt": "Which?", "answer": "red"}]
    Dataset.from_list(rows).to_parquet(folder / "fields.parquet")
    urls = write_lines(
        folder / "urls.jsonl", [{"prompt": "?", "image_urls": [f"file://{folder}/red.png"], "answer": "a"}]
    )
    sources = ((folder / "fields.parquet", {"images": "q.image"}), (urls, None))
    for colour, pixel in (("red", RED), ("blue", BLUE)):
        PIL.Image.new("RGB", (3 if colour == "red" else 5, 2), colour).save(folder / "red.png")
        for source, columns in sources:
            (row,) = load_rows(source, columns=columns).dataset
            assert row["images"][0].getpixel((0, 0)) == pixel


MARKED = [
    ("<image1>Which is red, it or <image2>?", 2, "<image>Which is red, it or <image>?"),
    ("Is <image 1> as red as <image_2>?", 2, "Is <image> as red as <image>?"),
    ("Is <image2> as red as <image1>?", 2, "Is image 2 as red as image 1?"),
    ("<image1>\nIs <image1> red?", 1, "Is image 1 red?"),
    ("As <image1>, is <image2> as red as <image1>?", 2, "As <image>, is <image> as red as image 1?"),
    ("<image>\n<image>\nIs <image2> red?", 2, "Is image 2 red?"),
]


@pytest.mark.parametrize(("text", "count", "becomes"), MARKED)
def test_marks_of_images_become_their_places_or_names(folder, text, count, becomes):
    row = {"prompt": text, "images": ["red.png", "blue.png"][:count], "answer": "a"}
    (loaded,) = load_rows(write_lines(folder / "rows.jsonl", [row]), on_error="raise").dataset
    assert loaded["prompt"] == [user(becomes)]


UNCLEAR = [
    ("Is <image3> red?", 2, "mark of an image"),
    ("Is <image1> red?", 0, "mark of an image"),
    ("<image> <image> <image> Which?", 2, "wrong number of <image>"),
    ("<image>\nIs it as red as <image>?", 1, "wrong number of <image>"),
    ("<image> Which?", 2, "wrong number of <image>"),
]


@pytest.mark.parametrize(("text", "count", "reason"), UNCLEAR)
def test_marks_that_could_mean_anything_are_refused(folder, text, count, reason):
    good = {"prompt": "?", "images": [], "answer": "a"}
    row = {"prompt": text, "images": ["red.png", "blue.png"][:count], "answer": "a"}
    (problem,) = load_rows(write_lines(folder / "rows.jsonl", [good, row])).problems
    assert (problem.row, problem.reason) == (1, reason)


def test_of_a_row_with_a_missing_image_only_that_is_reported(folder):
    rows = [{"prompt": "?", "answer": "a"}, {"prompt": "<image1> Which?", "images": ["no.png"], "answer": "a"}]
    (problem,) = load_rows(write_lines(folder / "rows.jsonl", rows)).problems
    assert problem.reason == "missing image file"


def test_a_configuration_is_named_after_a_colon(folder):
    copy = folder / "copy"
    for number, name in enumerate(("virl39k", "mmk12")):
        (copy / name).mkdir(parents=True)
        Dataset.from_list([{"prompt": name, "answer": str(number)}]).to_parquet(copy / name / "train.parquet")
    files = "\n".join(f"- config_name: {name}\n  data_files: {name}/train.parquet" for name in ("virl39k", "mmk12"))
    (copy / "README.md").write_text(f"---\nconfigs:\n{files}\n---\n")
    (row,) = load_rows(f"{copy}:mmk12").dataset
    assert (row["prompt"], row["answer"]) == ([user("mmk12")], "1")
    with pytest.raises(DataError, match=r"BuilderConfig 'no' not found. Available: \['virl39k', 'mmk12'\]"):
        load_rows(f"{copy}:no")
    with pytest.raises(DataError, match="/nowhere:no' does not exist here"):
        load_rows(f"{folder}/nowhere:no")


def test_answers_in_earlier_turns_are_counted(folder, caplog):
    load_rows(saved(LAYOUTS["LLaVA-CoT"], folder), kind="completions")
    assert "rows: 1 of 2 conversations have several answers. The last one is the completion" in caplog.text


def test_base64_that_is_cut_off_is_named(folder):
    whole = base64.b64encode(png("blue", (40, 30))).decode()
    rows = [{"prompt": "?", "images": [f"data:image/png;base64,{text}"], "answer": "a"} for text in (whole, whole[:81])]
    loaded = load_rows(write_lines(folder / "rows.jsonl", rows))
    assert loaded.dataset[0]["images"][0].size == (40, 30)
    (problem,) = loaded.problems
    assert (problem.row, problem.reason) == (1, "unreadable image")


def test_an_unknown_kind_is_refused(folder):
    with pytest.raises(DataError, match=r"kind is 'dpo'; expected one of \['questions', 'completions', 'preferences'"):
        load_rows(write_lines(folder / "rows.jsonl", [{}]), kind="dpo")


def test_a_column_that_a_kind_needs_is_named(folder):
    file = write_lines(folder / "rows.jsonl", [{"prompt": "?", "chosen": "a"}])
    with pytest.raises(
        DataError, match=r"no column for rejected: looked for \['rejected'\], found \['prompt', 'chosen'"
    ):
        load_rows(file, kind="preferences")


def test_supervised_rows_come_from_our_own_parquet_unchanged_and_from_json_lines(folder):
    own = [{"prompt": [user("3+4?")], "images": [], "completion": "7", "source": "reflect"}]
    Dataset.from_list(own).to_parquet(folder / "own.parquet")
    assert load_completions(str(folder / "own.parquet")).column_names == ["prompt", "images", "completion", "source"]
    lines = write_lines(folder / "rows.jsonl", [{"question": "3+4?", "solution": "It is 7."}])
    (row,) = load_completions(str(lines), columns=None)
    assert (row["prompt"], row["completion"]) == ([user("3+4?")], "It is 7.")
    Dataset.from_list([{**own[0], "text": "seven"}]).to_parquet(folder / "text.parquet")
    assert load_completions(str(folder / "text.parquet"), columns={"completion": "text"})["completion"][:] == ["seven"]
