"""What AdaPO costs over TRL's GRPO: both trainers on the same model, batch and number of tokens, in one run.

Training step: sampling is replaced by answers drawn beforehand. GRPO's answer has as many tokens as AdaPO's two answers
and the user's turn between them, so both process tensors of the same sizes. The optimizer's step is the same code in
both and is left out, as it would only bring the ratio nearer to 1.

Generation: AdaPO's two turns of T/2 new tokens against GRPO's one turn of T. Prefill is what it takes to generate one
token; the rest is decoding.

The rounds of the two trainers alternate, and ratios are between medians: a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForImageTextToText, PrinterCallback, Qwen2_5_VLConfig
from trl import GRPOConfig, GRPOTrainer

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.grading.reward import accuracy_reward
from trl_mmreason.miniature.models import build_model, save_model
from trl_mmreason.miniature.tasks import make_dataset

GROUP = 8  # samples a question
WARM_UP_ROUNDS = 2
NOT_AN_ANSWER = "99"  # no two digits sum to it

Answers = list[list[int]]  # token ids of one turn, one list a row

# The widths and depths of Qwen2.5-VL-3B, and its usual tied embeddings: 3.75 B parameters.
LARGE_TEXT = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}
LARGE_VISION = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048}


# ------------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Subject:
    """A model to measure on.

    Attributes:
        save: writes the model and its processor into a folder.
        picture: side of a question's picture in pixels.
        dtype: of the weights.
        settings: of the trainer's config.
    """

    save: Callable[[Path], Any]
    picture: int
    dtype: str
    settings: dict[str, Any]


def save_large(folder: Path) -> None:
    """A randomly initialised Qwen2.5-VL in bf16, with the tokenizer of the miniature one."""
    small, processor = build_model("qwen2_5_vl")
    names = ("image", "video", "vision_start", "vision_end")
    tokens = {f"{name}_token_id": getattr(small.config, f"{name}_token_id") for name in names}
    text = {**LARGE_TEXT, "eos_token_id": small.generation_config.eos_token_id}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=LARGE_VISION, tie_word_embeddings=True, **tokens)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.generation_config = small.generation_config
    model.save_pretrained(folder)
    processor.image_processor.size["longest_edge"] = SUBJECTS["3.75b"].picture ** 2  # pixels; the miniature's are fewer
    processor.save_pretrained(folder)


SUBJECTS = {
    "demo": Subject(
        save=lambda folder: save_model("qwen2_5_vl", "demo", folder),
        picture=56,
        dtype="float32",
        settings={"use_cpu": True, "bf16": False, "gradient_checkpointing": False},
    ),
    "3.75b": Subject(
        save=save_large, picture=448, dtype="bfloat16", settings={"bf16": True, "gradient_checkpointing": True}
    ),
}


# ------------------------------------------------------------------------------------------------------------ trainers


def clock() -> float:
    """Seconds, once the GPU has done what it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class Call:
    """One call of generation: its arguments, and the seconds it took."""

    arguments: tuple
    seconds: float


