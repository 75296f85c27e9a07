"""Put a small vision tower before the language model of the pretrained example, and draw sums of handwritten digits.

    python -m pip install --no-deps scikit-learn         # its file of handwritten digits is read, nothing of it is run
    python examples/pretrained.py --output_dir runs/pretrained
    python examples/pretrained_images.py --output_dir runs/pretrained
    accelerate launch examples/sft.py --config configs/sft/pretrained_images.yaml
    accelerate launch examples/adapo.py --config configs/adapo/pretrained_images.yaml

The model is an Idefics3, the class of SmolVLM. Its tower and connector learn in minutes to say a digit as the
language model's own embedding of it. Half of the images are of digits that people wrote, the others of printed ones.
`output_dir` gets `model_images`, and the rows `images_sft.parquet`, `images_reflections.parquet` (of SRPO's cold
start), `images_train.parquet` and `images_test.parquet`. `make pretrained-images` does all of it.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from PIL import Image, ImageDraw, ImageFont
from pretrained import Problem, asked, demonstration, find_file, problems, reflection
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, Idefics3Config, Idefics3ForConditionalGeneration
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

from trl_mmreason.scripts.single_stage import run
from trl_mmreason.training.documented import documented

CELL = 28  # pixels of a digit, which four patches see and one token says
SIDE = 2 * CELL
PATCH = CELL // 2
_PARTS = (  # a macro for a text-only template, so that a message's content may be parts
    "{% macro shown(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}{% endmacro %}"
)
_QUESTIONS = {
    "+": "What is the sum of the two numbers in the picture?",
    "-": "By how much is the upper number in the picture larger than the lower one?",
}
_BATCH = 64  # images of an update of the tower
_TEST_FROM = 1400  # the first scan of the file that only the comparison shows; 397 of 1,797 are left for it


@documented
@dataclass
class ImageArguments:
    """What is prepared.

    Attributes:
        output_dir: folder of the checkpoint and the rows, in which `examples/pretrained.py` left `model`.
        digits: the file of handwritten digits; by default that of the installed package scikit-learn.
        tower_steps: updates of the vision tower.
        sft_rows: rows of supervised training, of which half are second answers.
        reflection_rows: solutions with reflections, of which 30 % are right at first, as in SRPO's mixture (B.1).
        train_rows: questions of reinforcement learning.
        test_rows: questions of the comparison, whose numbers and scans no other row has.
        seed: seed of the questions, the images and the vision tower.
    """

    output_dir: str = "runs/pretrained"
    digits: str | None = None
    tower_steps: int = 2000
    sft_rows: int = 480
    reflection_rows: int = 480
    train_rows: int = 1000
    test_rows: int = 200
    seed: int = 0


class Pen:
    """Draws digits: scans of people's handwriting, or print.

    Args:
        scans: (n, 8, 8), the ink of each point from 0 to 1.
        labels: (n,), the digit of each scan.
    """

    def __init__(self, scans: np.ndarray, labels: np.ndarray) -> None:
        self._scans = {digit: list(scans[labels == digit]) for digit in range(10)}

    def digit(self, digit: int, rng: random.Random, *, by_hand: bool) -> Image.Image:
        """One digit, in white on black."""
        cell = Image.new("L", (CELL, CELL))
        size = rng.randint(18, 24)
        at = rng.randint(0, CELL - size), rng.randint(0, CELL - size)
        if by_hand:
            scan = Image.fromarray((255 * rng.choice(self._scans[digit])).astype(np.uint8))
            cell.paste(scan.resize((size, size), Image.Resampling.BICUBIC), at)
        else:
            middle = at[0] + size / 2, at[1] + size / 2
            ImageDraw.Draw(cell).text(middle, str(digit), fill=255, font=ImageFont.load_default(size), anchor="mm")
        return cell

    def image(self, numbers: Sequence[int], rng: random.Random) -> Image.Image:
        """Two numbers of two digits, one above the other, in dark ink on light paper."""
        by_hand = rng.random() < 0.5
        ink = Image.new("L", (SIDE, SIDE))
        for row, number in enumerate(numbers):
            for column, digit in enumerate(map(int, str(number))):
                ink.paste(self.digit(digit, rng, by_hand=by_hand), (column * CELL, row * CELL))
        dark, light = ([rng.randint(low, high) for _ in "RGB"] for low, high in ((0, 90), (200, 255)))
        pen, paper = (Image.new("RGB", ink.size, tuple(each)) for each in (dark, light))
        return Image.composite(pen, paper, ink)


def read_digits(named: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Scans and labels of handwritten digits."""
    file = find_file("digits", named, "sklearn", "datasets/data/digits.csv.gz", "scikit-learn")
    rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8) / 16, rows[:, -1].astype(int)


