"""Whether a model can be trained, and exactly: what is scored must be what the model itself says of each token.

`check_model` runs when a trainer is made, and scores a handful of tokens: of a sentence, and of one of the trainer's
rows with images and one without. A model that DeepSpeed or FSDP still has to place is scored when training begins. Each
check returns one sentence, or `None` if all is well; `mmreason doctor` prints the same. `compat/fused_head.py` has that
of the LM head's scale, which needs no weights.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.trainer_pt_utils import get_model_param_count
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from ..compat.chat_template import tokenizer_of
from ..compat.fused_head import fused_head_output
from ..compat.learned_positions import learned_positions, table_of_tokens
from ..compat.model_parts import placed, without_adapters
from ..compat.vision_passes import ImageHooks, vision_weights, weights_behind
from ..generation.batch import Prompt, collate
from .model_problems import (
    adapter_problem,
    changes_base,
    experts_problem,
    longest_row,
    no_auxiliary_loss,
    positions_problem,
    rotary_problem,
    switched_off_problem,
    tokens_problem,
)
from .noise import batch_norms, noise_found, noise_of, turn_off_hidden_noise
from .processor_checks import TOKEN_TYPES, collated_problem, processor_problem, roles_problem, rows_problem, some_rows

logger = logging.getLogger(__name__)

_TEXT = "What is 12 + 30? Let me think: 12 + 30 = 42, so the answer is 42."
_CHANGED = 6  # tokens behind those whose log-probabilities are compared
_MOST_TOKENS = 24
_MANY_TOKENS = 240
_WRONG_INPUTS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)  # what models say of them
# Nats by which log-probabilities may differ: in float32, there of equal rows, in TF32; in other dtypes by the same
# head, and by another.
EXACT, _EQUAL, TF32 = 1e-3, 1e-4, 1e-2
_ROUNDED_ALIKE, ROUNDED = 0.02, 0.2


def check_model(trainer: Any) -> float | None:
    """Refuse a policy whose training would not be exact, or would stop in its first step.

    Args:
        trainer: after TRL's constructor; one without TRL's fused head scores in a way of its own.

    Returns:
        As `check_scores`; `None` for a model that is placed later, too.
    """
    model = without_adapters(trainer.accelerator.unwrap_model(trainer.model))
    if fused_head_output(model) is None:
        return None
    problem = adapter_problem(trainer.model) or switched_off_problem(trainer)
    problem = problem or processor_problem(trainer.processing_class)
    template = dict(getattr(trainer, "chat_template_kwargs", None) or {})
    if own_template := getattr(trainer, "chat_template", None):
        template["chat_template"] = own_template
    for role, prompt in (("train_dataset", "system_prompt"), ("eval_dataset", "eval_system_prompt")):
        rows, system_prompt = getattr(trainer, role), getattr(trainer, prompt, None)
        problem = problem or rows_problem(trainer.processing_class, rows, role)
        problem = problem or roles_problem(trainer.processing_class, rows, role, system_prompt, **template)
    if not isinstance(trainer, GRPOTrainer):
        problem = problem or collated_problem(trainer.processing_class)
    if trainer.aux_loss_enabled:
        problem = problem or experts_problem(model.config)
    problem = problem or rotary_problem(model.config, longest_row(trainer))
    problem = problem or positions_problem(model, trainer) or tokens_problem(model, trainer)
    if isinstance(trainer, GRPOTrainer) and (alpha := trainer.args.neftune_noise_alpha):
        problem = problem or (
            f"neftune_noise_alpha={alpha} adds noise to the embeddings, in training and where the policy samples: the "
            "two are not one policy. Fix: neftune_noise_alpha=None."
        )
    if isinstance(trainer, GRPOTrainer) and trainer.args.torch_compile:
        problem = (
            problem or "torch_compile=True cannot compile the passes of a trainer that samples. Fix: leave it out."
        )
    if problem:
        raise ValueError(f"{type(trainer).__name__}: {problem}")
    return None if is_placed_later(trainer) else check_scores(trainer)


def is_placed_later(trainer: Any) -> bool:
    """Whether no pass can be run before training begins.

    DeepSpeed and FSDP keep the model on the CPU until then, in pieces or, in all processes but the first, without its
    weights.
    """
    return trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled


def check_scores(trainer: Any) -> float | None:
    """Refuse a policy whose scores in training are not those of the model itself, or stop in the first step.

    Args:
        trainer: as for `check_model`, whose model can run a pass.

    Returns:
        Largest difference between the two in nats, of tokens behind the rows that were scored; `None` without such
        rows, or without TRL's fused head.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)  # with adapters: FSDP2 places the whole
    if is_deepspeed_zero3_enabled() and (problem := loops_problem(model, trainer.image_hooks)):
        raise ValueError(f"{type(trainer).__name__}: {problem}")
    if fused_head_output(without_adapters(model)) is None:
        return None
    ids, temperature = some_ids(trainer.processing_class, model), getattr(trainer, "temperature", 1.0)
    exact = not (trainer.args.bf16 or trainer.args.fp16) and is_float32(model)
    problem = None
    if trainer.aux_loss_enabled and not is_placed_later(trainer):  # a pass of the backbone alone
        problem = router_problem(without_adapters(model), ids)
    problem = problem or scoring_problem(model, ids, temperature=temperature, exact=exact)
    difference = None
    rows = getattr(trainer, "questions", trainer.train_dataset)  # iterative DPO's pairs are made later
    prompts = some_rows(trainer.processing_class, rows) if problem is None else []
    if prompts:
        answer = ids[0, -_CHANGED:].tolist()
        pad_id = tokenizer_of(trainer.processing_class).pad_token_id
        difference, problem = rows_scoring_problem(model, prompts, answer, pad_id, temperature=temperature, exact=exact)
    problem = problem or reference_problem(model, ids, exact=exact)
    if problem:
        raise ValueError(f"{type(trainer).__name__}: {problem}")
    if getattr(trainer.args, "beta", 0.0) and (away := nats_of_adapter(model, ids, exact=exact)):
        logger.warning(
            "%s: the new adapter changes the policy by %.2g nats before any update, and the KL term is to the policy "
            "without it. Fix: get_peft_model(model, peft_config) as the model, whose adapter is copied as the "
            "reference, or an adapter that begins at zero.",
            type(trainer).__name__,
            away,
        )
    if isinstance(trainer, GRPOTrainer):
        _settle_noise(trainer, model, scores_to_compare(model, prompts, ids), EXACT if exact else _ROUNDED_ALIKE)
    return difference


