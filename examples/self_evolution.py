"""Self-evolution without labels beside majority voting (MM-UPT), or any of its ablations, over several seeds.

    accelerate launch examples/self_evolution.py --config configs/self_evolution/miniature.yaml

Each of `methods` trains the same policy, in OUTPUT/seed-0/METHOD and so on; then accuracy, which nobody trained on, is
measured before and after: OUTPUT/table.txt, results.json, training.png with what was logged on the way, and every
answer with a report in OUTPUT/seed-0/evaluation/METHOD. What is finished is not done again, and what was killed goes
on. A configuration file holds the fields of `EvolutionArguments` and TRL's `ModelConfig`; `--output_dir runs/other` or
`--evolution.alpha 2` overrides.

Policies are measured under their official prompt, without `actor_prompt`. A second start with
`--evolution.actor_prompt_in_evaluation true` measures the same policies under the prompt of training, and trains
nothing: OUTPUT/table-actor-prompt.txt, results-actor-prompt.json and OUTPUT/seed-0/evaluation-actor-prompt/METHOD.
"""

import json
import re
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from trl import ModelConfig

from trl_mmreason import SelfEvolutionConfig, SelfEvolutionTrainer
from trl_mmreason.evaluation.evaluation_report import save_evaluation
from trl_mmreason.evaluation.provenance import provenance_record
from trl_mmreason.evaluation.results import summarise
from trl_mmreason.evaluation.runner import evaluate
from trl_mmreason.sampling import Decoding
from trl_mmreason.sampling.protocols import Direct
from trl_mmreason.sampling.server_engine import ServerEngine
from trl_mmreason.sampling.store import Store
from trl_mmreason.sampling.transformers_engine import TransformersEngine
from trl_mmreason.scripts import load_data, policy_path, train_once, trainer_settings
from trl_mmreason.self_evolution.miniature import judged_answers
from trl_mmreason.self_evolution.prompts import judge_message
from trl_mmreason.self_evolution.report import format_results, plot_histories
from trl_mmreason.stages import StagedArguments, do_once, parse_arguments, values_of

BEFORE = "before"
PROMPT = "actor_prompt_in_evaluation"


