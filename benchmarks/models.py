"""Passes of a model beside those of transformers: patches, hooks late in a run, and scores of a chain's steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.chain_of_step.template import ANSWER_END, Chain, Step, chain_ends, render_chain
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.compat.input_hooks import keep_one_input_hook
from trl_mmreason.compat.patch_embedding import use_matrix_product_for_patches
from trl_mmreason.data.images import images_of
from trl_mmreason.generation.batch import collate, encode
from trl_mmreason.miniature.models import build_model

from .common import Result, forget_peak, lengths, make_questions, memory, report, run_apart, take_turns

# -------------------------------------------------------------------------------------------------------------- patches


def patches(*, rounds: int = 9, dtype: str = "float32", side: int = 16, images: int = 1, layers: int = 32) -> Result:
    """Embedding an image's patches: time of transformers' convolution over that of the matrix product here.

    Forward and backward passes of the vision encoder of Qwen2.5-VL-3B with random weights, and of its patch embedding
    alone. Features and gradients must not differ by more than rounding.

    Args:
        dtype: of weights and images, such as bfloat16.
        side: patches along a side of the square image, an even number.
        images: images in a pass.
        layers: of the encoder; the model has 32.
    """
    torch.manual_seed(0)
    where = {"device": "cuda" if torch.cuda.is_available() else "cpu", "dtype": getattr(torch, dtype)}
    config = Qwen2_5_VLVisionConfig(depth=layers, hidden_size=1280, out_hidden_size=2048)
    encoder = Qwen2_5_VisionTransformerPretrainedModel(config).to(**where)
    grid = torch.tensor([[1, side, side]] * images, device=where["device"])
    pixels = torch.randn(int(grid.prod(-1).sum()), 3 * 2 * 14 * 14, **where)
    result, bound = Result(), 1e-4 if dtype == "float32" else 3e-2
    for name, module, inputs in (
        ("patch embedding", encoder.patch_embed, (pixels,)),
        ("vision encoder", encoder, (pixels, grid)),
    ):
        product = copy.deepcopy(module)
        use_matrix_product_for_patches(product)
        work = {
            "convolution": partial(forward_backward, module, inputs),
            "product": partial(forward_backward, product, inputs),
        }
        seconds, returned = take_turns(work, rounds, warm_up=2)
        report(seconds, "convolution", "product", title=name)
        pairs = zip(returned["convolution"][-1], returned["product"][-1], strict=True)
        difference = max(((one - other).norm() / one.norm()).item() for one, other in pairs)
        result.numbers[name] = seconds
        result.check(difference <= bound, f"{name}: features or gradients differ by {difference:.1e}, relatively.")
    return result


def forward_backward(encoder: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Features, and the gradient of the first weight."""
    features = encoder(*inputs)
    features = getattr(features, "pooler_output", features)
    encoder.zero_grad()
    features.float().square().mean().backward()
    return [features.detach(), next(encoder.parameters()).grad]


# ---------------------------------------------------------------------------------------------------------------- hooks


def hooks(*, rounds: int = 5, size: str = "study", rollouts: int = 3000, limit: float = 1.0) -> Result:
    """Fifty passes with activation checkpointing late in a run: transformers' time over that with one set of hooks.

    A rollout of two turns and the scoring of its answers turn checkpointing off and on three times, and transformers
    adds a hook each time. A pass reads one token of eight rows. Logits have to be equal.

    Args:
        size: of the miniature model.
        rollouts: rollouts before the passes.
        limit: lowest ratio.
    """
    models = {name: build_model("qwen2_5_vl", size)[0].eval() for name in ("transformers", "here")}
    keep_one_input_hook(models["here"])
    for model in models.values():
        for _ in range(3 * rollouts):
            model.activation_checkpointing_enable()
            model.activation_checkpointing_disable()
    ids = torch.ones(8, 1, dtype=torch.long)

    @torch.no_grad()
    def passes(model: Any) -> Tensor:
        for _ in range(50):
            logits = model(input_ids=ids).logits
        return logits

    seconds, logits = take_turns({name: partial(passes, model) for name, model in models.items()}, rounds)
    ratio = report(seconds, "transformers", "here")
    result = Result({"seconds": seconds})
    result.check(logits["transformers"][0].equal(logits["here"][0]), "The logits differ.")
    result.check(ratio >= limit, f"The ratio is {ratio:.2f}; the limit is {limit}.")
    return result


# ------------------------------------------------------------------------------------------------------ process rewards

VOCABULARY = 151_936  # rows of the embeddings of Qwen2.5-VL
STEP = 41  # tokens of a step

Rows = list[dict[str, Any]]
Scores = list[list[float | None]]  # of a row's steps, then of its answer


def build_reward_model(size: str) -> ProcessRewardModel:
    """Build a model with random weights and Qwen2.5-VL's vocabulary."""
    model, processor = build_model("qwen2_5_vl", size)
    add_chain_tokens(model, processor)
    model.resize_token_embeddings(VOCABULARY, mean_resizing=False)
    return ProcessRewardModel(model.to("cuda" if torch.cuda.is_available() else "cpu"), processor)


