"""SOPHIA from captions and a reasoner's thoughts to a policy that thinks, with its ablations, over several seeds.

    accelerate launch examples/sophia.py --config configs/sophia/miniature.yaml

For each seed, in OUTPUT/seed-0 and so on:

    warm_up       the policy learns to describe pictures                          → warm_up/model
    trajectories  it describes, a reasoner thinks, the best trajectories earn     → sophia.parquet, a file a variant
    update        the policy learns from the rows of each variant                 → sophia/model, a folder a variant
    grpo          GRPO goes on from the first variant                             → grpo/model
    base_grpo     GRPO without any of this, from the policy that came             → base_grpo/model
    (always)      accuracy of every policy                                        → OUTPUT/table.txt, accuracy.png

A stage that is finished is not done again, and one that was killed goes on. `--stages update` does one alone. A
configuration file holds the fields of `SophiaArguments` and TRL's `ModelConfig`, with a section for each stage;
`--output_dir runs/other` or `--update.beta 0.01` overrides.
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from trl import ModelConfig

from trl_mmreason import OffPolicyRewardConfig, OffPolicyRewardTrainer
from trl_mmreason.construction import parse_optional_text
from trl_mmreason.evaluation.curves import plot_curves
from trl_mmreason.grading import Grader, JudgeGrader
from trl_mmreason.miniature.captions import DESCRIBE
from trl_mmreason.miniature.reasoner import RuleReasoner, ask_miniature, count_tokens_of, reasoner_path
from trl_mmreason.miniature.tasks import make_problems, to_dataset
from trl_mmreason.sampling import Decoding, Engine, Failure
from trl_mmreason.sampling.answering import answer_questions
from trl_mmreason.sampling.chat import Chat
from trl_mmreason.sampling.difficulty import difficulty_filter
from trl_mmreason.sampling.protocols import Direct, last_verdict
from trl_mmreason.sampling.server_engine import ServerEngine
from trl_mmreason.sampling.store import Store
from trl_mmreason.sampling.transformers_engine import TransformersEngine
from trl_mmreason.scripts import MINIATURE, load_data, policy_path, train_once, trainer_settings
from trl_mmreason.sophia.config import MixedGroupsGRPOConfig
from trl_mmreason.sophia.grpo import MixedGroupsGRPOTrainer
from trl_mmreason.sophia.miniature import CAPTIONS_AND_ANSWERS
from trl_mmreason.sophia.mixture import CAPTIONS_AS_DATA, mix, with_captions
from trl_mmreason.sophia.prompts import CAPTION_PROMPT, THINKING_PROMPT
from trl_mmreason.sophia.report import Result, format_results, plot_results
from trl_mmreason.sophia.sampling import OffPolicySampling, make_off_policy_data
from trl_mmreason.sources import read_source
from trl_mmreason.stages import StagedArguments, do_once, made_by, parse_arguments

BEFORE, AFTER_GRPO, BASE_GRPO = "before", "grpo", "base_grpo"


@dataclass
class SophiaArguments(StagedArguments):
    """Where questions, captions and trajectories come from, and the settings of each stage.

    Attributes:
        seeds: of everything that is drawn; each is a run of its own.
        max_completion_length: bound of an answer in tokens, in GRPO and when accuracy is measured.
        sampling_batch_size: answers sampled at a time, in each process.
        thinking_prompt: system message of rows that think in tags, of GRPO and of the comparison; null for none, and by
            default the paper's (Fig. A4).
        warm_up_dataset: rows with prompt, images and completion (captions, general questions): a Hub id or a parquet
            file. Without it the policy starts as it is; a miniature one has been taught to describe and to answer.
        trajectory_dataset: rows as `mmreason trajectories` makes them; "miniature" has them sampled here.
        reasoner: for the miniature, "model" for a tiny language model, or "rule" for the rule that taught it.
        drawn_problems: for the miniature, how many problems the reasoner thinks about.
        sampling: for the miniature, fields of `OffPolicySampling`, such as captions and trajectories.
        variants: name → fields of `OffPolicySampling` in which this variant differs. GRPO continues from the first.
            Rows that were not sampled here allow one.
        mixed_in: name → `dataset` and `share` of the rows of general data that are mixed in, for any variant.
        captions_as_data: "none"; "beside" learns the captions of reward 1 as rows of their own, "before" writes them
            before their trajectories (Table A2). Captions take their share of the rows that are not mixed in.
        judge_model: generative verifier of GRPO and of the questions that it keeps: a path or Hub id, or with
            judge_server the name there. It is asked about answers that the rules call wrong; null for the rules alone.
        judge_server: address of a server with OpenAI's API.
        warm_up, update: fields of `OffPolicyRewardConfig`; the warm-up has rewards of 1.
        grpo: fields of `MixedGroupsGRPOConfig`, of both stages of GRPO.
        difficulty: n, low and high of the questions that GRPO keeps.
        evaluation: fields of `Decoding`, when accuracy is measured.
    """

    STAGES = ("warm_up", "trajectories", "update", "grpo", "base_grpo")
    SECTIONS = ("warm_up", "sampling", "update", "grpo", "difficulty", "evaluation")

    output_dir: str = field(default="runs/sophia", metadata={"help": "Where all stages write."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Each is a run of its own."})
    max_completion_length: int = field(default=1024, metadata={"help": "Bound of an answer in tokens."})
    sampling_batch_size: int = field(default=32, metadata={"help": "Answers sampled at a time, in each process."})
    thinking_prompt: str | None = field(default=THINKING_PROMPT, metadata={"help": "System message, or null."})
    warm_up_dataset: str | None = field(default=None, metadata={"help": "Rows of the warm-up."})
    trajectory_dataset: str = field(default="miniature", metadata={"help": "Rows of the update."})
    reasoner: str = field(default="model", metadata={"help": "Miniature: model or rule."})
    drawn_problems: int = field(default=500, metadata={"help": "Miniature: problems to think about."})
    sampling: dict = field(default_factory=dict, metadata={"help": "Miniature: OffPolicySampling."})
    variants: dict = field(default_factory=lambda: {"sophia": {}}, metadata={"help": "Name to its differences."})
    mixed_in: dict = field(default_factory=dict, metadata={"help": "Name to dataset and share."})
    captions_as_data: str = field(default="none", metadata={"help": "Learn captions too: none, beside or before."})
    judge_model: str | None = field(default=None, metadata={"help": "Generative verifier of GRPO, or null."})
    judge_server: str | None = field(default=None, metadata={"help": "Address of the verifier's server."})
    warm_up: dict = field(default_factory=dict, metadata={"help": "OffPolicyRewardConfig."})
    update: dict = field(default_factory=dict, metadata={"help": "OffPolicyRewardConfig."})
    grpo: dict = field(default_factory=dict, metadata={"help": "MixedGroupsGRPOConfig."})
    difficulty: dict = field(default_factory=dict, metadata={"help": "n, low and high."})
    evaluation: dict = field(default_factory=dict, metadata={"help": "Decoding."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.thinking_prompt = parse_optional_text("thinking_prompt", self.thinking_prompt)
        self.warm_up_dataset = parse_optional_text("warm_up_dataset", self.warm_up_dataset)
        self.judge_model = parse_optional_text("judge_model", self.judge_model)
        self.judge_server = parse_optional_text("judge_server", self.judge_server)
        for name, known in (("reasoner", ("model", "rule")), ("captions_as_data", CAPTIONS_AS_DATA)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}, expected one of {', '.join(known)}.")
        if self.judge_server and not self.judge_model:
            raise ValueError(f"judge_server={self.judge_server!r} came without judge_model: name the model there.")
        for name in self.variants:
            if name in (BEFORE, AFTER_GRPO, BASE_GRPO, "warm_up") or not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"variants: {name!r} cannot be a variant's name, as its folder is called so.")
        if self.trajectory_dataset != "miniature" and list(self.variants.values()) != [{}]:
            raise ValueError(
                f"variants are {self.variants}, but the rows of {self.trajectory_dataset} were selected already. Give "
                "one variant without arguments, and let `mmreason trajectories` select in other ways."
            )


class Run:
    """The stages with one seed, each of which leaves files that the next ones read."""

    def __init__(self, args: SophiaArguments, model_args: ModelConfig, seed: int) -> None:
        self.args, self.model_args, self.seed = args, model_args, seed
        self.folder = args.folder / f"seed-{seed}"
        self.train, self.evaluation = load_data(args, seed)

    def do(self, stage: str) -> None:
        """A stage, unless it is finished; one that was begun with other settings is refused."""
        last = list(self.args.variants)[-1]
        finished = {
            "warm_up": self.model_of("warm_up"),
            "trajectories": self.rows_of(last),
            "update": self.model_of(last),
            "grpo": self.model_of(AFTER_GRPO),
            "base_grpo": self.model_of(BASE_GRPO),
        }[stage]
        do_once(self.folder, stage, self.settings(stage), finished, getattr(self, stage))

    def settings(self, stage: str) -> dict[str, Any]:
        """What of the arguments a stage's result depends on, besides the stages before it."""
        drawn = ("max_completion_length", "dataset_name", "train_rows")
        reinforced = ("difficulty", "thinking_prompt", "judge_model", *drawn)
        read = {
            "warm_up": ("warm_up_dataset", "cold_start_accuracy", "dataset_name"),
            "trajectories": (
                "trajectory_dataset",
                "reasoner",
                "drawn_problems",
                "sampling",
                "variants",
                "thinking_prompt",
            ),
            "update": ("variants", "mixed_in", "captions_as_data", "thinking_prompt"),
            "grpo": reinforced,
            "base_grpo": ("grpo", *reinforced),
        }[stage]
        names = ["common", stage, *read]
        return self.args.read_by(names) | {"policy": self.model_args.model_name_or_path}

    # --------------------------------------------------------------------------------------------------------- stages

    def warm_up(self) -> None:
        if self.args.warm_up_dataset is None:
            return
        rows = read_source(self.args.warm_up_dataset, "train").dataset
        config = self.config("warm_up", OffPolicyRewardConfig)
        self.train_model(OffPolicyRewardTrainer, self.first_policy, config, "warm_up", mix({"": rows}, {"": 1.0}))

    def trajectories(self) -> None:
        if self.args.trajectory_dataset != "miniature":
            rows = read_source(self.args.trajectory_dataset, "train").dataset
            self.write(rows, next(iter(self.args.variants)))
            return
        category = self.args.dataset_name.removeprefix(MINIATURE)
        problems = make_problems([category], self.args.drawn_problems, seed=self.seed + 2)
        rows, policy = to_dataset(problems), self.engine(self.start)
        reasoner: Engine = RuleReasoner(problems)
        if self.args.reasoner == "model":
            reasoner = self.engine(reasoner_path(self.folder / "reasoner", category, seed=self.seed))
        with Store(self.folder / "trajectories.sqlite") as store:
            for name, differences in self.args.variants.items():
                settings: dict[str, Any] = {**self.args.sampling, **differences}
                for kind in ("caption_", ""):
                    settings[f"{kind}decoding"] = Decoding(settings.pop(f"{kind}tokens"))
                sampling = OffPolicySampling(
                    caption_prompt=DESCRIBE,
                    reason=ask_miniature,
                    thinking_prompt=self.args.thinking_prompt,
                    seed=self.seed,
                    **settings,
                )
                tokens, batch = count_tokens_of(policy), self.args.sampling_batch_size
                made = make_off_policy_data(
                    rows, policy, reasoner, store, sampling, count_tokens=tokens, batch_size=batch
                )
                self.say(f"{name}, seed {self.seed}: {made}\n")
                if not len(made.rows):
                    raise ValueError(f"There is nothing to learn from: {made}. Give the warm-up more.")
                self.write(made.rows, name)

    def update(self) -> None:
        for name in self.args.variants:
            rows = Dataset.from_parquet(made_by("trajectories", self.rows_of(name)))
            asked = DESCRIBE if self.args.trajectory_dataset == "miniature" else CAPTION_PROMPT
            rows = with_captions(rows, self.args.captions_as_data, caption_prompt=asked)
            if self.args.mixed_in:
                given = self.args.mixed_in.items()
                general = {part: read_source(one["dataset"], "train").dataset for part, one in given}
                shares = {part: one["share"] for part, one in given}
                rows = mix(
                    {name: rows, **general},
                    {name: 1 - sum(shares.values()), **shares},
                    thinking_prompt=self.args.thinking_prompt,
                    seed=self.seed,
                )
            config = self.config("update", OffPolicyRewardConfig, name)
            self.train_model(OffPolicyRewardTrainer, self.start, config, name, rows)

    def grpo(self) -> None:
        self.reinforce(made_by("update", self.model_of(next(iter(self.args.variants)))), AFTER_GRPO)

    def base_grpo(self) -> None:
        self.reinforce(self.first_policy, BASE_GRPO)

    def reinforce(self, policy: str, name: str) -> None:
        """GRPO on the questions that the policy that came finds neither too easy nor too hard (appendix B.2)."""
        grader = self.verifier()
        with Store(self.folder / "difficulty.sqlite") as store:
            kept = difficulty_filter(
                self.train,
                self.engine(self.first_policy),
                store,
                grader=grader,
                system_prompt=self.args.thinking_prompt,
                decoding=Decoding(self.args.max_completion_length),
                seed=self.seed,
                batch_size=self.args.sampling_batch_size,
                **self.args.difficulty,
            )
        self.say(f"{name}, seed {self.seed}: {kept}\n")
        bound = self.args.max_completion_length
        config = self.config("grpo", MixedGroupsGRPOConfig, name, max_completion_length=bound)
        settings = {"system_prompt": self.args.thinking_prompt, "grader": grader}
        self.train_model(MixedGroupsGRPOTrainer, policy, config, name, kept.rows, **settings)

    # -------------------------------------------------------------------------------------------------------- accuracy

    def results(self) -> dict[str, Result]:
        """Of every policy that there is."""
        learnt = {name: self.model_of(name) for name in (*self.args.variants, AFTER_GRPO, BASE_GRPO)}
        labels = {AFTER_GRPO: f"{next(iter(self.args.variants))} + GRPO", BASE_GRPO: "base + GRPO"}
        policies: dict[str, str] = {BEFORE: self.start} | {
            name: str(path) for name, path in learnt.items() if path.exists()
        }
        return {labels.get(name, name): self.measure(name, path) for name, path in policies.items()}

    def measure(self, name: str, path: str | Path) -> Result:
        decoding = Decoding(**{"max_new_tokens": self.args.max_completion_length, **self.args.evaluation})
        with Store(self.folder / "accuracy.sqlite") as store:
            answers = answer_questions(
                self.evaluation,
                self.engine(path),
                store,
                Direct(),
                stage=name,
                decoding=decoding,
                system_prompt=self.args.thinking_prompt,
                seed=self.seed,
                batch_size=self.args.sampling_batch_size,
                description=f"accuracy, {name}, seed {self.seed}",
            )
            found = [sample for (sample,) in answers if not isinstance(sample, Failure)]
        right = [correct for sample in found if (correct := last_verdict(sample, answers.turns)) is not None]
        lengths = [sample["tokens"] for sample in found if "tokens" in sample]
        rows = len(Dataset.from_parquet(str(self.rows_of(name)))) if self.rows_of(name).exists() else None
        return Result(fmean(right), fmean(lengths) if lengths else nan, rows)

    # --------------------------------------------------------------------------------------------------------- helpers

    @cached_property
    def first_policy(self) -> str:
        config = self.config("warm_up", OffPolicyRewardConfig)
        return policy_path(self.args, self.model_args, config, CAPTIONS_AND_ANSWERS)

    @cached_property
    def start(self) -> str:
        """The policy before the update; its path or Hub id."""
        if self.args.warm_up_dataset is None:
            return self.first_policy
        return made_by("warm_up", self.model_of("warm_up"))

    def config(self, section: str, config_class: type, name: str | None = None, **own: Any) -> Any:
        return self.args.config(section, config_class, self.folder / (name or section), seed=self.seed, **own)

    def train_model(
        self, trainer_class: type, policy: str, config: Any, name: str, rows: Dataset, **settings: Any
    ) -> None:
        settings |= trainer_settings(self.model_args, config)
        trainer = trainer_class(policy, args=config, train_dataset=rows, **settings)
        train_once(trainer, self.model_of(name))
        if trainer.is_world_process_zero():
            plot_curves(trainer.state.log_history, self.folder / name / "curves.png")

    def rows_of(self, variant: str) -> Path:
        return self.folder / f"{variant}.parquet"

    def model_of(self, name: str) -> Path:
        return self.folder / name / "model"

    def write(self, rows: Dataset, variant: str) -> None:
        if PartialState().is_main_process:
            rows.to_parquet(str(self.rows_of(variant)))
        PartialState().wait_for_everyone()

    def engine(self, path: str | Path) -> TransformersEngine:
        return TransformersEngine(str(path), batch_size=self.args.sampling_batch_size)

    def verifier(self) -> Grader | JudgeGrader:
        """The rules, and the judge behind them if there is one."""
        model, server = self.args.judge_model, self.args.judge_server
        if model is None:
            return Grader()
        return JudgeGrader(Chat(ServerEngine(model, server, openai_only=True) if server else self.engine(model)))

    def say(self, text: str) -> None:
        if PartialState().is_main_process:
            sys.stdout.write(f"\n{text}")


def write_table(args: SophiaArguments, found: list[dict[str, Result]]) -> None:
    """Of the policies that every seed has."""
    results: Mapping[str, list[Result]] = {
        name: [one[name] for one in found] for name in found[0] if all(name in one for one in found)
    }
    table = format_results(results, args.seeds)
    (args.folder / "table.txt").write_text(f"{table}\n")
    as_json = {name: [result._asdict() for result in each] for name, each in results.items()}
    (args.folder / "results.json").write_text(json.dumps(as_json, indent=2))
    plot_results(results, args.folder / "accuracy.png")
    sys.stdout.write(f"\n{table}\n")


def main(args: SophiaArguments, model_args: ModelConfig) -> None:
    if model_args.use_peft:
        raise ValueError("use_peft: this script trains whole models; use the trainers themselves for adapters.")
    found = []
    for seed in args.seeds:
        run = Run(args, model_args, seed)
        for stage in args.wanted:
            run.do(stage)
        if run.evaluation is not None:
            found.append(run.results())
    if found and PartialState().is_main_process:
        write_table(args, found)


if __name__ == "__main__":
    main(*parse_arguments(SophiaArguments))
