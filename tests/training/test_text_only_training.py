"""Trainers on text-only policies: rows of `load_rows` have a column of images, which is empty."""

import json
import re

import pytest
import torch
from datasets import Dataset
from every_trainer import DPO, GRPO, TRAINERS, make, rows_of
from exactness import Plain, rollout_difference
from peft import FourierFTConfig, IA3Config, LoraConfig, PromptTuningConfig, ShiraConfig, get_peft_model
from support import changed_weights, full_but, prepared_batch, weights_of
from text_reasoners import saved_reasoner
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    CTRLConfig,
    FalconConfig,
    GPT2Config,
    OPTConfig,
    PhimoeConfig,
    RwkvConfig,
    XGLMConfig,
)
from trl.trainer.utils import use_adapter

from trl_mmreason.chain_of_step.tokens import add_chain_tokens, chain_token_ids
from trl_mmreason.generation.engine import Request, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine

CHAIN_SFT = "ChainOfStepSFTTrainer"
SUPERVISED = [name for name in TRAINERS if name not in GRPO]
OWN = {name: {"freeze_vision_encoder": False} for name in (CHAIN_SFT, "ProcessRewardTrainer", DPO)}
OWN["SRPOTrainer"] = OWN[DPO]
OWN["MixedGroupsGRPOTrainer"] = {"trainable_parts": ["language"]}
OWN["OffPolicyRewardTrainer"] = {"trainable_parts": ["language"]}


