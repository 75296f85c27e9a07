"""The cold start of SRPO: supervised training on a solution, a reflection on it, and a better solution.

    accelerate launch examples/reflection_sft.py --config configs/reflection_sft/qwen2_5_vl_7b.yaml

`mmreason reflect` makes the data. A configuration file holds the fields of `CompletionArguments`, `ReflectionSFTConfig`
and TRL's `ModelConfig`; each can be overridden on the command line.
"""

from trl import ModelConfig

from trl_mmreason import ReflectionSFTConfig, ReflectionSFTTrainer
from trl_mmreason.scripts.single_stage import CompletionArguments, run, train_on_completions


def main(data_args: CompletionArguments, training_args: ReflectionSFTConfig, model_args: ModelConfig) -> None:
    train_on_completions(ReflectionSFTTrainer, data_args, training_args, model_args)


if __name__ == "__main__":
    run(main)