def _settle_noise(trainer: Any, model: Any, scores: Callable[[], Tensor], bound: float) -> None:
    """Turn off noise that TRL's `disable_dropout` leaves on, if it is set, and warn of what is on.

    Args:
        model, scores: as for `turn_off_hidden_noise`.
        bound: nats that are none.
    """
    noise, fix = described_noise(model, scores, bound), "disable_dropout=True"
    if noise and trainer.args.disable_dropout:
        turn_off_hidden_noise(model, scores)
        found = noise_found(model, scores)
        noise, fix = f"{found:.2g} nats" if found > bound else "", "another model"
    trainer.has_noise = bool(noise)
    if noise and batch_norms(model):
        fix = "another model, as batch normalisation is one thing in training and another in evaluation"
    if noise:
        logger.warning(
            "%s: the policy has noise (%s), which is drawn anew in each pass: what samples and what is trained are not "
            "one policy. Fix: %s.",
            type(trainer).__name__,
            noise,
            fix,
        )


def described_noise(model: Any, scores: Callable[[], Tensor], bound: float) -> str:
    """The noise that is on in training, by name, else in nats; "" without any. Arguments as for `_settle_noise`."""
    if named := noise_of(model):
        return named
    found = noise_found(model, scores)
    return f"{found:.2g} nats" if found > bound else ""


