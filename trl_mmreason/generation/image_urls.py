"""Pictures in JSON, as data URLs of lossless files."""

from __future__ import annotations

import base64
import io
import threading
from typing import Any

import PIL.Image

from ..data.images import DECODING_ERRORS, picture_file, plain_picture, refuse_frames

MOST_PIXELS = 1 << 25
"""Of all pictures of one prompt: 33 million, a large photograph. A file of a few kilobytes can hold any number of them,
and a processor takes about 10 bytes and 0.2 µs for each."""

_READ = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_one_at_a_time = threading.Lock()  # requests are parsed in many threads, and a decoded picture is large


def data_url(image: PIL.Image.Image) -> str:
    """Encode as PNG, as models see it (`plain_picture`), without the file's metadata.

    Raises:
        DECODING_ERRORS: the picture cannot be read.
    """
    plain = plain_picture(image).copy()
    plain.info = {}
    file = picture_file(plain, "PNG", compress_level=1)  # a fifth of the usual level's time for a sixth more bytes
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def picture_of(url: Any, most_pixels: int = MOST_PIXELS) -> PIL.Image.Image:
    """Read the picture in a data URL; it is checked by decoding, but keeps no pixels while it waits.

    Args:
        url: a data URL.
        most_pixels: how many of `MOST_PIXELS` earlier pictures of the prompt have left; checked before decoding.

    Raises:
        ValueError: it is no data URL of a picture, or a picture that cannot be read or is too large.
    """
    # Fetching an address for a client would let it reach what only this machine can reach.
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise ValueError("Input should be the picture itself, as data:image/png;base64,…; this server fetches nothing")
    try:
        content = base64.b64decode(data, validate=True)
        with _one_at_a_time:
            _opened(content, most_pixels).load()
        return _opened(content, most_pixels)
    except DECODING_ERRORS as error:
        raise ValueError(f"Input should be a picture that can be read: {error}") from error


def _opened(content: bytes, most_pixels: int) -> PIL.Image.Image:
    image = PIL.Image.open(io.BytesIO(content), formats=_READ)
    if image.width * image.height > most_pixels:
        raise ValueError(
            f"it has {image.width} × {image.height} pixels, expected {most_pixels} at most; scale it down. All "
            f"pictures of a prompt together may have {MOST_PIXELS}"
        )
    refuse_frames(image)
    return image
