"""docs/models.md, "With vLLM": with a colocated vLLM a family samples what it trains, or the page says why not."""

import re
from pathlib import Path

import pytest
import torch
from all_families import FAMILIES, TEXT_ONLY, label
from processes import TESTS, free_port, run
from recorded import TOLERANCE, differences
from transformers import AutoConfig

pytest.importorskip("vllm")

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SECTION = PAGE.read_text().partition("\n## With vLLM\n")[2].partition("\n## ")[0]
STATED = {
    family: outcome
    for outcome, families in re.findall(r'^- (exact|"[^"]+").*?: (`.+)$', SECTION, re.MULTILINE)
    for family in families.split("; ")
}
"""Family, as the page calls it → "exact", or words of the error in quotation marks."""


def outcome_of(name, folder):
    """The rollouts of a run, or what it wrote to stderr before it stopped."""
    environment = {"MASTER_PORT": str(free_port())}  # another file's vLLM may have the default one
    script = TESTS / "engines" / "vllm_families_run.py"
    done = run(script, name, folder, cwd=folder, environment=environment, seconds=300)
    return done.stderr if done.returncode else torch.load(folder / "rollouts.pt")


@pytest.mark.full
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_samples_what_it_trains_or_the_page_says_what_stops_it(name, tmp_path):
    found = outcome_of(name, tmp_path)
    stated = STATED[label(AutoConfig.from_pretrained(tmp_path / "policy"))]
    if stated.startswith('"'):
        assert isinstance(found, str), "it trains now"
        assert stated.strip('"') in " ".join(found.split())
        return
    assert not isinstance(found, str), found[-6000:]
    second = found[-1]
    for number, rollout in enumerate(found):
        for images in (0,) if name in TEXT_ONLY else (0, 1, 2):
            nats = differences(rollout, (rollout["pictures"] == images).unsqueeze(1))
            assert len(nats), f"rollout {number} has no token of a row with {images} images"
            assert nats.mean() < TOLERANCE, f"rollout {number}, rows with {images} images: {nats.mean()} nats"
    assert (second["trained"] - second["initial"]).abs()[second["mask"]].mean() > 100 * TOLERANCE
