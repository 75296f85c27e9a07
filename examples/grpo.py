"""Train a vision-language model with plain GRPO, a baseline of AdaPO: one answer, rewarded when right.

    accelerate launch examples/grpo.py --config configs/grpo/miniature.yaml

Before and after training the policy answers in two turns, so that the table can be laid beside AdaPO's. A
configuration file holds the fields of `DataArguments`, `RolloutConfig` (TRL's `GRPOConfig`, with the papers'
`loss_type`) and `ModelConfig`; each can be overridden on the command line.
"""

from trl import ModelConfig

from trl_mmreason import GroupGRPOTrainer, RolloutConfig
from trl_mmreason.adapo.miniature import two_answers
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.comparison import train_and_compare
from trl_mmreason.grading import accuracy_reward
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


def main(data_args: DataArguments, training_args: RolloutConfig, model_args: ModelConfig) -> None:
    claim_output_dir(data_args, training_args, model_args)
    train_rows, evaluation_rows = load_data(data_args, training_args.seed)
    policy = policy_path(data_args, model_args, training_args, two_answers(EVALUATION_PROMPT))
    trainer = GroupGRPOTrainer(  # without overrides: TRL's GRPO, which resumes from the checkpoint's weights
        policy,
        reward_funcs=accuracy_reward,
        args=training_args,
        train_dataset=train_rows,
        **trainer_settings(model_args, training_args, evaluation_rows),
    )
    train_and_compare(trainer, data_args, evaluation_rows, TwoTurn(EVALUATION_PROMPT))


if __name__ == "__main__":
    with exit_on_missing():
        main(*ScriptParser((DataArguments, RolloutConfig, ModelConfig)).parse_args_and_config())
