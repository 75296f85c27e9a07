"""TRL's fused LM head computes the logits of the model itself, whatever the text configuration says of a scale."""

import logging

import pytest
import torch
from every_trainer import BY_OUTCOME, DPO, make
from further_families import aya_vision, granite_vision, saved
from peft import LoraConfig, get_peft_model
from support import full_but
from transformers import (
    BitsAndBytesConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Llama4ForConditionalGeneration,
)
from transformers.models.llama4.configuration_llama4 import Llama4Config
from trl.trainer.utils import add_fused_lm_head

from trl_mmreason.compat.adapters import prepare_head
from trl_mmreason.compat.fused_head import (
    HeadOutput,
    fused_head_output,
    measured_head_output,
    use_own_head_output,
)
from trl_mmreason.compat.model_parts import without_adapters
from trl_mmreason.training.model_checks import scoring_problem

OFF_POLICY = "OffPolicyRewardTrainer"
IDS = torch.arange(20, 40).unsqueeze(0)
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "initializer_range": 0.5}


@torch.no_grad()
def errors(model):
    """Largest difference in nats between a model's own log-probabilities and its fused head's, per token."""
    model.eval()
    own = model(input_ids=IDS).logits.float().log_softmax(-1)[:, :-1]
    own = own.gather(2, IDS[:, 1:, None]).squeeze(2)
    return (model(input_ids=IDS, labels=IDS, fused_lm_head=True).log_probs - own).abs().max().item()


def with_trls_head(model):
    torch.manual_seed(0)
    prepare_head(model)
    add_fused_lm_head(model)
    return model


@pytest.mark.parametrize("build", [granite_vision, aya_vision])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scale_that_the_model_leaves_out_is_left_out(build, dtype, caplog):
    """TRL's own head is wrong by this: the correction can go once it is not."""
    model = with_trls_head(build()[0].to(dtype))
    assert errors(model) > 0.3
    assert "differ by" in scoring_problem(model, IDS)
    with caplog.at_level(logging.WARNING):
        use_own_head_output(model)
    assert "but the model's own are scaled by 1, with which it is trained" in caplog.text
    assert fused_head_output(model) == HeadOutput(1.0, None)
    assert errors(model) < 1e-5
    assert scoring_problem(model, IDS) is None


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)), HeadOutput(1 / 3, None)),
        (lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=2.0)), HeadOutput(1.0, 2.0)),
    ],
    ids=["scaled", "capped"],
)
def test_a_scale_and_a_cap_that_the_model_has_stay_as_they_are(model, expected, caplog):
    model = with_trls_head(model())
    with caplog.at_level(logging.WARNING):
        use_own_head_output(model)
    assert not caplog.records
    assert fused_head_output(model) == expected
    measured = [measured_head_output(model)]  # without being told
    assert errors(model) < 1e-5
    with torch.device("meta"):
        measured += [measured_head_output(type(model)(model.config))]
    for head in measured:
        assert head.scale == pytest.approx(expected.scale, rel=1e-5)
        assert head.softcap == expected.softcap


class _Curved(GraniteForCausalLM):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits.square()
        return outputs


def test_what_no_scale_and_cap_give_is_refused():
    with pytest.raises(
        ValueError, match=r"_Curved: TRL's fused LM head.* makes \[.*of products \[.*Fix: another model"
    ):
        measured_head_output(_Curved(GraniteConfig(**SIZES)))


def test_a_model_whose_backbone_is_a_whole_model_is_refused():
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    vision |= {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32, "image_size": 56}
    config = Llama4Config(
        text_config={**SIZES, "intermediate_size_mlp": 64, "num_local_experts": 2}, vision_config=vision
    )
    with torch.device("meta"):
        model = Llama4ForConditionalGeneration(config)
    with pytest.raises(ValueError, match="between its base_model and its output embeddings lies more"):
        measured_head_output(model)


# --------------------------------------------------------------------------------------------------------- trainers


@pytest.fixture(scope="module")
def granite(tmp_path_factory):
    return saved(granite_vision, tmp_path_factory.mktemp("granite"))


def references_of(trainer):
    found = (getattr(trainer, name, None) for name in ("ref_model", "reference"))
    return [reference for reference in found if reference is not None]


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", ["AdaPOTrainer", "ReflectionSFTTrainer", OFF_POLICY, DPO]))
def test_every_trainer_scores_with_it_and_so_does_its_reference(name, granite, tmp_path):
    own = BY_OUTCOME if name == DPO else {}
    trainer = make(name, granite, tmp_path, **own)
    models = [trainer.accelerator.unwrap_model(model) for model in (trainer.model, *references_of(trainer))]
    assert len(models) == (1 if name == "ReflectionSFTTrainer" else 2)
    for model in models:
        assert fused_head_output(model) == HeadOutput(1.0, None)
        assert errors(model) < 1e-5
    if name == "AdaPOTrainer":
        trainer.train()
        assert trainer.facts.max_difference < 1e-5  # between sampled and trained log-probabilities


@pytest.mark.parametrize("quantised", full_but(False, [False, True]))
def test_it_holds_under_an_adapter(quantised, granite, tmp_path):
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    kwargs = {"quantization_config": quantization} if quantised else {}
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    trainer = make("AdaPOTrainer", granite, tmp_path, adapter=lora, trainer_kwargs=kwargs)
    policy = trainer.accelerator.unwrap_model(trainer.model)
    assert fused_head_output(without_adapters(policy)) == HeadOutput(1.0, None)
    assert errors(policy) < 1e-4


def test_it_is_measured_through_an_adapter_of_the_head():
    model = granite_vision()[0]
    add_fused_lm_head(model)
    get_peft_model(model, LoraConfig(r=4, target_modules=["lm_head"], init_lora_weights=False))
    assert measured_head_output(model) == HeadOutput(1.0, None)
    assert not [name for name, module in model.named_modules() if "forward" in vars(module) and name]
