"""What trainers make of the models that users bring: exact, or refused in a sentence."""

import inspect

import peft
import pytest
import torch
import transformers
from datasets import Dataset
from every_trainer import make
from further_families import gemma4, saved
from packaging.version import Version
from peft import LoraConfig, PeftConfig, PrefixTuningConfig, VBLoRAConfig, get_peft_model
from support import SMALL_RUN, ParityGrader, adapo_trainer, changed_weights, drawn_rows, load, weights_of
from transformers import AutoProcessor, AutoTokenizer, trainer
from trl.trainer import dpo_trainer, grpo_trainer, sft_trainer

from trl_mmreason import AdaPOConfig, AdaPOTrainer, OffPolicyRewardConfig, OffPolicyRewardTrainer
from trl_mmreason.chain_of_step.tokens import add_chain_tokens

SETTINGS = {**SMALL_RUN, "beta": 0.1, "filter_zero_advantage": False, "filter_truncated": False, "warmup_steps": 0}


def made(model, folder, rows=3, trainer_kwargs=None, **settings):
    args = AdaPOConfig(str(folder), **{**SETTINGS, **settings})
    rows = Dataset.from_list(drawn_rows(rows))
    return AdaPOTrainer(model, args=args, train_dataset=rows, grader=ParityGrader(), **(trainer_kwargs or {}))


def test_a_new_adapter_names_the_revision_of_its_base(checkpoints, tmp_path):
    """Whoever loads it would take the main one otherwise: for an evaluation, or to merge it."""
    adapter = LoraConfig(r=2, target_modules=["q_proj"])
    init = {"dtype": "float32", "revision": "v2"}  # of which a folder has one
    trainer = made(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"peft_config": adapter}, model_init_kwargs=init)
    trainer.save_model()
    assert PeftConfig.from_pretrained(str(tmp_path)).revision == "v2"
    assert adapter.revision is None  # as it may be given to a trainer of another revision, too


@pytest.fixture
def gemma(tmp_path):
    if Version(transformers.__version__) < Version("5.23"):
        pytest.skip("its processor needs torchvision then")
    return saved(gemma4, tmp_path / "model")


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_a_new_adapter_that_changes_its_base_is_no_reference_without_it(start, checkpoints, tmp_path):
    adapter = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=start)
    with pytest.raises(
        ValueError, match=f"^AdaPOTrainer: an adapter with init_lora_weights='{start}' .* Fix: pass get_p"
    ):
        made(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"peft_config": adapter})
    made(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"peft_config": adapter}, beta=0.0, kl_scale=0.0)
    model, processor = load(checkpoints("qwen2_5_vl"))
    given = {"processing_class": processor}
    trainer = made(get_peft_model(model, adapter), tmp_path, trainer_kwargs=given, max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-6)


def test_biases_are_trained_in_the_base(checkpoints, tmp_path):
    adapter = LoraConfig(r=2, target_modules=["q_proj"], bias="all")
    with pytest.raises(ValueError, match="^AdaPOTrainer: an adapter with bias='all' .* Fix: bias='none', or beta=0"):
        made(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"peft_config": adapter})


def test_a_new_adapter_that_begins_away_from_zero_is_told(checkpoints, tmp_path, caplog):
    for name, start in {"zero": True, "away": False}.items():
        adapter = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=start)
        trainer = made(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"peft_config": adapter}, max_steps=1)
        assert ("the new adapter changes the policy by" in caplog.text) is (name == "away")
        trainer.train()
        assert (trainer.state.log_history[0]["kl"] > 1e-3) is (name == "away")


def test_off_policy_training_says_so_too(checkpoints, tmp_path, caplog):
    rows = [
        {"prompt": row["prompt"], "images": row["images"], "completion": "7", "reward": 1.0} for row in drawn_rows(3)
    ]
    for start in (True, False):
        args = OffPolicyRewardConfig(str(tmp_path), use_cpu=True, bf16=False, beta=0.1, report_to=[])
        adapter = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=start)
        path = checkpoints("qwen2_5_vl")
        OffPolicyRewardTrainer(path, args=args, train_dataset=Dataset.from_list(rows), peft_config=adapter)
        assert ("OffPolicyRewardTrainer: the new adapter changes the policy by" in caplog.text) is not start


def test_tokens_that_an_adapter_puts_before_a_rows_are_refused(checkpoints, tmp_path):
    adapter = PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="^AdaPOTrainer: PrefixTuningConfig puts tokens before those of a row"):
        made(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"peft_config": adapter})


def test_an_adapter_that_is_another_when_it_is_loaded_is_refused(checkpoints, tmp_path):
    adapter = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa_niter_4")
    with pytest.raises(ValueError, match="^AdaPOTrainer: init_lora_weights='pissa_niter_4' draws its start anew"):
        made(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"peft_config": adapter}, beta=0.0, kl_scale=0.0)


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        (LoraConfig(target_modules=["q_proj"], alora_invocation_tokens=[3]), "alora_invocation_tokens lets an adapter"),
        (
            VBLoRAConfig(num_vectors=4, vector_length=8, target_modules=["q_proj"], save_only_topk_weights=True),
            "save_only_topk_weights=True saves a part",
        ),
    ],
)
def test_adapters_that_act_or_are_saved_in_part_are_refused(adapter, reason, checkpoints, tmp_path):
    with pytest.raises(ValueError, match=f"^AdaPOTrainer: {reason}"):
        made(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"peft_config": adapter})


