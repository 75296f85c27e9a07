"""Chain-of-Step from a vision-language model to one that reasons in steps, stage by stage.

    accelerate launch examples/chain_of_step.py --config configs/chain_of_step/miniature.yaml

    sft       the policy learns to reason in steps                          → OUTPUT/sft/model
    annotate  its chains get labels, by Monte Carlo and by a judge          → OUTPUT/labels.parquet
    prm       a process reward model learns from them                       → OUTPUT/prm/model
    dpo       rounds of sampling, scoring, pairing and DPO, from sft        → OUTPUT/dpo/round-3/policy
    grpo      GRPO with the process reward, from sft                        → OUTPUT/grpo/model
    search    pass@N, self-consistency, best-of-N and step beam search      → OUTPUT/search/
    (always)  accuracy of every policy, and of the process reward model     → OUTPUT/table.txt

`--pattern direct_prompt` and `--pattern no_reason` train the arms of Table 4 that have no steps: by
`--stages sft,dpo --process_reward outcome`, into an output folder of their own.

A stage that is finished is not done again, and one that was killed goes on. `--stages dpo,grpo` does some alone, such
as one a launch under DeepSpeed. A configuration file holds the fields of `ChainOfStepArguments` and TRL's
`ModelConfig`, with a section for each stage; `--output_dir runs/other` or `--dpo.rounds 1` overrides.
"""

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from trl import ModelConfig

from trl_mmreason import (
    ChainOfStepGRPOConfig,
    ChainOfStepGRPOTrainer,
    ChainOfStepSFTConfig,
    ChainOfStepSFTTrainer,
    IterativeDPOConfig,
    IterativeDPOTrainer,
    ProcessRewardConfig,
    ProcessRewardTrainer,
)
from trl_mmreason.baselines.patterns import CHAIN_OF_STEP, PATTERNS, PatternSFTTrainer, in_pattern
from trl_mmreason.chain_of_step.client import process_reward_from
from trl_mmreason.chain_of_step.miniature import (
    LABELS,
    PLAIN_ANSWERS,
    drawn_chains,
    label_drawn_chains,
    labels_file,
    learn_drawn_chains,
)
from trl_mmreason.chain_of_step.paths import DECODING
from trl_mmreason.chain_of_step.protocols import Chains
from trl_mmreason.chain_of_step.report import format_policies, format_process_reward, plot_rounds
from trl_mmreason.chain_of_step.sampling import sample_paths
from trl_mmreason.chain_of_step.scaling import inference_scaling
from trl_mmreason.chain_of_step.scaling_report import format_scaling, write_report
from trl_mmreason.evaluation.curves import plot_curves
from trl_mmreason.miniature.tasks import make_problems, to_dataset
from trl_mmreason.sampling import Decoding
from trl_mmreason.sampling.protocols import Direct
from trl_mmreason.sampling.store import Store
from trl_mmreason.sampling.transformers_engine import TransformersEngine
from trl_mmreason.scripts import MINIATURE, load_data, policy_path, train_once, trainer_settings
from trl_mmreason.sources import read_source
from trl_mmreason.stages import StagedArguments, do_once, made_by, parse_arguments

FINISHED = {
    "sft": "sft/model",
    "annotate": "labels_unseen.parquet",
    "prm": "prm/metrics.json",
    "dpo": "dpo/rounds.png",
    "grpo": "grpo/curves.png",
    "search": "search/scaling.json",
}
"""What a stage writes last."""

# Arguments that every stage reads, and those that some do.
SHARED = ("dataset_name", "dataset_split", "train_rows", "cold_start_accuracy", "max_completion_length", "common")
READ_BY = {
    "sft": ("pattern", "step_dataset", "drawn_chains", "sft_accuracy"),
    "annotate": ("label_dataset", "drawn_labels"),
    "prm": ("label_dataset", "label_eval_datasets", "process_reward_base", "process_reward_accuracy"),
    "dpo": ("pattern", "process_reward", "dpo_questions", "eval_dataset_name", "eval_split", "eval_rows"),
    "grpo": ("process_reward",),
    "search": ("process_reward", "search_questions", "eval_dataset_name", "eval_split", "eval_rows"),
}

_MEASURED = 100  # questions, while the sft stage runs until `sft_accuracy`