def scores_to_compare(model: Any, prompts: Sequence[Prompt], ids: Tensor) -> Callable[[], Tensor]:
    """A function that runs passes over a long text, and rows with images and without; see `noise_found`."""
    times = min(_MANY_TOKENS, learned_positions(without_adapters(model))) // ids.shape[1]
    text = ids.repeat(1, max(int(times), 1))  # a router's threshold decides about some tokens only
    return lambda: torch.cat([_logps(model, [], text), *([_logps(model, prompts, ids)] if prompts else [])])


def reference_problem(model: Any, ids: Tensor, *, exact: bool) -> str | None:
    """Whether the copy of a trained adapter that TRL takes as the reference says another thing than the adapter.

    Args:
        model: with its adapters.
        ids: (1, T) tokens of text.
        exact: as for `scoring_problem`.
    """
    adapters = getattr(model, "peft_config", {})
    if "ref" not in adapters:
        return None
    with evaluating(model):
        own = _logps(model, [], ids)
        with use_adapter(model, "ref"):
            copied = _logps(model, [], ids)
    if difference := _difference(copied, own, _ROUNDED_ALIKE, exact=exact):
        kind = type(adapters["ref"]).__name__
        return (
            f"the reference, a copy of the policy's adapter ({kind}), differs from it by {difference:.2g} nats. Fix: "
            "merge the adapter into its base model (merge_and_unload) and pass a peft_config, or beta=0."
        )
    return None


def nats_of_adapter(model: Any, ids: Tensor, *, exact: bool) -> float:
    """Difference in nats that a new adapter makes, where the model without it is the reference; 0.0 if it is none."""
    adapters = getattr(model, "peft_config", {})
    if adapters.keys() != {"default"} or changes_base(adapters["default"]):  # which is no reference
        return 0.0
    with evaluating(model):
        own = _logps(model, [], ids)
        with model.disable_adapter():
            without = _logps(model, [], ids)
    return _difference(without, own, _ROUNDED_ALIKE, exact=exact)


def _logps(model: Any, prompts: Sequence[Prompt], ids: Tensor) -> Tensor:
    """Log-probabilities behind a row with images and one without, else of all of a text, in one dimension."""
    base = without_adapters(model)
    kept = _CHANGED if prompts else ids.shape[1]
    inputs = [inputs_of(model, [row], 0) for row in prompts[:2]] or [_text_inputs(model, ids)]
    short = {"logits_to_keep": kept} if "logits_to_keep" in inspect.signature(type(base).forward).parameters else {}
    passes = (model(**each, use_cache=False, **short).logits[0, -kept:].float() for each in inputs)
    return torch.cat([logits.log_softmax(-1).flatten() for logits in passes])


def loops_problem(model: Any, hooks: ImageHooks | None) -> str | None:
    """Whether a model calls layers once per image: ZeRO-3 gathers a layer's weights at each call, in all processes.

    Where one process has two images and another three, one would wait for ever, or take another layer's weights for
    its own (OpenBMB/MiniCPM-V#644, deepspeedai/DeepSpeed#7998).
    """
    with evaluating(model):
        layers = hooks.layers_called_per_image() if hooks else []
    if not layers:
        return None
    return (
        f"{type(without_adapters(model)).__name__} calls {layers[0]} once per image, but ZeRO-3 needs as many calls in "
        "every process. Fix: FSDP2 or ZeRO-2 (configs/accelerate/)."
    )


