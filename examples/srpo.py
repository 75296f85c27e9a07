"""Train a vision-language model with SRPO: it solves, reflects on its solution and solves again, in one response.

    accelerate launch examples/srpo.py --config configs/srpo/miniature.yaml

A configuration file holds the fields of `ReflectionArguments`, `SRPOConfig` and TRL's `ModelConfig`; each can be
overridden on the command line. What was made before, in `output_dir`, is not made again. Ablations, a flag each:
`--reflection_dataset null` (no cold start on reflections), `--reflection_reward false`, `--train_rows 1000` (sampled).
"""

import hashlib
from pathlib import Path

from datasets import Dataset
from trl import ModelConfig

from trl_mmreason import ReflectionSFTConfig, ReflectionSFTTrainer, SRPOConfig, SRPOTrainer
from trl_mmreason.data.row_sources import read_completions
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.scripts.comparison import train_and_compare
from trl_mmreason.scripts.refusals import WrongArgument
from trl_mmreason.scripts.single_stage import prepare, run, train_once
from trl_mmreason.srpo.protocols import Reflection
from trl_mmreason.srpo.recipe import TAGGED_ANSWERS, ReflectionArguments, drawn_reflections
from trl_mmreason.srpo.stopping import SAMPLING, StopWhenReflecting, have_second_think
from trl_mmreason.training.model_card import MINIATURE

_ASKED = 100  # questions of RL that the cold start is measured on


def main(data_args: ReflectionArguments, training_args: SRPOConfig, model_args: ModelConfig) -> None:
    if data_args.reflection_dataset is not None and model_args.use_peft:
        raise WrongArgument(
            f"use_peft is for RL, but reflection_dataset={data_args.reflection_dataset!r} asks for a cold start, which "
            "trains the whole model here. Give model_name_or_path a checkpoint that had one, and --reflection_dataset "
            "null."
        )
    settings, evaluation_rows = prepare(data_args, training_args, model_args, TAGGED_ANSWERS)
    if data_args.reflection_dataset is not None:
        settings["model"] = cold_start(settings["model"], settings["train_dataset"], data_args, training_args)
    trainer = SRPOTrainer(**settings)
    protocol = Reflection(training_args.missing_second_is_wrong)
    train_and_compare(trainer, data_args, evaluation_rows, protocol, system_prompt=training_args.reflection_prompt)


def cold_start(policy: str, train_rows: Dataset, data_args: ReflectionArguments, training_args: SRPOConfig) -> str:
    """The checkpoint of `policy` after supervised training on reflections, trained unless it exists.

    Training ends when the format is learnt, so that reinforcement does not begin with responses that lack an answer;
    with `sft_min_delta` second answers have to be better than first ones by that much, too.
    """
    questions = train_rows.shuffle(seed=training_args.seed).select(range(min(_ASKED, len(train_rows))))
    settings = {name: value for name, value in vars(data_args).items() if name.startswith(("reflection_", "sft_"))}
    deciding = ("seed", "freeze_vision_encoder", "model_init_kwargs")
    names = ("reflection_prompt", "max_completion_length", *SAMPLING, *deciding)
    made_of = [policy, settings, {name: getattr(training_args, name) for name in names}, questions["prompt"][:]]
    if training_args.chat_template_kwargs:  # only where they are set, so that earlier runs go on
        made_of.append(training_args.chat_template_kwargs)
    drawn = data_args.reflection_dataset == "miniature"
    if not drawn:
        rows = read_completions(str(data_args.reflection_dataset))
        made_of += [rows["prompt"][:], rows["completion"][:]]
    key = hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]
    folder = Path(training_args.output_dir) / "reflection_sft" / key
    if folder.exists():
        return str(folder)
    config = ReflectionSFTConfig(
        f"{folder.parent}-{key}",  # its checkpoints are not those of another cold start
        max_steps=data_args.sft_max_steps,
        learning_rate=data_args.sft_learning_rate,
        lr_scheduler_type="constant",  # a schedule would follow the bound on steps, which is not where training ends
        per_device_train_batch_size=data_args.sft_batch_size,
        save_strategy="no",
        logging_steps=training_args.logging_steps,
        bf16=training_args.bf16,
        use_cpu=training_args.use_cpu,
        gradient_checkpointing=training_args.gradient_checkpointing,
        report_to=training_args.report_to,
        **{name: getattr(training_args, name) for name in deciding},
    )
    if drawn:
        rows = reflections(policy, folder.with_suffix(".sqlite"), data_args, training_args)
    trainer = ReflectionSFTTrainer(policy, args=config, train_dataset=rows)
    stop = StopWhenReflecting(
        trainer.processing_class,
        questions,
        training_args,
        complete_share=data_args.sft_complete_share,
        min_delta=data_args.sft_min_delta,
        second_think=have_second_think(rows),
    )
    trainer.add_callback(stop)
    train_once(trainer, folder)
    return str(folder)


def reflections(policy: str, replies: Path, data_args: ReflectionArguments, training_args: SRPOConfig) -> Dataset:
    """Make the rows of the miniature's cold start, with every reply stored in `replies`."""
    category = data_args.dataset_name.removeprefix(MINIATURE)
    # other problems than those of RL and of the comparison
    problems = make_problems([category], data_args.reflection_problems, seed=training_args.seed + 2)
    assert training_args.max_completion_length is not None  # SRPOConfig sees to it
    return drawn_reflections(
        TransformersEngine(policy, device=training_args.device, batch_size=250),
        problems,
        replies,
        max_new_tokens=training_args.max_completion_length,
        right_share=data_args.reflection_right_share,
        seed=training_args.seed,
    )


if __name__ == "__main__":
    run(main)
