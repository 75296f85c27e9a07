"""Parts of the rollout scheduler, side by side with what they replace, on the standard workload."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.miniature.models import SIZES

from .common import GROUP, ROOT, Result, lengths, make_questions, report, save_policy, take_turns
from .training import ALL_ROWS, ReplayAdaPO, draw_two_turns, measure_batch, prepare, settings


class CountsPasses(ReplayAdaPO):
    """Counts the passes of a rollout batch that lead to gradients.

    Attributes:
        passes: so many since it was last set to 0.
    """

    passes = 0

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self.passes += 1
        return super()._loss_of(model, inputs)


def micro_batches(
    *, rounds: int = 7, size: str = "study", questions: int = 4, batch: int = 4, share: float = 0.75
) -> Result:
    """Micro-batches by tokens beside those of a fixed number of rows, both of rows of similar length.

    Both train AdaPO on the same rollout batch, with answers drawn beforehand, from scoring to gradients. The bound is a
    share of the tokens of the largest micro-batch by rows. Fewer passes and a lower peak are asked for.

    Args:
        size: of the miniature model.
        questions: questions in a rollout batch, with 8 trajectories each.
        batch: trajectories in a micro-batch by rows.
        share: of the largest micro-batch by rows.
    """
    asked = make_questions(questions)
    rows = [row for row in asked for _ in range(GROUP)]
    gpu = torch.cuda.is_available()
    with TemporaryDirectory() as folder:
        save_policy(Path(folder) / "model", size)

        def trainer_of(rows_a_pass: int, most: int | None) -> CountsPasses:
            run = settings(len(rows), rows_a_pass, gradient_checkpointing=gpu, beta=0.001)
            args = AdaPOConfig(folder, **run, **ALL_ROWS, max_tokens_per_micro_batch=most)
            return CountsPasses(str(Path(folder) / "model"), args=args, train_dataset=asked)

        by_rows = trainer_of(batch, None)
        whole = lengths(len(rows), shortest=len(by_rows._followup_ids) + 2)
        answers = draw_two_turns(by_rows, whole)
        by_rows.replayed = answers
        prepare(by_rows)
        largest = max(
            each["completion_mask"].numel() + each["prompt_mask"].numel() for each in by_rows._buffered_inputs
        )
        by_tokens = trainer_of(len(rows), round(share * largest))
        by_tokens.replayed = answers
        prepare(by_tokens)
        contestants = {"by rows": by_rows, "by tokens": by_tokens}
        work = {name: partial(measure_batch, trainer, rows) for name, trainer in contestants.items()}
        seconds, measured = take_turns(work, rounds)
    peaks = {name: [mebibytes for _, mebibytes in each] for name, each in measured.items()}
    passes = {name: trainer.passes / (rounds + 2) for name, trainer in contestants.items()}
    ratio = report(seconds, "by tokens", "by rows", title="a rollout batch")
    most = {name: median(each) for name, each in peaks.items()}
    for name in contestants:
        print(f"{name}: {passes[name]:.0f} passes, {most[name]:.0f} MiB at most")
    result = Result({"seconds": seconds, "mebibytes": peaks, "passes": passes})
    result.check(ratio <= 1.05, f"It takes {ratio:.2f} of the time.")
    result.check(passes["by tokens"] < passes["by rows"], "It makes no fewer passes.")
    result.check(most["by tokens"] < most["by rows"], "It holds no less memory.")
    return result


def weight_sync(*, rounds: int = 5, layers: int = 33) -> Result:
    """Hand a policy's weights to a colocated vLLM in buckets, beside TRL's way, weight by weight; needs vLLM.

    Args:
        layers: of the language model, twelve weights each.
    """
    sys.path.append(str(ROOT / "tests" / "engines"))
    from trl.generation.vllm_generation import VLLMGeneration
    from vllm_cpu import let_cpus_take_vllm

    let_cpus_take_vllm()
    with TemporaryDirectory() as folder:
        SIZES["deep"] = replace(SIZES["study"], layers=layers)
        save_policy(Path(folder) / "model", "deep")
        gpu = torch.cuda.is_available()
        run = settings(GROUP, GROUP, use_vllm=True, top_p=1.0, vllm_max_model_length=512, max_completion_length=8)
        run |= {"vllm_gpu_memory_utilization": 0.2} if gpu else {}
        args = AdaPOConfig(folder, **run)
        trainer = AdaPOTrainer(str(Path(folder) / "model"), args=args, train_dataset=make_questions(1))
        generation = trainer.vllm_generation
        ways = {"weight by weight": VLLMGeneration.sync_weights, "in buckets": type(generation).sync_weights}
        seconds, _ = take_turns({name: partial(way, generation) for name, way in ways.items()}, rounds)
        count = sum(1 for _ in trainer.model.parameters())
    ratio = report(seconds, "in buckets", "weight by weight", title=f"{count} weights")
    result = Result({"seconds": seconds, "weights": count})
    result.check(ratio <= 0.5, f"It takes {ratio:.2f} of the time; half is asked for.")
    return result
