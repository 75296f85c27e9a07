"""ZeRO-3 in bfloat16 computes with the rotary frequencies that every other engine has."""

import pytest
import torch
from processes import launch
from support import saved_model
from switch import environment

from trl_mmreason.miniature.models import FAMILIES


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rotary")
    for family in FAMILIES:
        saved_model(family, folder / family)
    launch("engines/rotary_run.py", 2, folder, environment=environment("zero3", "bf16"), seconds=300)
    return torch.load(folder / "results.pt")


@pytest.mark.parametrize("family", FAMILIES)
def test_policy_and_reference_have_exact_frequencies(family, found):
    models = found[family]
    assert models["exact"]
    assert len(models) == (6 if family == "qwen2_5_vl" else 4)
    for name in models.keys() - {"upstream", "exact"}:
        assert models[name].keys() == models["exact"].keys()
        for buffer, value in models["exact"].items():
            torch.testing.assert_close(models[name][buffer], value, atol=0, rtol=0)


def test_nobody_is_warned_of_rounded_frequencies(found):
    assert found["warnings"] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_deepspeed_still_rounds_them(family, found):
    models = found[family]
    assert any((models["upstream"][name] != value).any() for name, value in models["exact"].items()), (
        "DeepSpeed itself now leaves them exact (deepspeedai/DeepSpeed#4932). Delete `exact_rotary_frequencies` in "
        "compat/sharding.py"
    )
