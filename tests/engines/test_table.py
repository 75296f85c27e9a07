"""Every trainer under every engine: losses, weights, checkpoints and references are those of two processes of DDP.

The last test holds what was seen against the table in docs/engines.md.
"""

import json
from pathlib import Path

import pytest
import torch
from every_trainer import DPO, GRPO, STEPS, TRAINERS
from peft import PeftModel
from processes import launch
from support import load
from switch import ENGINES, environment

HERE = Path(__file__).parent
KINDS = {"ddp": "MULTI_", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED", "fsdp2": "FSDP"}
SEEN: dict[tuple[str, str], dict[str, str]] = {}
"""(trainer, engine) → way → "agrees", or the sentence that refuses it."""


# whose loss has a reference, and which write the template's tokens, so that an adapter may train their rows
REFERENCE = {*GRPO, "OffPolicyRewardTrainer", DPO}
TOKENS = {"ChainOfStepSFTTrainer", "ProcessRewardTrainer"}
OWN_LOSSES = {"AdaPOTrainer", "ReflectionSFTTrainer", DPO, "OffPolicyRewardTrainer"}
NOT_FINITE = {"AdaPOTrainer", "ReflectionSFTTrainer"}  # with a NaN in one process, in the second update


def ways_of(name, engine):
    """How a trainer trains under an engine: see `cell_run.py`."""
    ways = ["full", "tied", "lora"]
    if name in REFERENCE:
        ways += ["memory", "memory, whole"] if engine == "zero3" else ["memory"]
    if name in TOKENS:
        ways.append("lora, tokens")
    if name == "SelfEvolutionTrainer":
        ways += ["no judge", "other judge"]
    if name == "AdaPOTrainer":
        ways.append("by tokens")
    if name in NOT_FINITE:
        ways.append("not finite")
    return ways


@pytest.fixture(scope="module")
def outcome(policies, tmp_path_factory):
    """(trainer, engine) → what its job saved, in each process; run when first asked for."""
    found = {}

    def run(trainer, engine):
        if (trainer, engine) not in found:
            folder = tmp_path_factory.mktemp(f"{trainer}-{engine}")
            job = {"trainer": trainer, "folder": str(folder), "ways": ways_of(trainer, engine), **policies}
            (folder / "job.json").write_text(json.dumps(job))
            launch("engines/cell_run.py", 2, folder / "job.json", environment=environment(engine), seconds=300)
            saved = [torch.load(folder / f"process_{rank}.pt") for rank in range(2)]
            assert all(KINDS[engine] in part["engine"] for part in saved)
            found[trainer, engine] = folder, [part["ways"] for part in saved]
        return found[trainer, engine]

    return run


def assert_same(found, expected):
    losses = expected["losses"][-len(found["losses"]) :]
    assert found["losses"] == pytest.approx(losses, abs=1e-5, rel=1e-6, nan_ok=True)  # a sum over tokens is large
    names = ("weights", "trainable", "tensors", "changed", "changed_frozen")
    assert [found["facts"][name] for name in names] == [expected["facts"][name] for name in names]
    assert found["facts"]["changed"] > 0
    for kind in ("weights", "sent"):
        assert found[kind].keys() == expected[kind].keys()
        for name, weight in expected[kind].items():
            torch.testing.assert_close(found[kind][name], weight, atol=1e-6, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


def cells():
    """All, of which `make test-engines` runs AdaPO's, and under ZeRO-3 those of other losses."""
    for trainer in TRAINERS:
        for engine in ENGINES:
            everyday = trainer == "AdaPOTrainer" or (trainer in OWN_LOSSES and engine in ("ddp", "zero3"))
            yield pytest.param(trainer, engine, marks=() if everyday else pytest.mark.full)


@pytest.mark.parametrize(("trainer", "engine"), cells())
def test_an_engine_trains_as_ddp_does(trainer, engine, outcome, policies):
    reference = outcome(trainer, "ddp")[1][0]
    folder, (first, second) = outcome(trainer, engine)
    assert first.keys() == second.keys() == set(ways_of(trainer, engine))
    for way, found in first.items():
        if "refused" in found:
            assert second[way] == found
            SEEN.setdefault((trainer, engine), {})[way] = found["refused"]
            continue
        assert len(found["losses"]) == STEPS
        assert len(set(found["losses"])) > 1  # the updates are visible
        assert 0 <= found["facts"]["start_difference"] < 1e-4  # with the model placed by the engine
        assert_same(found, reference[way.removesuffix(", whole")])
        assert found["facts"]["skipped"] == (way == "not finite")
        assert found["facts"]["groups"] == reference[way.removesuffix(", whole")]["facts"]["groups"]
        assert_same(second[way], found)  # the other process has the same weights
        if "again" in found:  # resumed amid a rollout, or between rounds
            assert_same(found["again"], found)
        assert_saved(found["weights"], folder / way.replace(", ", "-") / "final", policies["model"])
        SEEN.setdefault((trainer, engine), {})[way] = "agrees"


@pytest.mark.parametrize("engine", ENGINES)
def test_micro_batches_by_tokens_give_the_update_of_those_by_rows(engine, outcome):
    for process in outcome("AdaPOTrainer", engine)[1]:
        assert_same(process["by tokens"], process["full"])


def assert_saved(weights, folder, base):
    """What was saved is what one process loads."""
    if (folder / "adapter_config.json").exists():
        model = PeftModel.from_pretrained(load(base)[0], folder)
    else:
        model, _ = load(folder)
        is_tied = model.lm_head.weight is model.get_input_embeddings().weight
        assert is_tied == model.config.tie_word_embeddings
    for name, weight in weights.items():
        torch.testing.assert_close(model.get_parameter(name), weight, atol=0, rtol=0)


def test_a_policy_in_memory_is_its_own_reference(outcome):
    """Its updates are not those of its checkpoint, whose weights differ; its divergence from itself begins at 0."""
    for trainer in ("AdaPOTrainer", "OffPolicyRewardTrainer"):
        ways = outcome(trainer, "zero3")[1][0]
        assert ways["memory"]["losses"][1:] != pytest.approx(ways["full"]["losses"][1:], abs=1e-3)
    ways = outcome("AdaPOTrainer", "zero3")[1][0]
    # the advantages of a group add up to 0, so that the first loss is beta times the divergence
    assert ways["memory"]["losses"][0] == pytest.approx(0, abs=1e-6)


@pytest.mark.full
def test_the_table_of_the_docs_is_what_was_seen(outcome):
    for trainer in TRAINERS:
        for engine in ENGINES:
            assert (trainer, engine) in SEEN, f"{trainer} under {engine} failed, or was not run"
    expected = "\n".join(table(SEEN))
    docs = (HERE.parents[1] / "docs" / "engines.md").read_text()
    assert expected in docs, f"docs/engines.md has another table; this one was seen:\n{expected}"


def table(seen):
    """The lines of the table: a row a trainer, a column an engine."""
    lines = ["| trainer | DDP | ZeRO-2 | ZeRO-3 | FSDP2 |", "|---|---|---|---|---|"]
    for trainer in TRAINERS:
        cells = [cell(seen[trainer, engine]) for engine in ENGINES]
        lines.append(f"| `{trainer}` | {' | '.join(cells)} |")
    return lines


def cell(ways):
    agree = [way for way, verdict in ways.items() if verdict == "agrees"]
    refused = [way for way in ways if way not in agree]
    parts = ["; ".join(agree)] if agree else []
    return " — ".join([*parts, *([f"**refused:** {'; '.join(refused)}"] if refused else [])])
