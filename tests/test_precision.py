"""Every trainer in bfloat16: as in float32 up to rounding, resumed bit for bit, and warned of updates that are lost."""

import logging
import math

import pytest
import torch
from every_trainer import GRPO, NAMES, resumed, saved_base, trainer_of, whole
from peft import LoraConfig
from support import load
from transformers import AutoModelForImageTextToText

from trl_mmreason.precision import check_precision, lost_updates

BFLOAT16 = {"bf16": True, "model_init_kwargs": {"dtype": "bfloat16"}}
WAYS = {"autocast": ({"bf16": True}, torch.float32), "weights": (BFLOAT16, torch.bfloat16)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base("qwen2_5_vl", tmp_path_factory.mktemp("base"))


def logged(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def weights_of(trainer):
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}


def assert_equal(weights, others):
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert weight.dtype == others[name].dtype
        assert torch.equal(weight, others[name]), name


@pytest.fixture(scope="module", params=NAMES)
def in_float32(request, base, tmp_path_factory):
    """A trainer's name, and what its first step logs in float32."""
    trainer = trainer_of(request.param, base, tmp_path_factory.mktemp("float32"), max_steps=1)
    trainer.train()
    return request.param, logged(trainer)[0]


@pytest.mark.parametrize("way", WAYS)
def test_trains_as_in_float32_saves_and_resumes(in_float32, base, tmp_path, way):
    """Matrix products in bfloat16, with the weights in float32 or in bfloat16 too.

    A number in bfloat16 has 8 bits, so that it is off by 2⁻⁹ of itself at most. A loss, made of several thousand such
    numbers in float32, is allowed to be off by 2⁻⁷ of itself. Where policy and reference are the same weights, the KL
    is exactly 0, and the loss of DPO exactly log 2.
    """
    name, expected = in_float32
    settings, dtype = WAYS[way]
    trainer = whole(name, base, tmp_path / "whole", **settings)
    begun, weights = weights_of(trainer), weights_of(trainer)
    trainer.train()
    first, weights = logged(trainer)[0], weights_of(trainer)
    assert first["loss"] == pytest.approx(expected["loss"], rel=2**-7)
    assert first["grad_norm"] != expected["grad_norm"]  # it was not float32 under another name
    if "kl" in expected:
        assert (expected["kl"], first["kl"]) == (0.0, 0.0)
    if name == "dpo":
        assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert {weight.dtype for weight in weights.values()} == {dtype}
    assert sum(not torch.equal(weight, begun[key]) for key, weight in weights.items()) > 20

    trainer.save_model(str(tmp_path / "saved"))
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved", dtype="auto")
    assert_equal(weights, dict(saved.named_parameters()))

    again = resumed(name, base, tmp_path, **settings)
    assert_equal(weights, weights_of(again))
    assert [entry["loss"] for entry in logged(again)] == [entry["loss"] for entry in logged(trainer)]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_in_memory_trains_as_its_checkpoint_does(base, tmp_path, name, caplog):
    """Loaded in bfloat16, it has the reference of a checkpoint loaded so: the same losses, bit for bit."""
    settings = {"max_steps": 1, "bf16": True}
    model = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.bfloat16)
    trainer = trainer_of(name, model, tmp_path / "memory", **settings, model_init_kwargs=None)
    trainer.train()
    by_path = trainer_of(name, base, tmp_path / "path", **{**settings, **BFLOAT16})
    by_path.train()
    assert logged(trainer)[0]["loss"] == logged(by_path)[0]["loss"]
    assert_equal(weights_of(trainer), weights_of(by_path))
    assert "rotary" not in caplog.text


@pytest.mark.parametrize("way", WAYS)
def test_log_probabilities_are_float32_and_the_first_ratio_is_1(base, tmp_path, way):
    """Two steps on the same trajectories, in micro-batches other than those in which they were scored.

    exp(d) − d − 1 of the KL term at d = 0.01 is 5e-5: 0 in bfloat16, whose numbers above 1 are 2⁻⁷ apart.
    """
    settings = {**WAYS[way][0], "num_iterations": 2, "steps_per_generation": 2, "per_device_train_batch_size": 4}
    trainer = trainer_of("adapo", base, tmp_path, **settings, max_steps=4)
    ratios, score, compute = [], trainer._get_per_token_logps_and_entropies, trainer.compute_loss
    scored = []
    trainer._get_per_token_logps_and_entropies = lambda *args, **kw: scored.append(score(*args, **kw)) or scored[-1]

    def spy(model, inputs, *args, **kwargs):
        loss = compute(model, inputs, *args, **kwargs)
        logps = [scored[-1][0], inputs["old_per_token_logps"], inputs["ref_per_token_logps"]]
        assert {each.dtype for each in [*logps, inputs["advantages"], loss]} == {torch.float32}
        ratio = torch.exp((logps[0] - logps[1]) * inputs["completion_mask"])
        ratios.append((ratio.min().item(), ratio.max().item()))
        return loss

    trainer.compute_loss = spy
    trainer.train()
    assert ratios[0] == (1.0, 1.0)
    assert ratios[2][0] < 0.9 < 1.1 < ratios[2][1]  # the same trajectories after two updates


