"""Evaluate a vision-language model, in one turn and in two, and compare.

    accelerate launch examples/evaluate.py --config configs/evaluate/miniature.yaml

`mmreason evaluate` has every protocol and more options; this script shows the parts, for evaluations of your own.
`dataset_name` is a benchmark (docs/benchmarks.md).
"""

from dataclasses import dataclass
from pathlib import Path

import trl_mmreason  # noqa: F401  before transformers: it silences what bitsandbytes prints when imported

# isort: split
from transformers import TrainingArguments
from trl import ModelConfig

from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.adapo.recipe import two_answers
from trl_mmreason.evaluation.benchmarks import BENCHMARKS, load_benchmark
from trl_mmreason.evaluation.evaluation_report import REPORT, evaluate_into, write_evaluation_report
from trl_mmreason.evaluation.files import format_results
from trl_mmreason.generation import SamplingParams
from trl_mmreason.generation.protocols import AnsweringProtocol, Direct, TwoTurn
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.scripts.script_parser import command_line
from trl_mmreason.scripts.single_stage import DataArguments, policy_path, run
from trl_mmreason.training.documented import documented


@documented
@dataclass
class EvaluationArguments:
    """Settings of the evaluation.

    Attributes:
        dataset_name: name of the benchmark.
        dataset_split: its split.
        eval_rows: evaluate on its first so many rows.
        cold_start_accuracy: for a miniature policy, the accuracy at which its supervised start ends.
        followup: what the user says to the first of two answers.
        max_new_tokens: token limit of each answer.
        n: samples a question; with more than one they are drawn at `temperature`.
        temperature: temperature of sampling; 0 is greedy.
    """

    dataset_name: str
    dataset_split: str = "train"
    eval_rows: int | None = None
    cold_start_accuracy: float = 0.5
    followup: str = EVALUATION_PROMPT
    max_new_tokens: int = 2048
    n: int = 1
    temperature: float = 0.0


def main(arguments: EvaluationArguments, training_args: TrainingArguments, model_args: ModelConfig) -> None:
    rows = load_benchmark(arguments.dataset_name, split=arguments.dataset_split, max_rows=arguments.eval_rows)
    drawn = DataArguments(arguments.dataset_name, cold_start_accuracy=arguments.cold_start_accuracy)
    policy = policy_path(drawn, model_args, training_args, two_answers(arguments.followup))
    engine = TransformersEngine(policy, batch_size=training_args.per_device_eval_batch_size)
    settings = {
        "n": arguments.n,
        "sampling_params": SamplingParams(arguments.max_new_tokens, arguments.temperature),
        "seed": training_args.seed,
    }
    folder = Path(training_args.output_dir)
    benchmark = BENCHMARKS[arguments.dataset_name]
    protocols: dict[str, AnsweringProtocol] = {"direct": Direct(), "two-turn": TwoTurn(arguments.followup)}
    for name, protocol in protocols.items():
        results = evaluate_into(
            folder / name,
            rows,
            engine,
            protocol,
            command=command_line(),
            about={"split": arguments.dataset_split},
            benchmark=benchmark,
            description=name,
            **settings,
        )
        if training_args.should_save:  # the main process alone
            print(f"{name}\n{format_results(results)}\n\n{folder / name / REPORT}\n")
    if training_args.should_save:
        both = write_evaluation_report({name: folder / name for name in protocols}, folder / "report.html")
        print(f"Both: {both}")


if __name__ == "__main__":
    run(main)