@pytest.fixture(scope="module", params=full_but("qwen2", ["qwen2", "llama"]))
def policy(request, tmp_path_factory):
    folder = saved_reasoner(request.param, tmp_path_factory.mktemp(request.param))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    add_chain_tokens(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def text_rows(name):
    return rows_of(name).map(lambda row: {"images": []})


@pytest.mark.parametrize("name", SUPERVISED)
def test_rows_without_images_train(name, policy, tmp_path):
    trainer = make(name, policy, tmp_path, rows=text_rows(name), **OWN.get(name, {}))
    before = weights_of(trainer.model)
    trainer.train()
    assert changed_weights(trainer.model, before) == set(before)


@pytest.mark.parametrize("room", [0, 32])
def test_a_policy_without_the_tokens_of_chains_learns_them(room, tmp_path):
    """TRL's constructor encodes rows of text, by a tokenizer that has to have the tokens by then.

    Embeddings may have room for them, as published ones mostly do.
    """
    folder = saved_reasoner("qwen2", tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size + room)
    model.save_pretrained(folder)
    rows = rows_of(CHAIN_SFT).map(lambda row: {"images": []})
    trainer = make(CHAIN_SFT, folder, tmp_path / "run", rows=rows, **OWN[CHAIN_SFT])
    ids = set(chain_token_ids(trainer.processing_class).values())
    assert ids <= {token for row in trainer.train_dataset for token in row["labels"]}
    before = weights_of(trainer.model)
    assert set(trainer.model.config.chain_of_step_tokens.values()) == ids
    trainer.train()
    assert changed_weights(trainer.model, before) == set(before)


@pytest.mark.parametrize("name", GRPO)
def test_what_is_sampled_or_written_is_scored_as_the_plain_model_scores_it(name, policy, tmp_path):
    trainer = make(name, policy, tmp_path, rows=text_rows(name), **OWN.get(name, {}))
    assert rollout_difference(trainer, Plain(policy, AutoConfig.from_pretrained(policy))) < 1e-5
    before = weights_of(trainer.model)
    trainer.train()
    assert changed_weights(trainer.model, before) == set(before)


def test_a_question_in_parts_is_what_the_policy_reads(policy, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": [{"type": "text", "text": "How many?"}]}], "answer": "3"}] * 4
    trainer = make("AdaPOTrainer", policy, tmp_path, rows=Dataset.from_list(rows))
    prepared_batch(trainer, rows)
    read = trainer.processing_class.decode(trainer.trajectories[0].prompt.ids)
    assert "How many?" in read
    assert "type" not in read


def test_the_loss_covers_the_completions_and_is_that_of_rows_without_the_column(policy, tmp_path):
    name = "ReflectionSFTTrainer"
    losses = []
    for rows in (text_rows(name), text_rows(name).remove_columns("images")):
        trainer = make(name, policy, tmp_path, rows=rows, eval_strategy="no")
        losses.append(trainer.evaluate(rows)["eval_loss"])
        (row, *_) = trainer.get_train_dataloader().dataset
        answer = trainer.processing_class.decode([token for token in row["labels"] if token != -100])
        assert answer.startswith("<think>a</think>")
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", [*SUPERVISED, "AdaPOTrainer", "SRPOTrainer", "MixedGroupsGRPOTrainer"])
def test_a_row_with_an_image_is_refused(name, policy, tmp_path):
    with pytest.raises(ValueError, match=f"{name}: row 0 has an image, which a text-only policy cannot see"):
        make(name, policy, tmp_path, **OWN.get(name, {}))


def saved_with_tokenizer_of(policy, folder, config_class, **sizes):
    """A random model of another class that reads the tokens of `policy`."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    config = config_class(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=tokenizer.eos_token_id, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", ["AdaPOTrainer", "ReflectionSFTTrainer", DPO])
@pytest.mark.parametrize(("positions", "refused"), [(12, True), (512, False)])
def test_rows_beyond_learned_positions_are_refused_when_the_trainer_is_made(positions, refused, name, policy, tmp_path):
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    gpt = saved_with_tokenizer_of(policy, tmp_path / "gpt", GPT2Config, n_positions=positions, **sizes)
    own, rows = OWN.get(name, {}), text_rows(name)
    if refused:
        with pytest.raises(ValueError, match=f"{name}: a row may have .* tokens, and .* learned 12 positions. Fix"):
            make(name, gpt, tmp_path / "run", rows=rows, **own)
    else:
        make(name, gpt, tmp_path / "run", rows=rows, **own).train()


RWKV = {"hidden_size": 64, "attention_hidden_size": 64, "num_hidden_layers": 2, "context_length": 512}


@pytest.mark.parametrize(("alike", "sentence"), [(False, "scores a padded batch"), (True, "samples with `generate`")])
def test_a_policy_that_is_another_in_a_batch_or_when_it_samples_is_refused(alike, sentence, policy, tmp_path):
    """RWKV reads padding, and its state is not carried from token to token as in one pass (transformers 5.23)."""
    rwkv = saved_with_tokenizer_of(policy, tmp_path / "rwkv", RwkvConfig, **RWKV)
    rows = text_rows("AdaPOTrainer").to_list()
    rows = Dataset.from_list([{**row, "prompt": rows[0]["prompt"]} if alike else row for row in rows])
    with pytest.raises(ValueError, match=f"RwkvForCausalLM {sentence} .* Fix: another model"):
        make("AdaPOTrainer", rwkv, tmp_path / "run", rows=rows).train()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha=5.0 adds noise .* Fix: neftune_noise_alpha=None"),
        ({"torch_compile": True}, "torch_compile=True cannot compile .* Fix: leave it out"),
    ],
)
def test_settings_that_part_the_sampled_from_the_trained_policy_are_refused(settings, sentence, policy, tmp_path):
    with pytest.raises(ValueError, match=f"AdaPOTrainer: {sentence}"):
        make("AdaPOTrainer", policy, tmp_path, rows=text_rows("AdaPOTrainer"), **settings)


@pytest.mark.parametrize("named", [None, ["MyOwnModel"], ["Qwen2Model"]])
def test_a_checkpoint_without_the_class_of_a_model_that_generates_is_refused(named, policy, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(policy)
    model.save_pretrained(tmp_path / "policy")
    AutoTokenizer.from_pretrained(policy).save_pretrained(tmp_path / "policy")
    config = json.loads((tmp_path / "policy/config.json").read_text()) | {"architectures": named}
    (tmp_path / "policy/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="config.json has architectures=.* Fix: correct it, or load the model"):
        make("AdaPOTrainer", str(tmp_path / "policy"), tmp_path / "run", rows=text_rows("AdaPOTrainer"))


def test_a_chat_template_that_refuses_is_named(policy, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(policy)
    refusing = "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('no assistants') }}{% endif %}"
    tokenizer.chat_template = refusing + "{{ m.content }}{% endfor %}"
    with pytest.raises(ValueError, match="AdaPOTrainer: the chat template cannot write .*no assistants.* Fix"):
        make(
            "AdaPOTrainer",
            policy,
            tmp_path,
            rows=text_rows("AdaPOTrainer"),
            trainer_kwargs={"processing_class": tokenizer},
        )


@pytest.mark.parametrize("name", ["AdaPOTrainer", "ReflectionSFTTrainer"])
def test_a_late_row_with_a_token_that_the_model_lacks_is_named(name, policy, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<new>"]})
    rows = text_rows(name).to_list()
    make(
        name, policy, tmp_path / "before", rows=Dataset.from_list(rows), trainer_kwargs={"processing_class": tokenizer}
    )
    rows[-1]["prompt"][-1]["content"] += " <new>"
    with pytest.raises(ValueError, match=f"{name}: row {len(rows) - 1} has '<new>', .* Fix: model.resize_token"):
        make(name, policy, tmp_path, rows=Dataset.from_list(rows), trainer_kwargs={"processing_class": tokenizer})


NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("late", [False, True], ids=["system_prompt", "late row"])
def test_a_chat_template_that_refuses_the_roles_of_a_row_is_named_when_the_trainer_is_made(late, policy, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = NO_SYSTEM + PLAIN
    rows, kwargs = text_rows("AdaPOTrainer").to_list(), {"processing_class": tokenizer}
    make("AdaPOTrainer", policy, tmp_path / "plain", rows=Dataset.from_list(rows), trainer_kwargs=kwargs)
    if late:
        rows[-1]["prompt"].insert(0, {"role": "system", "content": "Be brief."})
    else:
        kwargs["system_prompt"] = "Be brief."
    with pytest.raises(ValueError, match=r"row (0|15) of train_dataset has .*system, user, .*no system.* Fix"):
        make("AdaPOTrainer", policy, tmp_path, rows=Dataset.from_list(rows), trainer_kwargs=kwargs)


@pytest.mark.parametrize("name", ["AdaPOTrainer", "ReflectionSFTTrainer"])
def test_an_adapter_with_tokens_of_its_own_is_refused(name, policy, tmp_path):
    adapter = PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match=f"{name}: PromptTuningConfig puts tokens before .* Fix: LoRA"):
        make(name, policy, tmp_path, rows=text_rows(name), trainer_kwargs={"peft_config": adapter})


def test_an_adapter_of_which_there_is_no_second_one_is_refused_with_a_reference(policy, tmp_path):
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(policy), LoraConfig(target_modules=["q_proj"], bias="all")
    )
    given = {"rows": text_rows("AdaPOTrainer"), "model_init_kwargs": None}
    given["trainer_kwargs"] = {"processing_class": AutoTokenizer.from_pretrained(policy)}
    with pytest.raises(ValueError, match="^AdaPOTrainer: no copy of .* can be its reference .Lora.* Fix: beta=0"):
        make("AdaPOTrainer", model, tmp_path, beta=0.1, **given)


@pytest.mark.parametrize("config", [CTRLConfig, XGLMConfig])
def test_positions_of_padded_rows_are_counted_from_the_first_token(config, policy, tmp_path):
    """Theirs are computed, not learned; generate counts them so."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "dff": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    if config is XGLMConfig:
        sizes = {"d_model": 32, "num_layers": 2, "attention_heads": 2, "ffn_dim": 64, "dropout": 0.0}
        sizes |= {"attention_dropout": 0.0, "activation_dropout": 0.0}
    folder = saved_with_tokenizer_of(policy, tmp_path / "model", config, **sizes)
    trainer = make("AdaPOTrainer", folder, tmp_path, rows=text_rows("AdaPOTrainer"))
    assert rollout_difference(trainer, Plain(folder, AutoConfig.from_pretrained(folder))) < 1e-5


@pytest.mark.parametrize("width", [32, 16])
def test_a_model_whose_forward_pass_calls_a_part_of_its_base_model_is_exact(width, policy, tmp_path):
    """OPT's calls `model.decoder`, which projects to another width before the head."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 64, "num_attention_heads": 4, "dropout": 0.0}
    folder = saved_with_tokenizer_of(policy, tmp_path / "opt", OPTConfig, word_embed_proj_dim=width, **sizes)
    trainer = make("AdaPOTrainer", folder, tmp_path, rows=text_rows("AdaPOTrainer"))
    assert rollout_difference(trainer, Plain(folder, AutoConfig.from_pretrained(folder))) < 1e-5


ADAPTERS = {
    "embeddings": lambda: LoraConfig(r=2, target_modules=["embed_tokens", "q_proj"]),
    "tokens": lambda: LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[3, 4, 5]),
    "ia3": lambda: IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "shira": lambda: ShiraConfig(r=2, target_modules=["q_proj"]),  # keeps the places of its weights in a dictionary
    "pissa": lambda: LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa"),  # changes its base
    "fourier": lambda: FourierFTConfig(n_frequency=10, target_modules=["q_proj"]),
}


def trained_adapter(policy, kind):
    """A policy with an adapter whose weights are not those of a new one."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(policy), ADAPTERS[kind]())
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "default" in name:
            weight.data.add_(0.1 * torch.randn_like(weight))
    return model


@pytest.mark.parametrize("kind", ADAPTERS)
def test_the_reference_of_a_trained_adapter_is_that_adapter(kind, policy, tmp_path):
    model, name = trained_adapter(policy, kind), "AdaPOTrainer"
    kwargs = {"processing_class": AutoTokenizer.from_pretrained(policy)}
    trainer = make(name, model, tmp_path, rows=text_rows(name), trainer_kwargs=kwargs, beta=0.1, model_init_kwargs=None)
    ids = torch.arange(5, 30)[None]
    with torch.no_grad():
        own = model.eval()(input_ids=ids).logits
        with use_adapter(model, "ref"):
            assert torch.equal(model(input_ids=ids).logits, own)
        with model.disable_adapter():
            assert not torch.allclose(model(input_ids=ids).logits, own, atol=1e-3)
    trainer.train()
    assert trainer.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-6)


def test_trl_copies_a_part_of_an_adapter(policy, tmp_path, monkeypatch):
    """huggingface/trl#6975; when this fails, `fill_reference_adapter` can go."""
    monkeypatch.setattr("trl_mmreason.training.preparation.fill_reference_adapter", lambda model: None)
    name, kwargs = "AdaPOTrainer", {"processing_class": AutoTokenizer.from_pretrained(policy)}
    given = {"rows": text_rows(name), "trainer_kwargs": kwargs, "beta": 0.1, "model_init_kwargs": None}
    with pytest.raises(ValueError, match=r"the reference, a copy .*\(IA3Config\), differs from it by .* Fix: merge"):
        make(name, trained_adapter(policy, "ia3"), tmp_path, **given)


def test_an_adapter_of_another_name_is_refused(policy, tmp_path):
    model = trained_adapter(policy, "ia3")
    model.add_adapter("second", model.peft_config["default"])
    model.set_adapter("second")
    with pytest.raises(
        ValueError,
        match="AdaPOTrainer: of the policy's adapters default, second the active one is second, expected default.* Fix",
    ):
        make("AdaPOTrainer", model, tmp_path, rows=text_rows("AdaPOTrainer"), model_init_kwargs=None)


FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_dropout": 0.3}
FALCON |= {"new_decoder_architecture": True, "num_kv_heads": 2}
PHIMOE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PHIMOE |= {"num_key_value_heads": 2, "num_local_experts": 4, "router_jitter_noise": 0.1, "pad_token_id": None}


def test_noise_that_a_model_reads_from_its_configuration_is_found_and_turned_off(policy, tmp_path, caplog):
    folder = saved_with_tokenizer_of(policy, tmp_path / "falcon", FalconConfig, **FALCON)
    rows = text_rows("AdaPOTrainer")
    make("AdaPOTrainer", folder, tmp_path / "noisy", rows=rows)
    assert re.search(r"the policy has noise \(.+\), .* Fix: disable_dropout=True", caplog.text)
    caplog.clear()
    trainer = make("AdaPOTrainer", folder, tmp_path, rows=rows, disable_dropout=True)
    assert "noise" not in caplog.text
    assert rollout_difference(trainer, Plain(folder, AutoConfig.from_pretrained(folder))) < 1e-5


def test_a_number_that_counts_in_evaluation_stays_when_noise_is_turned_off(policy, tmp_path, caplog):
    """The routers of Phi-MoE take `router_jitter_noise` for a threshold, and draw experts in training."""
    folder = saved_with_tokenizer_of(policy, tmp_path / "phimoe", PhimoeConfig, **PHIMOE)
    given = {"rows": text_rows("AdaPOTrainer"), "disable_dropout": True, "router_aux_loss_coef": 0.0}
    trainer = make("AdaPOTrainer", folder, tmp_path, **given)
    ids = torch.arange(5, 300)[None]
    with torch.no_grad():
        plain = Plain(folder, AutoConfig.from_pretrained(folder)).model(input_ids=ids).logits
        assert torch.equal(trainer.model.eval()(input_ids=ids).logits, plain)
    assert re.search(r"the policy has noise \([\d.]+ nats\), .* Fix: another model", caplog.text)


def test_a_tokenizer_that_names_no_end_is_refused(policy, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.pad_token, tokenizer.eos_token = tokenizer.eos_token, None
    with pytest.raises(ValueError, match="AdaPOTrainer: the tokenizer has no eos_token, .* Fix: set it"):
        make(
            "AdaPOTrainer",
            policy,
            tmp_path,
            rows=text_rows("AdaPOTrainer"),
            trainer_kwargs={"processing_class": tokenizer},
        )


def test_a_model_whose_answers_change_with_padding_answers_row_by_row(policy, tmp_path, caplog):
    folder = saved_with_tokenizer_of(policy, tmp_path / "rwkv", RwkvConfig, **RWKV)
    questions = [Request([{"role": "user", "content": "?" * length}]) for length in (1, 9, 4)]
    asked = SamplingParams(6, temperature=0.0)
    together = TransformersEngine(folder, device="cpu").sample(questions, asked)
    assert "Padding changes what RwkvForCausalLM says" in caplog.text
    assert together == TransformersEngine(folder, device="cpu", batch_size=1).sample(questions, asked)
