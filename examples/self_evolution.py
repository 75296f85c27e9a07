"""Self-evolution without labels: the policy learns from its own votes, modulated by a judge.

    accelerate launch examples/self_evolution.py --config configs/self_evolution/miniature.yaml

Trains (OUTPUT/evolve), and measures accuracy, which nobody trained on, before and after (OUTPUT/evaluation). What is
finished is not done again, and what was killed resumes. A configuration file holds the fields of `EvolutionArguments`
and TRL's `ModelConfig`; `--output_dir runs/other` or `--evolution.alpha 2` overrides.

Policies are measured under their official prompt, without `actor_prompt`. A second start with
`--measure_with_actor_prompt true` measures the same policies under the prompt of training.
"""

from functools import cached_property, partial
from typing import Any

from trl_mmreason import SelfEvolutionConfig, SelfEvolutionTrainer
from trl_mmreason.evaluation.files import format_side_by_side
from trl_mmreason.generation import SamplingParams
from trl_mmreason.generation.protocols import Direct
from trl_mmreason.generation.server_engine import ServerEngine
from trl_mmreason.scripts.stages import Pipeline
from trl_mmreason.self_evolution.prompts import judge_message
from trl_mmreason.self_evolution.recipe import EvolutionArguments, judged_answers


class SelfEvolution(Pipeline):
    """Training, and accuracy before and after."""

    @cached_property
    def settings(self) -> SelfEvolutionConfig:
        return self.config("evolution", "evolve")

    @cached_property
    def start(self) -> str:
        """The initial policy."""
        return self.first_policy(self.settings, judged_answers(partial(judge_message, self.settings.judge_prompt)))

    def evolve(self) -> None:
        judge: dict[str, Any] = {"grader": self.args.rules}
        if self.args.judge_server and self.settings.judge:
            judge["judge"] = ServerEngine(self.args.judge_model, base_url=self.args.judge_server)
        self.learn(self.trainer(SelfEvolutionTrainer, self.start, self.settings, self.train_rows, **judge))

    def measure(self) -> None:
        bound, folder, prompt = self.settings.max_completion_length, "evaluation", self.settings.eval_system_prompt
        if self.args.measure_with_actor_prompt:
            folder, prompt = "evaluation-actor-prompt", self.settings.actor_prompt
        policies = {"before": self.start, "self-evolution": self.folder / "evolve/model"}
        asking: dict[str, Any] = {"n": self.args.answers, "system_prompt": prompt, "folder": folder}
        asking["sampling_params"] = SamplingParams(**{"max_new_tokens": bound, **self.args.evaluation})
        results = self.evaluate(policies, Direct(), **asking)
        self.compare(format_side_by_side(results), results, folder)


if __name__ == "__main__":
    SelfEvolution.main(EvolutionArguments)
