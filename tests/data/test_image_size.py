"""Bounds of an image's size: which images change, to what, and where the bounds can be given."""

import io

import PIL.Image
import pytest
from benchmark_rows import LAYOUTS
from benchmark_rows.layout import saved
from support import write_lines

from trl_mmreason.data.image_size import PixelBounds, fitted_image
from trl_mmreason.data.row_loading import DataError, load_rows
from trl_mmreason.evaluation.benchmarks import BenchmarkError, load_benchmark
from trl_mmreason.scripts.sections import DataArguments

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize(
    ("bounds", "size", "becomes"),
    [
        ((None, None), (30, 20), (30, 20)),
        ((None, 600), (30, 20), (30, 20)),
        ((None, 150), (30, 20), (15, 10)),
        ((None, 149), (30, 20), (14, 9)),  # never above the bound
        ((2400, None), (30, 20), (60, 40)),
        ((2401, None), (30, 20), (61, 41)),  # never below it
        ((None, 2), (100, 1), (14, 1)),  # a side of no pixel is none
    ],
)
def test_sizes(bounds, size, becomes):
    assert PixelBounds(*bounds).size(*size) == becomes


def stored(size, kind, exif=None):
    file = io.BytesIO()
    options = {"exif": exif} if exif else {}
    PIL.Image.new("RGB", size, "red").save(file, kind, **options)
    return {"bytes": file.getvalue(), "path": None}


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_resized_image_keeps_its_kind_and_an_image_within_the_bounds_is_untouched(kind):
    image = stored((30, 20), kind)
    assert fitted_image(image, PixelBounds(None, 600)) == image
    resized = PIL.Image.open(io.BytesIO(fitted_image(image, PixelBounds(None, 150))["bytes"]))
    assert (resized.size, resized.format) == ((15, 10), kind)
    assert all(abs(a - b) <= 2 for a, b in zip(resized.convert("RGB").getpixel((7, 5)), (255, 0, 0), strict=True))


def test_a_turned_photograph_is_upright_afterwards():
    exif = PIL.Image.Exif()
    exif[274] = 6
    resized = PIL.Image.open(io.BytesIO(fitted_image(stored((30, 20), "JPEG", exif), PixelBounds(None, 150))["bytes"]))
    assert resized.size == (10, 15)
    assert 274 not in resized.getexif()


def test_rows_recipes_and_benchmarks_take_bounds(tmp_path):
    PIL.Image.new("RGB", (30, 20), "red").save(tmp_path / "red.png")
    file = write_lines(tmp_path / "rows.jsonl", [{"prompt": "?", "images": ["red.png"], "answer": "1"}])
    for bounds, size in (({"max_pixels": 150}, (15, 10)), ({"min_pixels": 2400}, (60, 40)), ({}, (30, 20))):
        assert load_rows(file, **bounds).dataset[0]["images"][0].size == size
    source = saved(LAYOUTS["mmstar"], tmp_path / "copy")
    assert load_benchmark("mmstar", source, max_pixels=12)[0]["images"][0].size == (4, 3)
    assert DataArguments("x", max_pixels=150).max_pixels == 150
    with pytest.raises(DataError, match="min_pixels is 9 and max_pixels 4; expected no more of the first"):
        load_rows(file, min_pixels=9, max_pixels=4)
    with pytest.raises(BenchmarkError, match="mmstar: max_pixels is 0; expected an integer of at least 1"):
        load_benchmark("mmstar", source, max_pixels=0)
    with pytest.raises(ValueError, match="max_pixels is '1e5'; expected an integer"):
        DataArguments("x", max_pixels="1e5")
