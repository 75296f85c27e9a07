"""A vLLM server that samples one step ahead, beside one that training waits for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, GenerationConfig, TrainerCallback

from trl_mmreason import AdaPOConfig, AdaPOTrainer

from .common import GROUP, ROOT, Result, make_questions, save_policy
from .training import ALL_ROWS, prepare, settings


class Clock(TrainerCallback):
    """Notes when each update has ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())


def ahead(
    *,
    rounds: int = 3,
    rows: int = 16,
    batch: int = 8,
    steps: int = 8,
    mean: int = 32,
    longest: int = 64,
    size: str = "study",
) -> Result:
    """A step of AdaPO whose rollout was sampled while the one before was trained on; needs vLLM and two cores.

    The server runs on one core and training on another. A random policy ends each turn with the same probability at
    every token. At most 1.15 times the longer of sampling and all else is asked for, both of the same step, as other
    work on these cores slows all parts alike. A step without the option is the sum of the two.

    Args:
        rows: trajectories of a rollout.
        batch: trajectories of a micro-batch.
        steps: updates of a run, of which the first two are not measured.
        mean: tokens of a turn, about.
        longest: `max_completion_length`.
        size: of the miniature model.
    """
    for folder in ("engines", "helpers"):
        sys.path.append(str(ROOT / "tests" / folder))
    from policy_server import Server
    from processes import free_port

    training, serving = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {training})
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {"in turn": {}, "ahead": {}}
    with TemporaryDirectory() as folder:
        policy = str(Path(folder) / "model")
        _save_talkative(policy, size, mean)
        with Server(policy, Path(folder) / "log", "--max-num-seqs", str(rows), core=serving) as address:
            run = settings(rows, batch, use_vllm=True, vllm_mode="server", vllm_server_base_url=address, top_p=1.0)
            run |= {"max_steps": steps, "logging_steps": 1, "max_completion_length": longest}
            run |= {"vllm_server_timeout": 900.0}
            for number in range(rounds):
                for name in [*found][:: 1 if number % 2 else -1]:
                    run["vllm_group_port"] = free_port()
                    args = AdaPOConfig(folder, **run, **ALL_ROWS, generate_ahead=name == "ahead")
                    for part, seconds in _parts(AdaPOTrainer, policy, args, rows // GROUP * steps).items():
                        found[name].setdefault(part, []).extend(seconds)
    medians = {name: {part: median(each) for part, each in parts.items()} for name, parts in found.items()}
    print("| | step | sampling | weights to the server | training |\n|---|---|---|---|---|")
    for name, parts in medians.items():
        print(
            f"| {name} | {' | '.join(f'{parts[part]:.2f} s' for part in ('step', 'sampling', 'weights', 'training'))} |"
        )
    own = found["ahead"]
    longer = [max(parts) + sent for *parts, sent in zip(own["sampling"], own["training"], own["weights"], strict=True)]
    ratio = median(np.divide(own["step"], longer).tolist())
    summed = [sum(parts) for parts in zip(own["sampling"], own["training"], own["weights"], strict=True)]
    gain = median(np.divide(summed, own["step"]).tolist())
    print(f"a step ahead: {ratio:.2f} of its longer part and the weights; x {1 / gain:.2f} of the sum of its parts")
    others = medians["ahead"]["step"] / medians["in turn"]["step"]
    print(f"beside steps in turn, which were taken at other times: x {others:.2f}")
    result = Result({"seconds": found, "ratio": ratio, "of the sum": 1 / gain, "of steps in turn": others})
    result.check(ratio <= 1.15, f"A step takes {ratio:.2f} of its longer part; 1.15 is asked for.")
    return result


def _save_talkative(policy: str, size: str, mean: int) -> None:
    """Save a random policy that ends about every `mean`-th token."""
    save_policy(Path(policy), size)
    generation = GenerationConfig.from_pretrained(policy)
    tokens = AutoConfig.from_pretrained(policy).get_text_config().vocab_size
    generation.eos_token_id = [*range(tokens - tokens // mean, tokens)]
    generation.save_pretrained(policy)


def _parts(kind: type[AdaPOTrainer], policy: str, args: AdaPOConfig, questions: int) -> dict[str, list[float]]:
    """Seconds of each measured step, and of its parts, as training sees them."""
    trainer = kind(policy, args=args, train_dataset=make_questions(questions))
    trainer.add_callback(clock := Clock())
    sent: list[float] = []
    sampled: list[float] = []  # by the server, while training goes on
    trainer.vllm_generation.sync_weights = _timed(trainer.vllm_generation.sync_weights, sent)
    if trainer._ahead is not None:
        trainer._ahead._sampled = _timed(trainer._ahead._sampled, sampled)  # type: ignore[method-assign]
    prepare(trainer)
    waited = [each["time/generation"] for each in trainer.state.log_history if "time/generation" in each]
    steps = [later - earlier for earlier, later in zip(clock.ends[:-1], clock.ends[1:], strict=True)]
    training = [step - waits for step, waits in zip(steps, waited[1:], strict=True)]
    # the first rollout is waited for; the one that is sampled while a step trains is the next one's
    beside = sampled[2:] if sampled else [waits - weights for waits, weights in zip(waited[1:], sent[1:], strict=True)]
    measured = list(zip(steps, beside, sent[1:], training, strict=False))[1:]  # none is sampled beside the last step
    return dict(zip(("step", "sampling", "weights", "training"), map(list, zip(*measured, strict=True)), strict=True))


def _timed(work: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The same work, which adds the seconds that it takes."""

    def timed(*arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return work(*arguments)
        finally:
            seconds.append(time.perf_counter() - begun)

    return timed
