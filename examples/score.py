"""Train a vision-language model with SCoRe, a baseline of AdaPO: two stages of rewards for two answers, in one run.

    accelerate launch examples/score.py --config configs/score/qwen2_5_vl_7b.yaml

A configuration file holds the fields of `DataArguments`, `SCoReConfig` and TRL's `ModelConfig`; each can be overridden
on the command line.
"""

from trl import ModelConfig

from trl_mmreason.adapo.recipe import two_answers
from trl_mmreason.baselines.two_turns import SCoReConfig, SCoReTrainer
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.scripts.comparison import train_and_compare
from trl_mmreason.scripts.single_stage import DataArguments, prepare, run


def main(data_args: DataArguments, training_args: SCoReConfig, model_args: ModelConfig) -> None:
    followup = str(training_args.evaluation_prompt)  # SCoReConfig refuses None
    settings, evaluation_rows = prepare(data_args, training_args, model_args, two_answers(followup))
    trainer = SCoReTrainer(**settings)
    train_and_compare(trainer, data_args, evaluation_rows, TwoTurn(followup))


if __name__ == "__main__":
    run(main)
