"""Train a vision-language model with AdaPO: it answers, checks its answer and answers again.

    accelerate launch examples/adapo.py --config configs/adapo/miniature.yaml

A configuration file holds the fields of `DataArguments`, `AdaPOConfig` and TRL's `ModelConfig`; each can be
overridden on the command line, as in `--learning_rate 1e-6 --use_peft`.
"""

from trl import ModelConfig

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.adapo.recipe import two_answers
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.scripts.comparison import train_and_compare
from trl_mmreason.scripts.single_stage import DataArguments, prepare, run


def main(data_args: DataArguments, training_args: AdaPOConfig, model_args: ModelConfig) -> None:
    followup = training_args.evaluation_prompt or EVALUATION_PROMPT  # one-turn ablations are compared in two turns too
    settings, evaluation_rows = prepare(data_args, training_args, model_args, two_answers(followup))
    trainer = AdaPOTrainer(**settings)
    train_and_compare(trainer, data_args, evaluation_rows, TwoTurn(followup))


if __name__ == "__main__":
    run(main)
