"""Train a vision-language model with plain GRPO, the baseline of AdaPO: one answer, paid when it is right.

    accelerate launch examples/grpo.py --config configs/grpo/miniature.yaml

Before and after training the policy answers in two turns, so that the table can be laid beside AdaPO's. A
configuration file holds the fields of `DataArguments`, TRL's `GRPOConfig` and `ModelConfig`; each can be overridden
on the command line.
"""

from trl import GRPOConfig, ModelConfig, TrlParser

from trl_mmreason.adapo.config import EVALUATION_PROMPT
from trl_mmreason.grading import accuracy_reward
from trl_mmreason.grpo import GroupGRPOTrainer
from trl_mmreason.scripts import DataArguments, load_split, policy_path, train_and_compare, trainer_settings


def main(data_args: DataArguments, training_args: GRPOConfig, model_args: ModelConfig) -> None:
    policy = policy_path(data_args, model_args, training_args, EVALUATION_PROMPT)
    trainer = GroupGRPOTrainer(  # without overrides: TRL's GRPO, which resumes from the checkpoint's weights
        policy,
        reward_funcs=accuracy_reward,
        args=training_args,
        train_dataset=load_split(
            data_args, data_args.dataset_name, data_args.dataset_split, data_args.train_rows, seed=training_args.seed
        ),
        **trainer_settings(model_args, training_args),
    )
    train_and_compare(trainer, data_args, EVALUATION_PROMPT)


if __name__ == "__main__":
    parser = TrlParser((DataArguments, GRPOConfig, ModelConfig))
    main(*parser.parse_args_and_config())