def unreached_weights(trainer: Any) -> list[str]:
    """The trained weights to which neither an image nor text gives a gradient, so that DDP has to search for them.

    LLaVA-NeXT leaves out the last layer of its vision encoder, for example, and GLM-5's indexers choose tokens alone.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    reached = trainer.image_hooks.weights_of_an_image() if trainer.image_hooks else set()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if fused_head_output(without_adapters(model)) is None:  # its loss is of another head
        seen = {id(weight) for weight in vision_weights(without_adapters(model))}
        trained = {name: weight for name, weight in trained.items() if id(weight) in seen}
    else:
        ids = some_ids(trainer.processing_class, model)
        with evaluating(model), torch.enable_grad():
            reached |= weights_behind([model(**_text_inputs(model, ids), use_cache=False).logits])
    return [name for name, weight in trained.items() if id(weight) not in reached]


def check_trainable(trainer: Trainer) -> None:
    """Refuse a model of which no weight may change."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(
            f"{type(trainer).__name__}: not one of {get_model_param_count(model):,} weights may change "
            "(requires_grad=False), so that nothing would be trained. Fix: load an adapter with "
            "PeftModel.from_pretrained(base, folder, is_trainable=True), or unfreeze what is to be trained."
        )


def router_problem(model: Any, ids: Tensor) -> str | None:
    """Whether a model's backbone returns the routers' logits, of which TRL makes its auxiliary loss.

    Args:
        model: without adapters, or the model that PEFT wrapped.
        ids: (1, T) tokens.
    """
    try:
        with evaluating(model):
            outputs = model.base_model(input_ids=ids, output_router_logits=True, use_cache=False)
    except TypeError:  # composite models of transformers 5.24 whose outputs have no place for them
        outputs = None
    if getattr(outputs, "router_logits", None):
        return None
    return no_auxiliary_loss(f"{type(model).__name__} returns no router_logits")


def some_ids(processing_class: Any, model: Any) -> Tensor:
    """(1, T) tokens of a short text, on the model's device."""
    return torch.tensor([tokenizer_of(processing_class)(_TEXT)["input_ids"][:_MOST_TOKENS]], device=model.device)


def rows_scoring_problem(
    model: Any,
    prompts: Sequence[Prompt],
    answer: list[int],
    pad_token_id: int,
    *,
    temperature: float = 1.0,
    exact: bool = True,
) -> tuple[float, str | None]:
    """Compare the fused head's log-probabilities of an answer in a padded batch with the model's own, row by row.

    Args:
        model: as for `scoring_problem`.
        prompts: of rows with images or without.
        answer: tokens of text behind each of them.
        pad_token_id: of the batch's padding.
        temperature, exact: as for `scoring_problem`.

    Returns:
        Largest difference in nats, and what is wrong.
    """
    rows = [prompt.extended(answer) for prompt in prompts]
    base, kept = without_adapters(model), len(answer)
    taken = inspect.signature(type(base).forward).parameters
    short = {"logits_to_keep": kept + 1} if "logits_to_keep" in taken else {}
    labels = torch.tensor(answer, device=model.device)[None, :, None]
    own, name = [], type(base).__name__
    try:
        with evaluating(model):
            for row in rows:
                logits = model(**inputs_of(model, [row], pad_token_id), use_cache=False, **short).logits.float()
                logps = (logits[:, -kept - 1 : -1] / temperature).log_softmax(-1)
                own.append(logps.gather(2, labels.to(logits.device)).squeeze(2))
            batch = inputs_of(model, rows, pad_token_id)
            fused = model(**batch, labels=batch["input_ids"], fused_lm_head=True).log_probs[:, -kept:]
    except torch.OutOfMemoryError:
        raise
    except _WRONG_INPUTS as error:
        failed = "one row alone" if len(own) < len(rows) else f"{len(rows)} rows in a batch"
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return math.nan, f"{name} cannot score {failed} ({reason:.200}). Fix: {_fix_for(base, rows)}."
    expected = torch.cat(own).to(fused)
    problem = None
    if len(rows) > 2 and (difference := _difference(fused[0], fused[-1], _ROUNDED_ALIKE, exact=exact, bound=_EQUAL)):
        problem = (
            f"{name} scores equal rows of a batch otherwise, by {difference:.2g} nats. Fix: another model, or a report "
            "to transformers."
        )
    elif difference := _difference(fused, expected, ROUNDED, exact=exact):
        problem = (
            f"{name} scores a padded batch of {len(rows)} rows otherwise than each row alone, by {difference:.2g} "
            "nats per token. Fix: another model, or a report to transformers."
        )
    return (fused - expected).abs().max().item(), problem