def drawn_problems(seed: int, *, test: bool) -> Iterator[Problem]:
    """Sums and differences of two numbers, without end; no pair of numbers is in both the comparison and training."""
    for problem in problems(seed, test=test):
        if len(problem.numbers) == 2:
            yield Problem(_QUESTIONS[problem.signs], problem.numbers, problem.signs)


def write_rows(arguments: ImageArguments, pens: dict[bool, Pen]) -> None:
    """Write the rows of supervised training, of reinforcement learning and of the comparison."""
    rng, seed = random.Random(arguments.seed), arguments.seed
    drawn, more = (drawn_problems(seed + place, test=False) for place in (3, 5))
    taught = enumerate(islice(drawn, arguments.sft_rows))
    rows = {
        "sft": [(each, demonstration(each, rng, again=place % 2 == 1)) for place, each in taught],
        "reflections": [(each, reflection(each, rng)) for each in islice(more, arguments.reflection_rows)],
        "train": [(each, asked(each)) for each in islice(drawn, arguments.train_rows)],
        "test": [(each, asked(each)) for each in islice(drawn_problems(seed + 4, test=True), arguments.test_rows)],
    }
    for name, each in rows.items():
        pen = pens[name == "test"]
        shown = [{**row, "images": [pen.image(problem.numbers, rng)]} for problem, row in each]
        Dataset.from_list(shown).to_parquet(Path(arguments.output_dir) / f"images_{name}.parquet")


def with_vision(language_model: Path) -> tuple[Idefics3ForConditionalGeneration, Idefics3Processor]:
    """The language model as an Idefics3 with a new vision tower, and a processor with its tokenizer and template."""
    text = AutoModelForCausalLM.from_pretrained(language_model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    scaled = {"longest_edge": SIDE}
    processor = Idefics3Processor(
        image_processor=Idefics3ImageProcessorPil(size=scaled, max_image_size=scaled, do_image_splitting=False),
        tokenizer=tokenizer,
        image_seq_len=(SIDE // CELL) ** 2,
        chat_template=_PARTS + tokenizer.chat_template.replace("message['content']", "shown(message['content'])"),
    )
    text.resize_token_embeddings(len(processor.tokenizer))
    config = Idefics3Config(
        text_config=text.config.to_dict(),
        vision_config={
            "hidden_size": 192,
            "intermediate_size": 384,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": SIDE,
            "patch_size": PATCH,
        },
        scale_factor=2,
        image_token_id=processor.image_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=text.config.tie_word_embeddings,
    )
    model = Idefics3ForConditionalGeneration(config)
    model.model.text_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.generation_config = text.generation_config
    return model, processor


def teach_tower(model: Any, processor: Any, pen: Pen, steps: int, seed: int) -> None:
    """Teach tower and connector to say each digit as the language model's embedding of it.

    At first the embedding of the right digit has to be the nearest of ten; then also the distance to it counts.
    """
    rng = random.Random(seed)
    ids = processor.tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)])
    embeddings = model.get_input_embeddings().weight[ids].detach()
    parts = [*model.model.vision_model.parameters(), *model.model.connector.parameters()]
    optimizer = torch.optim.AdamW(parts, lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    for step in (bar := tqdm(range(steps), desc="vision tower")):
        numbers = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(_BATCH)]
        said = seen(model, processor, [pen.image(pair, rng) for pair in numbers]).flatten(0, 1)
        shown = torch.tensor([int(digit) for pair in numbers for number in pair for digit in str(number)])
        distances = torch.cdist(said, embeddings)
        loss = cross_entropy(-(distances**2), shown)
        loss = loss + step / steps * ((said - embeddings[shown]) ** 2).mean() / embeddings.var()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        bar.set_postfix_str(f"{(distances.argmin(-1) == shown).float().mean():.0%} of digits", refresh=False)


def seen(model: Any, processor: Any, images: list[Image.Image]) -> torch.Tensor:
    """What the language model gets of each image: (images, 4 digits, hidden size)."""
    pixels = processor.image_processor([[each] for each in images], return_tensors="pt")["pixel_values"]
    return torch.stack(list(model.model.get_image_features(pixels).pooler_output))


def main(arguments: ImageArguments) -> None:
    folder = Path(arguments.output_dir)
    scans, labels = read_digits(arguments.digits)
    parts = {False: slice(_TEST_FROM), True: slice(_TEST_FROM, None)}
    pens = {test: Pen(scans[part], labels[part]) for test, part in parts.items()}
    write_rows(arguments, pens)
    if not (folder / "model_images").exists():
        torch.manual_seed(arguments.seed)
        model, processor = with_vision(folder / "model")
        teach_tower(model, processor, pens[False], arguments.tower_steps, arguments.seed)
        model.save_pretrained(folder / "model_images")
        processor.save_pretrained(folder / "model_images")


if __name__ == "__main__":
    run(main)
