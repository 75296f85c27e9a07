"""Train a vision-language model with plain GRPO, a baseline of AdaPO: one answer, rewarded when right.

    accelerate launch examples/grpo.py --config configs/grpo/miniature.yaml

Before and after training the policy answers in two turns, so that the table can be laid beside AdaPO's. A
configuration file holds the fields of `DataArguments`, `RolloutConfig` (TRL's `GRPOConfig`, with the papers'
`loss_type`) and `ModelConfig`; each can be overridden on the command line.
"""

from trl import ModelConfig

from trl_mmreason import GroupGRPOTrainer, RolloutConfig
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.adapo.recipe import two_answers
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.grading import get_accuracy_reward
from trl_mmreason.scripts.comparison import train_and_compare
from trl_mmreason.scripts.single_stage import DataArguments, prepare, run
from trl_mmreason.training.construction import all_rewards


def main(data_args: DataArguments, training_args: RolloutConfig, model_args: ModelConfig) -> None:
    settings, evaluation_rows = prepare(data_args, training_args, model_args, two_answers(EVALUATION_PROMPT))
    accuracy = get_accuracy_reward(settings.pop("grader"))
    rewards = all_rewards("GRPO", [accuracy], settings.pop("reward_funcs", None))
    trainer = GroupGRPOTrainer(reward_funcs=rewards, **settings)  # TRL's GRPO, resuming from saved weights
    train_and_compare(trainer, data_args, evaluation_rows, TwoTurn(EVALUATION_PROMPT))


if __name__ == "__main__":
    run(main)
