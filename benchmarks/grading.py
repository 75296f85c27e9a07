"""How fast and how right our grader is, side by side with TRL's `accuracy_reward` and math-verify, in one run.

Speed: a batch of answers drawn from a seed, 45 % plain numbers, 25 % letters, 25 % LaTeX, 4 % hard and 1 % hostile,
each at the end of a completion as a model writes it; half are right. Golds are boxed for the others, which cannot read
most of them otherwise. The graders take turns, and every round draws new answers.

Ours grades a batch as a whole with its default two workers, which are started beforehand, in a new process for every
batch, so that its cache of verdicts is cold; "warm cache" is the same batch once more. Each of the others runs in a
process of its own that grades one answer after the other on its main thread, where its own time-outs work. What takes
longer than --cap is killed and counts as the cap. They get a sample of each category: their answers per second on the
mix follow from the mean seconds of each category and its share.

"math-verify + letters" also looks for letters that are no mathematics, in answers and golds.

Accuracy (--labelled): the set of labelled answers that the tests use. The others get the gold as it is and boxed, and
the better of the two counts; a hang is wrong, and a missing reward is right where the gold cannot be used.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from grading_answers import SHARES, Item, draw

from trl_mmreason.grading import Grader

LABELLED = Path(__file__).parent.parent / "tests" / "grading" / "labelled.jsonl"
OTHERS = {
    "trl": "TRL accuracy_reward",
    "math-verify": "math-verify",
    "math-verify-letters": "math-verify + letters",
}
CHILD_START_SECONDS = 120.0
NEEDS_WORKER = [(r"\boxed{\sum_{k=1}^{9} k}", "45"), (r"\boxed{\sum_{k=1}^{8} k}", "36")]


# ------------------------------------------------------------------------------------------------------------- graders


def serve(name: str) -> None:
    """Grades line by line, from standard input, with another library: `[completion, gold]` → `[correct, seconds]`."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, StringExtractionConfig, parse, verify
    from trl.rewards import accuracy_reward

    letters = [LatexExtractionConfig(), ExprExtractionConfig(), StringExtractionConfig()]

    def grade(completion: str, gold: str) -> bool | None:
        if name == "trl":
            reward = accuracy_reward([[{"role": "assistant", "content": completion}]], [gold])[0]
            return None if reward is None else reward == 1
        options: dict[str, Any] = {"extraction_config": letters} if name == "math-verify-letters" else {}
        parsed = parse(gold, **options)
        letter = gold.removeprefix(r"\boxed{").removesuffix("}")
        if options and len(letter) == 1 and letter.isalpha():
            parsed.append(letter)
        return verify(parsed, parse(completion, **options)) if parsed else None

    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    for line in sys.stdin:
        completion, gold = json.loads(line)
        start = time.perf_counter()
        correct = grade(completion, gold)
        print(json.dumps([correct, time.perf_counter() - start]), file=answers, flush=True)


def serve_ours() -> None:
    """Grades a batch, from standard input, twice; and tells what starting took.

    Prints seconds: `plain` (a first answer), `worker` (a first one that needs a worker), `second` (another such one),
    `cold` and `warm` (the batch, for the first time and again); and `correct`, the verdicts.
    """
    marks = [time.perf_counter()]
    grader = Grader()
    for completion, gold in [(r"\boxed{7.0}", "7"), *NEEDS_WORKER]:
        if not grader.grade(completion, gold).correct:
            raise RuntimeError(f"{completion} against {gold} is graded wrong.")
        marks.append(time.perf_counter())
    rows = [{"completion": completion, "gold": gold} for completion, gold in json.load(sys.stdin)]
    marks.append(time.perf_counter())
    for _ in range(2):
        verdicts = grader.grade_batch(rows)
        marks.append(time.perf_counter())
    took = [late - early for early, late in zip(marks, marks[1:], strict=False)]
    names = ("plain", "worker", "second", "read", "cold", "warm")
    print(json.dumps(dict(zip(names, took, strict=True)) | {"correct": [verdict.correct for verdict in verdicts]}))


