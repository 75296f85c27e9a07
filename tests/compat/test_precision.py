"""Every trainer in bfloat16: as in float32 up to rounding, resumed bit for bit, and warned of updates that are lost."""

import logging
import math

import pytest
import torch
from every_trainer import DPO, GRPO, TRAINERS, WRITTEN, make, resumed, saved_base, whole
from peft import LoraConfig
from support import assert_weights, changed_weights, full_but, load, losses_of, weights_of
from transformers import AutoModelForImageTextToText

import trl_mmreason
from trl_mmreason.compat.precision import check_precision, lost_updates

BFLOAT16 = {"bf16": True, "model_init_kwargs": {"dtype": "bfloat16"}}
WAYS = {"autocast": ({"bf16": True}, torch.float32), "weights": (BFLOAT16, torch.bfloat16)}


@pytest.fixture(scope="module", autouse=True)
def written():
    """Every policy is given its answers: a token drawn from rounded probabilities may be another one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in GRPO:
            patch.setitem(WRITTEN, name, WRITTEN.get(name, [f"It is {number}." for number in range(7)]))
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base("qwen2_5_vl", tmp_path_factory.mktemp("base"))


def logged(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module", params=full_but("SRPOTrainer", TRAINERS))
def in_float32(request, base, tmp_path_factory):
    """A trainer's name, and what its first step logs in float32."""
    trainer = make(request.param, base, tmp_path_factory.mktemp("float32"), max_steps=1)
    trainer.train()
    return request.param, logged(trainer)[0]


@pytest.mark.parametrize("way", full_but("autocast", WAYS))
def test_trains_as_in_float32_saves_and_resumes(in_float32, base, tmp_path, way):
    """Matrix products in bfloat16, with the weights in float32 or in bfloat16 too.

    A number in bfloat16 has 8 bits, so that it is off by 2⁻⁹ of itself at most. A loss, made of several thousand such
    numbers in float32, is allowed to be off by 2⁻⁷ of itself. Where policy and reference are the same weights, the KL
    is exactly 0, and the loss of DPO exactly log 2.
    """
    name, expected = in_float32
    settings, dtype = WAYS[way]
    trainer = whole(name, base, tmp_path / "whole", **settings)
    begun = weights_of(trainer.model)
    trainer.train()
    first, weights = logged(trainer)[0], weights_of(trainer.model)
    assert first["loss"] == pytest.approx(expected["loss"], rel=2**-7)
    assert first["grad_norm"] != expected["grad_norm"]  # it was not float32 under another name
    if "kl" in expected:
        assert (expected["kl"], first["kl"]) == (0.0, 0.0)
    if name == DPO:
        assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert {weight.dtype for weight in weights.values()} == {dtype}
    assert len(changed_weights(trainer.model, begun)) > 20

    trainer.save_model(str(tmp_path / "saved"))
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved", dtype="auto")
    assert_weights(saved, weights)

    again = resumed(name, base, tmp_path, **settings)
    assert_weights(again.model, weights)
    assert losses_of(again) == losses_of(trainer)


@pytest.mark.full
@pytest.mark.parametrize("name", full_but("SRPOTrainer", TRAINERS))
def test_a_model_in_memory_trains_as_its_checkpoint_does(base, tmp_path, name, caplog):
    """Loaded in bfloat16, it has the reference of a checkpoint loaded so: the same losses, bit for bit."""
    settings = {"max_steps": 1, "bf16": True}
    model = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.bfloat16)
    trainer = make(name, model, tmp_path / "memory", **settings, model_init_kwargs=None)
    trainer.train()
    by_path = make(name, base, tmp_path / "path", **{**settings, **BFLOAT16})
    by_path.train()
    assert losses_of(trainer) == losses_of(by_path)
    assert_weights(trainer.model, by_path.model)
    assert "rotary" not in caplog.text


@pytest.mark.parametrize("way", WAYS)
def test_log_probabilities_are_float32_and_the_first_ratio_is_1(base, tmp_path, way):
    """Two steps on the same trajectories, in micro-batches other than those in which they were scored.

    exp(d) − d − 1 of the KL term at d = 0.01 is 5e-5: 0 in bfloat16, whose numbers above 1 are 2⁻⁷ apart.
    """
    settings = {**WAYS[way][0], "num_iterations": 2, "steps_per_generation": 2, "per_device_train_batch_size": 4}
    trainer = make("AdaPOTrainer", base, tmp_path, **settings, max_steps=4)
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
    assert ratios[0] == pytest.approx((1, 1), abs=2**-6)  # products of other shapes may be rounded otherwise
    assert ratios[2][0] < 0.9 < 1.1 < ratios[2][1]  # the same trajectories after two updates


# ------------------------------------------------------------------------------------------------ a recipe on a CPU


