r"""Train with AdaPO and a reward of your own beside it: the second answer has to show its working, `3+4=\boxed{7}`.

    python examples/custom_reward.py --config configs/adapo/miniature.yaml --output_dir runs/custom_reward

A reward function takes columns by their names (completions, prompts, answer, …) and gives a number for each completion,
or `None` to leave it out. Its values are added to AdaPO's; `--reward_weights 1 0.5` weighs both, AdaPO's first.
"""

from trl import ModelConfig

from trl_mmreason import AdaPOConfig, AdaPOTrainer, scripts
from trl_mmreason.adapo.miniature import two_answers
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.comparison import train_and_compare
from trl_mmreason.sampling.protocols import TwoTurn
from trl_mmreason.script_parser import ScriptParser


def shows_working(completions: list, **columns: list) -> list[float]:
    """1 for a sum in the last answer. A completion is its messages: answer, follow-up, answer."""
    return [float("+" in messages[-1]["content"]) for messages in completions]


def main(data_args: scripts.DataArguments, training_args: AdaPOConfig, model_args: ModelConfig) -> None:
    followup = training_args.evaluation_prompt or EVALUATION_PROMPT
    scripts.claim_output_dir(data_args, training_args, model_args)
    train_rows, evaluation_rows = scripts.load_data(data_args, training_args.seed)
    policy = scripts.policy_path(data_args, model_args, training_args, two_answers(followup))
    settings = scripts.trainer_settings(model_args, training_args, evaluation_rows)
    trainer = AdaPOTrainer(
        policy, args=training_args, train_dataset=train_rows, reward_funcs=shows_working, **settings
    )  # its curve: rewards/shows_working/mean
    train_and_compare(trainer, data_args, evaluation_rows, TwoTurn(followup))


if __name__ == "__main__":
    with scripts.exit_on_missing():
        main(*ScriptParser((scripts.DataArguments, AdaPOConfig, ModelConfig)).parse_args_and_config())