class TimedGRPO(GRPOTrainer):
    """Takes the time of generation and of scoring.

    Attributes:
        replayed: the answers of each turn, which then stand for sampled ones; `None` samples.
        calls: the calls of generation in the last batch.
        scoring_seconds: what `_generate_and_score_completions` took for it.
        shapes: of its prompts and completions.
    """

    replayed: list[Answers] | None = None

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: Any, has_tool_images: Any = False
    ) -> tuple[Answers, None]:
        arguments = (prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        start = clock()
        if self.replayed is None:
            # Sampled to the full length, so the token that ends a turn has to take the place of the last one.
            answers = [[*ids[:-1], self._tokenizer.eos_token_id] for ids in self.sample(*arguments)]
        else:
            answers = [list(ids) for ids in self.replayed[len(self.calls)]]
        self.calls.append(Call(arguments, clock() - start))
        return answers, None

    def sample(self, *arguments: Any) -> Answers:
        """TRL's generation, checked to have gone to the full length."""
        answers = super()._generate_single_turn(*arguments)[0]
        expected = self.generation_config.max_new_tokens
        if {len(ids) for ids in answers} != {expected}:
            raise RuntimeError(f"Expected {expected} tokens of every answer, got {[len(ids) for ids in answers]}.")
        return answers

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls: list[Call] = []
        start = clock()
        batch = super()._generate_and_score_completions(inputs)
        self.scoring_seconds = clock() - start
        self.shapes = [tuple(batch[name].shape) for name in ("prompt_ids", "completion_ids")]
        return batch


class TimedAdaPO(TimedGRPO, AdaPOTrainer):
    """`TimedGRPO` around AdaPO."""


def make_trainers(
    subject: Subject, folder: Path, questions: Dataset, batch: int, tokens: int
) -> tuple[TimedGRPO, TimedAdaPO]:
    """Both trainers on the same checkpoint, neither yet prepared for training."""
    subject.save(folder / "model")
    gc.collect()
    torch.cuda.empty_cache()

    def settings(name: str, new_tokens: int) -> dict[str, Any]:
        return dict(
            output_dir=str(folder / name),
            per_device_train_batch_size=batch,
            num_generations=GROUP,
            max_completion_length=new_tokens,
            generation_kwargs={"min_new_tokens": new_tokens},
            beta=0.001,
            use_bias_correction_kl=False,
            # One step prepares the model as in real training; these two leave it as it was, and keep no state.
            max_steps=1,
            learning_rate=0.0,
            optim="sgd",
            model_init_kwargs={"dtype": subject.dtype},
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **subject.settings,
        )

    path = str(folder / "model")
    grpo = TimedGRPO(path, accuracy_reward, args=GRPOConfig(**settings("grpo", tokens)), train_dataset=questions)
    adapo = TimedAdaPO(path, args=AdaPOConfig(**settings("adapo", tokens // 2)), train_dataset=questions)
    return grpo, adapo


def draw_answers(trainer: GRPOTrainer, questions: Dataset, lengths: list[int]) -> list[Answers]:
    """Answers of each given length, one a trajectory, half of them right and each ended by the end-of-turn token.

    The right ones are spread so that a group has all four outcomes in two turns: no group is dropped.
    """
    tokenizer = trainer._tokenizer
    rng = random.Random(0)
    words = [token for token in range(len(tokenizer)) if token not in tokenizer.added_tokens_decoder]

    def answer(gold: str, length: int, right: bool) -> list[int]:
        box = tokenizer(f"\\boxed{{{gold if right else NOT_AN_ANSWER}}}")["input_ids"]
        return [*rng.choices(words, k=length - len(box) - 1), *box, tokenizer.eos_token_id]

    return [
        [answer(gold, length, sample // 2**turn % 2 == 0) for gold in questions["answer"] for sample in range(GROUP)]
        for turn, length in enumerate(lengths)
    ]


# ------------------------------------------------------------------------------------------------------------ measuring


@dataclass(frozen=True)
class Figure:
    """Seconds of one part of the work, one a round; `grpo_seconds` is `None` where GRPO has no such part."""

    part: str
    grpo_seconds: list[float] | None
    adapo_seconds: list[float]

    @property
    def ratio(self) -> float | None:
        """AdaPO over GRPO, between the medians."""
        if self.grpo_seconds is None:
            return None
        return statistics.median(self.adapo_seconds) / statistics.median(self.grpo_seconds)


def measure_steps(grpo: TimedGRPO, adapo: TimedAdaPO, rows: list[dict], rounds: int) -> list[Figure]:
    """Scoring, loss and backward pass, and their sum, with replayed answers."""
    seconds: dict[TimedGRPO, list[tuple[float, float]]] = {grpo: [], adapo: []}
    for number in range(WARM_UP_ROUNDS + rounds):
        for trainer in (grpo, adapo) if number % 2 else (adapo, grpo):
            inputs = [dict(row) for row in rows]  # a rollout adds its columns to them
            start = clock()
            trainer.training_step(trainer.model_wrapped, inputs, None)
            seconds[trainer].append((trainer.scoring_seconds, clock() - start))
            trainer.model_wrapped.zero_grad()
    if grpo.shapes != adapo.shapes:
        raise RuntimeError(f"The two trainers processed different sizes: GRPO {grpo.shapes}, AdaPO {adapo.shapes}.")

    def figure(part: str, take: Callable[[float, float], float]) -> Figure:
        return Figure(part, *([take(*pair) for pair in seconds[t][WARM_UP_ROUNDS:]] for t in (grpo, adapo)))

    return [
        figure("scoring: reference, rewards, advantages", lambda scoring, _: scoring),
        figure("forward, loss, backward", lambda scoring, whole: whole - scoring),
        figure("training step without generation", lambda _, whole: whole),
    ]


def prefill_seconds(trainer: TimedGRPO, call: Call) -> float:
    """Seconds to generate one token from a call's prompts."""
    full = trainer.generation_config
    trainer.generation_config = copy.deepcopy(full)
    trainer.generation_config.update(max_new_tokens=1, min_new_tokens=1)
    start = clock()
    trainer.sample(*call.arguments)
    seconds = clock() - start
    trainer.generation_config = full
    return seconds


def measure_generation(grpo: TimedGRPO, adapo: TimedAdaPO, rows: list[dict], rounds: int) -> list[Figure]:
    """Prefill of both turns, decoding, and their sum, with sampled answers of full length."""
    grpo.replayed = adapo.replayed = None
    measured = []
    for number in range(1 + rounds):
        for trainer in (grpo, adapo) if number % 2 else (adapo, grpo):
            trainer._generate_and_score_completions([dict(row) for row in rows])
        (one,), (first, second) = grpo.calls, adapo.calls
        prefills = [prefill_seconds(adapo, call) for call in (first, second)]
        measured.append((*prefills, one.seconds, first.seconds + second.seconds))
    prefill_1, prefill_2, one_turn, two_turns = (list(column) for column in zip(*measured[1:], strict=True))
    return [
        Figure("prefill, turn 1", prefill_1, prefill_1),
        Figure("prefill, turn 2", None, prefill_2),
        Figure(
            "decoding",
            [whole - first for whole, first in zip(one_turn, prefill_1, strict=True)],
            [w - p - q for w, p, q in zip(two_turns, prefill_1, prefill_2, strict=True)],
        ),
        Figure("generation", one_turn, two_turns),
    ]


# -------------------------------------------------------------------------------------------------------------- output


def table(figures: list[Figure]) -> str:
    """Aligned columns: part, median seconds of both, their ratio, and the quartiles of the single rounds' ratios."""
    lines = [f"{'':42}{'GRPO, s':>10}{'AdaPO, s':>10}{'ratio':>8}{'middle half':>16}"]
    for figure in figures:
        adapo = statistics.median(figure.adapo_seconds)
        if figure.grpo_seconds is None:
            lines.append(f"{figure.part:42}{'-':>10}{adapo:10.4f}")
            continue
        grpo = statistics.median(figure.grpo_seconds)
        pairs = zip(figure.adapo_seconds, figure.grpo_seconds, strict=True)
        low, _, high = statistics.quantiles([a / g for a, g in pairs], n=4)
        spread = f"{low:.3f} - {high:.3f}"
        lines.append(f"{figure.part:42}{grpo:10.4f}{adapo:10.4f}{figure.ratio:8.3f}{spread:>16}")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SUBJECTS), default="demo", help="3.75b needs a GPU")
    parser.add_argument("--rounds", type=int, default=60, help="of the training step; generation has a third of them")
    parser.add_argument("--batch", type=int, default=2 * GROUP, help=f"trajectories, a multiple of {GROUP}")
    parser.add_argument("--tokens", type=int, default=128, help="of a trajectory, even")
    parser.add_argument("--limit", type=float, default=1.05, help="highest ratio of the training step")
    parser.add_argument("--json", type=Path, help="write the seconds of every round here")
    arguments = parser.parse_args()
    if arguments.batch % GROUP or arguments.batch < GROUP:
        parser.error(f"--batch {arguments.batch}: expected a multiple of {GROUP}, the samples of a question")
    if arguments.tokens % 2 or arguments.tokens < 64:
        parser.error(f"--tokens {arguments.tokens}: expected an even number, 64 or more: two answers and a user's turn")
    if arguments.rounds < 2:
        parser.error(f"--rounds {arguments.rounds}: expected 2 or more")
    if arguments.model == "3.75b" and not torch.cuda.is_available():
        parser.error("--model 3.75b: torch finds no GPU; use --model demo")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    subject = SUBJECTS[arguments.model]
    questions = make_dataset(["adding"], arguments.batch // GROUP, size=subject.picture)
    rows = [row for row in questions for _ in range(GROUP)]
    with TemporaryDirectory() as folder:
        grpo, adapo = make_trainers(subject, Path(folder), questions, arguments.batch, arguments.tokens)
        answer_tokens = arguments.tokens - len(adapo._followup_ids)
        grpo.replayed = draw_answers(grpo, questions, [arguments.tokens])
        adapo.replayed = draw_answers(adapo, questions, [answer_tokens // 2, answer_tokens - answer_tokens // 2])
        for trainer in (grpo, adapo):
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        steps = measure_steps(grpo, adapo, rows, arguments.rounds)
        generation = measure_generation(grpo, adapo, rows, max(2, arguments.rounds // 3))
    print(table(steps), table(generation), sep="\n\n")
    if arguments.json:
        numbers = [{**asdict(figure), "ratio": figure.ratio} for figure in (*steps, *generation)]
        settings = {name: getattr(arguments, name) for name in ("model", "rounds", "batch", "tokens")}
        arguments.json.write_text(json.dumps({**settings, "figures": numbers}, indent=2))
    ratio = steps[-1].ratio
    assert ratio is not None
    if ratio > arguments.limit:
        sys.exit(f"AdaPO's training step takes {ratio:.3f} times GRPO's; the limit is {arguments.limit}.")


if __name__ == "__main__":
    main()