def _fix_for(model: Any, rows: Sequence[Prompt]) -> str:
    """What helps against rows that a model cannot score."""
    known = table_of_tokens(model).num_embeddings
    if (largest := max(max(row.ids) for row in rows)) >= known:
        return (
            f"model.resize_token_embeddings(len(tokenizer)), as a row has the token {largest}, and the model {known} "
            "of them; or leave such rows out"
        )
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", math.inf)
    if (longest := max(len(row.ids) for row in rows)) > positions:
        return f"max_prompt_length, as a row has {longest} tokens, and the model {positions} positions"
    return "the processor's own settings, as it was loaded, or another model"


def inputs_of(model: Any, rows: Sequence[Prompt], pad_token_id: int) -> dict[str, Tensor]:
    """A batch on the model's device, in its dtype."""
    return placed(collate(rows, pad_token_id), model)


def scoring_problem(model: Any, ids: Tensor, *, temperature: float = 1.0, exact: bool | None = None) -> str | None:
    """Compare the fused head's log-probabilities with the model's own, and these with themselves if the end changes.

    Both are of passes of one shape, which round alike.

    Args:
        model: with TRL's fused head, and with its adapters.
        ids: (1, T) tokens of text.
        temperature: of the fused head.
        exact: whether passes round in float32; by default, whether all weights are in it.
    """
    exact = is_float32(model) if exact is None else exact
    kept, name = ids.shape[1] - _CHANGED, type(without_adapters(model)).__name__
    pair = torch.cat([ids, torch.cat([ids[:, :kept], ids[:, :_CHANGED]], dim=1)])  # (2, T)
    inputs = _text_inputs(model, pair)
    with evaluating(model):
        logits = model(**inputs, use_cache=False).logits[:, :kept].float() / temperature
        labels = ids[:, 1 : kept + 1].expand(2, -1).to(logits.device)
        own, changed = logits.log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2)
        fused = model(**inputs, labels=pair, fused_lm_head=True).log_probs[0, :kept].to(own)
    if difference := _difference(own, changed, _ROUNDED_ALIKE, exact=exact):
        return (
            f"{name} is not causal over an answer: its log-probabilities change by {difference:.2g} nats when later "
            "tokens change, so that they are not those that an answer is sampled with. Fix: another model."
        )
    if difference := _difference(fused, own, ROUNDED, exact=exact):
        return (
            f"TRL's fused LM head gives log-probabilities that differ by {difference:.2g} nats from those of {name} "
            "itself. Fix: another model, or a report to TRL; its own trainers use the same head."
        )
    return None


def _text_inputs(model: Any, ids: Tensor) -> dict[str, Tensor]:
    taken = inspect.signature(type(without_adapters(model)).forward).parameters
    types = {field: torch.zeros_like(ids) for field in TOKEN_TYPES if field in taken}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **types}


def is_float32(model: Any) -> bool:
    return {weight.dtype for weight in model.parameters()} == {torch.float32}


def _difference(first: Tensor, second: Tensor, rounded: float, *, exact: bool, bound: float = EXACT) -> float:
    """By how many nats log-probabilities differ, of any token in float32 and of the median one otherwise.

    Returns:
        0.0 if rounding explains it: less than `bound` in float32, or than `rounded` in other dtypes, where it sends
        some tokens to other experts.
    """
    differences = (first - second).abs()
    difference = (differences.max() if exact else differences.median()).item()
    float32 = bound if torch.get_float32_matmul_precision() == "highest" else TF32
    return 0.0 if difference <= (float32 if exact else rounded) else difference  # NaN is one


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Run a model without dropout and gradients, and leave it as it was."""
    training, trained = model.training, [(weight, weight.requires_grad) for weight in model.parameters()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
        for weight, requires_grad in trained:  # PEFT lets all of the adapter be trained to which it changes back
            weight.requires_grad_(requires_grad)
