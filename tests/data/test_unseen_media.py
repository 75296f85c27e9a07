"""Media that a model would not see cost their row in load_rows, and refuse a data set that comes as it is."""

import base64
import logging

import datasets
import pytest
from datasets import Dataset, Features, Value
from every_trainer import ARGUMENTS, TRAINERS
from PIL import Image
from scripted import Scripted
from support import png, write_lines

import trl_mmreason
from trl_mmreason.data.row_loading import DataError, load_rows
from trl_mmreason.data.unseen_media import refuse_unseen_media
from trl_mmreason.generation.protocols import Direct
from trl_mmreason.jobs.answering import answer_questions
from trl_mmreason.training.construction import check_rows

pytestmark = pytest.mark.usefixtures("own_cache")

ROW = {"prompt": "What is it?", "answer": "a"}
MP4 = b"\x00\x00\x00\x18ftypmp42" + bytes(64)
WAV = b"RIFF\x00\x00\x00\x00WAVEfmt "
ENCODED = base64.b64encode(png(size=(64, 64))).decode()
LINK = "https://example.org/picture?number=7"
MEDIA = [
    *(("video", "a.mp4"), ("videos", ["a.mp4"]), ("audio", "a.wav"), ("audios", [{"path": "a.wav", "bytes": None}])),
    *(("video_path", "clips/7"), ("videos", ["s3://bucket/7"]), ("input_audio", "my clip.wav"), ("clip", "there.mp4")),
    *(("clip", {"bytes": MP4, "path": None}), ("sound", WAV), ("audio_bytes", b"?"), ("video_url", LINK)),
    *(("clip", "lost.mov"), ("sounds", ["lost.mp3"]), ("media", [{"kind": "video", "uri": "7"}])),
    *(("extra_info", {"video": "clips/7"}), ("note", '{"audio": ["7"]}')),
]
NESTED = [
    *(("multi_modal_data", {"image": ["lost.png"]}), ("extra_info", {"a": {"images": [LINK]}}), ("img", {"src": LINK})),
    *(("mm_inputs", [{"image": "lost.png"}]), ("media", [{"kind": "image", "uri": LINK}])),
    ("extra", '{"figure": "' + LINK + '"}'),
    ("content", [{"type": "image_url", "image_url": {"url": LINK}}, {"type": "text", "text": "What?"}]),
]
IMAGES = [
    *(("img", "lost.png"), ("picture", ["there.png"]), ("image_paths", ["lost.jpg"]), ("photo", png())),
    *(("image_url", LINK), ("picture_urls", [LINK]), ("scan", {"bytes": png(), "path": None}), ("data", ENCODED)),
    *(("file", "there.png"), ("screenshot_b64", f"data:image/png;base64,{ENCODED}"), ("pixel_values", [[0.5]])),
    *(("img", Image.new("RGB", (2, 2))), ("frames", ["lost.png", "lost.jpg"]), ("imgs", "a.png,b.png")),
    *(("img", "Screenshot 7.png"), ("imgs", '["a.png", "b.jpg"]'), ("scan", "['a.png']")),
    *NESTED,
]
NONE = [
    *(("video_id", "v_7"), ("video_id", "v_7.mp4"), ("video", None), ("videos", []), ("audio", ""), ("video", False)),
    *(("note", "See there.png and a.mp4."), ("source", "page_7.png"), ("image_id", 7), ("audio_note", "none of it")),
    *(("img", None), ("image_size", [2, 2]), ("raw", b"no image"), ("url", "https://example.org/a"), ("img", [])),
    ("meta", {"topic": "audio", "grade": "3"}),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "there.png").write_bytes(png())
    (tmp_path / "there.mp4").write_bytes(MP4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def named(cases):
    return {"argvalues": cases, "ids": [f"{column}-{str(value)[:20]}" for column, value in cases]}


def sources(column, value, folder):
    """A source of two rows, of which the second holds the value, in each form that can hold it."""
    others = [{**ROW, "id": "plain"}, {**ROW, "id": "bad", column: value}]
    yield Dataset.from_list([{column: None, **others[0]}, others[1]])
    if "bytes" not in str(type(value)) + str(value) and not isinstance(value, Image.Image):
        yield write_lines(folder / "r.jsonl", others)


@pytest.mark.parametrize(("column", "value"), **named(MEDIA))
def test_a_row_with_video_or_audio_is_left_out_and_named(column, value, folder):
    for source in sources(column, value, folder):
        loaded = load_rows(source)
        assert loaded.dataset["id"][:] == ["plain"]
        (problem,) = loaded.problems
        assert (problem.id, problem.column, problem.reason) == ("bad", column, "video or audio")
        assert "video_frames=8), or --video-frames 8, reads frames of a video in the column `video`" in problem.message
        assert "put frames of it into `images`, or remove the column" in problem.message
        assert load_rows(source, columns={"images": None}).problems == []


@pytest.mark.parametrize(("column", "value"), **named(IMAGES))
def test_a_row_whose_image_nobody_reads_is_left_out_and_named(column, value, folder, caplog):
    for source in sources(column, value, folder):
        caplog.clear()
        loaded = load_rows(source)
        assert loaded.dataset["id"][:] == ["plain"]
        (problem,) = loaded.problems
        assert (problem.id, problem.column, problem.reason) == ("bad", column, "image in another column")
        assert "1 of 2 rows cannot be used" in caplog.records[-1].getMessage()
        if (column, value) in NESTED:
            assert "put the images into one list column `images`; or read the text alone" in problem.message
        elif column != "pixel_values":
            assert f"""--columns '{{"images": "{column}"}}', or columns=""" in problem.message
        assert load_rows(source, columns={"images": None}).problems == []
        assert load_rows(source, keep_columns=[column]).problems == []


@pytest.mark.parametrize(("column", "value"), **named(NONE))
def test_what_only_mentions_media_is_read(column, value, folder, caplog):
    for source in sources(column, value, folder):
        assert load_rows(source).problems == []
    if value not in (None, []):
        refuse_unseen_media("rows", Dataset.from_list([{**ROW, column: value}]))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_all_rows_with_their_images_elsewhere_are_an_error(folder):
    with pytest.raises(DataError, match=r"rows: 1 of 1 rows cannot be used:\nrow 0 .*image in another column"):
        load_rows(Dataset.from_list([{**ROW, "img": "there.png"}]))
    both = {**ROW, "image": "there.png", "thumbnail_image": "there.png"}
    loaded = load_rows(Dataset.from_list([both, {**both, "image": None}]))
    assert [problem.row for problem in loaded.problems] == [1]  # which has no other image
    named = Dataset.from_list([{**ROW, "img": "there.png", "photo": "there.png", "video": "a.mp4"}])
    assert [one.column for one in load_rows(named, columns={"images": "img"}, keep_columns=["video"]).problems] == []
    with pytest.raises(DataError, match="column 'video': video or audio"):
        load_rows(named, columns={"images": "img"})


SECOND = [("image_2", "b.png"), ("reference_image", png(size=(9, 9))), ("image2", {"bytes": None, "path": "b.png"})]


@pytest.mark.parametrize(("column", "value"), **named([*SECOND, ("images", ["b.png"])]))
def test_a_second_image_is_named(column, value, folder):
    (folder / "b.png").write_bytes(png(size=(9, 9)))
    rows = Dataset.from_list([{**ROW, "image": "there.png", column: value}])
    other = "image" if column == "images" else column
    with pytest.raises(DataError, match=f"column '{other}': second image: .*one list column `images`; or name the o"):
        load_rows(rows)
    assert load_rows(rows, columns={"images": "image"}, on_error="raise").problems == []
    with pytest.raises(ValueError, match=f"row 0, column '{other}': it holds an image that nobody reads, beside one"):
        refuse_unseen_media("rows", rows)


def test_the_same_image_again_and_where_it_comes_from_are_no_second_one():
    again = {
        "images": ["there.png"],
        "original_image": png(),
        "masked_image": [],
        "image_caption": "c",
        "image_url": LINK,
    }
    for rows in (Dataset.from_list([{**ROW, "image": "there.png", column: value}]) for column, value in again.items()):
        assert load_rows(rows).problems == []
        refuse_unseen_media("rows", rows)


def test_the_name_of_the_image_that_is_read_is_no_second_one():
    """Its file need not be there, as the image is."""
    rows = Dataset.from_list([{**ROW, "images": [png()], "image": "folder/1.jpg", "photo": "1.jpg"}])
    refuse_unseen_media("rows", rows)
    assert load_rows(rows.remove_columns("image")).problems == []


def test_images_of_two_unread_columns_are_named_together(folder):
    with pytest.raises(DataError, match=r"the columns \['image_1', 'image_2'\] hold images that nobody reads; put the"):
        load_rows(Dataset.from_list([{**ROW, "image_1": "there.png", "image_2": "b.png"}]))


def test_a_dictionary_of_other_keys_is_no_image_and_not_none():
    rows = Dataset.from_list([{**ROW, "images": [{"image": "there.png"}]}])
    with pytest.raises(ValueError, match=r"rows: an image of row 0 is a dictionary with the keys \['image'\]"):
        refuse_unseen_media("rows", rows)


def test_a_gap_between_images_is_refused():
    rows = Dataset.from_list([{**ROW, "images": [None]}, {**ROW, "images": [None, "there.png"]}])
    with pytest.raises(ValueError, match=r"rows: row 1, column 'images': it has no image 1 of 2 \(it is None\)"):
        refuse_unseen_media("rows", rows)


@pytest.mark.parametrize("text", ["What does <img src='a.png'> do?", "The <img> tag?", "|image|<5>", "a[1](b)", "<im>"])
def test_html_and_mathematics_are_no_marks(text):
    assert load_rows(Dataset.from_list([{**ROW, "prompt": text}])).problems == []


VIDEO_MARKS = ["<video>", "<audio>", "<|video_pad|>", "<video_1>", "<|audio_bos|>"]
IMAGE_MARKS = [
    *("<|image_pad|>", "<|vision_start|><|vision_end|>", "<image_1>", "<image 1>", "<img>", "<|image_1|>", "<Image>"),
    *(
        "<start_of_image>",
        "<IMG_CONTEXT>",
        "<ImageHere>",
        "<image_soft_token>",
        "![](a.png)",
        "<img>a.png</img>",
        "[IMG]",
    ),
]


@pytest.mark.parametrize("mark", VIDEO_MARKS + IMAGE_MARKS)
def test_a_mark_other_than_image_in_the_text_is_refused(mark, folder):
    row = {"prompt": f"{mark}\nWhat happens?", "answer": "a"}
    reason = "video or audio" if mark in VIDEO_MARKS else "mark of an image"
    with pytest.raises(DataError, match=f"{reason}: the prompt has the mark "):
        load_rows(Dataset.from_list([row]))
    messages = [{"role": "user", "content": row["prompt"]}]
    for prompt in (row["prompt"], messages, [{"role": "user", "content": [{"type": "text", "text": row["prompt"]}]}]):
        rows = Dataset.from_list([{**ROW, "prompt": "p"}] * 30 + [{**row, "prompt": "q"}])
        rows = rows.remove_columns("prompt").add_column("prompt", [prompt] * 31)
        with pytest.raises(ValueError, match="train_dataset: the prompt of row 0 has the mark "):
            check_rows("Trainer", rows, None, {"prompt", "answer"})


# ------------------------------------------------------------------------------------------- data sets as they are


@pytest.mark.parametrize(("column", "value"), **named(MEDIA + IMAGES))
def test_a_plain_data_set_with_them_is_refused(column, value):
    rows = Dataset.from_list([{**ROW, column: None}, {**ROW, column: value}])
    with pytest.raises(ValueError, match=rf"Trainer: eval_dataset: (row 1, )?(the )?column '{column}'"):
        check_rows("Trainer", Dataset.from_list([ROW]), rows, {"prompt", "answer"})
    with pytest.raises(ValueError, match=rf"answer_questions: rows: row 1, column '{column}'"):
        answer_questions(rows, Scripted(lambda *_: "a"), None, Direct(), stage="answers")


def test_one_video_among_many_rows_and_declared_ones_are_found():
    rows = Dataset.from_list([{**ROW, "video": None}] * 100 + [{**ROW, "video": "a.mp4"}])
    with pytest.raises(ValueError, match="row 100, column 'video'"):
        refuse_unseen_media("rows", rows)
    for kind in (datasets.Video(), datasets.List(datasets.Audio())):
        features = Features({"prompt": Value("string"), "answer": Value("string"), "clip": kind})
        declared = Dataset.from_list([{**ROW, "clip": None}], features=features)
        with pytest.raises(ValueError, match="the column 'clip' holds video or audio"):
            refuse_unseen_media("rows", declared)


def parts(*content):
    return [{"role": "user", "content": [*content, {"type": "text", "text": "What?"}]}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": parts({"type": "video", "video": "a.mp4"})}, "row 0 has a part of type 'video'"),
        ({"prompt": parts({"type": "audio"})}, "row 0 has a part of type 'audio'"),
        ({"prompt": parts({"type": "image_url", "image_url": {"url": LINK}})}, "row 0 has a part of type 'image_url'"),
        ({"prompt": "<image> What?"}, r"row 0 has 1 <image> and the row 0 image\(s\)"),
        ({"prompt": "<image> What?", "images": [None]}, r"row 0 has 1 <image> and the row 0 image\(s\)"),
        ({"prompt": "<image><image>", "images": ["there.png"]}, r"row 0 has 2 <image> and the row 1 image\(s\)"),
        (
            {"prompt": [{"role": "user", "content": "Is <image> red?"}], "images": ["a.png", "b.png"]},
            r"row 0 has 1 <image> and the row 2 image\(s\). Fix: make them equal",
        ),
    ],
)
def test_a_prompt_that_no_image_stands_for_is_refused(row, message):
    with pytest.raises(ValueError, match=f"rows: the prompt of {message}"):
        refuse_unseen_media("rows", Dataset.from_list([{**ROW, **row}]))


