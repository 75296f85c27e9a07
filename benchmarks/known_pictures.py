"""Pictures that are encoded once a group: the time of training on a rollout over that where every row encodes its own.

AdaPO trains on the standard workload, whose answers were drawn beforehand: scoring by the reference, rewards, and
forward and backward passes of all micro-batches. The model has Qwen2.5-VL-3B's proportions of encoder to language
model, an eighth as wide and a quarter as deep. Ways of training:

    frozen   the encoder is not trained
    lora     adapters on the language model, with gradient checkpointing
    whole    all weights are trained: a micro-batch encodes its picture once, and computes one gradient for it

Rounds alternate, and every round's pictures are new to the model.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from training import ALL_ROWS, TimedAdaPO, draw_two_turns, prepare, settings, train_on
from transformers import AutoModelForImageTextToText, PreTrainedModel
from workload import GROUP, lengths, questions

from trl_mmreason import AdaPOConfig
from trl_mmreason.commands.parsers import count
from trl_mmreason.engines.pictures import vision_weights
from trl_mmreason.miniature.models import build_model
from trl_mmreason.parts import freeze_vision_encoder, without_adapters

WAYS = ("frozen", "lora", "whole")
LANGUAGE = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"
VISION = {"hidden_size": 160, "intermediate_size": 428, "depth": 8, "num_heads": 4, "out_hidden_size": 256}
TEXT = {
    "hidden_size": 256,
    "intermediate_size": 1376,
    "num_hidden_layers": 9,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
}


def save_policy(folder: Path, longest_side: int) -> None:
    """A policy of these proportions, which sees pictures as large as they are."""
    model, processor = build_model("qwen2_5_vl")
    config = model.config
    heads = {"num_attention_heads": 16, "num_key_value_heads": 2}
    for part, widths in ((config.vision_config, VISION), (config.text_config, TEXT | heads)):
        part.update(widths)
    config.vision_config.fullatt_block_indexes = [1, 3, 5, 7]
    config.text_config.layer_types = ["full_attention"] * TEXT["num_hidden_layers"]
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    processor.image_processor.size["longest_edge"] = longest_side**2
    processor.save_pretrained(folder)


def make_trainer(way: str, path: str, folder: str, arguments: Any, once: bool) -> TimedAdaPO:
    """A trainer with drawn answers, ready for training steps."""
    rows = arguments.questions * GROUP
    checkpointing = torch.cuda.is_available() or way == "lora"
    run = settings(rows, arguments.batch, gradient_checkpointing=checkpointing, **ALL_ROWS)
    trainer = TimedAdaPO(
        path,
        args=AdaPOConfig(folder, **run),
        train_dataset=questions(arguments.questions, sides=arguments.sides),
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


def models_of(trainer: TimedAdaPO) -> list[PreTrainedModel]:
    """The policy and its reference, if that is a model of its own; without adapters around them."""
    found = [trainer.accelerator.unwrap_model(model) for model in (trainer.model, trainer.ref_model) if model]
    return [without_adapters(model) for model in found]


def new_pictures(trainer: TimedAdaPO) -> None:
    """Let the models of a trainer forget the pictures that they have encoded: a run's next rollout has others."""
    for model in models_of(trainer):
        with torch.no_grad():
            vision_weights(model)[0].mul_(1)  # features are those of the weights as they were


def train_on_batch(trainer: TimedAdaPO, rows: list[dict[str, Any]]) -> float:
    """Train on a rollout batch; gives the seconds of scoring."""
    new_pictures(trainer)
    train_on(trainer, rows)
    return trainer.scoring_seconds


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--sides", type=count, nargs="+", default=[224, 336, 448], help="of square pictures, in pixels")
    parser.add_argument("--questions", type=count, default=4, help=f"with {GROUP} trajectories each")
    parser.add_argument("--batch", type=count, default=4, help="trajectories a micro-batch")
    arguments = parser.parse_args()
    numbers = {}
    print(f"{'way':<8}{'every row, s':>14}{'once a group, s':>17}{'ratio':>8}   middle half")
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        save_policy(Path(path), max(arguments.sides))
        for way in arguments.ways:
            trainers = {
                name: make_trainer(way, path, folder, arguments, once)
                for name, once in (("every row", False), ("once a group", True))
            }
            rows = [row for row in trainers["every row"].train_dataset for _ in range(GROUP)]
            work = {name: partial(train_on_batch, trainer, rows) for name, trainer in trainers.items()}
            whole, scoring = take_turns(work, arguments.rounds)
            for part, seconds in (("", whole), (" scoring", scoring)):
                numbers[way + part] = seconds
                median = medians_of(seconds)
                pair = seconds["once a group"], seconds["every row"]
                print(
                    f"{way + part:<15}{median['every row']:>10.2f}{median['once a group']:>15.2f}"
                    f"{median_ratio(*pair):>8.2f}   {middle_half(*pair)}"
                )
    write_numbers(arguments, seconds=numbers)


if __name__ == "__main__":
    main()