# ---------------------------------------------------------------------------------------------- updates that are lost


def test_lost_updates_by_hand():
    """From 1 on, bfloat16's numbers are 2⁻⁷ apart, so that less than 2⁻⁸ is lost; float16's 2⁻¹⁰ and 2⁻¹¹."""
    one = torch.ones(3)
    for dtype, half in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        assert lost_updates([one.to(dtype)], half * 0.99) == 1.0
        assert lost_updates([one.to(dtype)], half * 1.01) == 0.0
        assert torch.equal(one.to(dtype) + half * 0.99, one.to(dtype))
        assert not torch.equal(one.to(dtype) + half * 1.01, one.to(dtype))
    assert lost_updates([one], 1e-9) == 0.0
    # 2 and 3 are 2⁻⁶ from their neighbours, 0.5 is 2⁻⁸, and 0 can become anything
    weights = [torch.tensor([2.0, 3.0, 0.5, 0.0], dtype=torch.bfloat16), torch.ones(4), torch.empty(0)]
    assert lost_updates(weights, 0.003) == 2 / 8
    assert lost_updates(weights, 0.001) == 3 / 8


def test_the_share_is_that_of_the_weights_that_a_step_leaves_as_they_are(base, tmp_path):
    """Adam's first step changes an entry by the learning rate, whatever its gradient is."""
    settings = {"max_steps": 1, "learning_rate": 1e-4, "lr_scheduler_type": "constant"}
    moved = {}
    for dtype in ("float32", "bfloat16"):
        trainer = trainer_of(
            "reflection_sft", base, tmp_path / dtype, **settings, model_init_kwargs={"dtype": dtype}, bf16=True
        )
        begun = weights_of(trainer)
        share = lost_updates(begun.values(), 1e-4)
        trainer.train()
        moved[dtype] = {name: weight != begun[name] for name, weight in weights_of(trainer).items()}
    reached = {name: moved["float32"][name] for name in begun}  # by a gradient
    counted = sum(int(mask.sum()) for mask in reached.values())
    lost = sum(int((mask & ~moved["bfloat16"][name]).sum()) for name, mask in reached.items())
    assert share == pytest.approx(0.76, abs=0.03)  # |w| ≥ 2⁻⁵ of weights with a deviation of 0.1
    assert lost / counted == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_every_trainer_warns_of_updates_that_are_lost(base, tmp_path, name, caplog):
    settings = {"learning_rate": 1e-6, "optim": "adamw_8bit"}
    trainer_of(name, base, tmp_path, **{**settings, **BFLOAT16})
    (warning,) = [record for record in caplog.records if "cannot change" in record.message]
    assert "% of the trained weights cannot change at learning_rate=1e-06: they are in bfloat16" in warning.message
    assert warning.levelno == logging.WARNING
    assert type(trainer_of(name, base, tmp_path, bf16=True)).__name__ in warning.message


def test_no_warning_where_updates_are_not_lost(base, tmp_path, caplog):
    def made(**settings):
        caplog.clear()
        trainer_of("adapo", base, tmp_path, **{"learning_rate": 1e-6, **BFLOAT16, **settings})
        return "cannot change" in caplog.text

    assert made()
    assert not made(model_init_kwargs={"dtype": "float32"})
    assert not made(learning_rate=1e-3)
    assert not made(optim="adamw_torch_8bit", optim_args="bf16_stochastic_round=True")
    # PEFT keeps an adapter in float32 whatever the base is
    assert not made(trainer_kwargs={"peft_config": LoraConfig(r=4, target_modules=r".*q_proj")})
    # ZeRO and FSDP2 update weights in float32
    trainer = trainer_of("adapo", base, tmp_path, learning_rate=1e-6, **BFLOAT16)
    for engine in ("is_deepspeed_enabled", "is_fsdp_enabled"):
        setattr(trainer, engine, True)
        caplog.clear()
        check_precision(trainer)
        assert "cannot change" not in caplog.text
        setattr(trainer, engine, False)


@pytest.mark.parametrize("name", [*GRPO, "dpo"])
def test_rounded_rotary_frequencies_are_pointed_out(base, tmp_path, name, caplog):
    """`.bfloat16()` casts them, and the reference, which is read from a checkpoint, has exact ones."""
    model, _ = load(base)
    trainer = trainer_of(name, model.bfloat16(), tmp_path, max_steps=1, bf16=True, model_init_kwargs=None)
    assert "rounds the frequencies of its rotary embeddings" in caplog.text
    trainer.train()
    (entry,) = logged(trainer)
    assert entry["loss"] != pytest.approx(math.log(2), abs=1e-5) if name == "dpo" else entry["kl"] > 1e-6
