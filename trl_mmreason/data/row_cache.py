"""Where checked rows are kept, so that a second start over unchanged files decodes no image.

They lie in the cache folder of `datasets`, in `trl_mmreason`: paths of images as paths, images inside a data file
and repaired ones as bytes. Entries not read for 30 days are removed by the next call.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import PIL
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from ..grading.version import grader_version
from ..messages import images_inside
from .row_sources import parsed_lines
from .row_values import cell, listed_images, local_path
from .rows import RowReader
from .video import VIDEO_NAMES, pyav

_KEPT_SECONDS = 30 * 24 * 3600
_ROWS_AT_ONCE = 1000
_IMAGE_FIELDS = ("image", "image_url", "url")  # of parts of messages


def cache_arguments(raw: Dataset, reader: RowReader, keep: Sequence[str], is_json: bool) -> dict[str, Any]:
    """Arguments of `Dataset.map` that let it load what an earlier call wrote with the same rows (`raw`, lines of JSON
    or not), arguments and code, and with path, size and time of change of every file of an image or a video."""
    if not datasets.is_caching_enabled():
        return {"load_from_cache_file": False}
    decoder = getattr(pyav(), "__version__", None) if reader.video_frames else ""
    arguments = (raw._fingerprint, sorted(vars(reader).items()), list(keep), _reader_version(), decoder)
    digest = hashlib.sha256(repr(arguments).encode())
    for path in _paths_in_lines(raw, reader) if is_json else _paths_in_columns(raw, reader):
        digest.update(repr(_file_state(local_path(path, reader.image_root))).encode())
    key = digest.hexdigest()[:32]
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "trl_mmreason"
    folder.mkdir(parents=True, exist_ok=True)
    _remove_unread(folder, key)
    file = folder / f"rows-{key}.arrow"
    return {"load_from_cache_file": True, "cache_file_name": str(file), "new_fingerprint": key}


def _paths_in_lines(lines: Dataset, reader: RowReader) -> Iterator[str]:
    for row in parsed_lines(lines):
        values = {name: cell(row, column) for name, column in reader.columns.items()}
        seen = [listed_images(values.get("images")), *(values.get(name) for name in VIDEO_NAMES)]
        for one in (*_flat(seen), *images_inside(values.get("prompt"))):
            path = one.get("path") if isinstance(one, Mapping) else one
            if isinstance(path, str):
                yield path


def _flat(value: Any) -> Iterator[Any]:
    """What a list holds, however deep."""
    if isinstance(value, list):
        for inner in value:
            yield from _flat(inner)
    else:
        yield value


def _paths_in_columns(rows: Dataset, reader: RowReader) -> Iterator[str]:
    """Paths of images and videos without bytes; bytes are not even read: the fingerprint of the rows covers them."""
    columns = {name: reader.columns[name] for name in ("images", *VIDEO_NAMES, "prompt") if name in reader.columns}
    places = {name: [column] if column in rows.features else column.split(".") for name, column in columns.items()}
    outer = sorted({place[0] for place in places.values()})
    for table in rows.select_columns(outer).with_format("arrow").iter(_ROWS_AT_ONCE):
        for name, (column, *fields) in places.items():
            for chunk in table[column].chunks:
                inside = pc.struct_field(chunk, fields) if fields else chunk
                yield from _paths_in(inside, name != "prompt")


def _paths_in(array: pa.Array, is_image: bool) -> Iterator[str]:
    """Paths in a column of images, or in the `image` of parts of messages."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _paths_in(array.flatten(), is_image)
    elif pa.types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}:
        paths = pc.struct_field(array, "path")
        stored = pc.struct_field(array, "bytes")
        is_absent = pc.is_null(stored)
        if pa.types.is_binary(stored.type) or pa.types.is_large_binary(stored.type):
            is_absent = pc.fill_null(pc.equal(stored, b""), True)
        yield from paths.filter(is_absent).drop_null().to_pylist()
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _paths_in(pc.struct_field(array, field.name), field.name in _IMAGE_FIELDS)
    elif is_image and pa.types.is_string(kind):
        texts = array.drop_null().to_pylist()
        yield from (one for one in _flat([listed_images(text) for text in texts]) if isinstance(one, str))


def _file_state(path: Path) -> tuple[str, int, int] | tuple[str]:
    """Path, size and time of the last change of a file, or the path alone if there is none."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):  # a name that is too long, or none at all
        return (str(path),)
    return str(path), state.st_size, state.st_mtime_ns


def _remove_unread(folder: Path, key: str) -> None:
    """Remove what has not been read for long, and note that the files of `key` are read now."""
    now = time.time()
    for file in folder.glob("rows-*.arrow"):
        # another process may have removed it, and another user's file is that user's to remove
        with suppress(FileNotFoundError, PermissionError):
            if file.name.startswith(f"rows-{key}"):
                os.utime(file, (now, file.stat().st_mtime))  # `datasets` fingerprints the time of change
            elif now - file.stat().st_atime > _KEPT_SECONDS:
                file.unlink()


@cache
def _reader_version() -> str:
    """Digest of everything in the packages that decides what a row becomes."""
    here = Path(__file__).parent
    digest = hashlib.sha256(f"{grader_version()} {PIL.__version__} {datasets.__version__}".encode())
    for file in (here.parent / "messages.py", *sorted(here.glob("*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()