@dataclass
class Other:
    """Another grader, in a process that is killed when an answer takes longer than `cap_seconds`."""

    name: str
    cap_seconds: float
    hangs: int = 0
    process: subprocess.Popen[str] | None = None

    def grade(self, completion: str, gold: str) -> tuple[bool | None, float]:
        """The reward as a truth value, and the seconds it took; a hang or a crash is False and takes the cap."""
        if self.process is None:
            command = [sys.executable, __file__, "--serve", self.name]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            ask(self.process, r"\boxed{1}", r"\boxed{1}", CHILD_START_SECONDS)
        answer = ask(self.process, completion, gold, self.cap_seconds)
        if answer is None:
            self.hangs += 1
            self.close()
            return False, self.cap_seconds
        return answer

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def ask(process: subprocess.Popen[str], completion: str, gold: str, seconds: float) -> tuple[bool | None, float] | None:
    """What `serve` says in that process; `None` if it says nothing in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([completion, gold]) + "\n")
    process.stdin.flush()
    with DefaultSelector() as selector:
        selector.register(process.stdout, EVENT_READ)
        line = process.stdout.readline() if selector.select(seconds) else ""
    return tuple(json.loads(line)) if line else None


def ours(items: list[Item]) -> dict[str, Any]:
    """What `serve_ours` says of a batch, in a new process."""
    rows = json.dumps([(item.completion, item.gold) for item in items])
    command = [sys.executable, __file__, "--serve", "ours"]
    return json.loads(subprocess.run(command, input=rows, stdout=subprocess.PIPE, text=True, check=True).stdout)


# --------------------------------------------------------------------------------------------------------------- speed


@dataclass
class Figure:
    """One category, or the mix, for one grader: seconds per answer, and the share rightly graded, of each round."""

    seconds: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def add(self, seconds: float, graded: list[bool | None], items: list[Item]) -> None:
        self.seconds.append(seconds / len(items))
        self.right.append(statistics.mean(was == item.right for was, item in zip(graded, items, strict=True)))

    @property
    def per_second(self) -> float:
        return 1 / statistics.median(self.seconds)


Figures = dict[str, dict[str, Figure]]  # grader → category → figure


def measure_speed(arguments: argparse.Namespace) -> tuple[Figures, dict[str, int], dict[str, float]]:
    """Rounds over new batches. Also how many answers of each other grader were cut, and what starting ours took."""
    figures: Figures = {name: defaultdict(Figure) for name in ("ours", *OTHERS)}
    others = [Other(name, arguments.cap) for name in OTHERS]
    sample = {"hard": arguments.hard, "hostile": arguments.hostile}
    starts: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        rng = random.Random(number)
        batches = {part: draw(part, round(arguments.answers * share), rng) for part, share in SHARES.items()}
        turns = [None, *others] if number % 2 == 0 else [*reversed(others), None]
        for other in turns:
            if other is None:
                starts += measure_ours(batches, figures["ours"], rng)
            elif number < arguments.others_rounds:
                sampled = {part: items[: sample.get(part, arguments.sample)] for part, items in batches.items()}
                measure_other(other, sampled, figures[other.name])
    for other in others:
        other.close()
    starting = {part: statistics.median(start[part] for start in starts) for part in ("plain", "worker", "second")}
    return figures, {other.name: other.hangs for other in others}, starting


def measure_ours(
    batches: dict[str, list[Item]], figures: dict[str, Figure], rng: random.Random
) -> list[dict[str, Any]]:
    """The mix, cold and warm, and every category on its own."""
    mix = [item for items in batches.values() for item in items]
    rng.shuffle(mix)
    said = {part: ours(items) for part, items in {"mix": mix, **batches}.items()}
    for part, items in {"mix": mix, **batches}.items():
        for name, cache in ((part, "cold"), (f"{part}, warm cache", "warm")):
            figures[name].add(said[part][cache], said[part]["correct"], items)
    return list(said.values())


def measure_other(other: Other, batches: dict[str, list[Item]], figures: dict[str, Figure]) -> None:
    """A sample of every category, one answer after the other; the mix follows from the shares."""
    for part, items in batches.items():
        graded = [other.grade(item.completion, rf"\boxed{{{item.gold}}}") for item in items]
        figures[part].add(sum(seconds for _, seconds in graded), [correct for correct, _ in graded], items)
    figures["mix"].seconds.append(sum(share * figures[part].seconds[-1] for part, share in SHARES.items()))
    figures["mix"].right.append(sum(share * figures[part].right[-1] for part, share in SHARES.items()))


# ------------------------------------------------------------------------------------------------------------ accuracy


def grade_any(other: Other, completion: str, golds: list[str]) -> bool | None:
    """The reward against a list of golds: right if any is met, missing if none can be used."""
    rewards = [other.grade(completion, gold)[0] for gold in golds]
    return None if all(reward is None for reward in rewards) else any(rewards)


def accuracy_of_ours(cases: list[dict[str, Any]]) -> Counter[str]:
    """Rightly decided cases by category."""
    logging.getLogger("trl_mmreason").setLevel(logging.ERROR)  # golds that cannot be used are meant to be there
    graders = {"strict": Grader(), "lenient": Grader(tolerance="lenient")}
    right: Counter[str] = Counter()
    for case in cases:
        grader = graders[case.get("tolerance", "strict")]
        options = {name: case.get(name) for name in ("choices", "question")}
        right[case["category"]] += grader.grade(case["completion"], case["gold"], **options).correct is case["expected"]
    return right


def accuracy_of_other(name: str, cases: list[dict[str, Any]], cap_seconds: float) -> tuple[Counter[str], str]:
    """Rightly decided cases by category with the better form of gold, and that form with the number of hangs."""
    tries = []
    for form, write in (("gold as it is", "{}"), ("gold boxed", r"\boxed{{{}}}")):
        other, right = Other(name, cap_seconds), Counter[str]()
        for case in cases:
            golds = [case["gold"]] if isinstance(case["gold"], str) else case["gold"]
            reward = grade_any(other, case["completion"], [write.format(gold) for gold in golds])
            right[case["category"]] += reward is case["expected"]
        other.close()
        tries.append((right, f"{form}, {other.hangs} hangs"))
    return max(tries, key=lambda result: result[0].total())


def measure_accuracy(cap_seconds: float) -> dict[str, Any]:
    """Prints rightly decided cases by category for every grader, and returns them."""
    cases = [json.loads(line) for line in LABELLED.read_text(encoding="utf-8").splitlines()]
    sizes = Counter(case["category"] for case in cases)
    results = {"ours": (accuracy_of_ours(cases), "gold as it is")}
    results |= {title: accuracy_of_other(name, cases, cap_seconds) for name, title in OTHERS.items()}
    print(f"{'rightly decided':22}{'cases':>7}" + "".join(f"{title:>22}" for title in results))
    for category, size in sizes.items():
        print(f"{category:22}{size:7}" + "".join(f"{right[category]:22}" for right, _ in results.values()))
    print(f"{'all':22}{len(cases):7}" + "".join(f"{right.total():22}" for right, _ in results.values()))
    print(f"{'share':29}" + "".join(f"{right.total() / len(cases):22.1%}" for right, _ in results.values()))
    print(f"{'':29}" + "".join(f"{form:>22}" for _, form in results.values()))
    return {title: {"right": right, "how": form} for title, (right, form) in results.items()} | {"cases": sizes}


# -------------------------------------------------------------------------------------------------------------- output


def print_speed(figures: Figures, hangs: dict[str, int], starting: dict[str, float]) -> None:
    """Answers per second, ours over each other's, and shares of right verdicts."""
    columns = {"ours": "ours", **OTHERS}
    print(f"{'answers per second':22}" + "".join(f"{title:>22}" for title in columns.values()))
    for part, mine in figures["ours"].items():
        cells = [f"{mine.per_second:22,.0f}"]
        for name in OTHERS:
            other = figures[name].get(part)
            if other:
                ratio = mine.per_second / other.per_second
                cells.append(f"{f'{other.per_second:,.1f} (x {ratio:,.0f})':>22}")
        print(f"{part:22}" + "".join(cells))
    print(f"\n{'rightly graded':20}" + "".join(f"{title:>22}" for title in columns.values()))
    for part in ("mix", *SHARES):
        print(f"{part:20}" + "".join(f"{statistics.mean(figures[name][part].right):22.1%}" for name in columns))
    print(f"{'cut at the cap':20}" + f"{0:22}" + "".join(f"{hangs[name]:22}" for name in OTHERS))
    print("\nours in a new process, seconds: first answer {plain:.4f},".format(**starting))
    print("first that needs a worker {worker:.2f}, second such {second:.4f}".format(**starting))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labelled", action="store_true", help="accuracy on the labelled answers instead of speed")
    parser.add_argument("--answers", type=int, default=2000, help="in a batch")
    parser.add_argument("--rounds", type=int, default=5, help="of ours")
    parser.add_argument("--others-rounds", type=int, default=3, help="of the others, from the first on")
    parser.add_argument("--sample", type=int, default=100, help="of each ordinary category that the others get a round")
    parser.add_argument("--hard", type=int, default=20, help="of the hard ones that the others get a round")
    parser.add_argument("--hostile", type=int, default=3, help="of the hostile ones that the others get a round")
    parser.add_argument("--cap", type=float, default=10.0, help="seconds after which another grader is killed")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--serve", choices=["ours", *OTHERS], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not 1 <= arguments.others_rounds <= arguments.rounds:
        parser.error(f"--others-rounds {arguments.others_rounds}: expected 1 to --rounds, which is {arguments.rounds}")
    if arguments.answers < 100:
        parser.error(f"--answers {arguments.answers}: expected 100 or more, of which one is hostile")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.serve == "ours":
        serve_ours()
        return
    if arguments.serve:
        serve(arguments.serve)
        return
    if arguments.labelled:
        numbers = measure_accuracy(arguments.cap)
    else:
        figures, hangs, starting = measure_speed(arguments)
        print_speed(figures, hangs, starting)
        seconds = {name: {part: asdict(figure) for part, figure in parts.items()} for name, parts in figures.items()}
        numbers = {"figures": seconds, "hangs": hangs, "start_up_seconds": starting}
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2))


if __name__ == "__main__":
    main()
