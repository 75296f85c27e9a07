"""Open images as every model sees them, and encode them as files and for HTML pages."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

from ..messages import with_image_parts

# What Pillow was seen to raise for damaged bytes of eleven formats, and what its parsers of headers raise.
DECODING_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    RuntimeError,
    EOFError,
    LookupError,
    struct.error,
    Image.DecompressionBombError,
)
IMAGE_COLUMNS = ("images", "image")
_LINKS = ("http://", "https://")
ENCODED_IMAGE = re.compile(r"data:image/|(/9j/|iVBORw0KGgo|R0lGOD|UklGR)[A-Za-z0-9+/\s]{60}")
"""Beginning of an image as text: a data URL, or base64 of JPEG, PNG, GIF or WebP."""
_MAX_SIDE_PIXELS = 768  # larger images are shrunk, or a few hundred photographs make a page that no browser opens
_LARGE_BYTES = 100_000  # as a PNG file only photographs get larger, and these hold as JPEG what a reader sees


class SeveralFrames(ValueError):
    """An image has several frames or pages, and models would see only one."""


def plain_image(image: Image.Image) -> Image.Image:
    """Return an image as models see it: upright, in RGB, transparent parts white; itself if it is so already.

    Training, every engine and `load_rows` use this one function, so that an image is the same wherever it comes from.

    Raises:
        DECODING_ERRORS: it cannot be read, has pixels of 32 bits, or is a file of several frames.
    """
    upright = _upright(image)
    if upright.mode == "RGB" and not upright.has_transparency_data:
        return upright
    repaired = repaired_image(upright)
    return upright.convert("RGB") if repaired is None else repaired


def open_image(value: Any) -> Any:
    """Open an image of a row as models see it; see `plain_image`.

    Args:
        value: a PIL image, a path, the bytes of a file, {"bytes": …, "path": …}, a data URL or base64. A link is
            returned as it is, for transformers to fetch.

    Raises:
        FileNotFoundError: a file does not exist.
        DECODING_ERRORS: the image cannot be read.
        TypeError: it is something else, or a dictionary with other keys.
    """
    source = _source(value)
    if isinstance(source, Path | bytes):
        source = decode(source)
    return source if isinstance(source, str) else plain_image(source)


def images_of(row: Mapping[str, Any]) -> list[Any]:
    """The row's images as models see them (`open_image`); empty for any form of none.

    Raises:
        FileNotFoundError: one is the path of a file that does not exist.
        DECODING_ERRORS: one cannot be read, or is missing among others.
    """
    for column in IMAGE_COLUMNS:
        if problem := gap_problem(row.get(column)):
            raise ValueError(f"The column {column!r} of a row has {problem}.")
    return [open_image(image) for image in stored_images(row)]


def stored_images(row: Mapping[str, Any]) -> list[Any]:
    """The row's images as they are stored, unopened; `None` and the like are none."""
    return present_images(row.get("images")) or present_images(row.get("image"))


def present_images(value: Any) -> list[Any]:
    """The images in a value: one or a list of them, in which `None`, "", NaN and empty records are none."""
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values if not _is_no_image(one)]


def gap_problem(value: Any) -> str | None:
    """Which image of a list is missing while others are there; `None` where all are, or none is."""
    values = value if isinstance(value, list | tuple) else [value]
    missing = [place for place, one in enumerate(values) if _is_no_image(one)]
    if not missing or len(missing) == len(values):
        return None
    return (
        f"no image {missing[0] + 1} of {len(values)} (it is {values[missing[0]]!r}); put it there, or take its place "
        "out of the list"
    )


def _is_no_image(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_no_image, value.values()))
    return (
        value is None
        or (isinstance(value, str) and not value)  # no bytes are a file that is empty
        or (isinstance(value, float) and math.isnan(value))
    )


def _source(value: Any) -> Image.Image | Path | bytes | str:
    """An image of a row as a PIL image, the path or the bytes of a file, or a link; see `open_image`."""
    if problem := record_problem(value):
        raise TypeError(f"An image is {problem}.")
    is_path = isinstance(value, os.PathLike)
    if isinstance(value, Mapping):
        is_path = not value.get("bytes")
        value = value.get("bytes") or value.get("path") or b""
    if isinstance(value, str) and value.startswith(_LINKS):
        return value
    if isinstance(value, str):  # base64 has no dot, but a path need not have one
        is_path = not value.startswith("data:") and (is_path or "." in value or os.path.isfile(value))
    if is_path and isinstance(value, str | os.PathLike):
        if not os.path.isfile(value):
            raise FileNotFoundError(
                f"The image {str(value)!r} does not exist here (looked from {os.getcwd()}). Fix the path, or load the "
                "data set with trl_mmreason.data.row_loading.load_rows, which checks all rows before training."
            )
        return Path(value)
    if isinstance(value, str):  # a data URL or base64
        value = base64.b64decode(value.partition(",")[2] if value.startswith("data:") else value)
    if isinstance(value, Image.Image | bytes):
        return value
    raise TypeError(f"An image is {value!r:.80} ({type(value).__name__}); expected a PIL image, a path or bytes.")


def decoded_base64(text: str) -> bytes | None:
    """The bytes of an image file that `text` holds in base64 or as a data URL; `None` if it is anything else."""
    if not ENCODED_IMAGE.match(text):
        return None
    return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text)


