"""Measure a process reward model on VisualProcessBench.

Score every step of the benchmark's solutions and print the F1 of correct and of incorrect steps and their mean, the
macro F1, for each source of questions and overall, as its authors compute it. Neutral steps do not count. SOURCE is the
benchmark's test.jsonl with its images unpacked beside it, or other labelled steps that load_rows reads.

example: mmreason step-f1 VisualProcessBench/test.jsonl --process-reward runs/chain_of_step/prm/model
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from . import parsers
from .command_options import check_output


def add(command: ArgumentParser) -> None:
    add = command.add_argument
    add("source", metavar="SOURCE", help="file of labelled steps")
    model = "process reward model: path or Hub id, or address of its server"
    add("--process-reward", required=True, metavar="MODEL|URL", help=model)
    add("--threshold", type=parsers.share, default=0.5, help="lowest score of a step that counts as correct")
    add("--image-root", help="base folder of relative image paths; by default the file's")
    add("--batch-size", type=parsers.count, default=8, help="solutions scored in one batch")
    add("--max-rows", type=parsers.count, metavar="N", help="score only the first N solutions, for a trial")
    add("--output", type=Path, help="JSON file for the numbers and the scores of every step")


def run(arguments: Namespace) -> None:
    from ...chain_of_step.labelled_steps import chains_of_steps
    from ...chain_of_step.process_reward_client import process_reward_from
    from ...evaluation.benchmarks.process import LABELS, SOLUTIONS, load_process_benchmark
    from ...evaluation.metrics import number_as_json
    from ...evaluation.step_f1 import format_step_f1, step_f1

    output = arguments.output
    if output:
        check_output(output)
    process_reward = process_reward_from(arguments.process_reward)
    rows = load_process_benchmark(arguments.source, image_root=arguments.image_root, max_rows=arguments.max_rows)
    chains = chains_of_steps(rows)
    scores: list[list[float]] = []
    for start in range(0, len(chains), arguments.batch_size):
        batch = [chains[place] for place in range(start, min(start + arguments.batch_size, len(chains)))]
        scores += [one.steps.tolist() for one in process_reward.score(batch)]
    labels = chains["step_labels"][:]
    results = step_f1(scores, labels, chains["category"][:], arguments.threshold)
    lines = [f"{len(chains)} solutions, F1 in percent, threshold {arguments.threshold:g}", format_step_f1(results)]
    labelled = sum(map(len, labels))
    if (len(chains), labelled) != (SOLUTIONS, LABELS):
        lines.append(f"VisualProcessBench has {SOLUTIONS} solutions of {LABELS} steps; these are {labelled} steps.")
    if output:
        numbers = {
            name: {
                "macro": one.macro.as_json(),
                **{kind: number_as_json(getattr(one, kind).value) for kind in ("correct", "incorrect")},
            }
            for name, one in results.items()
        }
        samples = [
            {"id": id_, "scores": given, "labels": right}
            for id_, given, right in zip(chains["id"], scores, labels, strict=True)
        ]
        content = {"process_reward": process_reward.settings, "threshold": arguments.threshold, "f1": numbers}
        output.write_text(json.dumps({**content, "solutions": samples}, indent=1), encoding="utf-8")
        lines.append(str(output))
    print("\n".join(lines))  # noqa: T201 - what the command is asked for
