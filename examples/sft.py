"""Plain supervised training, a baseline of AdaPO: on solutions, or on what STaR's `mmreason revise` keeps.

    accelerate launch examples/sft.py --config configs/sft/qwen2_5_vl_7b.yaml

A configuration file holds the fields of `CompletionArguments`, `PlainSFTConfig` and TRL's `ModelConfig`; each can be
overridden on the command line.
"""

from trl import ModelConfig

from trl_mmreason.baselines.sft import PlainSFTConfig, PlainSFTTrainer
from trl_mmreason.scripts.single_stage import CompletionArguments, run, train_on_completions


def main(data_args: CompletionArguments, training_args: PlainSFTConfig, model_args: ModelConfig) -> None:
    train_on_completions(PlainSFTTrainer, data_args, training_args, model_args)


if __name__ == "__main__":
    run(main)
