"""Videos as frames: which ones, how they come out, where they stand among images, and what cannot be read."""

import io
import os
import struct
import sys
from functools import partial

import av
import datasets
import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset, Features, Value
from packaging.version import Version
from PIL import Image
from support import adapo_trainer, load, png, recorded_batches, write_lines
from transformers.video_utils import VideoMetadata, default_sample_indices_fn, read_video_pyav

from trl_mmreason.cli.main import main
from trl_mmreason.data import row_values, video
from trl_mmreason.data.row_loading import DataError, load_rows
from trl_mmreason.data.row_values import RefusedValue
from trl_mmreason.data.video import frame_places, frames_of
from trl_mmreason.scripts.script_parser import ScriptParser
from trl_mmreason.scripts.single_stage import DataArguments, load_data

pytestmark = pytest.mark.usefixtures("own_cache")

ROW = {"prompt": "What happens?", "answer": "a"}


def grey(level):
    return Image.new("RGB", (32, 16), (10 * level,) * 3)


def write_video(file, frames, codec="mpeg4"):
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=5)
        stream.pix_fmt, (stream.width, stream.height) = "yuv420p", frames[0].size
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    return file


def levels(images):
    """The numbers of grey frames, which a codec changes a little."""
    return [round(image.getpixel((8, 8))[0] / 10) for image in images]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Videos of ten and of three frames, the latter from level 20 on, and three images."""
    write_video(tmp_path / "ten.mp4", [*map(grey, range(10))])
    write_video(tmp_path / "three.mkv", [*map(grey, (20, 21, 22))])
    for level in (15, 16, 17):
        grey(level).save(tmp_path / f"{level}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_pyav(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)


# -------------------------------------------------------------------------------------------------------- frames


OF_ITS_OWN = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"), reason="transformers chose frames otherwise then"
)


@OF_ITS_OWN
@pytest.mark.parametrize("total", [1, 2, 7, 10, 100, 1001])
@pytest.mark.parametrize("most", [1, 2, 3, 8, 64])
def test_the_places_are_those_of_transformers(total, most):
    metadata = VideoMetadata(total_num_frames=total)
    expected = default_sample_indices_fn(metadata, num_frames=min(most, total))
    assert frame_places(total, most) == expected.tolist()


@OF_ITS_OWN
def test_the_frames_are_those_of_transformers(folder):
    expected, _ = read_video_pyav(str(folder / "ten.mp4"), partial(default_sample_indices_fn, num_frames=4))
    assert np.array_equal([np.asarray(frame) for frame in frames_of(folder / "ten.mp4", 4)], expected)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.webm"])  # two of these state no number of frames
def test_frames_are_spread_over_the_whole_video(tmp_path, name):
    file = write_video(tmp_path / name, [*map(grey, range(10))], "vp9" if name == "a.webm" else "mpeg4")
    for source in (file, str(file), file.read_bytes()):
        assert levels(frames_of(source, 4)) == [0, 2, 5, 7]  # 0, 10/4, 20/4, 30/4
        assert levels(frames_of(source, 1)) == [0]
        assert levels(frames_of(source, 99)) == [*range(10)]


@pytest.mark.parametrize("stated", [4, 1000])
def test_frames_are_counted_where_the_file_states_a_wrong_number(tmp_path, stated):
    file = write_video(tmp_path / "a.avi", [*map(grey, range(10))]).read_bytes()
    place = file.index(b"strh") + 8 + 32  # the length of the stream
    assert file[place : place + 4] == struct.pack("<I", 10)
    changed = file[:place] + struct.pack("<I", stated) + file[place + 4 :]
    with av.open(io.BytesIO(changed)) as container:
        assert container.streams.video[0].frames == stated
    assert levels(frames_of(changed, 4)) == [0, 2, 5, 7]


def test_a_turned_video_comes_out_upright(tmp_path):
    """As phones write it: the frame's left half, white, is above after a quarter turn clockwise."""
    frame = Image.new("RGB", (32, 16), "white")
    frame.paste("black", (16, 0, 32, 16))
    file = write_video(tmp_path / "a.mp4", [frame] * 2).read_bytes()
    straight = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    turned = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    before, found, after = file.rpartition(straight)  # the matrix of the track
    assert found
    (upright,) = frames_of(before + turned + after, 1)
    assert upright.size == (16, 32)
    assert [upright.getpixel((8, y))[0] for y in (4, 28)] == [255, 0]


def sound(folder):
    with av.open(str(folder / "sound.wav"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), dtype=np.int16), layout="mono")
        frame.rate = 8000
        container.mux(stream.encode(frame))
    return folder / "sound.wav"


