"""Chain-of-Step from a vision-language model to one that reasons in steps, stage by stage.

    accelerate launch examples/chain_of_step.py --config configs/chain_of_step/miniature.yaml

    sft       the policy learns to reason in steps                          → OUTPUT/sft/model
    annotate  its chains get labels, by Monte Carlo and by a judge          → OUTPUT/labels_train.parquet
    prm       a process reward model learns from them                       → OUTPUT/prm/model
    dpo       rounds of sampling, scoring, pairing and DPO, from sft        → OUTPUT/dpo/round-3/policy
    grpo      GRPO with the process reward, from sft                        → OUTPUT/grpo/model
    search    pass@N, self-consistency, best-of-N and step beam search      → OUTPUT/search/compared.html
    (always)  every policy's answers, side by side                          → OUTPUT/evaluation/

What is finished is not done again, and what was killed resumes. `--stages dpo,grpo` does some alone, such as one a
launch under DeepSpeed. A configuration file holds the fields of `ChainOfStepArguments` and TRL's `ModelConfig`, with a
section for each stage; `--output_dir runs/other` or `--dpo.rounds 1` overrides.
"""

import json
from typing import Any

from datasets import Dataset

import trl_mmreason as mm
from trl_mmreason.baselines.patterns import CHAIN_OF_STEP, PatternSFTTrainer, in_pattern
from trl_mmreason.chain_of_step.arguments import ChainOfStepArguments
from trl_mmreason.chain_of_step.client import process_reward_from
from trl_mmreason.chain_of_step.miniature import (
    PLAIN_ANSWERS,
    drawn_chains,
    label_drawn_chains,
    labelled_chains,
    stop_at,
)
from trl_mmreason.chain_of_step.protocols import Chains, StepBeam
from trl_mmreason.chain_of_step.report import format_process_reward, plot_rounds
from trl_mmreason.chain_of_step.search import MAX_STEPS
from trl_mmreason.evaluation.files import format_overview, format_results, format_side_by_side
from trl_mmreason.evaluation.samples import group_sizes
from trl_mmreason.miniature.tasks import to_dataset
from trl_mmreason.sampling import SamplingParams
from trl_mmreason.sampling.protocols import Direct
from trl_mmreason.sources import read_source
from trl_mmreason.stages import Pipeline, made_by, parse_arguments