def record_problem(value: Any) -> str | None:
    """Why a dictionary is no image: it holds something, but neither bytes nor a path. `None` for anything else."""
    if not isinstance(value, Mapping) or value.get("bytes") is not None or value.get("path"):
        return None
    return f'a dictionary with the keys {sorted(map(str, value))}; expected "bytes" or "path" among them'


def with_plain_images(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its images as models see them, those inside its messages too, and a part for each `<image>`.

    Idempotent.
    """
    opened = dict(row)
    if opened.keys() & set(IMAGE_COLUMNS):
        opened = _with_placed_images(opened)
    if isinstance(opened.get("prompt"), list):
        opened["prompt"] = [_with_plain_parts(message) for message in opened["prompt"]]
    return opened


def _with_placed_images(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its images opened, and a part of the prompt for each `<image>`, as TRL reads them."""
    opened = {**row, "images": images_of(row)}
    if isinstance(row.get("prompt"), list):
        opened["prompt"] = with_image_parts(row["prompt"], len(opened["images"]))
    return opened


def _with_plain_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [
        {**part, "image": open_image(part["image"])} if part.get("image") is not None else part for part in content
    ]
    return {**message, "content": parts}


def with_images(collate: Callable[[list[dict[str, Any]]], Any]) -> Callable[[list[dict[str, Any]]], Any]:
    """Extend a collator of TRL's to batches in which some rows have no image, and some have theirs inside the text."""

    def collate_rows(rows: list[dict[str, Any]]) -> Any:
        if rows[0].keys() & set(IMAGE_COLUMNS):
            opened = map(_with_placed_images, rows)
            rows = [{name: value for name, value in row.items() if name != "image"} for row in opened]
        return collate(rows)

    return collate_rows


def image_digest(value: Any) -> bytes:
    """A digest of an image as it is stored: of its file's bytes, or of the pixels of a PIL image.

    Raises:
        FileNotFoundError: it is the path of a file that does not exist.
    """
    source = _source(value)
    if isinstance(source, Image.Image):
        source = f"{source.mode} {source.size} ".encode() + source.tobytes()
    elif isinstance(source, Path):
        source = source.read_bytes()
    return hashlib.sha256(source.encode() if isinstance(source, str) else source).digest()


def decode(source: str | os.PathLike | bytes) -> Image.Image:
    """Decode an image file, given by its path or its bytes, upright and in its own mode."""
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        image.load()  # closes the file
        return _upright(image)


def refuse_frames(image: Image.Image) -> None:
    """Refuse an animated image, or a document of several pages, unless it is a copied frame.

    A photograph with previews (MPO), or with layers below the whole (PSD), is one image.

    Raises:
        SeveralFrames: it is one.
    """
    try:
        frames = image.n_frames if getattr(image, "is_animated", False) else 1  # type: ignore[attr-defined]
    except ValueError:  # its file is closed, and the frame that was loaded is all that is left
        return
    if frames > 1 and image.format not in ("MPO", "PSD"):
        raise SeveralFrames(
            f"it has {frames} frames or pages, of which models would see one; save "
            "the one that is meant, or several as images of their own (of a PIL image: seek(…), then copy())"
        )


def repaired_image(image: Image.Image) -> Image.Image | None:
    """Return an RGB image where `image.convert("RGB")` would be wrong, otherwise None.

    Pillow paints transparent pixels in whatever colour hides below them (mostly black, so that black drawings
    vanish), and clips 16 bits to 8 instead of scaling.
    """
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels have 32 bits (mode {image.mode!r}) without an agreed range; use 8 or 16")
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return None
    key, image = image.info.get("transparency"), image.convert("RGBA")
    if key is None and image.getchannel("A").getextrema() == (255, 255):
        return None  # with a key, which RGB would keep, a colour that is seen could be taken for transparent
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    """Turn an image as its EXIF says, and take the orientation out of it; itself if there is nothing to turn."""
    refuse_frames(image)
    if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return image
    return ImageOps.exif_transpose(image)


def png_of(image: Image.Image) -> bytes:
    """Encode as a PNG file, shrunk if it is large."""
    return image_file(_shrunk(image), "PNG")


def data_url(image: Image.Image) -> str:
    """Encode as the data URL of a PNG file, as models see it (`plain_image`), without metadata.

    Raises:
        DECODING_ERRORS: the image cannot be read.
    """
    plain = plain_image(image).copy()
    plain.info = {}
    return _url("png", image_file(plain, "PNG", compress_level=1))  # a fifth of the usual time, a sixth more bytes


def page_data_url(image: Image.Image) -> str:
    """Encode as a data URL, shrunk if it is large, and as JPEG if that is much smaller."""
    shrunk = _shrunk(image)
    file = image_file(shrunk, "PNG")
    if len(file) > _LARGE_BYTES:
        jpeg = image_file(shrunk, "JPEG", quality=85)
        if len(jpeg) < len(file) / 2:
            return _url("jpeg", jpeg)
    return _url("png", file)


def _url(kind: str, file: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def _shrunk(image: Image.Image) -> Image.Image:
    shrunk = plain_image(image)
    if max(shrunk.size) > _MAX_SIDE_PIXELS:
        shrunk = shrunk.copy()  # thumbnail() works in place
        shrunk.thumbnail((_MAX_SIDE_PIXELS, _MAX_SIDE_PIXELS))
    return shrunk


def image_file(image: Image.Image, kind: str, **settings: int) -> bytes:
    """Encode as a file of this kind, such as "PNG", with settings of Pillow's writer."""
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **settings)
    return buffer.getvalue()
