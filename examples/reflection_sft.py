"""The cold start of SRPO: supervised training on a solution, a reflection on it, and a better solution.

    accelerate launch examples/reflection_sft.py --config configs/reflection_sft/qwen2_5_vl_7b.yaml

`mmreason reflect` makes the data. A configuration file holds the fields of `ReflectionData`, `ReflectionSFTConfig` and
TRL's `ModelConfig`; each can be overridden on the command line.
"""

from dataclasses import dataclass, field

from trl import ModelConfig, TrlParser

from trl_mmreason import ReflectionSFTConfig, ReflectionSFTTrainer
from trl_mmreason.scripts import last_checkpoint, train_and_save, trainer_settings
from trl_mmreason.sources import read_source


@dataclass
class ReflectionData:
    """Where the rows come from.

    Attributes:
        dataset_name: parquet file, folder or Hub id of rows with `prompt`, `images` and `completion`.
        dataset_split: the split to train on.
    """

    dataset_name: str = field(metadata={"help": "Parquet file, folder or Hub id."})
    dataset_split: str = field(default="train", metadata={"help": "Split to train on."})


def main(data_args: ReflectionData, training_args: ReflectionSFTConfig, model_args: ModelConfig) -> None:
    checkpoint = last_checkpoint(training_args)
    settings = trainer_settings(model_args, training_args)
    trainer = ReflectionSFTTrainer(
        model_args.model_name_or_path,
        args=training_args,
        train_dataset=read_source(data_args.dataset_name, data_args.dataset_split).dataset,
        **settings,
    )
    train_and_save(trainer, data_args.dataset_name, checkpoint)


if __name__ == "__main__":
    parser = TrlParser((ReflectionData, ReflectionSFTConfig, ModelConfig))
    main(*parser.parse_args_and_config())
