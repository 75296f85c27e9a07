"""QLoRA and 8-bit optimisers on a CPU: every trainer trains, saves, loads and resumes; evaluation changes nothing."""

import bitsandbytes
import pytest
import torch
from bitsandbytes.functional import has_avx512bf16
from every_trainer import DPO, GRPO, TRAINERS, make, resumed, rows_of, saved_base, whole
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from support import assert_weights, losses_of, written_by_hand
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.compat.precision import keep_training_layout

pytestmark = pytest.mark.full

RUN = {"bf16": True, "learning_rate": 1e-2, "model_init_kwargs": {"dtype": "bfloat16"}}
IDS = torch.arange(20, 60).unsqueeze(0)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base("qwen2_5_vl", tmp_path_factory.mktemp("base"))


def quantization():
    """As `configs/adapo/qwen2_5_vl_7b_qlora.yaml` has it."""
    kind = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **kind)


def quantised(path):
    model = AutoModelForImageTextToText.from_pretrained(path, quantization_config=quantization(), dtype=torch.bfloat16)
    keep_training_layout(model)
    return model


def lora():
    """Of rank 64, for matrices of 64 × 64: bitsandbytes keeps states of less than 4096 entries in 32 bit."""
    return LoraConfig(r=64, target_modules="all-linear", exclude_modules=["lm_head"])


def qlora():
    return {"quantization_config": quantization(), "peft_config": lora()}


def with_adapter(path):
    """A quantised model whose adapter has been somewhere."""
    torch.manual_seed(0)
    model = get_peft_model(quantised(path), lora())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    return model


@torch.no_grad()
def logits(model):
    training = model.training
    logits = model.eval()(input_ids=IDS).logits
    model.train(training)
    return logits


def assert_equal(trainer, other):
    assert_weights(trainer.model, other.model)
    assert losses_of(trainer) == losses_of(other)


def states(folder):
    """Number of entries → types of the optimizer's states of that size, as a checkpoint has them."""
    found = {}
    for saved in torch.load(folder / "optimizer.pt", weights_only=True)["state"].values():
        state = {**saved, **saved.get("__bnb_optimizer_quant_state__", {})}
        found.setdefault(state["state1"].numel(), set()).update({state["state1"].dtype, state["state2"].dtype})
    return found


