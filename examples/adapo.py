"""Train a vision-language model with AdaPO: it answers, checks its answer and answers again.

    accelerate launch examples/adapo.py --config configs/adapo/miniature.yaml

A configuration file holds the fields of `DataArguments`, `AdaPOConfig` and TRL's `ModelConfig`; each can be
overridden on the command line, as in `--learning_rate 1e-6 --use_peft`.
"""

from trl import ModelConfig

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.adapo.miniature import two_answers
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.comparison import train_and_compare
from trl_mmreason.sampling.protocols import TwoTurn
from trl_mmreason.script_parser import ScriptParser
from trl_mmreason.scripts import (
    DataArguments,
    claim_output_dir,
    exit_on_missing,
    load_data,
    policy_path,
    trainer_settings,
)


def main(data_args: DataArguments, training_args: AdaPOConfig, model_args: ModelConfig) -> None:
    followup = training_args.evaluation_prompt or EVALUATION_PROMPT  # one-turn ablations are compared in two turns too
    claim_output_dir(data_args, training_args, model_args)
    train_rows, evaluation_rows = load_data(data_args, training_args.seed)
    policy = policy_path(data_args, model_args, training_args, two_answers(followup))
    trainer = AdaPOTrainer(
        policy,
        args=training_args,
        train_dataset=train_rows,
        **trainer_settings(model_args, training_args, evaluation_rows),
    )
    train_and_compare(trainer, data_args, evaluation_rows, TwoTurn(followup))


if __name__ == "__main__":
    with exit_on_missing():
        main(*ScriptParser((DataArguments, AdaPOConfig, ModelConfig)).parse_args_and_config())
