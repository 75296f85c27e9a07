"""Encode pictures as files, and for HTML pages."""

from __future__ import annotations

import base64
import io

from PIL import Image

_MAX_SIDE_PIXELS = 768  # larger pictures are shrunk, or a few hundred photographs make a page that no browser opens
_LARGE_BYTES = 100_000  # as a PNG file only photographs get larger, and these hold as JPEG what a reader sees


def png_of(image: Image.Image) -> bytes:
    """Encode as a PNG file, shrunk if it is large."""
    return picture_file(_shrunk(image), "PNG")


def page_data_url(image: Image.Image) -> str:
    """Encode as a data URL, shrunk if it is large, and as JPEG if that is much smaller."""
    picture = _shrunk(image)
    file, kind = picture_file(picture, "PNG"), "png"
    if len(file) > _LARGE_BYTES and picture.mode in ("L", "RGB"):
        jpeg = picture_file(picture, "JPEG", quality=85)
        if len(jpeg) < len(file) / 2:
            file, kind = jpeg, "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file).decode('ascii')}"


def _shrunk(image: Image.Image) -> Image.Image:
    picture = image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGBA")
    if max(picture.size) > _MAX_SIDE_PIXELS:
        picture = picture.copy()  # thumbnail() works in place
        picture.thumbnail((_MAX_SIDE_PIXELS, _MAX_SIDE_PIXELS))
    return picture


def picture_file(picture: Image.Image, kind: str, **settings: int) -> bytes:
    """Encode as a file of this kind, such as "PNG", with settings of Pillow's writer."""
    buffer = io.BytesIO()
    picture.save(buffer, format=kind, **settings)
    return buffer.getvalue()
