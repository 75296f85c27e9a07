"""What a miniature SRPO policy's reflections are worth: how often the second answer is right behind each kind.

    python benchmarks/reflections.py runs/srpo/reflection_sft/*/      # after the cold start
    python benchmarks/reflections.py runs/srpo                        # after reinforcement

Samples four responses to each of 150 drawn sums, as reinforcement does (temperature 1, top-p 0.95).
"""

from __future__ import annotations

import argparse
from collections import Counter

from trl_mmreason.miniature.solutions import remark
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.sampling import Failure, Request, SamplingParams
from trl_mmreason.sampling.transformers_engine import TransformersEngine
from trl_mmreason.srpo.response import parse_reflection_response

KINDS = {"finds the same": remark(), "finds a mistake": remark("").strip()}


def kind_of(reflection: str | None) -> str:
    """What a reflection says: one of `KINDS`, or "neither"."""
    said = (reflection or "").strip()
    return next((kind for kind, begin in KINDS.items() if said.startswith(begin)), "neither")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="path of a policy that SRPO's example trained on the miniature")
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--seed", type=int, default=999)
    arguments = parser.parse_args()
    problems = make_problems(["adding"], arguments.problems, seed=arguments.seed)
    requests = [Request(problem.prompt, [problem.image], n=4, seed=k) for k, problem in enumerate(problems)]
    engine = TransformersEngine(arguments.policy, batch_size=250)
    second_right: Counter[tuple[str, str]] = Counter()
    responses: Counter[tuple[str, str]] = Counter()
    for problem, samples in zip(problems, engine.sample(requests, SamplingParams(96, 1.0, 0.95)), strict=True):
        if isinstance(samples, Failure):
            raise RuntimeError(samples.reason)
        for sample in samples:
            response = parse_reflection_response(sample.text)
            case = ("right" if response.first_answer == problem.answer else "wrong", kind_of(response.reflection))
            responses[case] += 1
            second_right[case] += response.second_answer == problem.answer
    print("| first answer | reflection | responses | second answer right |")
    print("|---|---|---|---|")
    for case in sorted(responses):
        print(f"| {case[0]} | {case[1]} | {responses[case]} | {second_right[case] / responses[case]:.0%} |")


if __name__ == "__main__":
    main()
