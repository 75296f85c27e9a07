"""Bounds of the number of an image's pixels, applied when rows are read: the same for all models and engines."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from PIL import Image

from .images import decode, image_file, plain_image


class PixelBounds(NamedTuple):
    """Bounds of width × height; `None` for no bound."""

    least: int | None = None
    most: int | None = None

    @property
    def problem(self) -> str | None:
        """Why these are no bounds; `None` if they are."""
        given = {"min_pixels": self.least, "max_pixels": self.most}
        for name, value in given.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                return f"{name} is {value!r}; expected an integer of at least 1"
        if self.least and self.most and self.least > self.most:
            return f"min_pixels is {self.least} and max_pixels {self.most}; expected no more of the first"
        return None

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The size within the bounds, with sides in the same proportion but for rounding."""
        pixels = width * height
        if self.most and pixels > self.most:
            scale = math.sqrt(self.most / pixels)
            return max(1, math.floor(width * scale)), max(1, math.floor(height * scale))
        if self.least and pixels < self.least:
            scale = math.sqrt(self.least / pixels)
            return math.ceil(width * scale), math.ceil(height * scale)
        return width, height


def fitted_image(stored: Mapping[str, Any], bounds: PixelBounds) -> dict[str, Any]:
    """A stored image ({"bytes", "path"}) within the bounds; itself if it is so already.

    A resized JPEG file stays one, of quality 95, as PNG files of photographs are several times as large.
    """
    source = stored["bytes"] if stored["bytes"] is not None else stored["path"]
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
        size, is_jpeg = opened.size, opened.format == "JPEG"
    if bounds.size(*size) == size:
        return dict(stored)
    image = plain_image(decode(source))  # upright, so that its sides may be the other way round
    resized = image.resize(bounds.size(*image.size), Image.Resampling.BICUBIC)
    kind = {"kind": "JPEG", "quality": 95} if is_jpeg else {"kind": "PNG", "compress_level": 1}
    return {"bytes": image_file(resized, **kind), "path": None}  # type: ignore[arg-type]
