"""A video as some of its frames, which are images of the row."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from .images import gap_problem, present_images, record_problem
from .row_values import RefusedValue, existing_file, read_images, stored_image, wrong_type

VIDEO_NAMES = ("video", "videos")
"""Columns of one video, and of a list of them."""


def pyav() -> Any:
    """PyAV's module, `None` where it is not installed."""
    try:
        import av
    except ImportError:
        return None
    return av


def frames_of(video: str | Path | bytes, most: int) -> list[Image.Image]:
    """Frames of a video, spread evenly over it, upright and in RGB; all if it has no more than `most`.

    Args:
        video: the path or the bytes of a file, which PyAV decodes.

    Raises:
        RefusedValue: the file cannot be decoded, or PyAV is not installed.
    """
    name = f"a video of {len(video)} bytes" if isinstance(video, bytes) else f"the video {str(video)!r}"
    if (av := pyav()) is None:
        fix = 'pip install "trl-mmreason[video]", or put frames of it into `images`'
        raise RefusedValue("video without PyAV", f"{name} can only be decoded with PyAV, which is not installed; {fix}")
    try:
        frames, stated, count = _decode(av, video, most, None)
        if count != stated:  # the file states a wrong number, or none as Matroska does
            frames, *_ = _decode(av, video, most, count)
    except (av.FFmpegError, ValueError) as error:
        raise RefusedValue("unreadable video", f"{name} cannot be decoded ({error}); save it again") from error
    return frames


def frame_places(total: int, most: int) -> list[int]:
    """Numbers of the frames to take, by the rule of `default_sample_indices_fn` in transformers' video_utils.py."""
    taken = min(most, total)
    return [place * total // taken for place in range(taken)]


def _decode(av: Any, video: Any, most: int, total: int | None) -> tuple[list[Image.Image], int, int]:
    """Frames of a file, the number of which they were taken, and the number that there are. No other frame is kept.

    Args:
        total: number of frames to take them of; `None` for what the file states.
    """
    source = io.BytesIO(video) if isinstance(video, bytes) else str(video)
    with av.open(source, metadata_errors="ignore") as container:
        if not container.streams.video:
            raise ValueError("it has no video stream")
        total = container.streams.video[0].frames if total is None else total
        wanted, frames, count = set(frame_places(total, most)), [], 0
        for frame in container.decode(container.streams.video[0]):
            if count in wanted:
                frames.append(frame.to_image().rotate(frame.rotation, expand=True))
            count += 1
    if not count:
        raise ValueError("it has no frames")
    return frames, total, count


def read_videos(value: Any, name: str, most: int, root: Path) -> list[list[dict[str, Any]]]:
    """Frames of each video in the column `video`, or in the list of the column `videos`, as `read_images` returns them.

    A video is a path, the bytes of a file, {"bytes": …, "path": …}, or a list of images; `None` and the like are none.
    """
    videos = value if name == "videos" and isinstance(value, list) else [value]
    present = [video for video in videos if present_images(video)]
    if present and len(present) < len(videos):
        message = f"the row has {len(present)} of {len(videos)} videos; put the others there, or take their places out"
        raise RefusedValue("missing video", message)
    return [_read_video(video, most, root) for video in present]


def _read_video(value: Any, most: int, root: Path) -> list[dict[str, Any]]:
    if isinstance(value, list):
        if problem := gap_problem(value):
            raise RefusedValue("missing image", f"a video of the row has {problem}")
        return read_images([value[place] for place in frame_places(len(value), most)], root)
    is_record = isinstance(value, Mapping) and record_problem(value) is None
    stored = (value.get("bytes") or value.get("path") or b"") if is_record else value
    if not isinstance(stored, str | bytes):
        raise wrong_type(value, 'a path, the bytes of a video file, {"bytes": …, "path": …}, or a list of images')
    file = existing_file(stored, root, "video") if isinstance(stored, str) else stored
    return [stored_image(frame) for frame in frames_of(file, most)]
