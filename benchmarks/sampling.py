"""Answers beside what TRL and a plain loop do: a rollout without vLLM, and an evaluation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel, ProcessorMixin
from trl.data_utils import prepare_multimodal_messages

from trl_mmreason.chain_of_step.miniature import PLAIN_ANSWERS
from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.evaluation.results import summarise
from trl_mmreason.evaluation.runner import evaluate
from trl_mmreason.generation import SamplingParams
from trl_mmreason.generation.batch import Prompt, collate, encode, end_of_turn_ids, tokenizer_of
from trl_mmreason.generation.live_rows import decode_live_rows
from trl_mmreason.generation.model_loading import load_model, load_processor
from trl_mmreason.generation.protocols import Direct
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.grading import Grader
from trl_mmreason.jobs.store import Store
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.tasks import make_dataset
from trl_mmreason.scripts.cold_start import cold_start

from .common import BOUND, GROUP, Result, lengths, make_questions, report, save_policy, take_turns

# ------------------------------------------------------------------------------------------------------------- rollouts


class EndsAt(LogitsProcessor):
    """Ends each row at its length, and not before."""

    def __init__(self, tokens: list[int], end: int, device: torch.device) -> None:
        self.tokens, self.end, self.made = torch.tensor(tokens, device=device), end, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.made += 1
        ends, end = self.tokens == self.made, input_ids.new_tensor([self.end])
        only_end = torch.full_like(scores, -torch.inf).index_fill(1, end, 0.0)
        return scores.index_fill(1, end, -torch.inf).where(~ends[:, None], only_end)


def roll_out(model: Any, inputs: dict[str, Tensor], tokens: list[int], custom: Any, **settings: Any) -> Tensor:
    """The rows with their answers."""
    torch.manual_seed(0)
    ending = EndsAt(tokens, settings["eos_token_id"], model.device)
    return model.generate(**inputs, logits_processor=[ending], custom_generate=custom, **settings)


def rollouts(*, rounds: int = 5, size: str = "study", questions: int = 4, limit: float = 1.5) -> Result:
    """A rollout of the standard workload without vLLM: time of `generate`, as TRL calls it, over that here.

    Both decode the same policy with the same seed, and a logits processor ends each row at the length drawn for it.
    Here a group's prompt is read once, and rows that ended leave the model's batch. Tokens have to be equal in float32.

    Args:
        size: of the miniature model.
        questions: questions in a rollout, with 8 answers each.
        limit: lowest ratio.
    """
    asked = make_questions(questions)
    prompt_of = torch.arange(len(asked)).repeat_interleave(GROUP)
    drawn = lengths(len(prompt_of))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with TemporaryDirectory() as folder:
        save_policy(Path(folder), size)
        model, _ = load_model(folder, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
        processor = load_processor(folder)
    pad = tokenizer_of(processor).pad_token_id
    settings: dict[str, Any] = {"do_sample": True, "max_new_tokens": BOUND, "pad_token_id": pad}
    settings |= {
        "eos_token_id": end_of_turn_ids(model, processor)[0],
        "suppress_tokens": placeholder_ids(model.config),
    }
    prompts = [encode(processor, row["prompt"], row["images"]) for row in asked]

    def on_device(prompts: list[Prompt]) -> dict[str, Tensor]:
        inputs = collate(prompts, pad).items()
        return {name: each.to(device, model.dtype if each.is_floating_point() else None) for name, each in inputs}

    repeated = on_device([prompts[number] for number in prompt_of])
    here = partial(decode_live_rows, prompt_of=prompt_of.to(device))
    work = {
        "generate": partial(roll_out, model, repeated, drawn, None, **settings),
        "here": partial(roll_out, model, on_device(prompts), drawn, here, **settings),
    }
    seconds, answers = take_turns(work, rounds)
    equal = (answers["generate"][0] == answers["here"][0]).float().mean().item()
    print(f"{len(drawn)} answers of {min(drawn)} to {max(drawn)} tokens, {sum(drawn)} in all; {equal:.2%} are equal")
    ratio = report(seconds, "generate", "here")
    result = Result({"seconds": seconds, "equal": equal})
    result.check(ratio >= limit, f"The ratio is {ratio:.2f}; the limit is {limit}.")
    result.check(equal == 1 or model.dtype != torch.float32, "The tokens differ.")
    return result


# ---------------------------------------------------------------------------------------------------------- evaluation

Graded = list[tuple[str, bool | None]]
"""Text and verdict of every question."""


def by_loop(model: PreTrainedModel, processor: ProcessorMixin, rows: Dataset, tokens: int) -> Graded:
    """What one writes first: one question after the other."""
    grader, graded = Grader(), []
    for row in rows:
        conversation = prepare_multimodal_messages(row["prompt"], images=row["images"])
        inputs = processor.apply_chat_template(
            conversation, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
        ).to(model.device)
        suppressed = placeholder_ids(model.config)
        with torch.no_grad():
            ids = model.generate(**inputs, do_sample=False, max_new_tokens=tokens, suppress_tokens=suppressed)
        text = processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        question = row["prompt"][-1]["content"]
        graded.append((text, grader.grade(text, row["answer"], choices=row["choices"], question=question).correct))
    return graded


def by_evaluate(engine: TransformersEngine, rows: Dataset, tokens: int, batch: int) -> Graded:
    """The same by the runner, with a store of its own."""
    with TemporaryDirectory() as folder, Store(Path(folder) / "answers.sqlite") as store:
        params = SamplingParams(tokens, temperature=0.0)
        samples = evaluate(rows, engine, store, Direct(), sampling_params=params, batch_size=batch)
        summarise(samples)
    graded: Graded = []
    for (sample,) in samples.samples:
        if not isinstance(sample, dict):
            raise RuntimeError(f"A sample failed: {sample.reason}")
        graded.append((sample["turns"][0]["text"], sample["turns"][0]["correct"]))
    return graded


def evaluation(
    *,
    rounds: int = 5,
    family: str = "qwen2_5_vl",
    questions: int = 256,
    tokens: int = 32,
    batch: int = 64,
    limit: float = 4.0,
) -> Result:
    """Time of a plain loop over questions, over that of `evaluate` with its store, metrics and intervals.

    Both ask a miniature policy, which is right about half of the time, the same questions with images, greedily, and
    grade with the same grader. Answers and verdicts have to be the same.

    Args:
        family: of the miniature model.
        questions: questions with an image each.
        tokens: bound of an answer.
        batch: questions that `evaluate` answers at a time.
        limit: lowest ratio.
    """
    model, processor = build_model(family, "demo")
    with TemporaryDirectory() as folder:
        cold_start(model, processor, ["adding"], Path(folder) / "policy", lessons=PLAIN_ANSWERS, target_accuracy=0.5)
    model.eval()
    rows = make_dataset(["adding"], questions, split="new_pictures")
    engine = TransformersEngine(model, processor, batch_size=batch)
    contestants = {
        "one by one": partial(by_loop, model, processor, rows, tokens),
        "evaluate": partial(by_evaluate, engine, rows, tokens, batch),
    }
    seconds, graded = take_turns(contestants, rounds)
    right = sum(bool(correct) for _, correct in graded["evaluate"][-1])
    print(f"{questions} questions, {right} right, answers of up to {tokens} tokens")
    ratio = report(seconds, "one by one", "evaluate")
    result = Result({"seconds": seconds, "right": right})
    result.check(graded["one by one"] == graded["evaluate"], "Answers or verdicts differ.")
    result.check(ratio >= limit, f"The ratio is {ratio:.2f}; the limit is {limit}.")
    return result