@dataclass
class ChainOfStepArguments(StagedArguments):
    """Where questions, chains and labels come from, and the settings of each stage.

    Attributes:
        pattern: how the policy reasons (Table 4): "chain_of_step", "direct_prompt" or "no_reason"; see
            `baselines.patterns`. The last two have no steps to score, so that sft and dpo by outcome are their stages.
        max_completion_length: bound of a chain in tokens.
        sampling_batch_size: chains sampled, scored or searched for at a time, in each process.
        step_dataset: chains for the sft stage, as `mmreason steps` makes them: a Hub id or a parquet file; "miniature"
            has a teacher of known truth write them.
        label_dataset: labelled chains for the prm stage, as `mmreason annotate` makes them; "miniature" has chains of
            the policy labelled, some by Monte Carlo, the others by a judge of known truth.
        label_eval_datasets: name → labelled chains to evaluate the process reward model on; the miniature makes "seen"
            and "unseen" questions.
        process_reward_base: what the process reward model is trained from; the sft stage's policy by default. The paper
            has a larger model; a miniature one is taught to answer until `process_reward_accuracy`.
        process_reward: where the score comes from in dpo, grpo and search: "prm" is that of the prm stage; a path; the
            address of `mmreason serve-prm`; or "outcome", for dpo and grpo by right answers alone (Table 2 and 5).
        drawn_chains: for the miniature, how many problems the teacher writes a chain for.
        sft_accuracy: for the miniature, the share of right answers at which the sft stage ends; `None` for all of its
            epochs. It is an error not to reach it.
        drawn_labels: for the miniature, how many `problems` the policy reasons about, in how many `paths`; how many of
            these chains are labelled by Monte Carlo (`monte_carlo`), with how many `continuations` a step.
        dpo_questions, search_questions: use no more questions in these stages.
        sft, prm, dpo, grpo: fields of the stage's configuration class.
        search: arguments of `inference_scaling`.
    """

    STAGES = ("sft", "annotate", "prm", "dpo", "grpo", "search")
    SECTIONS = ("sft", "prm", "dpo", "grpo", "search")

    output_dir: str = field(default="runs/chain_of_step", metadata={"help": "Where all stages write."})
    pattern: str = field(default=CHAIN_OF_STEP, metadata={"help": "chain_of_step, direct_prompt or no_reason."})
    max_completion_length: int = field(default=1024, metadata={"help": "Bound of a chain in tokens."})
    sampling_batch_size: int = field(default=32, metadata={"help": "Chains sampled at a time, in each process."})
    step_dataset: str = field(default="miniature", metadata={"help": "Chains for the sft stage."})
    label_dataset: str = field(default="miniature", metadata={"help": "Labelled chains for the prm stage."})
    label_eval_datasets: dict = field(default_factory=dict, metadata={"help": "Name to labelled chains."})
    process_reward_base: str | None = field(default=None, metadata={"help": "What the prm stage starts from."})
    process_reward_accuracy: float = field(default=0.95, metadata={"help": "Miniature: where that one's start ends."})
    process_reward: str = field(default="prm", metadata={"help": "prm, a path, an address, or outcome."})
    drawn_chains: int = field(default=1000, metadata={"help": "Miniature: chains for the sft stage."})
    sft_accuracy: float | None = field(default=None, metadata={"help": "Miniature: where the sft stage ends."})
    drawn_labels: dict = field(default_factory=dict, metadata={"help": "Miniature: labels for the prm stage."})
    dpo_questions: int | None = field(default=None, metadata={"help": "No more questions in dpo."})
    search_questions: int | None = field(default=None, metadata={"help": "No more questions in search."})
    sft: dict = field(default_factory=dict, metadata={"help": "ChainOfStepSFTConfig."})
    prm: dict = field(default_factory=dict, metadata={"help": "ProcessRewardConfig."})
    dpo: dict = field(default_factory=dict, metadata={"help": "IterativeDPOConfig."})
    grpo: dict = field(default_factory=dict, metadata={"help": "ChainOfStepGRPOConfig."})
    search: dict = field(default_factory=dict, metadata={"help": "Arguments of inference_scaling."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pattern not in PATTERNS:
            raise ValueError(f"pattern={self.pattern!r}, expected one of {', '.join(PATTERNS)}.")
        unscored = ["sft", "dpo"] if self.process_reward == "outcome" else ["sft"]
        if self.pattern != CHAIN_OF_STEP and not set(self.wanted) <= set(unscored):
            raise ValueError(
                f"pattern={self.pattern!r} has no steps to score, but came with stages={self.stages} and "
                f"process_reward={self.process_reward!r}. Fix: --stages sft,dpo --process_reward outcome."
            )

    @property
    def decoding(self) -> Decoding:
        return Decoding(self.max_completion_length, DECODING.temperature, DECODING.top_p)


class Pipeline:
    """The stages, each of which leaves a folder that the next ones read."""

    def __init__(self, args: ChainOfStepArguments, model_args: ModelConfig) -> None:
        self.args, self.model_args = args, model_args
        self.seed = args.common.get("seed", 42)
        questions = load_data(args, self.seed)
        self.train, self.evaluation = (rows and in_pattern(rows, args.pattern) for rows in questions)
        self.in_steps = args.pattern == CHAIN_OF_STEP
        self.sft_model = args.folder / "sft" / "model"

    def do(self, stage: str) -> None:
        """A stage, unless it is finished; one that was begun with other settings is refused."""
        finished = self.args.folder / FINISHED[stage]
        do_once(self.args.folder, stage, self.settings(stage), finished, getattr(self, stage))

    def config(self, stage: str, config_class: type, **own: Any) -> Any:
        return self.args.config(stage, config_class, self.args.folder / stage, **own)

    def settings(self, stage: str) -> dict[str, Any]:
        """What of the arguments a stage's result depends on, besides the stages before it."""
        names = [*SHARED, *READ_BY.get(stage, ()), stage]
        return self.args.read_by(names) | {"policy": self.model_args.model_name_or_path}

    # -------------------------------------------------------------------------------------------------- policy and PRM

    def sft(self) -> None:
        config = self.config("sft", ChainOfStepSFTConfig)
        settings = trainer_settings(self.model_args, config)
        policy = policy_path(self.args, self.model_args, config, PLAIN_ANSWERS)
        if self.args.step_dataset == "miniature":
            rows = drawn_chains(self.problems(self.args.drawn_chains, 2), self.args.folder / "steps.sqlite")
        else:
            rows = read_source(self.args.step_dataset, "train").dataset
        trainer = ChainOfStepSFTTrainer if self.in_steps else PatternSFTTrainer
        sft = trainer(policy, args=config, train_dataset=in_pattern(rows, self.args.pattern), **settings)
        if self.args.sft_accuracy is None:
            train_once(sft, self.sft_model)
        else:
            questions = in_pattern(to_dataset(self.problems(_MEASURED, 5, "new_pictures")), self.args.pattern)
            limit = self.args.max_completion_length
            learn_drawn_chains(sft, questions, self.sft_model, target=self.args.sft_accuracy, max_new_tokens=limit)

    def annotate(self) -> None:
        if self.args.label_dataset != "miniature":
            return
        drawn = dict(self.args.drawn_labels)
        n = drawn.pop("problems")
        label_drawn_chains(
            self.problems(n, 3),
            self.problems(n, 4),
            self.engine(self.start),
            self.args.folder,
            decoding=self.args.decoding,
            seed=self.seed,
            batch_size=self.args.sampling_batch_size,
            **drawn,
        )

    def prm(self) -> None:
        config = self.config("prm", ProcessRewardConfig)
        settings = trainer_settings(self.model_args, config)
        if self.args.process_reward_base is None:
            base = self.start
        else:
            started = replace(self.args, cold_start_accuracy=self.args.process_reward_accuracy)
            named = replace(self.model_args, model_name_or_path=self.args.process_reward_base)
            base = policy_path(started, named, config, PLAIN_ANSWERS)
        if self.args.label_dataset == "miniature":
            files = (made_by("annotate", labels_file(self.args.folder, name)) for name in LABELS)
            train, *held_out = map(Dataset.from_parquet, files)
            evaluations = dict(zip(LABELS[1:], held_out, strict=True))
        else:
            train = read_source(self.args.label_dataset, "train").dataset
            named = self.args.label_eval_datasets.items()
            evaluations = {name: read_source(source, "train").dataset for name, source in named}
        trainer = ProcessRewardTrainer(
            base, args=config, train_dataset=train, eval_dataset=evaluations or None, **settings
        )
        train_once(trainer, self.args.folder / "prm" / "model")
        metrics = trainer.evaluate() if evaluations else {}
        if trainer.is_world_process_zero():
            (self.args.folder / "prm" / "metrics.json").write_text(json.dumps(metrics, indent=2))

    # -------------------------------------------------------------------------------------------- learning and search

    def dpo(self) -> None:
        bounds: dict[str, Any] = {
            name: getattr(self.args, name) for name in ("max_completion_length", "sampling_batch_size")
        }
        bounds |= {"scoring_batch_size": bounds["sampling_batch_size"], "chains": self.in_steps}
        config = self.config("dpo", IterativeDPOConfig, **bounds)
        trainer = IterativeDPOTrainer(
            self.start,
            self.process_reward(),
            args=config,
            train_dataset=first(self.train, self.args.dpo_questions),
            eval_dataset=self.evaluation,
            **trainer_settings(self.model_args, config),
        )
        trainer.train()
        if trainer.is_world_process_zero():
            plot_rounds(trainer.rounds, self.args.folder / "dpo" / "rounds.png")

    def grpo(self) -> None:
        own = {"max_completion_length": self.args.max_completion_length}
        config = self.config("grpo", ChainOfStepGRPOConfig, **own)
        trainer = ChainOfStepGRPOTrainer(
            self.start,
            self.process_reward(),
            args=config,
            train_dataset=self.train,
            **trainer_settings(self.model_args, config),
        )
        train_once(trainer, self.args.folder / "grpo" / "model")
        if trainer.is_world_process_zero():
            plot_curves(trainer.state.log_history, self.args.folder / "grpo" / "curves.png")

    def search(self) -> None:
        process_reward = self.process_reward()
        if process_reward is None or self.evaluation is None:
            raise ValueError("The search stage needs a process reward model and eval_dataset_name; leave it out.")
        with Store(self.args.folder / "search.sqlite") as store:
            scaling = inference_scaling(
                first(self.evaluation, self.args.search_questions),
                self.engine(self.start),
                process_reward,
                store,
                decoding=self.args.decoding,
                seed=self.seed,
                **{"batch_size": self.args.sampling_batch_size, **self.args.search},
            )
        if PartialState().is_main_process:
            write_report(scaling, self.args.folder / "search")
            sys.stdout.write(f"\n{format_scaling(scaling)}\n")

    # ------------------------------------------------------------------------------------------------------- the table

    def table(self) -> None:
        """Accuracy of every policy that there is, and of the process reward model."""
        rounds = sorted((self.args.folder / "dpo").glob("round-*/policy"))
        policies = {"SFT": self.sft_model, **{f"DPO, {path.parent.name}": path for path in rounds}}
        policies["GRPO"] = self.args.folder / "grpo" / "model"
        found = {name: path for name, path in policies.items() if path.exists()}
        said = []
        if self.evaluation is not None and found:
            said.append(format_policies({name: self.correct(name, path) for name, path in found.items()}))
        metrics = self.args.folder / "prm" / "metrics.json"
        if metrics.exists():
            said.append(format_process_reward(json.loads(metrics.read_text())))
        if PartialState().is_main_process:
            text = "\n\n".join(said)
            (self.args.folder / "table.txt").write_text(f"{text}\n")
            sys.stdout.write(f"\n{text}\n")

    def correct(self, name: str, path: Path) -> list[bool]:
        """Whether the policy's greedy answer to each question is right."""
        with Store(self.args.folder / "accuracy.sqlite") as store:
            paths = sample_paths(
                self.evaluation,
                self.engine(path),
                store,
                name,
                n=1,
                decoding=Decoding(self.args.max_completion_length, temperature=0),
                protocol=Chains() if self.in_steps else Direct(),
                batch_size=self.args.sampling_batch_size,
                description=f"accuracy, {name}",
            )
        return [bool(path.correct) for found in paths.values() for path in found if path.correct is not None]

    # -------------------------------------------------------------------------------------------------------- helpers

    def problems(self, n: int, stream: int, split: str = "train") -> list:
        """Drawn problems, others than those of training and evaluation."""
        return make_problems([self.args.dataset_name.removeprefix(MINIATURE)], n, split=split, seed=self.seed + stream)

    @property
    def start(self) -> str:
        """The policy that every other stage begins with."""
        return made_by("sft", self.sft_model)

    def engine(self, path: str | Path) -> TransformersEngine:
        return TransformersEngine(str(path), batch_size=self.args.sampling_batch_size)

    def process_reward(self) -> Any:
        source = self.args.process_reward
        if source == "outcome":
            return None
        return process_reward_from(made_by("prm", self.args.folder / "prm" / "model") if source == "prm" else source)


def first(rows: Dataset, n: int | None) -> Dataset:
    return rows if n is None else rows.select(range(min(n, len(rows))))


def main(args: ChainOfStepArguments, model_args: ModelConfig) -> None:
    if model_args.use_peft:
        raise ValueError("use_peft: this script trains whole models; use the trainers themselves for adapters.")
    pipeline = Pipeline(args, model_args)
    for stage in args.wanted:
        pipeline.do(stage)
    pipeline.table()


if __name__ == "__main__":
    main(*parse_arguments(ChainOfStepArguments))