@dataclass
class EvolutionArguments(StagedArguments):
    """Where questions come from, and which methods learn from them.

    Attributes:
        seeds: of everything that is drawn; each is a run of its own.
        methods: name → fields of `SelfEvolutionConfig` in which this method differs.
        judge_server, judge_model: address of a server with OpenAI's API, and the model's name there, that judges in the
            place of the policy as it came.
        answers: sampled to each question when accuracy is measured: pass@1, pass@n, and the vote of n.
        evolution: fields of `SelfEvolutionConfig` that all methods have in common.
        evaluation: fields of `Decoding`, when accuracy is measured.
    """

    STAGES = ("evolve",)
    SECTIONS = ("evolution", "evaluation")

    output_dir: str = field(default="runs/self_evolution", metadata={"help": "Where everything is written."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Each is a run of its own."})
    methods: dict = field(default_factory=lambda: {"self-evolution": {}}, metadata={"help": "Name to differences."})
    judge_server: str | None = field(default=None, metadata={"help": "Address of a server that judges."})
    judge_model: str | None = field(default=None, metadata={"help": "The judge's name at the server."})
    answers: int = field(default=10, metadata={"help": "Answers to a question when accuracy is measured."})
    sampling_batch_size: int = field(default=32, metadata={"help": "Answers sampled at a time, in each process."})
    evolution: dict = field(default_factory=dict, metadata={"help": "SelfEvolutionConfig."})
    evaluation: dict = field(default_factory=dict, metadata={"help": "Decoding."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.judge_server is None) != (self.judge_model is None):
            raise ValueError(
                f"judge_server={self.judge_server!r} and judge_model={self.judge_model!r}: give both, or neither."
            )
        self.methods = {name: values_of(differences) for name, differences in self.methods.items()}
        for name in self.methods:
            taken = name in (BEFORE, "cold_start") or name.startswith("evaluation")
            if taken or not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"methods: {name!r} cannot be a method's name, as its folder is called so.")
            if PROMPT in self.methods[name]:
                raise ValueError(
                    f"methods: {name!r} has {PROMPT}, but all policies are measured under one prompt. Set it in "
                    "`evolution`."
                )

    @property
    def suffix(self) -> str:
        """Of what is measured under the actor's prompt."""
        return "-actor-prompt" if self.evolution.get(PROMPT) else ""


class Run:
    """All methods with one seed."""

    def __init__(self, args: EvolutionArguments, model_args: ModelConfig, seed: int) -> None:
        self.args, self.model_args, self.seed = args, model_args, seed
        self.folder = args.folder / f"seed-{seed}"
        self.train, self.evaluation = load_data(args, seed)
        config = self.config(BEFORE)
        lessons = judged_answers(partial(judge_message, config.judge_prompt))
        self.start = policy_path(args, model_args, config, lessons)

    def config(self, method: str) -> SelfEvolutionConfig:
        given = {**self.args.common, **self.args.evolution, **self.args.methods.get(method, {})}
        return SelfEvolutionConfig(str(self.folder / method), **{"seed": self.seed, **given})

    def evolve(self, method: str) -> None:
        """Train, unless it is finished; what was begun with other settings is refused."""
        data = ("dataset_name", "dataset_split", "columns", "image_root", "system_prompt", "train_rows")
        names = ("common", "evolution", "judge_server", "judge_model", "cold_start_accuracy", *data)
        settings = {**self.args.read_by(names), "method": self.args.methods[method]}
        settings |= {"policy": self.model_args.model_name_or_path, "dtype": str(self.model_args.dtype)}
        settings["evolution"] = {name: value for name, value in self.args.evolution.items() if name != PROMPT}
        do_once(self.folder, method, settings, self.model_of(method), lambda: self.train_policy(method))

    def train_policy(self, method: str) -> None:
        config = self.config(method)
        settings = trainer_settings(self.model_args, config)
        if self.args.judge_server and self.args.judge_model and config.judge:
            settings["judge"] = ServerEngine(self.args.judge_model, base_url=self.args.judge_server)
        trainer = SelfEvolutionTrainer(self.start, args=config, train_dataset=self.train, **settings)
        train_once(trainer, self.model_of(method))

    def history(self, method: str) -> list[dict[str, Any]]:
        return json.loads((self.model_of(method) / "trainer_state.json").read_text())["log_history"]

    def results(self) -> dict[str, dict[str, float]]:
        """Metrics of the policy before, and of every method's."""
        policies = {BEFORE: self.start} | {name: str(self.model_of(name)) for name in self.args.methods}
        return {name: self.measure(name, path) for name, path in policies.items()}

    def measure(self, name: str, path: str) -> dict[str, float]:
        """Let a policy answer, and keep that as an evaluation with its report."""
        config, folder = self.config(BEFORE), self.folder / f"evaluation{self.args.suffix}" / name
        decoding = Decoding(**{"max_new_tokens": config.max_completion_length, **self.args.evaluation})
        engine, protocol = TransformersEngine(path, batch_size=self.args.sampling_batch_size), Direct()
        asked: dict[str, Any] = {"n": self.args.answers, "decoding": decoding, "seed": self.seed}
        asked["system_prompt"] = config.eval_system_prompt
        folder.mkdir(parents=True, exist_ok=True)
        with Store(folder / "answers.sqlite") as store:
            samples = evaluate(
                self.evaluation,
                engine,
                store,
                protocol,
                batch_size=self.args.sampling_batch_size,
                description=f"accuracy, {name}, seed {self.seed}",
                **asked,
            )
        results = summarise(samples)
        if PartialState().is_main_process:
            title = f"{name}, seed {self.seed}"
            made = provenance_record(engine, protocol, command="", benchmark={"title": title, "name": title}, **asked)
            save_evaluation(folder, self.evaluation, samples, results, made)
        return {metric: found.value for metric, found in results.metrics.items()}

    def model_of(self, method: str) -> Path:
        return self.folder / method / "model"


def write_report(args: EvolutionArguments, found: list[dict[str, dict[str, float]]]) -> None:
    results = {name: [one[name] for one in found] for name in found[0]}
    table = format_results(results, args.seeds, args.answers)
    (args.folder / f"table{args.suffix}.txt").write_text(f"{table}\n")
    (args.folder / f"results{args.suffix}.json").write_text(json.dumps(results, indent=2))
    sys.stdout.write(f"\n{table}\n")


def main(args: EvolutionArguments, model_args: ModelConfig) -> None:
    if model_args.use_peft:
        raise ValueError("use_peft: this script trains whole models; use the trainer itself for adapters.")
    runs = [Run(args, model_args, seed) for seed in args.seeds]
    for run in runs:
        for method in args.methods:
            run.evolve(method)
    found = [run.results() for run in runs if run.evaluation is not None]
    if PartialState().is_main_process:
        histories = {method: [run.history(method) for run in runs] for method in args.methods}
        plot_histories(histories, args.folder / "training.png")
        if found:
            write_report(args, found)


if __name__ == "__main__":
    main(*parse_arguments(EvolutionArguments))
