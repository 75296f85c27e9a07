"""A second start over unchanged files decodes no image; whatever changed is checked again."""

import os
import time
from pathlib import Path

import datasets
import PIL.Image
import pytest
from datasets import Dataset
from support import png, write_lines

from trl_mmreason.data import images as images
from trl_mmreason.data import row_cache, row_values
from trl_mmreason.data.row_loading import load_rows

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def decoded(monkeypatch):
    """The images that were decoded to be checked."""
    seen = []

    def decode(source):
        seen.append(Path(source).name if isinstance(source, str) else "bytes")
        return images.decode(source)

    monkeypatch.setattr(row_values, "decode", decode)
    return seen


@pytest.fixture
def source(tmp_path):
    """Lines with an image, with one among the parts of a message, and with one that is not there."""
    (tmp_path / "a.png").write_bytes(png("red"))
    (tmp_path / "b.png").write_bytes(png("blue"))
    parts = [{"type": "image", "image": "b.png"}, {"type": "text", "text": "Which?"}]
    lines = [
        {"prompt": "p", "images": ["a.png"], "answer": "a", "solution": "c"},
        {"prompt": [{"role": "user", "content": parts}], "answer": "b", "solution": "d"},
        {"prompt": "p", "images": ["lost.png"], "answer": "b", "solution": "d"},
    ]
    return write_lines(tmp_path / "r.jsonl", lines)


def read_twice(source, decoded, **options):
    """Load, check that a second call gives the same and decodes nothing, and return what the first decoded."""
    first = load_rows(source, **options)
    names = list(decoded)
    decoded.clear()
    again = load_rows(source, **options)
    assert decoded == []
    assert again.problems == first.problems
    assert list(again.dataset) == list(first.dataset)
    assert again.dataset.features == first.dataset.features
    return names


def test_rows_are_checked_again_after_every_change_and_only_then(source, decoded, monkeypatch):
    folder = source.parent
    assert read_twice(source, decoded) == ["a.png", "b.png"]
    assert read_twice(source, decoded, columns={"answer": "solution"}) == ["a.png", "b.png"]
    assert read_twice(source, decoded, system_prompt="Think.") == ["a.png", "b.png"]
    assert read_twice(source, decoded, max_rows=1) == ["a.png"]
    assert read_twice(source, decoded, keep_columns=["solution"]) == ["a.png", "b.png"]
    assert load_rows(source).dataset[0]["images"][0].getpixel((0, 0)) == (255, 0, 0)
    assert decoded == []

    size = (folder / "a.png").stat().st_size
    (folder / "a.png").write_bytes(png("blue").ljust(size, b"0"))  # another image of the same size
    assert (folder / "a.png").stat().st_size == size
    assert read_twice(source, decoded) == ["a.png", "b.png"]
    os.utime(folder / "b.png", (0, 0))
    assert read_twice(source, decoded) == ["a.png", "b.png"]
    (folder / "lost.png").write_bytes(png())
    assert read_twice(source, decoded) == ["a.png", "b.png", "lost.png"]
    (folder / "a.png").unlink()
    assert read_twice(source, decoded) == ["b.png", "lost.png"]
    assert [problem.reason for problem in load_rows(source).problems] == ["missing image file"]
    source.write_text(source.read_text().replace("Which?", "Where?"))  # of the same length
    assert read_twice(source, decoded) == ["b.png", "lost.png"]

    for module, name in ((row_cache, "grader_version"), (row_cache.PIL, "__version__")):
        with monkeypatch.context() as other:
            other.setattr(module, name, (lambda: "9") if name == "grader_version" else "9")
            row_cache._reader_version.cache_clear()
            assert read_twice(source, decoded) == ["b.png", "lost.png"]
    row_cache._reader_version.cache_clear()
    datasets.disable_caching()
    try:
        load_rows(source)
        load_rows(source)
    finally:
        datasets.enable_caching()
    assert decoded == ["b.png", "lost.png"] * 2


def test_rows_of_a_folder_that_was_moved_are_read_from_where_it_is_now(tmp_path, monkeypatch):
    (tmp_path / "a/data").mkdir(parents=True)
    (tmp_path / "a/data/i.png").write_bytes(png())
    (tmp_path / "a/data/rows.json").write_text('[{"prompt": "p", "images": ["i.png"], "answer": "1"}]')
    for name in ("a", "b"):
        monkeypatch.chdir(tmp_path / name)
        assert load_rows("data/rows.json").dataset[0]["images"][0].mode == "RGB"  # the file is there
        if name == "a":
            (tmp_path / "a").rename(tmp_path / "b")


def test_a_list_of_images_written_as_text_is_checked_again_after_a_change_too(source, decoded):
    rows = [{"prompt": "p", "images": "['a.png', 'lost.png']", "answer": "a"}, {"prompt": "p", "answer": "a"}]
    lines = write_lines(source.parent / "text.jsonl", rows)
    Dataset.from_list(rows).to_parquet(source.parent / "text.parquet")
    for file in (lines, source.parent / "text.parquet"):
        (source.parent / "lost.png").unlink(missing_ok=True)
        assert len(load_rows(file).dataset) == 1
        (source.parent / "lost.png").write_bytes(png())
        decoded.clear()
        assert len(load_rows(file).dataset) == 2
        assert decoded == ["a.png", "lost.png"]


def test_images_in_a_data_file_and_repaired_ones_are_decoded_once(tmp_path, decoded):
    PIL.Image.new("RGBA", (2, 2)).save(tmp_path / "clear.png")
    stored = [{"bytes": png(), "path": "a.png"}, {"bytes": None, "path": str(tmp_path / "clear.png")}]
    parts = [{"type": "image", "image": {"bytes": None, "path": "clear.png"}}, {"type": "text", "text": "Which?"}]
    for name, content in (
        ("column", {"prompt": "p", "images": stored}),
        ("parts", {"prompt": [{"role": "user", "content": parts}]}),
        ("path", {"prompt": "p", "image": "clear.png"}),
    ):
        file = tmp_path / f"{name}.parquet"
        Dataset.from_list([{**content, "answer": "a"}]).to_parquet(file)
        expected = ["bytes", "clear.png"] if name == "column" else ["clear.png"]
        assert read_twice(file, decoded) == expected
        assert load_rows(file).dataset[0]["images"][-1].getpixel((0, 0)) == (255, 255, 255)
        PIL.Image.new("RGBA", (2, 2), (0, 0, 255, 0)).save(tmp_path / "clear.png")
        assert read_twice(file, decoded) == expected


def test_rows_in_memory_go_to_no_disk_and_unread_ones_are_removed(source, tmp_path):
    load_rows(Dataset.from_list([{"prompt": "p", "image": png(), "answer": "a"}]))
    kept = tmp_path / "cache" / "trl_mmreason"
    assert not kept.exists()
    load_rows(source)
    [first] = kept.iterdir()
    load_rows(source, max_rows=1)
    month = time.time() - 31 * 24 * 3600
    os.utime(first, (month, month))
    load_rows(source)  # reads it
    load_rows(source, max_rows=2)
    assert first.exists()
    os.utime(first, (month, month))
    load_rows(source, max_rows=2)
    assert not first.exists()
    assert len(list(kept.iterdir())) == 2