@pytest.mark.parametrize("name", TRAINERS)
def test_qlora_with_an_8_bit_optimiser_trains_saves_loads_and_resumes(base, tmp_path, name):
    optim = "paged_adamw_8bit" if name in ("SRPOTrainer", "ProcessRewardTrainer") else "adamw_8bit"
    trainer = whole(name, base, tmp_path / "whole", trainer_kwargs=qlora(), **RUN, optim=optim)
    layers = [module for module in trainer.model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
    assert len(layers) == 2 * 7 + 2 * 5 + 2  # of the language model, of the vision tower, and the projector
    assert {layer.weight.dtype for layer in layers} == {torch.uint8}
    begun = {key: weight.clone() for key, weight in trainer.model.named_parameters() if weight.requires_grad}
    trainer.train()
    trained = {key: weight for key, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert {weight.dtype for weight in trained.values()} == {torch.bfloat16}  # TRL's choice for quantised models
    assert all(not torch.equal(weight, begun[key]) for key, weight in trained.items() if "lora_B" in key)

    folder = (tmp_path / "whole" / "round-1" if name == DPO else tmp_path / "whole") / "checkpoint-2"
    kept = states(folder)
    assert kept[64 * 64] == {torch.uint8}
    assert kept[64 * 32] == {torch.float32}
    assert {weight.dtype for weight in load_file(folder / "adapter_model.safetensors").values()} == {torch.bfloat16}

    fresh = PeftModel.from_pretrained(quantised(base), folder, autocast_adapter_dtype=False)
    policy = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    assert torch.equal(logits(fresh), logits(policy))
    assert not torch.equal(logits(quantised(base)), logits(policy))

    assert_equal(trainer, resumed(name, base, tmp_path, trainer_kwargs=qlora, **RUN, optim=optim))


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize(
    ("name", "optim"),
    [("AdaPOTrainer", "adamw_8bit"), ("OffPolicyRewardTrainer", "paged_adamw_8bit"), (DPO, "adamw_8bit")],
)
def test_8_bit_optimisers_train_whole_models_and_resume(base, tmp_path, name, optim):
    settings = {"bf16": True, "optim": optim}
    trainer = whole(name, base, tmp_path / "whole", **settings)
    trainer.train()
    folder = (tmp_path / "whole" / "round-1" if name == DPO else tmp_path / "whole") / "checkpoint-2"
    kept = states(folder)
    assert kept[64 * 128] == {torch.uint8}  # of the language model's MLP
    assert kept[64] == {torch.float32}
    assert_equal(trainer, resumed(name, base, tmp_path, **settings))


# ------------------------------------------------------------------------------- an adapter that was there before


@pytest.mark.parametrize("name", [*GRPO, "OffPolicyRewardTrainer", DPO])
def test_the_reference_is_the_quantised_model_with_the_adapter_that_came(base, tmp_path, name):
    """Whose divergence from the policy is 0 before the first update, and not after it."""
    trainer = make(name, with_adapter(base), tmp_path, **{**RUN, "model_init_kwargs": None})
    trainer.train()
    first, second = (entry for entry in trainer.state.log_history if "loss" in entry)
    if name == DPO:
        assert first["loss"] == pytest.approx(0.693147, abs=1e-6)
        assert abs(second["loss"] - 0.693147) > 0.01
    else:
        assert first["kl"] == 0.0
        assert second["kl"] > 0.01


@pytest.mark.parametrize("came_with", ["nothing", "an adapter"])
def test_the_judge_of_a_quantised_policy_is_the_policy_as_it_came(base, tmp_path, came_with):
    model, kwargs = (with_adapter(base), {}) if came_with == "an adapter" else (base, qlora())
    begun = logits(model if came_with == "an adapter" else quantised(base))
    settings = {**RUN, "model_init_kwargs": None if came_with == "an adapter" else RUN["model_init_kwargs"]}
    trainer = make("SelfEvolutionTrainer", model, tmp_path, trainer_kwargs=kwargs, **settings)
    written_by_hand(trainer, [rf"<think>{word}</think>\boxed{{{word}}}" for word in "11223334"])
    trainer.train()
    assert "judge/neutral" in trainer.state.log_history[0]  # a random policy judges, although nobody can read it
    with trainer.judging() as judge:
        assert torch.equal(logits(judge.model), begun)
    assert not torch.equal(logits(trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)), begun)


# ----------------------------------------------------------------------------------------- evaluation and checkpoints


@pytest.mark.parametrize("name", ["ReflectionSFTTrainer", "ProcessRewardTrainer", "OffPolicyRewardTrainer"])
def test_an_evaluation_between_two_steps_changes_neither(base, tmp_path, name):
    """On a CPU with AVX512-BF16, bitsandbytes would repack the weights, and no gradient pass them (`precision.py`)."""

    def trained(folder, **settings):
        kwargs = {**qlora(), "eval_dataset": rows_of(name)}
        trainer = make(name, base, tmp_path / folder, trainer_kwargs=kwargs, **RUN, **settings)
        trainer.train()
        return trainer

    evaluated = trained("evaluated", eval_strategy="steps", eval_steps=1)
    assert len([entry for entry in evaluated.state.log_history if "eval_loss" in entry]) == 2
    assert_equal(evaluated, trained("alone"))


@pytest.mark.skipif(not has_avx512bf16(), reason="bitsandbytes repacks 4-bit weights on CPUs with AVX512-BF16 only")
def test_bitsandbytes_still_repacks_for_evaluation():
    """When this fails, look whether `precision.keep_training_layout` can go."""

    def gradient_after_evaluation(prepare):
        layer = bitsandbytes.nn.Linear4bit(64, 64, bias=False, quant_type="nf4").to("cpu")
        prepare(layer)
        hidden = torch.randn(3, 64, requires_grad=True)
        with torch.no_grad():
            layer.eval()(hidden.detach())
        layer.train()(hidden).sum().backward()
        return hidden.grad

    assert gradient_after_evaluation(lambda layer: None) is None
    assert gradient_after_evaluation(keep_training_layout).norm() > 1


def test_the_best_adapter_keeps_its_type(base, tmp_path):
    trainer = whole("ReflectionSFTTrainer", base, tmp_path, trainer_kwargs=qlora(), **RUN)
    trainer.train()
    trainer.state.best_model_checkpoint = str(tmp_path / "checkpoint-1")
    trainer._load_best_model()
    saved = load_file(tmp_path / "checkpoint-1" / "adapter_model.safetensors")
    trained = {key: weight for key, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert {weight.dtype for weight in trained.values()} == {torch.bfloat16}
    for key, weight in trained.items():
        assert torch.equal(weight, saved[key.replace(".default", "")])


def test_a_quantised_process_reward_model_scores_as_it_did_in_training(base, tmp_path):
    trainer = make("ProcessRewardTrainer", base, tmp_path, trainer_kwargs=qlora(), **RUN)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    loaded = ProcessRewardModel.from_pretrained(
        tmp_path / "saved", dtype=torch.bfloat16, device="cpu", quantization_config=quantization()
    )
    policy = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    live = ProcessRewardModel(policy, trainer.processing_class)
    rows = list(trainer.train_dataset)
    for one, other in zip(loaded.score(rows), live.score(rows), strict=True):
        # PEFT loads the adapter as float32, so that its products are rounded elsewhere
        torch.testing.assert_close(one.steps, other.steps, atol=2**-5, rtol=0)
        assert one.answer == pytest.approx(other.answer, abs=2**-5)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_quantised_model_without_an_adapter_is_refused(base, tmp_path, name):
    with pytest.raises(ValueError, match="fine-tuning on purely quantized models. Please attach trainable adapters"):
        make(name, base, tmp_path, trainer_kwargs={"quantization_config": quantization()}, **RUN)
