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

from dataclasses import replace

import trl_mmreason as mm
from trl_mmreason.chain_of_step import miniature
from trl_mmreason.chain_of_step.labelled_steps import read_labelled_chains
from trl_mmreason.chain_of_step.protocols import Chains, StepBeam
from trl_mmreason.chain_of_step.recipe import ChainOfStepArguments, format_process_reward, plot_rounds
from trl_mmreason.chain_of_step.search import MAX_STEPS
from trl_mmreason.data.row_sources import read_completions
from trl_mmreason.evaluation.files import format_overview, format_results, format_side_by_side
from trl_mmreason.evaluation.question_table import group_sizes
from trl_mmreason.generation import SamplingParams
from trl_mmreason.miniature.tasks import problems_dataset
from trl_mmreason.scripts.sections import made_by
from trl_mmreason.scripts.single_stage import policy_path
from trl_mmreason.scripts.stages import Pipeline


class ChainOfStep(Pipeline):
    """The stages, one method each."""

    def sft(self) -> None:
        config = self.config("sft")
        policy = self.first_policy(config, miniature.PLAIN_ANSWERS)
        if self.args.step_dataset == "miniature":
            rows = miniature.drawn_chains(self.problems(self.args.drawn_chains, 2), self.folder / "steps.sqlite")
        else:
            rows = read_completions(self.args.step_dataset)
        trainer = self.trainer(mm.ChainOfStepSFTTrainer, policy, config, rows)
        if self.args.sft_accuracy is not None:
            questions, bound = problems_dataset(self.problems(100, 5, "new_pictures")), self.args.max_completion_length
            trainer.add_callback(miniature.stop_at(trainer, questions, self.args.sft_accuracy, bound))
        self.learn(trainer)

    def annotate(self) -> None:
        if self.args.label_dataset == "miniature":
            drawn = dict(self.args.drawn_labels)
            seen, unseen = self.problems(drawn.pop("problems"), 3), self.problems(drawn.pop("held_out"), 4)
            sampling = {"sampling_params": self.args.sampling_params, "batch_size": self.args.sampling_batch_size}
            miniature.label_drawn_chains(
                seen, unseen, self.engine(self.start), self.folder, **drawn, **sampling, seed=self.seed
            )

    def prm(self) -> None:
        config = self.config("prm")
        base, named = self.start, self.args.process_reward_base
        if named is not None:  # a miniature one is taught up to an accuracy of its own
            args = replace(self.args, cold_start_accuracy=self.args.process_reward_accuracy)
            model_args = replace(self.model_args, model_name_or_path=named)
            base = policy_path(args, model_args, config, miniature.PLAIN_ANSWERS)
        if self.args.label_dataset == "miniature":
            rows, evaluations = miniature.labelled_chains(self.folder)
        else:
            rows = read_labelled_chains(self.args.label_dataset)
            named = self.args.label_eval_datasets.items()
            evaluations = {name: read_labelled_chains(source) for name, source in named}
        trainer = self.trainer(mm.ProcessRewardTrainer, base, config, rows, eval_dataset=evaluations or None)
        self.learn(trainer)
        metrics = trainer.evaluate() if evaluations else {}
        trainer.save_metrics("eval", metrics, combined=False)
        self.say(format_process_reward(metrics), "prm/table.txt")

    def dpo(self) -> None:
        batch, bound = self.args.sampling_batch_size, self.args.max_completion_length
        bounds = {"max_completion_length": bound, "sampling_batch_size": batch, "scoring_batch_size": batch}
        config = self.config("dpo", **bounds)
        rows = self.train_rows.select(range(len(self.train_rows))[: self.args.dpo_questions])
        settings = {"process_reward_model": self.args.process_reward_model(), "eval_dataset": self.eval_rows}
        settings["grader"] = self.grader
        if self.args.vllm and not self.model_args.use_peft:  # adapters are sampled in training's own copy
            settings["sampler"] = self.sampler
        trainer = self.trainer(mm.IterativeDPOTrainer, self.start, config, rows, **settings)
        trainer.train()
        if trainer.is_world_process_zero():
            plot_rounds(trainer.rounds, self.folder / "dpo/rounds.png")

    def grpo(self) -> None:
        config = self.config("grpo", max_completion_length=self.args.max_completion_length)
        scorer, rows = self.args.process_reward_model(), self.train_rows
        settings = {"process_reward_model": scorer, "grader": self.grader}
        self.learn(self.trainer(mm.ChainOfStepGRPOTrainer, self.start, config, rows, **settings))

    def search(self) -> None:
        settings = {"n": 64, "step_weight": 0.2, "max_steps": MAX_STEPS, **self.args.search}
        scorer, batch = self.args.process_reward_model(), self.args.sampling_batch_size
        assert self.eval_rows is not None  # ChainOfStepArguments sees to it
        rows = self.eval_rows.select(range(len(self.eval_rows))[: self.args.search_questions])
        asking = {"folder": "search", "rows": rows, "sampling_params": self.args.sampling_params}
        best_of_n = Chains(scorer, settings["step_weight"])
        results = self.evaluate({"chains": self.start}, best_of_n, n=settings["n"], **asking)
        for k in group_sizes(settings["n"]):
            search = StepBeam(scorer, k, settings["max_steps"])
            results |= self.evaluate({f"beam-{k}": self.start}, search, **asking, batch_size=max(1, batch // k))
        self.compare(f"{format_results(results['chains'])}\n\n{format_overview(results)}", results, "search")

    def measure(self) -> None:
        rounds = sorted((self.folder / "dpo").glob("round-*/policy"))
        policies = {"SFT": self.folder / "sft/model", **{f"DPO-{path.parent.name}": path for path in rounds}}
        policies["GRPO"] = self.folder / "grpo/model"
        greedy = SamplingParams(self.args.max_completion_length, temperature=0)
        results = self.evaluate(policies, Chains(), sampling_params=greedy)
        self.compare(format_side_by_side(results), results)

    @property
    def start(self) -> str:
        """The initial policy of all other stages."""
        return made_by("sft", self.folder / "sft/model")


if __name__ == "__main__":
    ChainOfStep.main(ChainOfStepArguments)