@pytest.mark.parametrize("name", TRAINERS)
def test_a_recipe_trains_on_a_cpu_when_accelerate_is_told_to(name, tmp_path, monkeypatch, caplog):
    """As `configs/accelerate/cpu.yaml` tells it: bf16 and vLLM of a recipe are switched off, and that is said."""
    config = getattr(trl_mmreason, name.replace("Trainer", "Config"))
    recipe = {"bf16": True, **({"use_vllm": True} if name in GRPO else {})}
    assert config(str(tmp_path), use_cpu=True).bf16 is False  # TRL's default is True
    assert config(str(tmp_path), use_cpu=True, **recipe).bf16 is True  # both were asked for
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    default, again = config(str(tmp_path)), config(str(tmp_path), use_cpu=True, **recipe)
    assert (default.use_cpu, default.bf16, again.bf16, caplog.text) == (True, False, True, "")
    told = config(str(tmp_path), **recipe)
    assert (told.use_cpu, told.bf16, getattr(told, "use_vllm", False)) == (True, False, False)
    assert [record.message.split(" is switched off, as accelerate was told")[0] for record in caplog.records] == [
        f"{config.__name__}: {setting}=True" for setting in recipe
    ]
    assert told.device.type == "cpu"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the processes of a machine with GPUs form a group there")
@pytest.mark.parametrize("name", TRAINERS)
def test_processes_that_would_train_each_for_itself_are_refused(name, tmp_path, monkeypatch):
    config = getattr(trl_mmreason, name.replace("Trainer", "Config"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=f"{config.__name__}: this is one of 2 processes.* Fix: use_cpu=True"):
        config(str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "1")
    config(str(tmp_path), bf16=False)


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


@pytest.mark.full
def test_the_share_is_that_of_the_weights_that_a_step_leaves_as_they_are(base, tmp_path):
    """Adam's first step changes an entry by the learning rate, whatever its gradient is."""
    settings = {"max_steps": 1, "learning_rate": 1e-4, "lr_scheduler_type": "constant"}
    moved = {}
    for dtype in ("float32", "bfloat16"):
        trainer = make(
            "ReflectionSFTTrainer", base, tmp_path / dtype, **settings, model_init_kwargs={"dtype": dtype}, bf16=True
        )
        begun = weights_of(trainer.model)
        share = lost_updates(begun.values(), 1e-4)
        trainer.train()
        moved[dtype] = {name: weight != begun[name] for name, weight in weights_of(trainer.model).items()}
    reached = {name: moved["float32"][name] for name in begun}  # by a gradient
    counted = sum(int(mask.sum()) for mask in reached.values())
    lost = sum(int((mask & ~moved["bfloat16"][name]).sum()) for name, mask in reached.items())
    assert share == pytest.approx(0.76, abs=0.03)  # |w| ≥ 2⁻⁵ of weights with a deviation of 0.1
    assert lost / counted == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("name", full_but("SRPOTrainer", TRAINERS))
def test_every_trainer_warns_of_updates_that_are_lost(base, tmp_path, name, caplog):
    settings = {"learning_rate": 1e-6, "optim": "adamw_8bit"}
    make(name, base, tmp_path, **{**settings, **BFLOAT16})
    (warning,) = [record for record in caplog.records if "cannot change" in record.message]
    assert "% of the trained weights cannot change at learning_rate=1e-06: they are in bfloat16" in warning.message
    assert warning.levelno == logging.WARNING
    assert type(make(name, base, tmp_path, bf16=True)).__name__ in warning.message


def test_no_warning_where_updates_are_not_lost(base, tmp_path, caplog):
    def made(**settings):
        caplog.clear()
        make("AdaPOTrainer", base, tmp_path, **{"learning_rate": 1e-6, **BFLOAT16, **settings})
        return "cannot change" in caplog.text

    assert made()
    assert not made(model_init_kwargs={"dtype": "float32"})
    assert not made(learning_rate=1e-3)
    assert not made(optim="adamw_torch_8bit", optim_args="bf16_stochastic_round=True")
    # PEFT keeps an adapter in float32 whatever the base is
    assert not made(trainer_kwargs={"peft_config": LoraConfig(r=4, target_modules=r".*q_proj")})
    # ZeRO and FSDP2 update weights in float32
    trainer = make("AdaPOTrainer", base, tmp_path, learning_rate=1e-6, **BFLOAT16)
    for engine in ("is_deepspeed_enabled", "is_fsdp_enabled"):
        setattr(trainer, engine, True)
        caplog.clear()
        check_precision(trainer)
        assert "cannot change" not in caplog.text
        setattr(trainer, engine, False)


@pytest.mark.full
@pytest.mark.parametrize("name", full_but("SRPOTrainer", [*GRPO, DPO]))
def test_rounded_rotary_frequencies_are_pointed_out(base, tmp_path, name, caplog):
    """`.bfloat16()` casts them, and the reference, which is read from a checkpoint, has exact ones."""
    model, _ = load(base)
    trainer = make(name, model.bfloat16(), tmp_path, max_steps=1, bf16=True, model_init_kwargs=None)
    assert "rounds the frequencies of its rotary embeddings" in caplog.text
    trainer.train()
    (entry,) = logged(trainer)
    assert entry["loss"] != pytest.approx(math.log(2), abs=1e-5) if name == DPO else entry["kl"] > 1e-6
