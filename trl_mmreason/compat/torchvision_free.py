"""Load the processors of vision-language models on a machine without torchvision.

The processors of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and InternVL insist on a video processor, and every video processor
of transformers needs torchvision, which has no CPU build for some platforms. Images need neither. Where torchvision
is absent, a stand-in takes the video processor's place: it refuses videos, and it writes the real class name back
when the processor is saved, so that the checkpoint loads unchanged where torchvision exists.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any, NoReturn

import transformers
from transformers import processing_utils, video_processing_utils

if importlib.util.find_spec("torchvision") is None:
    # transformers 5.17 has no mixin yet: there loading and saving are methods of the torchvision-backed class.
    _Base: Any = getattr(video_processing_utils, "VideoProcessorMixin", video_processing_utils.BaseVideoProcessor)

    class VideoProcessorStandIn(_Base):
        """Keeps a video processor's settings, and refuses videos.

        Args:
            **settings: the settings as saved, `video_processor_type` among them.
        """

        def __init__(self, **settings: Any) -> None:  # the base classes would prepare for videos
            self._settings = dict(settings)
            for name, value in settings.items():
                setattr(self, name, value)

        def to_dict(self) -> dict[str, Any]:
            return dict(self._settings)

        def preprocess(self, videos: Any = None, **kwargs: Any) -> NoReturn:
            raise ImportError(
                "This processor was asked to process a video, which needs torchvision, and torchvision is not "
                "installed. Install torchvision, or leave videos out of the prompt."
            )

    # A processor finds the class of its parts by these two private tables. AutoVideoProcessor cannot even be imported
    # usefully without torchvision, so the stand-in is what "video_processor" means here; the second entry is the base
    # class that a part is checked against.
    _classes = getattr(getattr(processing_utils, "_LazyAutoProcessorMapping", None), "_MAPPING_NAMES", None)
    _bases = getattr(processing_utils, "MODALITY_TO_BASE_CLASS_MAPPING", None)
    if _classes is None or _bases is None:
        logging.getLogger(__name__).warning(
            "transformers %s finds the parts of a processor in another way than the versions that were tested, so that "
            "processors of Qwen-VL and InternVL need torchvision. Fix: pip install torchvision, or a tested version, "
            "which `mmreason doctor` names.",
            transformers.__version__,
        )
    else:
        _classes["video_processor"] = (__name__, "VideoProcessorStandIn")
        _bases["video_processor"] = "ImageProcessingMixin"