def test_off_policy_training_keeps_a_copy_of_a_base_that_a_new_adapter_changes(checkpoints, tmp_path):
    adapter = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa")
    rows = [{**row, "completion": "It is 7.", "reward": 1.0} for row in drawn_rows(2)]
    args = OffPolicyRewardConfig(str(tmp_path), use_cpu=True, bf16=False, beta=0.1, max_steps=1, logging_steps=1)
    given = {"args": args, "train_dataset": Dataset.from_list(rows), "peft_config": adapter}
    trainer = OffPolicyRewardTrainer(checkpoints("qwen2_5_vl"), **given)
    trainer.train()
    assert trainer.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.skipif(
    Version(transformers.__version__) >= Version("5.24") and Version(peft.__version__) < Version("0.22"),
    reason="transformers adds none with this PEFT",
)
def test_an_adapter_of_transformers_own_is_refused_where_it_would_be_the_reference(checkpoints, tmp_path):
    model, processor = load(checkpoints("qwen2_5_vl"))
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="^AdaPOTrainer: the policy has an adapter of transformers' own add_adapter"):
        made(model, tmp_path, trainer_kwargs={"processing_class": processor})


def test_checkpointing_that_leaves_out_the_vision_encoders_adapter_is_refused(checkpoints, tmp_path):
    again = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    adapter = {"peft_config": LoraConfig(r=2, target_modules="all-linear", exclude_modules=["lm_head"])}
    with pytest.raises(ValueError, match="^AdaPOTrainer: use_reentrant=True would not train the vision encoder's"):
        made(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs=adapter, **again)
    made(
        checkpoints("qwen2_5_vl"),
        tmp_path,
        trainer_kwargs={"peft_config": LoraConfig(target_modules=r".*layers.*q_proj")},
        **again,
    )
    made(checkpoints("qwen2_5_vl"), tmp_path, **again)


def test_the_tokenizer_of_a_vision_language_model_is_not_its_processor(checkpoints, tmp_path):
    path = checkpoints("qwen2_5_vl")
    with pytest.raises(ValueError, match="has an image, which a text-only policy .* Fix: .*AutoProcessor"):
        made(path, tmp_path, trainer_kwargs={"processing_class": AutoTokenizer.from_pretrained(path)})
    with pytest.raises(TypeError, match="processing_class"):
        made(path, tmp_path, trainer_kwargs={"processing_class": AutoProcessor.from_pretrained(path).image_processor})


def test_layers_that_peft_does_not_adapt_are_said_in_a_sentence(gemma, tmp_path):
    with pytest.raises(
        ValueError, match=r"^AdaPOTrainer: .* does not adapt \(Gemma4ClippableLinear\).* Fix: target_mod"
    ):
        made(gemma, tmp_path, trainer_kwargs={"peft_config": LoraConfig(target_modules=["q_proj", "v_proj"])})


def test_a_tokenizers_padding_does_not_make_another_model(gemma, tmp_path):
    """Gemma 4 reads its own padding token in the forward pass, in the place of images."""
    processor = AutoProcessor.from_pretrained(gemma)
    processor.tokenizer.pad_token = processor.tokenizer.bos_token
    trainer = made(gemma, tmp_path / "run", max_steps=1, trainer_kwargs={"processing_class": processor})
    own = 1  # as it is saved
    assert trainer.model.config.text_config.pad_token_id == own != processor.tokenizer.pad_token_id
    trainer.train()
    assert trainer.model.config.text_config.pad_token_id == own
    assert trainer.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.23"), reason="it is written elsewhere then")
def test_transformers_and_trl_write_the_tokenizers_padding(checkpoints, tmp_path):
    """When this fails, `compat/special_tokens.py` and the `padding` of `prepare_models` can go."""
    model, processor = load(checkpoints("qwen2_5_vl"))
    own, processor.tokenizer.pad_token = model.config.get_text_config().pad_token_id, processor.tokenizer.eos_token
    assert own != processor.tokenizer.pad_token_id
    trainer.align_special_tokens(model, processor)
    assert model.config.get_text_config().pad_token_id == processor.tokenizer.pad_token_id
    for module in (grpo_trainer, dpo_trainer, sft_trainer):
        assert "model.config.get_text_config().pad_token_id = " in inspect.getsource(module)


@pytest.mark.parametrize("name", ["ChainOfStepSFTTrainer", "ProcessRewardTrainer"])
def test_an_optimizer_of_weights_that_new_tokens_replace_is_refused(name, checkpoints, tmp_path):
    """The head grows with the template's tokens, and would never be trained."""
    (model, processor), (grown, other) = load(checkpoints("qwen2_5_vl")), load(checkpoints("qwen2_5_vl"))
    given = {"processing_class": processor, "optimizers": (torch.optim.SGD(model.parameters(), lr=0.1), None)}
    with pytest.raises(ValueError, match=f"^{name}: the optimizer .* lacks lm_head.weight, which would never"):
        make(name, model, tmp_path / "refused", trainer_kwargs=given)
    add_chain_tokens(grown, other)
    given = {"processing_class": other, "optimizers": (torch.optim.SGD(grown.parameters(), lr=0.1), None)}
    trainer = make(name, grown, tmp_path / "out", trainer_kwargs=given, max_steps=1)
    before = weights_of(grown)
    trainer.train()
    assert "lm_head.weight" in changed_weights(grown, before)


def test_an_optimizer_of_the_weights_below_an_adapter_is_refused(checkpoints, rows, tmp_path):
    """It would train nothing."""
    model, processor = load(checkpoints("qwen2_5_vl"))
    given = {"processing_class": processor, "optimizers": (torch.optim.SGD(model.parameters(), lr=0.1), None)}
    given["peft_config"] = LoraConfig(r=2, target_modules=["q_proj"])
    with pytest.raises(ValueError, match="lacks .*lora_A.*, which would never be trained. Fix: .* get_peft_model"):
        adapo_trainer(model, tmp_path, rows, trainer_kwargs=given)
