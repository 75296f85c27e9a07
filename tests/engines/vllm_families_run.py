"""Train AdaPO on a family with vLLM in its process, two updates: `python vllm_families_run.py FAMILY FOLDER`.

Run by test_vllm_families.py, which compares what it says with docs/models.md if it fails.
"""

import sys
from pathlib import Path
from unittest.mock import patch

import torch
from all_families import FAMILIES, TEXT_ONLY
from datasets import Dataset
from every_trainer import make
from families_grids import GLM_ROPE, _glm
from families_parts import EXPERTS
from further_families import saved, wide_heads
from support import drawn_rows
from transformers import (
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    Glm4vProcessor,
    LightOnOcrProcessor,
    PixtralProcessor,
)
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from vllm_cpu import let_cpus_take_vllm
from vllm_policies import rollout_of

from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.data.images import images_of
from trl_mmreason.generation.batch import collate

let_cpus_take_vllm()
torch.set_num_threads(1)
name, folder = sys.argv[1], Path(sys.argv[2])

RUN = {
    "use_vllm": True,
    "top_p": 1.0,  # with less, vLLM's log-probabilities are those among the tokens that are left
    "vllm_max_model_length": 1024,
    "per_device_train_batch_size": 12,  # each question in each of two rollouts: images return after an update
    "lr_scheduler_type": "constant",
    "router_aux_loss_coef": 0.0,
}
# What vLLM takes for granted, as published checkpoints have it.
PUBLISHED = {
    "glm4v": {"attention_bias": True},
    "glm_experts": {"attention_bias": True, "head_dim": 32, "use_qk_norm": False},
    "glm_ocr": {"intermediate_size": 192},  # the width of its merger of patches, too
    "qwen3_vl_moe": {"norm_topk_prob": True, "moe_intermediate_size": 48},  # else a square: whether it lies is not seen
}


def glm_experts():
    """GLM-4.5V with GLM's tokens, by which vLLM asks; the everyday one has Qwen's."""
    experts = {"first_k_dense_replace": 1, "n_routed_experts": 4, "n_shared_experts": 1, **EXPERTS, **GLM_ROPE}
    parts = (Glm4vMoeConfig, Glm4vMoeForConditionalGeneration, Glm4vProcessor, Glm4vImageProcessorPil)
    return _glm(*parts, "Glm4vVideoProcessor", **experts)


def sized_processor(**settings):
    return (LightOnOcrProcessor if name == "lighton_ocr" else PixtralProcessor)(**settings)


def made():
    """The family's model and processor, with what vLLM takes for granted."""
    # torchvision is here, without which Pixtral's own processor cannot be had
    with wide_heads(**PUBLISHED.get(name, {})), patch("families_plain.LightOnOcrProcessor", sized_processor):
        model, processor = {**FAMILIES, "glm_experts": glm_experts}[name]()
    if name in {"gemma3", "paligemma"}:
        processor.tokenizer.add_tokens(["\n" * number for number in range(1, 5)])
        model.resize_token_embeddings(len(processor.tokenizer))
    if name == "gemma4":
        model.config.vision_config.default_output_length = processor.image_processor.max_soft_tokens
    if name == "internvl_experts":  # a head of its own
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model, processor


@torch.no_grad()
def ruled_out(trainer, columns):
    """(B, T) log(1 − p) of each sampled token, where p is the policy's probability of a placeholder."""
    model, found = trainer.accelerator.unwrap_model(trainer.model), torch.zeros(len(trainer.trajectories), columns)
    ids = placeholder_ids(model.config)
    model.eval()
    for row, each in zip(found, trainer.trajectories, strict=True):
        logits = model(**collate([each.context], 0)).logits[0, len(each.prompt.ids) - 1 : -1].float()
        kept = logits.index_fill(-1, torch.tensor(ids, dtype=torch.long), -torch.inf)
        row[: len(logits)] = kept.logsumexp(-1) - logits.logsumexp(-1)
    model.train()
    return found


def recorded(trainer):
    """The rollouts that the trainer makes from here on; trained log-probabilities are those without placeholders."""
    rollouts, prepare = [], trainer._generate_and_score_completions

    def record(inputs):
        batch = prepare(inputs)
        rollout = {**rollout_of(batch), "pictures": torch.tensor([len(images_of(row)) for row in inputs])}
        rollout["trained"] = rollout["trained"] - ruled_out(trainer, rollout["mask"].shape[1])
        rollouts.append(rollout)
        return batch

    trainer._generate_and_score_completions = record
    return rollouts


rows = [{**row, "images": [] if name in TEXT_ONLY else row["images"]} for row in drawn_rows(3)]
trainer = make("AdaPOTrainer", saved(made, folder / "policy"), folder / "run", rows=Dataset.from_list(rows), **RUN)
rollouts = recorded(trainer)
trainer.train()
torch.save(rollouts, folder / "rollouts.pt")
