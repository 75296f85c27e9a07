"""Families under DDP, ZeRO-3 and FSDP2: AdaPO's losses and weights are those of DDP, or the family is refused alike.

Each engine trains all of them in one launch, which `families_run.py` is.
"""

import json
import socket

import pytest
import torch
import transformers
from all_families import FAMILIES
from further_families import saved
from packaging.version import Version
from processes import launch
from switch import environment

EVERYDAY = ["glm_experts", "janus"]  # saves buffers; has weights that no loss reaches
# before, its processor needs a font of the Hub
NOT_HERE = {"ernie4_5_vl_moe"} if Version(transformers.__version__) < Version("5.23") else set()


ONCE_PER_IMAGE = {"hunyuan_vl", "minicpmv4_6", "paddleocr_vl"}  # ZeRO-3 refuses them


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """(engine, names) → name → what its two processes came to; run when first asked for."""
    models, found = tmp_path_factory.mktemp("models"), {}

    def run(engine, names):
        if (engine, tuple(names)) not in found:
            for name in names:
                if not (models / name).exists():
                    saved(FAMILIES[name], models / name)
            folder = tmp_path_factory.mktemp(engine)
            (folder / "job.json").write_text(
                json.dumps({"folder": str(folder), "models": str(models), "families": names})
            )
            launch(
                "engines/families_run.py",
                2,
                folder / "job.json",
                environment=environment(engine),
                seconds=60 * len(names),
            )
            found[engine, tuple(names)] = {
                name: [torch.load(folder / f"{name}_{rank}.pt") for rank in range(2)] for name in names
            }
        return found[engine, tuple(names)]

    return run


def assert_as_under_ddp(outcomes, engine, names):
    expected = outcomes("ddp", names)
    for name, processes in outcomes(engine, names).items():
        reference = expected[name][0]
        for own in processes:
            if engine == "zero3" and name in ONCE_PER_IMAGE:
                assert "once per image, but ZeRO-3 needs as many calls in every process" in own["refused"], name
                continue
            if "refused" in reference:
                assert own["refused"].replace("FSDP", "")[:60] == reference["refused"][:60], name
                continue
            assert own["losses"] == pytest.approx(reference["losses"], abs=1e-5), name
            assert own["facts"]["start_difference"] < 2e-4, name
            assert 0 < own["facts"]["changed"] == reference["facts"]["changed"], name
            for weight, value in reference["weights"].items():
                close = 2e-6 if name == "gemma4" else 1e-6  # its logits are larger
                torch.testing.assert_close(own["weights"][weight], value, atol=close, rtol=0, msg=f"{name}: {weight}")


@pytest.mark.parametrize("engine", ["ddp", "zero3", "fsdp2"])
def test_families_with_buffers_and_with_unused_weights_train_as_under_ddp(engine, outcomes):
    assert_as_under_ddp(outcomes, engine, EVERYDAY)
    assert not any("refused" in own for processes in outcomes(engine, EVERYDAY).values() for own in processes)


def test_one_process_of_torchrun_is_wrapped_by_ddp_too(tmp_path):
    """Which stops in the second step where weights are not reached, unless it searches for them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    saved(FAMILIES["janus"], tmp_path / "janus")
    (tmp_path / "job.json").write_text(
        json.dumps({"folder": str(tmp_path), "models": str(tmp_path), "families": ["janus"]})
    )
    group |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    launch("engines/families_run.py", 1, tmp_path / "job.json", environment=group, seconds=120)
    assert len(torch.load(tmp_path / "janus_0.pt")["losses"]) == 2


@pytest.mark.full
@pytest.mark.parametrize("engine", ["ddp", "zero3", "fsdp2"])
def test_every_family_trains_as_under_ddp_or_is_refused_as_there(engine, outcomes):
    assert_as_under_ddp(outcomes, engine, sorted(FAMILIES.keys() - NOT_HERE))