class ChainOfStep(Pipeline):
    """A method for each stage."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.in_steps = self.args.pattern == CHAIN_OF_STEP
        self.train_rows = in_pattern(self.train_rows, self.args.pattern)
        self.eval_rows = self.eval_rows and in_pattern(self.eval_rows, self.args.pattern)

    def sft(self) -> None:
        config = self.config("sft", mm.ChainOfStepSFTConfig)
        policy = self.first_policy(config, PLAIN_ANSWERS)
        if self.args.step_dataset == "miniature":
            rows = drawn_chains(self.problems(self.args.drawn_chains, 2), self.folder / "steps.sqlite")
        else:
            rows = read_source(self.args.step_dataset, "train").dataset
        trainer_class = mm.ChainOfStepSFTTrainer if self.in_steps else PatternSFTTrainer
        trainer = self.trainer(trainer_class, policy, config, in_pattern(rows, self.args.pattern))
        if self.args.sft_accuracy is not None:
            asked = in_pattern(to_dataset(self.problems(100, 5, "new_pictures")), self.args.pattern)
            trainer.add_callback(stop_at(trainer, asked, self.args.sft_accuracy, self.args.max_completion_length))
        self.learn(trainer)

    def annotate(self) -> None:
        if self.args.label_dataset == "miniature":
            drawn = dict(self.args.drawn_labels)
            n = drawn.pop("problems")
            asked = {"decoding": self.args.decoding, "seed": self.seed, "batch_size": self.args.sampling_batch_size}
            seen, unseen = self.problems(n, 3), self.problems(n, 4)
            label_drawn_chains(seen, unseen, self.engine(self.start), self.folder, **drawn, **asked)

    def prm(self) -> None:
        config = self.config("prm", mm.ProcessRewardConfig)
        base = self.start
        if self.args.process_reward_base is not None:
            named, accuracy = self.args.process_reward_base, self.args.process_reward_accuracy
            base = self.other_policy(config, PLAIN_ANSWERS, named, accuracy)
        if self.args.label_dataset == "miniature":
            rows, evaluations = labelled_chains(self.folder)
        else:
            rows = read_source(self.args.label_dataset, "train").dataset
            named = self.args.label_eval_datasets.items()
            evaluations = {name: read_source(source, "train").dataset for name, source in named}
        trainer = self.trainer(mm.ProcessRewardTrainer, base, config, rows, eval_dataset=evaluations or None)
        self.learn(trainer)
        metrics = trainer.evaluate() if evaluations else {}
        if trainer.is_world_process_zero():
            (self.folder / "prm/metrics.json").write_text(json.dumps(metrics, indent=2))

    def dpo(self) -> None:
        batch = self.args.sampling_batch_size
        bounds = {"max_completion_length": self.args.max_completion_length, "chains": self.in_steps}
        bounds |= {"sampling_batch_size": batch, "scoring_batch_size": batch}
        config = self.config("dpo", mm.IterativeDPOConfig, **bounds)
        asked = first(self.train_rows, self.args.dpo_questions)
        scorer = self.process_reward()
        trainer = self.trainer(
            mm.IterativeDPOTrainer, self.start, config, asked, process_reward_model=scorer, eval_dataset=self.eval_rows
        )
        trainer.train()
        if trainer.is_world_process_zero():
            plot_rounds(trainer.rounds, self.folder / "dpo/rounds.png")

    def grpo(self) -> None:
        bound = {"max_completion_length": self.args.max_completion_length}
        config = self.config("grpo", mm.ChainOfStepGRPOConfig, **bound)
        scorer = self.process_reward()
        self.learn(
            self.trainer(mm.ChainOfStepGRPOTrainer, self.start, config, self.train_rows, process_reward_model=scorer)
        )

    def search(self) -> None:
        given = {"n": 64, "step_weight": 0.2, "max_steps": MAX_STEPS, **self.args.search}
        n, scorer, batch = given["n"], self.process_reward(), self.args.sampling_batch_size
        asked = {"folder": "search", "rows": first(self.eval_rows, self.args.search_questions)}
        asked["decoding"] = self.args.decoding
        found = self.evaluate({"chains": self.start}, Chains(scorer, given["step_weight"]), n=n, **asked)
        chains = found["chains"]
        for k in group_sizes(n):
            search = StepBeam(scorer, k, given["max_steps"])
            found |= self.evaluate({f"beam-{k}": self.start}, search, **asked, batch_size=max(1, batch // k))
        self.compare(f"{format_results(chains)}\n\n{format_overview(found)}", found, "search")

    def measure(self) -> None:
        rounds = sorted((self.folder / "dpo").glob("round-*/policy"))
        policies = {"SFT": self.folder / "sft/model", **{f"DPO-{path.parent.name}": path for path in rounds}}
        policies["GRPO"] = self.folder / "grpo/model"
        greedy = SamplingParams(self.args.max_completion_length, temperature=0)
        found = self.evaluate(policies, Chains() if self.in_steps else Direct(), decoding=greedy)
        metrics = self.folder / "prm/metrics.json"
        scorer = format_process_reward(json.loads(metrics.read_text())) if metrics.exists() else ""
        self.compare(f"{format_side_by_side(found)}\n\n{scorer}", found)

    @property
    def start(self) -> str:
        """The policy that every other stage begins with."""
        return made_by("sft", self.folder / "sft/model")

    def process_reward(self) -> Any:
        source = self.args.process_reward
        if source == "outcome":
            return None
        return process_reward_from(made_by("prm", self.folder / "prm/model") if source == "prm" else source)


def first(rows: Dataset, n: int | None) -> Dataset:
    return rows if n is None else rows.select(range(min(n, len(rows))))


if __name__ == "__main__":
    ChainOfStep(*parse_arguments(ChainOfStepArguments)).run()
