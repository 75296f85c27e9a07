"""SOPHIA from captions and a reasoner's thoughts to a policy that thinks.

    accelerate launch examples/sophia.py --config configs/sophia/miniature.yaml

    warm_up       the policy learns to describe images                          → OUTPUT/warm_up/model
    trajectories  it describes, a reasoner thinks, the best trajectories earn     → OUTPUT/trajectories.parquet
    update        the policy learns from these rows                               → OUTPUT/update/model
    grpo          GRPO continues from there                                       → OUTPUT/grpo/model
    base_grpo     GRPO without any of this, from the initial policy               → OUTPUT/base_grpo/model
    (always)      every policy's answers, side by side                            → OUTPUT/evaluation/

What is finished is not done again, and what was killed resumes. `--stages update` does one alone. A configuration file
holds the fields of `SophiaArguments` and TRL's `ModelConfig`, with a section for each stage; `--output_dir runs/other`
or `--update.beta 0.01` overrides.
"""

from functools import cached_property

from accelerate import PartialState
from datasets import Dataset

from trl_mmreason import MixedGroupsGRPOTrainer, OffPolicyRewardTrainer
from trl_mmreason.data.folders import atomic_path
from trl_mmreason.data.row_sources import read_completions
from trl_mmreason.evaluation.files import format_side_by_side
from trl_mmreason.generation import SamplingParams
from trl_mmreason.generation.protocols import Direct
from trl_mmreason.jobs.difficulty import difficulty_filter
from trl_mmreason.jobs.store import Store
from trl_mmreason.miniature.captions import DESCRIBE
from trl_mmreason.scripts.refusals import WrongArgument
from trl_mmreason.scripts.sections import made_by
from trl_mmreason.scripts.stages import Pipeline
from trl_mmreason.sophia.miniature import reasoner_path
from trl_mmreason.sophia.mixture import mix, mix_in, with_captions
from trl_mmreason.sophia.prompts import CAPTION_PROMPT
from trl_mmreason.sophia.recipe import CAPTIONS_AND_ANSWERS, SophiaArguments, drawn_trajectories


class Sophia(Pipeline):
    """The stages, one method each."""

    def warm_up(self) -> None:
        if self.args.warm_up_dataset is not None:
            rows = mix({"": read_completions(self.args.warm_up_dataset)}, {"": 1.0})
            config = self.config("warm_up")
            self.learn(self.trainer(OffPolicyRewardTrainer, self.base, config, rows))

    def trajectories(self) -> None:
        source = self.args.trajectory_dataset
        rows = self.drawn() if source == "miniature" else read_completions(source)
        if PartialState().is_main_process:
            with atomic_path(self.folder / "trajectories.parquet") as unfinished:
                rows.to_parquet(str(unfinished))

    def drawn(self) -> Dataset:
        """Trajectories on drawn problems, by a tiny reasoner or by the rule that taught it."""
        category, reasoner = self.args.dataset_name.rpartition("/")[2], None
        if self.args.reasoner == "model":
            reasoner = self.engine(reasoner_path(self.folder / "reasoner", category, seed=self.seed))
        problems, replies = self.problems(self.args.drawn_problems, 2), self.folder / "trajectories.sqlite"
        settings = {"seed": self.seed, "batch_size": self.args.sampling_batch_size, **self.args.sampling}
        settings |= {"reasoner": reasoner, "thinking_prompt": self.args.thinking_prompt}
        data = drawn_trajectories(self.engine(self.start), problems, replies, **settings)
        self.say(str(data))
        return data.rows

    def update(self) -> None:
        rows = Dataset.from_parquet(made_by("trajectories", self.folder / "trajectories.parquet"))
        default = DESCRIBE if self.args.trajectory_dataset == "miniature" else CAPTION_PROMPT
        caption_prompt = self.args.sampling.get("caption_prompt", default)
        rows = with_captions(rows, self.args.captions_as_data, caption_prompt=caption_prompt)
        if self.args.mixed_in:
            rows = mix_in(rows, self.args.mixed_in, thinking_prompt=self.args.thinking_prompt, seed=self.seed)
        config = self.config("update")
        self.learn(self.trainer(OffPolicyRewardTrainer, self.start, config, rows))

    def grpo(self) -> None:
        self.reinforce(made_by("update", self.folder / "update/model"), "grpo")

    def base_grpo(self) -> None:
        self.reinforce(self.base, "base_grpo")

    def reinforce(self, policy: str, name: str) -> None:
        """GRPO on the questions that the initial policy finds neither too easy nor too hard (appendix B.2)."""
        bound, rows = self.args.max_completion_length, self.train_rows
        settings = {"system_prompt": self.args.thinking_prompt, "grader": self.grader}
        if self.args.difficulty.get("n") != 0:
            sampling = {"seed": self.seed, "batch_size": self.args.sampling_batch_size}
            sampling["sampling_params"] = SamplingParams(bound)
            with Store(self.folder / "difficulty.sqlite") as store:
                kept = difficulty_filter(
                    rows, self.sampler(self.base), store, **settings, **sampling, **self.args.difficulty
                )
            self.say(f"{name}: {kept}")
            if not len(rows := kept.rows):
                raise WrongArgument(f"{name}: no question is left; widen --difficulty.low and --difficulty.high")
        config = self.config("grpo", name, max_completion_length=bound)
        self.learn(self.trainer(MixedGroupsGRPOTrainer, policy, config, rows, **settings))

    def measure(self) -> None:
        names = {"SOPHIA": "update", "SOPHIA-GRPO": "grpo", "GRPO": "base_grpo"}
        policies = {"before": self.start, **{name: self.folder / stage / "model" for name, stage in names.items()}}
        sampling_params = SamplingParams(**{"max_new_tokens": self.args.max_completion_length, **self.args.evaluation})
        settings = {"sampling_params": sampling_params, "system_prompt": self.args.thinking_prompt}
        results = self.evaluate(policies, Direct(), **settings)
        self.compare(format_side_by_side(results), results)

    @cached_property
    def base(self) -> str:
        """The initial policy."""
        return self.first_policy(self.config("warm_up"), CAPTIONS_AND_ANSWERS)

    @property
    def start(self) -> str:
        """The policy before the update."""
        return made_by("warm_up", self.folder / "warm_up/model") if self.args.warm_up_dataset else self.base


if __name__ == "__main__":
    Sophia.main(SophiaArguments)
