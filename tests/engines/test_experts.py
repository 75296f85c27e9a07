"""ZeRO-3 leaves the decorated constructors of a composite model's experts as they are."""

import pytest
import torch
from all_families import FAMILIES
from processes import launch
from switch import environment


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    for part in FAMILIES["internvl_experts"]():
        part.save_pretrained(folder / "model")
    for way in ("upstream", "imported"):
        launch("engines/experts_run.py", 1, folder, way, environment=environment("zero3"), seconds=300)
    return {way: torch.load(folder / f"{way}.pt") for way in ("upstream", "imported")}


def test_the_second_model_of_a_process_has_experts_with_a_configuration(found):
    assert found["imported"] == [True, True]


def test_transformers_and_deepspeed_still_lose_it(found):
    assert found["upstream"] == [True, False], "Delete `import_model_classes` in compat/sharding.py"
