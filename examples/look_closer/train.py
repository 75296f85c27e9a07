"""Train a policy to look closer, on drawn images whose mark can be read in a crop alone.

    python examples/look_closer/train.py --seeds 0 1 2

An image of 224 x 224 pixels has a square of stripes four pixels apart in one of its corners. The policy sees 56 x 56
pixels, in which the square is evenly grey: only a crop tells the four patterns apart. A supervised start teaches to ask
for the right corner half of the time, and to guess otherwise; GRPO with the reward of the answer alone, with and
without looks, does the rest.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, List
from datasets import Image as ImageFeature
from PIL import Image

from trl_mmreason import RolloutConfig
from trl_mmreason.data.row_values import stored_image
from trl_mmreason.generation.engine import SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.generation.turn_after_turn import sample_turns
from trl_mmreason.miniature.models import IMAGE, build_model
from trl_mmreason.scripts.cold_start import teach

sys.path.insert(0, str(Path(__file__).parent))

from method import LookCloserTrainer, looked_at

PATTERNS = {  # letter → whether a pixel of the square is black
    "A": lambda x, y: x % 4 < 2,
    "B": lambda x, y: y % 4 < 2,
    "C": lambda x, y: (x + y) % 4 < 2,
    "D": lambda x, y: (x % 4 < 2) != (y % 4 < 2),
}
SIDE, SQUARE = 4 * IMAGE, IMAGE  # pixels of the original
CORNERS = [(0, 0), (SIDE - SQUARE, 0), (0, SIDE - SQUARE), (SIDE - SQUARE, SIDE - SQUARE)]
ANSWER_TOKENS = 24


def draw(letter: str, corner: tuple[int, int], background: int) -> Image.Image:
    """An image with the pattern of a letter in a corner."""
    image = Image.new("L", (SIDE, SIDE), background)
    square = Image.new("L", (SQUARE, SQUARE))
    square.putdata([0 if PATTERNS[letter](x, y) else 255 for y in range(SQUARE) for x in range(SQUARE)])
    image.paste(square, corner)
    return image.convert("RGB")


def drawn_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Questions about drawn images, with the corner of the square."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        letter, corner = rng.choice(list(PATTERNS)), rng.choice(CORNERS)
        image = draw(letter, corner, rng.randrange(200, 256))
        prompt = [{"role": "user", "content": "Which pattern?"}]
        rows.append({"id": str(number), "prompt": prompt, "images": [image], "answer": letter, "corner": corner})
    return rows


def asks_for(corner: tuple[int, int]) -> str:
    """The request for a corner's square, in pixels as the policy sees them."""
    left, top = (place * IMAGE // SIDE for place in corner)
    side = SQUARE * IMAGE // SIDE
    return f"look closer at {left} {top} {left + side} {top + side}"


def lessons(rows: Sequence[Mapping[str, Any]], processor: Any, seed: int) -> Dataset:
    """Of each row: a guess, the request for its corner, and the answer after the crop."""
    rng = random.Random(seed)
    taught = []
    for row in rows:
        asked, request = [_part("image"), _part("text", "Which pattern?")], asks_for(row["corner"])
        (_, message) = _shown(row, processor)
        part = message["content"][0]["image"]
        question = {"role": "user", "content": asked}
        behind = [
            {"role": "assistant", "content": [_part("text", request)]},
            {"role": "user", "content": [_part("image"), _part("text", "Here.")]},
        ]
        image, closer = stored_image(row["images"][0]), stored_image(part)
        guess = rf"\boxed{{{rng.choice(list(PATTERNS))}}}"
        taught += [
            ([question], guess, [image]),
            ([question], request, [image]),
            ([question, *behind], rf"\boxed{{{row['answer']}}}", [image, closer]),
        ]
    rng.shuffle(taught)
    return Dataset.from_list(
        [
            {
                "prompt": prompt,
                "completion": [{"role": "assistant", "content": [_part("text", said)]}],
                "images": images,
            }
            for prompt, said, images in taught
        ]
    ).cast_column("images", List(ImageFeature()))


def _part(kind: str, text: str | None = None) -> dict[str, Any]:
    return {"type": kind, "text": text}


def accuracy(model: Any, processor: Any, rows: Sequence[Mapping[str, Any]], looks: int) -> tuple[float, float]:
    """The shares of right answers and of rows in which the policy looked closer, with one greedy answer per row."""
    engine = TransformersEngine(model, processor, batch_size=64)
    greedy = SamplingParams(ANSWER_TOKENS, temperature=0.0)

    def next_message(row: Mapping[str, Any], answers: Sequence[str]) -> Mapping[str, Any] | None:
        return looked_at(processor, row, answers[-1])

    found: list[Any] = sample_turns(rows, engine, greedy, next_message, [0] * len(rows), turns=1 + looks)
    right = [turns[-1].text == rf"\boxed{{{row['answer']}}}" for row, turns in zip(rows, found, strict=True)]
    return sum(right) / len(rows), sum(len(turns) > 1 for turns in found) / len(rows)


def well_formed(model: Any, processor: Any, rows: Sequence[Mapping[str, Any]]) -> float:
    """The share of sampled first answers that are a guess, or a request for the right corner."""
    engine = TransformersEngine(model, processor, batch_size=64)
    found: list[Any] = sample_turns(rows, engine, SamplingParams(ANSWER_TOKENS), lambda *_: None, range(len(rows)))
    guesses = {rf"\boxed{{{letter}}}" for letter in PATTERNS}
    fine = [turns[0].text in guesses | {asks_for(row["corner"])} for row, turns in zip(rows, found, strict=True)]
    return sum(fine) / len(rows)


def run(seed: int, folder: Path, steps: int) -> dict[str, float]:
    """Train with and without looks from one supervised start."""
    model, processor = build_model("qwen2_5_vl", "demo", seed=seed)
    processor.image_processor.size = {"shortest_edge": 28**2, "longest_edge": IMAGE**2}
    held_out = drawn_rows(200, seed=1_000_000 + seed)

    def measure(model: Any) -> float:
        glance = held_out[:64]
        shown = [{**row, "prompt": [*row["prompt"], *_shown(row, processor)]} for row in glance]
        return min(accuracy(model, processor, shown, looks=0)[0], well_formed(model, processor, glance))

    taught = lessons(drawn_rows(1500, seed), processor, seed)
    start = teach(model, processor, taught, folder / "start", measure=measure, target_accuracy=0.9, seed=seed)
    found = {}
    for looks in (1, 0):
        args = RolloutConfig(
            str(folder / f"looks-{looks}"),
            learning_rate=2e-4,
            max_steps=steps,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=ANSWER_TOKENS,
            beta=0.0,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            logging_steps=10,
            disable_tqdm=True,
            seed=seed,
            model_init_kwargs={"dtype": "float32"},
        )
        rows = Dataset.from_list(
            [{**row, "images": [stored_image(image) for image in row["images"]]} for row in drawn_rows(512, seed + 1)]
        ).cast_column("images", List(ImageFeature()))
        trainer = LookCloserTrainer(str(start), args=args, looks=looks, train_dataset=rows)
        before = accuracy(trainer.model, processor, held_out, looks)
        trainer.train()
        after = accuracy(trainer.model, processor, held_out, looks)
        for name, values in (("before", before), ("after", after)):
            found[f"accuracy {name}, looks={looks}"], found[f"looked {name}, looks={looks}"] = values
    return found


def _shown(row: Mapping[str, Any], processor: Any) -> list[dict[str, Any]]:
    request = asks_for(row["corner"])
    message = looked_at(processor, row, request)
    assert message is not None
    return [{"role": "assistant", "content": request}, message]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [run(seed, Path(folder) / str(seed), arguments.steps) for seed in arguments.seeds]
    print(f"{'':<28}" + "".join(f"{f'seed {seed}':>10}" for seed in arguments.seeds))
    for name in results[0]:
        print(f"{name:<28}" + "".join(f"{result[name]:>10.0%}" for result in results))


if __name__ == "__main__":
    main()