def test_what_is_no_video_is_refused(folder):
    whole = (folder / "ten.mp4").read_bytes()
    film = write_video(folder / "a.avi", [grey(1)]).read_bytes()
    empty = film[: film.index(b"movi") + 4]  # up to its first frame
    for source, said in (
        (b"no video" * 50, "a video of 400 bytes cannot be decoded ("),
        (b"", "a video of 0 bytes cannot be decoded ("),
        (whole[: len(whole) // 2], "cannot be decoded ("),
        (sound(folder), "sound.wav' cannot be decoded (it has no video stream); save it again"),
        (empty, f"a video of {len(empty)} bytes cannot be decoded (it has no frames); save it again"),
    ):
        with pytest.raises(RefusedValue) as refused:
            frames_of(source, 4)
        assert refused.value.reason == "unreadable video"
        assert said in refused.value.message


# ---------------------------------------------------------------------------------------------------------- rows


def rows_of(folder, *rows, **options):
    file = write_lines(folder / "rows.jsonl", [{**ROW, **row} for row in rows])
    return load_rows(file, **{"video_frames": 2, **options})


TEN, THREE = [0, 5], [20, 21]  # the frames that are taken, if two are


@pytest.mark.parametrize(
    ("row", "prompt", "expected"),
    [
        ({"video": "ten.mp4"}, "What happens?", TEN),
        ({"videos": ["ten.mp4", "three.mkv"]}, "What happens?", TEN + THREE),
        ({"videos": "ten.mp4"}, "What happens?", TEN),
        ({"video": ["15.png", "16.png", "17.png"]}, "What happens?", [15, 16]),
        ({"videos": [["15.png", "16.png"], "three.mkv"]}, "What happens?", [15, 16, *THREE]),
        ({"video": {"path": "ten.mp4", "bytes": None}, "videos": []}, "What happens?", TEN),
        ({"video": "ten.mp4", "images": ["15.png"]}, "What happens?", [15, *TEN]),
        ({"video": None, "videos": [None], "images": ["15.png"]}, "What happens?", [15]),
        ({"video": "ten.mp4", "prompt": "<video>\nWhat happens?"}, "What happens?", TEN),
        ({"video": "ten.mp4", "prompt": "Is <video> long?"}, "Is <image><image> long?", TEN),
        (
            {"videos": ["three.mkv", "ten.mp4"], "prompt": "Is <video> or <video> long?"},
            "Is <image><image> or <image><image> long?",
            THREE + TEN,
        ),
        (
            {"video": "ten.mp4", "images": ["15.png", "16.png"], "prompt": "Is <image> in <video> or in <image>?"},
            "Is <image> in <image><image> or in <image>?",
            [15, *TEN, 16],
        ),
        ({"video": "ten.mp4", "prompt": "From <image> to <image>?"}, "From <image> to <image>?", TEN),
    ],
)
def test_frames_follow_the_images_or_stand_at_their_marks(folder, row, prompt, expected):
    messages = [{"role": "user", "content": row.get("prompt", ROW["prompt"])}]
    for asked in (row, {**row, "prompt": messages}):
        (loaded,) = rows_of(folder, asked, on_error="raise").dataset
        assert loaded["prompt"] == [{"role": "user", "content": prompt}]
        assert levels(loaded["images"]) == expected


@pytest.mark.parametrize(
    ("row", "column", "reason", "said"),
    [
        (
            {"video": "lost.mp4"},
            "video",
            "missing video file",
            "lost.mp4' does not exist; fix the path, or give the fo",
        ),
        ({"video": "https://example.org/a.mp4"}, "video", "video is a link", "download the videos first"),
        ({"videos": ["rows.jsonl"]}, "videos", "unreadable video", "rows.jsonl' cannot be decoded ("),
        ({"videos": ["ten.mp4", None]}, "videos", "missing video", "the row has 1 of 2 videos; put the others there"),
        ({"video": ["15.png", None]}, "video", "missing image", "a video of the row has no image 2 of 2"),
        ({"video": ["15.png", "lost.png"]}, "video", "missing image file", "lost.png' does not exist"),
        ({"video": 7}, "video", "wrong type", "got 7 (int); expected a path, the bytes of a video file"),
        ({"video": {"uri": "ten.mp4"}}, "video", "wrong type", 'expected a path, the bytes of a video file, {"bytes"'),
        ({"video": "ten.mp4", "videos": ["ten.mp4"]}, "videos", "videos in two places", "both hold some; fill one"),
        (
            {"video": "ten.mp4", "prompt": "<video> or <video>?"},
            *("prompt", "wrong number of <video>"),
            "the prompt has 2 <video> and 0 <image>, and the row 1 video(s) and 0 image(s); make them equal, or leave",
        ),
        (
            {"video": "ten.mp4", "images": ["15.png"], "prompt": "Is <image> in it?"},
            *("prompt", "wrong number of <video>"),
            "the prompt has 0 <video> and 1 <image>, and the row 1 video(s) and 1 image(s)",
        ),
        (
            {"video": "ten.mp4", "images": ["15.png"], "prompt": "Is it in <video>?"},
            *("prompt", "wrong number of <video>"),
            "the prompt has 1 <video> and 0 <image>, and the row 1 video(s) and 1 image(s)",
        ),
        ({"prompt": "<video> What?"}, "prompt", "wrong number of <video>", "1 <video> and 0 <image>, and the row 0 vi"),
        ({"prompt": "<video_1> What?", "video": "ten.mp4"}, "prompt", "video or audio", "the mark <video_1>"),
        (
            {
                "video": "ten.mp4",
                "prompt": [{"role": "system", "content": "<video>"}, {"role": "user", "content": "?"}],
            },
            *("prompt", "misplaced <image>", "<image> stands in a message of the system"),
        ),
        ({"video": "ten.mp4", "audio": "a.wav"}, "audio", "video or audio", "it holds video or audio"),
        ({"video": "ten.mp4", "image_2": "15.png", "prompt": "p"}, "image_2", "second image", "that nobody reads"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(folder, row, column, reason, said):
    loaded = rows_of(folder, {"video": "ten.mp4"}, row)
    (problem,) = loaded.problems
    assert (problem.row, problem.column, problem.reason) == (1, column, reason)
    assert said in problem.message
    assert len(loaded.dataset) == 1


def test_an_unreadable_video_with_its_mark_is_one_problem(folder):
    loaded = rows_of(folder, {"video": "ten.mp4"}, {"video": "lost.mp4", "prompt": "Is <video> long?"})
    assert [problem.reason for problem in loaded.problems] == ["missing video file"]


def test_data_sets_of_every_kind(folder):
    content = (folder / "ten.mp4").read_bytes()
    files = Features({"prompt": Value("string"), "answer": Value("string"), "video": datasets.Video(decode=False)})
    for value in ({"bytes": None, "path": "ten.mp4"}, {"bytes": content, "path": "lost.mp4"}):
        declared = Dataset.from_list([{**ROW, "video": value}], features=files)
        declared.to_parquet(folder / "rows.parquet")
        for source in (declared, folder / "rows.parquet"):
            assert levels(load_rows(source, video_frames=2).dataset[0]["images"]) == TEN
    for row in ({"video": content}, {"videos": [content]}, {"video": [png("red"), png("blue")]}):
        loaded = load_rows(Dataset.from_list([{**ROW, **row}]), video_frames=2)
        assert len(loaded.dataset[0]["images"]) == 2


def test_other_names_of_columns(folder):
    for row, name in (({"clip": "ten.mp4"}, "video"), ({"clip": ["ten.mp4"]}, "videos")):
        (loaded,) = rows_of(folder, row, columns={name: "clip"}, on_error="raise").dataset
        assert levels(loaded["images"]) == TEN
        with pytest.raises(
            DataError, match=rf"keys \['{name}'\].*; video and videos are columns with video_frames=… a"
        ):
            rows_of(folder, row, columns={name: "clip"}, video_frames=None)
    with pytest.raises(DataError, match="video_frames is 0; expected at least 1"):
        rows_of(folder, {"video": "ten.mp4"}, video_frames=0)
    rows = [{**ROW, "video": "ten.mp4"}]
    assert load_rows(write_lines(folder / "out.jsonl", rows), video_frames=2, image_root=folder).problems == []


def test_without_the_setting_a_video_is_refused_and_the_fix_names_it(folder):
    for row in ({"video": "ten.mp4"}, {"prompt": "Is <video> long?"}):
        (problem,) = rows_of(folder, {}, row, video_frames=None).problems
        assert problem.reason == "video or audio"
        assert "load_rows(…, video_frames=8), or --video-frames 8," in problem.message


def test_without_pyav_one_sentence_says_what_to_install(folder, without_pyav):
    (problem,) = rows_of(folder, {"video": ["15.png"]}, {"video": "ten.mp4"}).problems
    assert problem.reason == "video without PyAV"
    assert problem.message == (
        f"the video '{folder / 'ten.mp4'}' can only be decoded with PyAV, which is not installed; pip install "
        '"trl-mmreason[video]", or put frames of it into `images`'
    )


def test_rows_are_read_again_after_a_change_of_video_number_or_decoder(folder, monkeypatch):
    read = []

    def counted(*arguments):
        read.append(arguments[1])
        return frames_of(*arguments)

    monkeypatch.setattr(video, "frames_of", counted)
    values = (["ten.mp4"], [{"path": "three.mkv"}], [["15.png", "16.png"]])
    source = write_lines(folder / "rows.jsonl", [{**ROW, "videos": value} for value in values])

    def reads(number=2):
        read.clear()
        first = load_rows(source, video_frames=number)
        count = len(read)
        again = load_rows(source, video_frames=number)
        assert len(read) == count
        assert list(first.dataset) == list(again.dataset)
        return count

    assert reads() == 2
    assert reads() == 0
    assert reads(3) == 2
    for file in ("ten.mp4", "three.mkv", "15.png"):
        os.utime(folder / file, (0, 0))
        assert reads() == 2
    write_video(folder / "three.mkv", [grey(9)])
    assert reads() == 2
    with monkeypatch.context() as other:
        other.setattr(av, "__version__", "9")
        assert reads() == 2
    Dataset.from_list([{**ROW, "video": "ten.mp4"}]).to_parquet(folder / "rows.parquet")
    for changed in (True, False):
        if changed:
            os.utime(folder / "ten.mp4", (1, 1))
        read.clear()
        load_rows(folder / "rows.parquet", video_frames=2)
        assert len(read) == changed


def test_paths_of_images_stay_paths(folder, monkeypatch):
    """What is kept of a video that is a list of paths is the paths of the frames that are taken, and only these are
    opened."""
    opened = []
    monkeypatch.setattr(row_values, "decode", lambda source: opened.append(source) or grey(0))
    kept = rows_of(folder, {"video": ["15.png", "16.png", "17.png"]}).dataset
    stored = kept.cast_column("images", datasets.List(datasets.Image(decode=False)))[0]["images"]
    assert [image["path"] for image in stored] == opened == [str(folder / "15.png"), str(folder / "16.png")]
    assert [image["bytes"] for image in stored] == [None, None]


# -------------------------------------------------------------------------------------------- commands and training


def test_scripts_and_commands_take_the_number_of_frames(folder, checkpoints, monkeypatch):
    rows = write_lines(folder / "rows.jsonl", [{**ROW, "video": "ten.mp4"}] * 2)
    given = ["--dataset_name", str(rows), "--video_frames", "2"]
    monkeypatch.setattr(sys, "argv", ["adapo.py", *given, "--eval_dataset_name", str(rows)])
    (arguments,) = ScriptParser([DataArguments]).parse_args_and_config()
    for loaded in load_data(arguments, seed=0):
        assert [levels(images) for images in loaded["images"]] == [TEN, TEN]
    with pytest.raises(ValueError, match="video_frames=0, expected at least 1"):
        DataArguments("x", video_frames=0)
    asked = ["evaluate", f"own={rows}", "--model", checkpoints("qwen2_5_vl"), "--max-new-tokens", "2"]
    main([*asked, "--video-frames", "2", "--output", str(folder / "out")])
    shown = datasets.load_dataset("parquet", data_files=str(folder / "out/own/pictures.parquet"), split="train")
    assert [levels(images) for images in shown["images"]] == [TEN, TEN]
    with pytest.raises(SystemExit, match="video or audio: it holds video or audio"):
        main([*asked, "--output", str(folder / "other")])


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "internvl"])
def test_the_policy_sees_the_frames_as_it_sees_images(family, checkpoints, folder):
    size = (64, 32)
    write_video(folder / "a.mp4", [Image.new("RGB", size, (40 * n, 0, 200 - 40 * n)) for n in range(5)])
    write_video(folder / "b.mp4", [Image.new("RGB", size, (0, 60 * n, 90)) for n in range(4)])
    rows = rows_of(folder, {"video": "a.mp4"}, {"video": "b.mp4", "prompt": "Is <video> long?"}, video_frames=3).dataset
    trainer = adapo_trainer(checkpoints(family), folder / "run", rows, filter_truncated=False)
    batches = recorded_batches(trainer)
    trainer.train()
    assert len(batches) == trainer.state.global_step == 2
    processor = load(checkpoints(family))[1]
    expected = {}
    for name in ("a.mp4", "b.mp4"):
        shown = [{"type": "image", "image": frame} for frame in frames_of(folder / name, 3)]
        message = {"role": "user", "content": [*shown, {"type": "text", "text": "What?"}]}
        made = processor.apply_chat_template([message], tokenize=True, return_dict=True, return_tensors="pt")
        expected[name] = made["pixel_values"]
    for batch in batches:
        seen = [torch.as_tensor(fields["image"]["pixel_values"]) for fields in batch["fields"]]
        names = [name for each in seen for name, pixels in expected.items() if torch.equal(each, pixels.to(each.dtype))]
        assert sorted(names) == ["a.mp4"] * 4 + ["b.mp4"] * 4
