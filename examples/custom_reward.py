r"""Train with AdaPO and a reward of your own beside it: the second answer has to show its working, `3+4=\boxed{7}`.

    python examples/custom_reward.py --config configs/adapo/miniature.yaml --output_dir runs/custom_reward

A reward function takes columns by their names (completions, prompts, answer, …) and gives a number for each completion,
or `None` to leave it out. Its values are added to AdaPO's; `--reward_weights 1 0.5` weighs both, AdaPO's first.
"""

from trl import ModelConfig

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.adapo.recipe import two_answers
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.scripts.comparison import train_and_compare
from trl_mmreason.scripts.single_stage import DataArguments, prepare, run


def shows_working(completions: list, **columns: list) -> list[float]:
    """1 for a sum in the last answer. A completion is its messages: answer, follow-up, answer."""
    return [float("+" in messages[-1]["content"]) for messages in completions]


def main(data_args: DataArguments, training_args: AdaPOConfig, model_args: ModelConfig) -> None:
    followup = training_args.evaluation_prompt or EVALUATION_PROMPT
    settings, evaluation_rows = prepare(data_args, training_args, model_args, two_answers(followup))
    rewards = [shows_working, *settings.pop("reward_funcs", [])]
    trainer = AdaPOTrainer(reward_funcs=rewards, **settings)  # its curve: rewards/shows_working/mean
    train_and_compare(trainer, data_args, evaluation_rows, TwoTurn(followup))


if __name__ == "__main__":
    run(main)
