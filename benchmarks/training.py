"""Training on the standard workload: time and memory beside those of TRL's trainers, with answers drawn beforehand."""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from transformers import AutoModelForImageTextToText, PreTrainedModel, PrinterCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from trl_mmreason import AdaPOConfig, AdaPOTrainer, OffPolicyRewardConfig, OffPolicyRewardTrainer
from trl_mmreason.compat.model_parts import freeze_vision_encoder, without_adapters
from trl_mmreason.compat.vision_passes import vision_weights
from trl_mmreason.grading.reward import accuracy_reward
from trl_mmreason.miniature.models import build_model
from trl_mmreason.training.credit import GroupOutcome
from trl_mmreason.training.timing import device_clock

from .common import (
    GROUP,
    Result,
    device_peak,
    forget_device_peak,
    lengths,
    make_questions,
    report,
    save_policy,
    take_turns,
)

ALL_ROWS: dict[str, Any] = {"filter_zero_advantage": False, "filter_truncated": False}  # carry loss

Answers = list[list[int]]
"""Token ids of one turn, one list per row."""


class ReplayGRPO(GRPOTrainer):
    """Trains on answers drawn beforehand, and measures how long scoring takes.

    Attributes:
        replayed: the answers of each turn, which stand for sampled ones; `None` samples.
        scoring_seconds: seconds of the last `_generate_and_score_completions`.
    """

    replayed: list[Answers] | None = None

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: Any, has_tool_images: Any = False
    ) -> tuple[Answers, None]:
        self.turns += 1
        if self.replayed is not None:
            return [list(ids) for ids in self.replayed[self.turns - 1]], None
        arguments = (prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        answers, expected = super()._generate_single_turn(*arguments)[0], self.generation_config.max_new_tokens
        if {len(ids) for ids in answers} != {expected}:
            raise RuntimeError(f"Expected {expected} tokens of every answer, got {[len(ids) for ids in answers]}.")
        # Sampled to the full length, so the token that ends a turn has to take the place of the last one.
        return [[*ids[:-1], self._tokenizer.eos_token_id] for ids in answers], None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.turns, start = 0, device_clock()
        batch = super()._generate_and_score_completions(inputs)
        self.scoring_seconds = device_clock() - start
        return batch


class ReplayAdaPO(ReplayGRPO, AdaPOTrainer):
    """`ReplayGRPO` around AdaPO, which may keep a share of every group out of the loss, as filters do."""

    dropped = 0.0

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        outcome = super().score_groups(rewards)
        self.in_groups(outcome.keep)[:, : round(self.dropped * GROUP)] = False
        return outcome


def settings(rows: int, batch: int, **others: Any) -> dict[str, Any]:
    """Settings of a trainer that is measured: it stays where it is, keeps no state and writes nothing.

    Args:
        rows: trajectories of a rollout batch.
        batch: those of a micro-batch.
        others: further settings.
    """
    on_gpu = torch.cuda.is_available()
    return {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": rows // batch,
        "num_generations": GROUP,
        "max_steps": 1,
        "learning_rate": 0.0,
        "optim": "sgd",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        **others,
    }


def prepare(trainer: GRPOTrainer) -> None:
    """Take the one step of `settings`, which prepares the model as in real training, and print nothing of it."""
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def train_on(trainer: GRPOTrainer, rows: list[dict[str, Any]]) -> None:
    """Train on a rollout batch: from sampling, or from replayed answers, to the gradients of all its micro-batches."""
    trainer._buffered_inputs = None
    steps = trainer.args.steps_per_generation
    for step in range(steps):
        with nullcontext() if step == steps - 1 else trainer.accelerator.no_sync(trainer.model_wrapped):
            trainer.training_step(trainer.model_wrapped, [dict(row) for row in rows], None)  # a rollout adds columns
    trainer.model_wrapped.zero_grad()


def draw_answers(trainer: GRPOTrainer, tokens: Sequence[int]) -> Answers:
    """Draw answers of so many random tokens, each ended by the end-of-turn token."""
    tokenizer, rng = trainer._tokenizer, random.Random(0)
    words = [token for token in range(len(tokenizer)) if token not in tokenizer.added_tokens_decoder]
    return [[*rng.choices(words, k=length - 1), tokenizer.eos_token_id] for length in tokens]


def draw_two_turns(trainer: GRPOTrainer, whole: Sequence[int]) -> list[Answers]:
    """Draw first and second answers for AdaPO, which have so many tokens with the user's turn between them."""
    between = len(trainer._followup_ids)
    firsts = [(total - between) // 2 for total in whole]
    seconds = [total - between - first for total, first in zip(whole, firsts, strict=True)]
    return [draw_answers(trainer, firsts), draw_answers(trainer, seconds)]


# -------------------------------------------------------------------------------------------------- AdaPO beside GRPO


def padding(
    *,
    rounds: int = 7,
    size: str = "study",
    questions: int = 4,
    batch: int = 4,
    dropped: float = 0.0,
    tokens: int | None = None,
    limit: float = 0.65,
) -> Result:
    """AdaPO's time for training on a rollout batch over that of TRL's GRPO on as many tokens.

    Sampling is replaced by answers drawn beforehand: GRPO's answer has as many tokens as AdaPO's two answers and the
    user's turn between them. Timed is the rest of a rollout batch: scoring by the reference, rewards, and forward and
    backward passes of all micro-batches. TRL computes the padding of the whole batch, and the trainers here only that
    of a micro-batch of rows of similar length. AdaPO's peak memory must not be above GRPO's, unless lengths are equal.

    Args:
        size: of the miniature model.
        questions: questions in a rollout batch, with 8 trajectories each.
        batch: trajectories in a micro-batch.
        dropped: share of AdaPO's trajectories that filters drop.
        tokens: of every trajectory, instead of the standard workload's lengths.
        limit: highest ratio.
    """
    asked = make_questions(questions)
    rows = [row for row in asked for _ in range(GROUP)]
    run = settings(len(rows), batch, gradient_checkpointing=torch.cuda.is_available())
    run |= {"beta": 0.001, "use_bias_correction_kl": False}  # the KL term as AdaPO has it
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        save_policy(Path(path), size)
        grpo = ReplayGRPO(path, accuracy_reward, args=GRPOConfig(folder, **run), train_dataset=asked)
        adapo = ReplayAdaPO(path, args=AdaPOConfig(folder, **run, **ALL_ROWS), train_dataset=asked)
        adapo.dropped = dropped
        whole = [tokens] * len(rows) if tokens else lengths(len(rows), shortest=len(adapo._followup_ids) + 2)
        grpo.replayed, adapo.replayed = [draw_answers(grpo, whole)], draw_two_turns(adapo, whole)
        contestants = {"GRPO": grpo, "AdaPO": adapo}
        for trainer in contestants.values():
            prepare(trainer)
        work = {name: partial(measure_batch, trainer, rows) for name, trainer in contestants.items()}
        seconds, measured = take_turns(work, rounds)
    scoring = {name: [took for took, _ in each] for name, each in measured.items()}
    peaks = {name: [mebibytes for _, mebibytes in each] for name, each in measured.items()}
    print(f"{len(rows)} trajectories of {min(whole)} to {max(whole)} tokens, {sum(whole)} in all")
    report(scoring, "AdaPO", "GRPO", title="scoring")
    ratio = report(seconds, "AdaPO", "GRPO", title="a rollout batch")
    most = {name: median(each) for name, each in peaks.items()}
    print("MiB at most: " + ", ".join(f"{name} {mebibytes:.0f}" for name, mebibytes in most.items()))
    result = Result({"seconds": seconds, "scoring": scoring, "mebibytes": peaks})
    result.check(ratio <= limit, f"The ratio is {ratio:.2f}; the limit is {limit}.")
    result.check(bool(tokens) or most["AdaPO"] <= most["GRPO"], "AdaPO holds more memory than GRPO.")
    return result


def measure_batch(trainer: ReplayGRPO, rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Train on a rollout batch; gives the seconds of scoring, and the most MiB beyond those held before."""
    trainer._buffered_inputs = None  # freed before the first look at memory
    gc.collect()
    held = forget_device_peak()
    train_on(trainer, rows)
    return trainer.scoring_seconds, device_peak() - held


# ------------------------------------------------------------------------------------------ images encoded once

Way = Literal["frozen", "lora", "whole"]
LANGUAGE = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"
VISION: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 428,
    "depth": 8,
    "num_heads": 4,
    "out_hidden_size": 256,
    "fullatt_block_indexes": [1, 3, 5, 7],
}
TEXT: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1376,
    "num_hidden_layers": 9,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
}


def images(
    *,
    rounds: int = 5,
    ways: tuple[Way, ...] = get_args(Way),
    sides: tuple[int, ...] = (224, 336, 448),
    questions: int = 4,
    batch: int = 4,
    policy: Path | None = None,
) -> Result:
    """Time of training on a rollout batch whose images are encoded once, over that where every row encodes its own.

    The trainer is AdaPO, on the standard workload with answers drawn beforehand; every round's images are new to the
    model, which has Qwen2.5-VL-3B's proportions of encoder to language model, an eighth as wide and a quarter as deep.

    Args:
        ways: trained are all but the encoder, adapters on the language model with gradient checkpointing, or all.
        sides: sides of square images, in pixels.
        questions: questions with 8 trajectories each.
        batch: trajectories in a micro-batch.
        policy: folder of the policy, instead of that of these proportions.
    """
    numbers: dict[str, Any] = {}
    asked = make_questions(questions, sides=sides)
    rows = [row for row in asked for _ in range(GROUP)]
    with TemporaryDirectory() as folder:
        if policy is None:
            policy = Path(folder) / "model"
            save_proportional_policy(policy, max(sides))
        for way in ways:
            work = {
                name: partial(train_on_new_pictures, make_trainer(way, policy, asked, batch, once), rows)
                for name, once in (("every row", False), ("once", True))
            }
            whole, scoring = take_turns(work, rounds)
            numbers[way] = {"seconds": whole, "scoring": scoring}
            report(scoring, "once", "every row", title=f"{way}, scoring")
            report(whole, "once", "every row", title=f"{way}, a rollout batch")
    return Result(numbers)


def build_config(vision: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[Any, Any]:
    """Build a configuration of Qwen2.5-VL with these settings of encoder and language model, and its processor."""
    model, processor = build_model("qwen2_5_vl")
    config = model.config
    config.vision_config.update(dict(vision))
    config.text_config.update({**text, "layer_types": ["full_attention"] * text["num_hidden_layers"]})
    config.tie_word_embeddings = config.text_config.tie_word_embeddings
    return config, processor


def save_proportional_policy(
    folder: Path,
    longest_side: int,
    *,
    vision: Mapping[str, Any] = VISION,
    text: Mapping[str, Any] = TEXT,
    dtype: str = "float32",
    device: str = "cpu",
) -> None:
    """Save a randomly initialised Qwen2.5-VL, which sees images as large as they are.

    Args:
        folder: where it goes.
        longest_side: of a square image, in pixels.
        vision, text: settings of the encoder and of the language model, by default an eighth as wide as those of
            Qwen2.5-VL-3B and a quarter as deep.
        dtype: of the weights.
        device: where the weights are drawn.
    """
    config, processor = build_config(vision, text)
    torch.manual_seed(0)
    with torch.device(device):
        large = AutoModelForImageTextToText.from_config(config, dtype=getattr(torch, dtype))
    large.save_pretrained(folder)
    processor.image_processor.size["longest_edge"] = longest_side**2
    processor.save_pretrained(folder)


def make_trainer(way: str, policy: Path, asked: Dataset, batch: int, once: bool, **loading: Any) -> ReplayAdaPO:
    """Make a trainer with drawn answers, ready for training steps; `loading` is how the policy is loaded."""
    rows = len(asked) * GROUP
    run = settings(rows, batch, gradient_checkpointing=torch.cuda.is_available() or way == "lora", **ALL_ROWS)
    run |= {"model_init_kwargs": {"dtype": "auto", **loading}}  # auto: the dtype in which it was saved
    trainer = ReplayAdaPO(
        str(policy),
        args=AdaPOConfig(str(policy.parent), **run),
        train_dataset=asked,
        peft_config=LoraConfig(r=16, target_modules=LANGUAGE) if way == "lora" else None,
    )
    if way == "frozen":
        freeze_vision_encoder(trainer.model)
    if not once:
        for model in models_of(trainer):
            del model.base_model.get_image_features  # what a trainer put before the model's own
    trainer.replayed = draw_two_turns(trainer, lengths(rows, shortest=len(trainer._followup_ids) + 2))
    prepare(trainer)
    return trainer


def models_of(trainer: GRPOTrainer) -> list[PreTrainedModel]:
    """The policy and its reference, if that is a model of its own; without adapters around them."""
    found = [trainer.accelerator.unwrap_model(model) for model in (trainer.model, trainer.ref_model) if model]
    return [without_adapters(model) for model in found]


def train_on_new_pictures(trainer: ReplayAdaPO, rows: list[dict[str, Any]]) -> float:
    """Train on a rollout batch whose images were not encoded yet; gives the seconds of scoring."""
    for model in models_of(trainer):
        with torch.no_grad():
            vision_weights(model)[0].mul_(1)  # features are those of the weights as they were
    train_on(trainer, rows)
    return trainer.scoring_seconds


# ---------------------------------------------------------------------------------------- off-policy beside supervised


def off_policy(
    *,
    rounds: int = 7,
    size: str = "demo",
    rows: int = 32,
    batch: int = 4,
    unrewarded: float = 0.0,
) -> Result:
    """Time of a step of OffPolicyRewardTrainer over that of TRL's SFTTrainer, on the same rows.

    A step is loading and collating all rows, and forward and backward passes of all micro-batches, without the
    optimizer. SFTTrainer knows no rewards, and trains on all rows.

    Args:
        size: of the miniature model: test, demo or study.
        rows: completions, of the standard workload.
        batch: rows in a micro-batch.
        unrewarded: share of the rows with reward 0, which OffPolicyRewardTrainer leaves out.
    """
    drawn = Dataset.from_list(
        [
            {
                "prompt": question["prompt"],
                "images": question["images"],
                "completion": [{"role": "assistant", "content": "7" * tokens}],  # a token per digit
                "reward": float(number >= unrewarded * rows),
            }
            for number, (question, tokens) in enumerate(zip(make_questions(rows), lengths(rows), strict=True))
        ]
    )
    run = settings(rows, batch, gradient_checkpointing=False, max_length=None)
    del run["num_generations"]
    parts = ["vision", "projector", "language"]
    with TemporaryDirectory() as folder:
        contestants = {}
        for kind, args in (
            (OffPolicyRewardTrainer, OffPolicyRewardConfig(folder, trainable_parts=parts, **run)),
            (SFTTrainer, SFTConfig(folder, completion_only_loss=True, **run)),
        ):
            model, processor = build_model("qwen2_5_vl", size)
            trainer = kind(model, args=args, train_dataset=drawn, processing_class=processor)
            contestants["SFTTrainer" if kind is SFTTrainer else "off-policy"] = partial(supervised_step, trainer)
        seconds, _ = take_turns(contestants, rounds)
    report(seconds, "off-policy", "SFTTrainer")
    return Result({"seconds": seconds})


def supervised_step(trainer: SFTTrainer) -> None:
    """Take a training step on all rows."""
    steps = trainer.args.gradient_accumulation_steps
    batches, items = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), steps, trainer.args.device)
    trainer.current_gradient_accumulation_steps = len(batches)  # as `train` would set it
    for batch in batches:
        trainer.training_step(trainer.model, batch, num_items_in_batch=items)
    trainer.model.zero_grad()
