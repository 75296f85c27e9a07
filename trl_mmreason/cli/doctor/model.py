"""Check a model without its weights: its kind, and whether processor and chat template write what the methods need."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from datasets import Dataset
from jinja2 import TemplateError
from PIL import Image
from transformers import AutoConfig, ProcessorMixin
from trl.trainer.utils import add_fused_lm_head

from ...compat.chat_template import declared_end_ids, next_turn_ids
from ...compat.fused_head import measured_head_output
from ...data.folders import check_model_folder
from ...data.rows import DataError
from ...generation.batch import encode
from ...generation.model_loading import ENCODING_ERRORS, auto_class_of, load_processor, saved_settings
from ...miniature.models import build_model
from ...scripts.single_stage import DataArguments, family_and_size, load_split, refuse_adapter
from ...training.model_card import MINIATURE
from ...training.model_checks import (
    described_noise,
    router_problem,
    rows_scoring_problem,
    scores_to_compare,
    scoring_problem,
    some_ids,
)
from ...training.model_problems import architecture_problem, experts_problem, rotary_problem
from ...training.noise import noise_of
from ...training.preparation import prepare_policy
from ...training.processor_checks import (
    IMAGES_NEED,
    NO_TEMPLATE,
    answer_prompt_problem,
    check_template,
    processor_problem,
    some_rows,
)
from ...training.prompt_length import prompt_length
from . import Finding, one_line
from .memory import build_without_weights

QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "How many circles are there?"}]
_THOUGHTS = "<think>1 + 1</think> <answer>2</answer>"
_TRAINERS = {  # → whether they learn from completions that are given
    "AdaPO": False,
    "SRPO, Chain-of-Step GRPO, self-evolution, baselines": False,
    "SFT of SRPO and Chain-of-Step, process reward model": True,
    "iterative DPO": False,
    "SOPHIA": True,
}
_ROWS = 16  # number of rows whose prompts are measured


def load_for_checks(name: str, *, weights: bool = False) -> tuple[Any, Any, list[int]]:
    """Build a model, with or without its weights, and load its processor and the tokens that end its answers."""
    if name.startswith(MINIATURE):
        model, processor = build_model(*family_and_size(name))
        return model, processor, declared_end_ids(model.generation_config, processor)
    check_model_folder(name)
    refuse_adapter(name)
    config = AutoConfig.from_pretrained(name)
    if problem := architecture_problem(config):
        raise ValueError(problem)
    processor = load_processor(name)
    model = auto_class_of(config).from_pretrained(name) if weights else build_without_weights(config)
    return model, processor, declared_end_ids(saved_settings(name), processor)


def check_conversation(processor: Any, end_ids: list[int]) -> Iterator[Finding]:
    """Try a chat template and a processor: a question with an image, a second turn, and thoughts in tags."""
    if isinstance(processor, ProcessorMixin):
        image = Image.new("RGB", (448, 336), "white")
        try:
            tokens = len(encode(processor, QUESTION, [image]).ids)
        except ENCODING_ERRORS as error:
            fix = f"use {IMAGES_NEED}."
            yield Finding("FAIL", f"a question with an image cannot be written: {one_line(error)}", fix)
            return
        yield Finding("ok", f"a question with an image of 448 × 336 takes {tokens} tokens.")
    elif processor.chat_template:
        yield Finding("note", "a text-only policy: rows with images are refused.")
    else:
        yield Finding("FAIL", NO_TEMPLATE)
        return
    try:
        turn = next_turn_ids(processor, "Please check your answer.", eos_token_ids=end_ids)
        yield Finding("ok", f"a second turn follows the first answer as it was sampled ({len(turn)} tokens).")
    except (ValueError, TemplateError) as error:
        yield Finding("FAIL", f"two turns (AdaPO, SCoRe, two-turn evaluation): {one_line(error)}")
    try:
        check_template("thoughts", processor, _THOUGHTS)
        yield Finding("ok", "the template keeps <think>…</think> in what the assistant says.")
    except ValueError as error:
        yield Finding("note", f"supervised training on {one_line(error)}")
    if problem := answer_prompt_problem(processor, _THOUGHTS):
        yield Finding("note", f"supervised training: {problem}")


def check_scoring(model: Any, processor: Any, end_ids: list[int]) -> Iterator[Finding]:
    """Try what trainers try when they are made: whether what they score is what the model says."""
    problem = processor_problem(processor)
    try:
        head = measured_head_output(model)
    except ValueError as error:
        problem = problem or one_line(error)
    on_device = model.device.type != "meta"
    if problem is None and on_device:
        add_fused_lm_head(model)
        prepare_policy(model, processor)
        ids = some_ids(processor, model)
        problem = scoring_problem(model, ids)
        images = [Image.new("RGB", (448, 336), "white")] if isinstance(processor, ProcessorMixin) else []
        longer = [{"role": "user", "content": "How many circles are there, and how many squares?"}]
        rows = Dataset.from_list([{"prompt": QUESTION, "images": images}, {"prompt": longer, "images": []}])
        prompts = some_rows(processor, rows)
        if problem is None and prompts:
            _, problem = rows_scoring_problem(model, prompts, ids[0, -6:].tolist(), end_ids[0])
    if problem:
        yield Finding("FAIL", problem)
        return
    yield Finding("ok", f"trainers score with the logits of the model itself ({head.described()}).")
    noise = described_noise(model, scores_to_compare(model, prompts, ids), 1e-3) if on_device else noise_of(model)
    if noise:
        yield Finding("note", f"trainers that sample need disable_dropout=True: the model has noise ({noise}).")
    has_experts = hasattr(model.config.get_text_config(), "output_router_logits")
    no_router = has_experts and on_device and router_problem(model, ids)
    yield from _verdicts(model, processor, end_ids, experts_problem(model.config) or no_router)


def _verdicts(model: Any, processor: Any, end_ids: list[int], no_auxiliary_loss: Any) -> Iterator[Finding]:
    """Say of each trainer whether it trains a model that is scored exactly, and whose auxiliary loss it can compute."""
    has_experts = hasattr(model.config.get_text_config(), "output_router_logits")
    setting = "router_aux_loss_coef=0.0"
    try:
        next_turn_ids(processor, "?", eos_token_ids=end_ids)
        two_turns = None
    except (ValueError, TemplateError) as error:
        two_turns = one_line(error)
    untried = ", as far as is known without --weights" if model.device.type == "meta" else ""
    if rotary := rotary_problem(model.config):
        yield Finding("note", rotary)
    for trainers, is_supervised in _TRAINERS.items():
        needs = has_experts and (trainers == "SOPHIA" or no_auxiliary_loss)
        if trainers == "AdaPO" and two_turns:
            yield Finding("FAIL", f"{trainers}: refused because {two_turns}")
        elif is_supervised and not _keeps_thoughts(processor):
            yield Finding(
                "note", f"{trainers}: refused for completions with <think>…</think>, which the template changes"
            )
        else:
            yield Finding("ok", f"{trainers}: exact" + (f" with {setting}" if needs else "") + untried)


def _keeps_thoughts(processor: Any) -> bool:
    try:
        check_template("thoughts", processor, _THOUGHTS)
    except ValueError:
        return False
    return True


def check_prompts(processor: Any, settings: Mapping[str, Any], where: str) -> Generator[Finding, None, int | None]:
    """Compare the first prompts of a stage's drawn or local questions with `max_prompt_length`, if that is set.

    Returns:
        Tokens of the longest one; `None` where they cannot be read, which `check_rows` explains.
    """
    most, source = settings.get("max_prompt_length"), settings.get("dataset_name")
    is_drawn = str(source).startswith(MINIATURE)
    if not source or not (is_drawn or Path(source).expanduser().exists()):
        return None
    own = {each.name: settings[each.name] for each in fields(DataArguments) if each.name in settings}
    try:
        data = DataArguments(**own)
        rows = load_split(data, data.dataset_name, data.dataset_split, _ROWS, seed=0)
    except (DataError, OSError, ValueError) as error:
        if is_drawn:
            yield Finding("FAIL", f"{where}: {one_line(error)}")
        return None
    lengths = [prompt_length(row, processor, **(settings.get("chat_template_kwargs") or {})) for row in rows]
    if most is not None:
        overlong = sum(length > most for length in lengths)
        text = f"{where}: of {len(lengths)} prompts {overlong} are longer than max_prompt_length={most}; the longest "
        level = "FAIL" if overlong == len(lengths) else "note" if overlong else "ok"
        fix = "raise it, or let the processor scale images down." if overlong else ""
        yield Finding(level, f"{text}has {max(lengths)} tokens.", fix)
    return max(lengths)
