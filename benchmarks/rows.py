"""How long a first and a second reading of the same pictures take."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

from trl_mmreason.data.row_loading import load_rows

from .common import Result

_DISTINCT = 50  # pictures that are drawn; the others are copies of them, as drawing takes longer than reading


def rows(pictures: int = 10_000, width: int = 640, height: int = 480, limit: float = 0.2) -> Result:
    """The second reading of a file with pictures, from the cache, against the first, which decodes them all.

    Args:
        pictures: number of JPEG files.
        width: their width in pixels.
        height: their height in pixels.
        limit: largest allowed ratio.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        datasets.config.HF_DATASETS_CACHE = folder / "cache"
        file = _written(folder, pictures, (width, height))
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            loaded = load_rows(file).dataset
            seconds.append(time.perf_counter() - start)
            assert len(loaded) == pictures
    ratio = seconds[1] / seconds[0]
    print(f"{pictures} pictures: {seconds[0]:.1f} s first, {seconds[1]:.1f} s second, ratio {ratio:.3f}")
    failures = [f"the second reading took {ratio:.2f} of the first, more than {limit}"] if ratio > limit else []
    return Result({"seconds": seconds}, failures)


def _written(folder: Path, pictures: int, size: tuple[int, int]) -> Path:
    """Write the pictures, coarse noise that compresses like photographs, and a file with a row for each."""
    rng = np.random.default_rng(0)
    for number in range(pictures):
        path = folder / f"{number}.jpg"
        if number < _DISTINCT:
            coarse = rng.integers(0, 255, (size[1] // 4, size[0] // 4, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, quality=90)
        else:
            shutil.copyfile(folder / f"{number % _DISTINCT}.jpg", path)
    lines = [
        json.dumps({"prompt": f"What is in picture {number}?", "images": [f"{number}.jpg"], "answer": str(number)})
        for number in range(pictures)
    ]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder / "rows.jsonl"
