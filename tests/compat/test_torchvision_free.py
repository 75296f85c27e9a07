"""Processors load without torchvision, and what they save loads where torchvision exists."""

import importlib
import importlib.util
import json
from pathlib import Path

import pytest
from PIL import Image
from support import load
from transformers import processing_utils

from trl_mmreason.compat import torchvision_free

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed: nothing stands in for it"
)
VIDEO_CLASSES = {
    "qwen2_vl": "Qwen2VLVideoProcessor",
    "qwen2_5_vl": "Qwen2VLVideoProcessor",
    "qwen3_vl": "Qwen3VLVideoProcessor",
    "internvl": "InternVLVideoProcessor",
}


@pytest.mark.parametrize("family", VIDEO_CLASSES)
def test_the_real_class_name_survives_loading_and_saving(family, checkpoints, tmp_path):
    _, processor = load(checkpoints(family))
    processor.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "processor_config.json").read_text())
    assert saved["video_processor"]["video_processor_type"] == VIDEO_CLASSES[family]


def test_settings_of_a_published_video_processor_are_kept(checkpoints, tmp_path):
    """A checkpoint whose video processor has settings of its own keeps them through a CPU machine."""
    _, processor = load(checkpoints("qwen2_5_vl"))
    processor.save_pretrained(tmp_path)
    file = Path(tmp_path) / "processor_config.json"
    config = json.loads(file.read_text())
    config["video_processor"] |= {"patch_size": 14, "temporal_patch_size": 2, "do_sample_frames": False}
    file.write_text(json.dumps(config))
    _, again = load_processor_only(tmp_path)
    again.save_pretrained(tmp_path / "again")
    kept = json.loads((tmp_path / "again" / "processor_config.json").read_text())["video_processor"]
    assert kept == config["video_processor"]


def load_processor_only(path):
    from transformers import AutoProcessor

    return None, AutoProcessor.from_pretrained(path)


def test_a_video_is_refused_with_a_reason(checkpoints):
    _, processor = load(checkpoints("qwen2_5_vl"))
    frames = [Image.new("RGB", (56, 56))] * 2
    with pytest.raises(ImportError, match="torchvision"):
        processor(text="<|vision_start|><|video_pad|><|vision_end|>", videos=[frames])


@pytest.mark.parametrize("table", ["MODALITY_TO_BASE_CLASS_MAPPING", "_LazyAutoProcessorMapping"])
def test_a_transformers_without_these_tables_is_told_and_refuses_nothing(table, monkeypatch, caplog):
    with monkeypatch.context() as changed:
        changed.delattr(processing_utils, table)
        importlib.reload(torchvision_free)
    (record,) = caplog.records
    assert "so that processors of Qwen-VL and InternVL need torchvision" in record.getMessage()
    importlib.reload(torchvision_free)