def draw_chains(n: int) -> Rows:
    """Chains of about the lengths of the standard workload, in steps of equal length; a chain has a step at least."""
    rows = []
    for number, (question, tokens) in enumerate(zip(make_questions(n), lengths(n), strict=True)):
        names = (f"Look {k}" for k in range(max(1, round(tokens / STEP))))
        chain = Chain([Step(name, f"The first digit is 3. {number}", "I looked twice.") for name in names], "7")
        rows.append({**question, "completion": render_chain(chain)})
    return rows


def in_one_pass(prm: ProcessRewardModel, rows: Rows, batch: int) -> Scores:
    """All steps of a chain in one forward pass."""
    return [[*scores.steps.tolist(), scores.answer] for scores in prm.score(rows, batch_size=batch)]


@torch.no_grad()
def prefix_by_prefix(prm: ProcessRewardModel, rows: Rows, batch: int, **forward: int) -> Scores:
    """A forward pass up to each step, and to the answer."""
    tokenizer, model = prm.processing_class.tokenizer, prm.model
    right, wrong = tokenizer.convert_tokens_to_ids(["+", "-"])
    prefixes = []
    for number, row in enumerate(rows):
        text = row["completion"]
        ends = [*chain_ends(text).steps, text.rindex(ANSWER_END) + len(ANSWER_END)]
        prefixes += [(number, row, text[:end]) for end in ends]
    scores: Scores = [[] for _ in rows]
    for start in range(0, len(prefixes), batch):
        some = prefixes[start : start + batch]
        prompts = [
            encode(prm.processing_class, row["prompt"], images_of(row)).extended(
                tokenizer(text, add_special_tokens=False)["input_ids"]
            )
            for _, row, text in some
        ]
        inputs = {name: value.to(model.device) for name, value in collate(prompts, tokenizer.pad_token_id).items()}
        logits = model(**inputs, use_cache=False, **forward).logits[:, -1]
        for (number, _, _), score in zip(some, (logits[:, right] - logits[:, wrong]).sigmoid().tolist(), strict=True):
            scores[number].append(score)
    return scores


SCORERS: dict[str, Callable[[ProcessRewardModel, Rows, int], Scores]] = {
    "one pass": in_one_pass,
    "prefixes, all logits": prefix_by_prefix,
    "prefixes, last logits": partial(prefix_by_prefix, logits_to_keep=1),
}


def scoring_mebibytes(way: str, size: str, rows: Rows, batch: int) -> float:
    """Memory that scoring takes beyond the model; to be called in a process of its own."""
    prm = build_reward_model(size)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        SCORERS[way](prm, rows, batch)
        return (torch.cuda.max_memory_allocated() - allocated) / 2**20
    SCORERS[way](prm, rows[:1], 1)  # what torch allocates once
    held = forget_peak()
    SCORERS[way](prm, rows, batch)
    return memory("VmHWM") - held


def process_reward(
    *, rounds: int = 3, size: str = "demo", rows: int = 32, batch: int = 8, limit: float = 3.0
) -> Result:
    """Scoring a chain's prefixes one by one with the model's own logits: time over that of one pass for all steps.

    The prefixes are scored once with the logits of all tokens, as models give them by default, and once with
    `logits_to_keep=1`. Chains are those of the standard workload, longer ones of more steps; the vocabulary is
    Qwen2.5-VL's. Peak memory is measured in a process for each way. Scores must not differ by more than 1e-5.

    Args:
        size: of the miniature model: test, demo or study.
        rows: chains.
        batch: rows in a forward pass, of all ways.
        limit: lowest ratio with the logits of the last token.
    """
    drawn = draw_chains(rows)
    peaks = {way: run_apart(scoring_mebibytes, way, size, drawn, batch) for way in SCORERS}
    prm = build_reward_model(size)
    seconds, returned = take_turns({way: partial(score, prm, drawn, batch) for way, score in SCORERS.items()}, rounds)
    one, *others = (torch.tensor([score for row in scores[-1] for score in row]) for scores in returned.values())
    difference = max((one - other).abs().max().item() for other in others)
    tokens = [len(prm.processing_class.tokenizer(row["completion"])["input_ids"]) for row in drawn]
    print(f"{rows} chains of {min(tokens)} to {max(tokens)} tokens; scores differ by {difference:.0e}")
    report(seconds, "prefixes, all logits", "one pass")
    ratio = report(seconds, "prefixes, last logits", "one pass")
    print("MiB beyond the model: " + ", ".join(f"{way} {peak:.0f}" for way, peak in peaks.items()))
    result = Result({"seconds": seconds, "mebibytes": peaks, "difference": difference})
    result.check(ratio >= limit, f"The ratio is {ratio:.2f}; the limit is {limit}.")
    result.check(difference <= 1e-5, f"Scores differ by {difference:.1e}.")
    return result