def test_rows_with_their_images_pass_and_decode_none(monkeypatch):
    monkeypatch.setattr(datasets.Image, "decode_example", None)
    image = {"bytes": png(), "path": None}
    for row in (
        {"prompt": "<image> What?", "images": [image], "thumbnail_image": image},
        {"prompt": parts({"type": "image", "image": image}), "answer": "there.png"},
        {"prompt": parts({"type": "image"}), "image": image, "video": None},
    ):
        refuse_unseen_media("rows", Dataset.from_list([{**ROW, **row}]))
    made = Dataset.from_list([{**ROW, "img": "there.png"}]).with_transform(lambda rows: rows)
    refuse_unseen_media("rows", made)  # whose transform may open it


@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_refuses_them_before_it_loads_a_model(name, tmp_path):
    kinds = {"completion": "c", "step_labels": [1.0], "answer_label": 1.0, "reward": 1.0}
    prompt = [{"role": "user", "content": "What is it?"}]
    rows = Dataset.from_list([{"prompt": prompt, "answer": "a", **kinds, "video": "a.mp4"}])
    config = getattr(trl_mmreason, name.replace("Trainer", "Config"))(str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(ValueError, match=rf"^{name}: train_dataset: row 0, column 'video': it holds video or audio"):
        getattr(trl_mmreason, name)(
            str(tmp_path / "none"), args=config, train_dataset=rows, **ARGUMENTS.get(name, dict)()
        )
