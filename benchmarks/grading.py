"""How fast and how right our grader is, beside TRL's `accuracy_reward` and math-verify."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import TimeoutError, get_context
from multiprocessing.pool import Pool
from statistics import median
from typing import Any

from trl_mmreason.grading import Grader

from .common import ROOT, Result, run_apart

SHARES = {"plain": 0.45, "letters": 0.25, "latex": 0.25, "hard": 0.04, "hostile": 0.01}
"""What a mixed batch is made of."""
SAMPLED = {"plain": 100, "letters": 100, "latex": 100, "hard": 20, "hostile": 3}
"""Answers of each category that other graders get in a round."""
OTHERS = {"trl": "TRL accuracy_reward", "math-verify": "math-verify"}
CHILD_START_SECONDS = 120.0

Pairs = list[tuple[str, str]]
"""Completions to grade, and their golds."""


# ------------------------------------------------------------------------------------------------------ drawn answers


def plain(rng: random.Random) -> tuple[str, str, str]:
    """A gold, a right answer to it and a wrong one."""
    number, cents = rng.randint(2, 99_999), rng.randint(1, 99)
    return rng.choice(
        [
            (str(number), str(number), str(number + rng.randint(1, 9))),
            (str(number), f"{number:,}", f"{number * 10:,}"),
            (f"{number}.{cents:02}", f"{number}.{cents:02}0", f"{number + 1}.{cents:02}"),
            (f"{number} cm", f"{number} cm", f"{number + 1} cm"),
            (f"-{number}", f"-{number}.0", str(number)),
        ]
    )


def letter(rng: random.Random) -> tuple[str, str, str]:
    gold, other = rng.sample("ABCDE", 2)
    form = rng.choice(["{}", "({})", "{}.", r"\text{{{}}}"])
    return gold, form.format(gold), form.format(other)


def latex(rng: random.Random) -> tuple[str, str, str]:
    a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 9)
    return rng.choice(
        [
            (rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{a * c}}}{{{b * c}}}", rf"\frac{{{a + 1}}}{{{b}}}"),
            (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}", rf"{a + 1}\sqrt{{{b}}}"),
            (rf"{a}\pi", rf"\frac{{{a * c}\pi}}{{{c}}}", rf"{a + c}\pi"),
            (f"({a}, -{b})", rf"\left({a}, -{b}\right)", f"(-{b}, {a})"),
            (f"{a}x+{b}", f"{b} + {a}x", f"{a}x-{b}"),
            (rf"{c}\frac{{1}}{{{b}}}", rf"\frac{{{c * b + 1}}}{{{b}}}", rf"\frac{{{c * b + 2}}}{{{b}}}"),
            (rf"[{a}, \infty)", rf"[{a}, +\infty)", rf"({a}, \infty)"),
            (f"x = {a}", str(a), f"x = {a + 1}"),
            (rf"{a} \times 10^{{{c}}}", str(a * 10**c), rf"{a} \times 10^{{{c + 1}}}"),
        ]
    )


def root(radicand: int | str) -> str:
    return rf"\sqrt{{{radicand}}}"


def hard(rng: random.Random) -> tuple[str, str, str]:
    a, b, c = rng.randint(2, 30), rng.randint(31, 60), rng.randint(2, 9)
    return rng.choice(
        [
            (root(a) + "+" + root(b), root(f"{a + b}+2{root(a * b)}"), root(f"{a + b}+{root(a * b)}")),
            (f"(x+{a})^{c}(x-{b})", f"(x-{b})(x+{a})^{{{c - 1}}}(x+{a})", f"(x-{a})^{c}(x+{b})"),
            (str(b * (b - 1) // 2 + a), rf"{a} + \binom{{{b}}}{{2}}", rf"\binom{{{b}}}{{2}}"),
            (rf"\ln {a * b}", rf"\ln {a} + \ln {b}", rf"\ln {a} \cdot \ln {b}"),
            (rf"{a}\cos(2x)", rf"{a}\cos^2 x - {a}\sin^2 x", rf"{a}\cos^2 x + {a}\sin^2 x"),
        ]
    )


def hostile(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randint(7, 99), rng.randint(10**5, 10**6)
    answers = [
        rf"9^{{9^{{9^{{{a}}}}}}}",
        f"{b * 1000}!",
        rf"(x+{a})^{{{b}}}",
        rf"\sum_{{k=1}}^{{10^{{{a}}}}} k^k",
        rf"\sqrt{{{a}+" * 40 + "2" + "}" * 40,
        str(b) * 20_000,
    ]
    return "7", "7", rng.choice(answers)


DRAW: dict[str, Callable[[random.Random], tuple[str, str, str]]] = {
    "plain": plain,
    "letters": letter,
    "latex": latex,
    "hard": hard,
    "hostile": hostile,
}
REASONING = [
    "Looking at the image, the side of row {} is given, and the angle at the left is a right one.",
    "Let us call the unknown quantity $q_{{{}}}$ and write down what the diagram says about it.",
    "The chart has {} bars. I compare their heights one by one before I compute anything.",
    "由图可知第 {} 个条件成立，于是可以列出方程并化简。",
    "Substituting the values of step {} gives a simpler expression, which we now solve.",
]
ENDINGS = ["Therefore, the answer is $\\boxed{%s}$.", "**Answer:** \\boxed{%s}", "因此答案是 $\\boxed{%s}$。"]


def draw(category: str, number: int, rng: random.Random) -> Pairs:
    """Draw answers of one category; half of them are right, of the hostile ones none."""
    pairs = []
    for k in range(number):
        gold, right, wrong = DRAW[category](rng)
        steps = [rng.choice(REASONING).format(rng.randint(1, 10**6)) for _ in range(rng.randint(3, 8))]
        frame = rng.choice(["%s\n\n", "<think>\n%s\n</think>\n\n"])
        ending = rng.choice(ENDINGS) % (right if k % 2 == 0 and category != "hostile" else wrong)
        pairs.append((frame % "\n".join(steps) + ending, gold))
    return pairs


# ------------------------------------------------------------------------------------------ graders in other processes


def silence() -> None:
    """Let a library print to nowhere."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def grade_with(name: str, completion: str, gold: str) -> tuple[bool | None, float]:
    """The verdict of another library, in this process, and the seconds it took."""
    from math_verify import parse, verify
    from trl.rewards import accuracy_reward

    start = time.perf_counter()
    if name == "trl":
        [reward] = accuracy_reward([[{"role": "assistant", "content": completion}]], [gold])
        correct = None if reward is None else reward == 1
    else:
        parsed = parse(gold)
        correct = verify(parsed, parse(completion)) if parsed else None
    return correct, time.perf_counter() - start


def grade_ours(pairs: Pairs) -> dict[str, float]:
    """Grade a batch twice in a new process, whose cache of verdicts is cold, and measure starting.

    Returns:
        Seconds: `plain` (a first answer), `cold` and `warm` (the batch, for the first time and again).
    """
    marks = [time.perf_counter()]
    grader = Grader()
    if not grader.grade(r"\boxed{7.0}", "7").correct:
        raise RuntimeError("7.0 against 7 is graded wrong.")
    marks.append(time.perf_counter())
    for _ in range(2):
        grader.grade_batch([{"completion": completion, "gold": gold} for completion, gold in pairs])
        marks.append(time.perf_counter())
    took = [late - early for early, late in zip(marks, marks[1:], strict=False)]
    return dict(zip(("plain", "cold", "warm"), took, strict=True))


@dataclass
class Other:
    """Another grader, in a process that is killed when an answer takes longer than `cap_seconds`.

    There it grades on the main thread, where its own time-outs work.
    """

    name: str
    cap_seconds: float
    hangs: int = 0
    pool: Pool | None = None

    def grade(self, completion: str, gold: str) -> tuple[bool | None, float]:
        """The reward as a truth value, and the seconds it took; a hang or a crash is False and takes the cap."""
        if self.pool is None:
            self.pool = get_context("spawn").Pool(1, silence)
            self.pool.apply_async(grade_with, (self.name, r"\boxed{1}", r"\boxed{1}")).get(CHILD_START_SECONDS)
        try:
            return self.pool.apply_async(grade_with, (self.name, completion, gold)).get(self.cap_seconds)
        except TimeoutError:
            self.hangs += 1
            self.close()
            return False, self.cap_seconds

    def close(self) -> None:
        """End the process."""
        if self.pool is not None:
            self.pool.terminate()
            self.pool = None


# --------------------------------------------------------------------------------------------------------- benchmarks


def grading(*, rounds: int = 3, answers: int = 2000, cap: float = 10.0) -> Result:
    """How many answers per second our grader decides, beside TRL's `accuracy_reward` and math-verify.

    A batch is 45 % plain numbers, 25 % letters, 25 % LaTeX, 4 % hard and 1 % hostile answers, each at the end of a
    completion as a model writes it; half are right. Every round draws new answers. Ours grades a batch as a whole, with
    a cold cache and once more. Each of the others grades a sample of each category, one answer after the other; the mix
    follows from the mean seconds of each category and its share.
    Golds are boxed for the others, which cannot read most of them otherwise.

    Args:
        answers: in a batch, at least 100, of which one is hostile.
        cap: seconds after which another grader is killed, which count.
    """
    seconds: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in ("ours", "warm", *OTHERS)}
    others, starts = [Other(name, cap) for name in OTHERS], []
    for number in range(rounds):
        rng = random.Random(number)
        batches = {part: draw(part, max(1, round(answers * share)), rng) for part, share in SHARES.items()}
        mix = rng.sample([pair for pairs in batches.values() for pair in pairs], k=sum(map(len, batches.values())))
        for part, pairs in {"mix": mix, **batches}.items():
            told = run_apart(grade_ours, pairs)
            starts.append(told)
            for name, kind in (("ours", "cold"), ("warm", "warm")):
                seconds[name][part].append(told[kind] / len(pairs))
        for other in others:
            mine = seconds[other.name]
            for part, pairs in batches.items():
                some = pairs[: SAMPLED[part]]
                took = [other.grade(completion, rf"\boxed{{{gold}}}")[1] for completion, gold in some]
                mine[part].append(sum(took) / len(took))
            mine["mix"].append(sum(share * mine[part][-1] for part, share in SHARES.items()))
    print(
        f"{'answers per second':20}{'ours, cold':>12}{'warm':>12}" + "".join(f"{OTHERS[each]:>28}" for each in OTHERS)
    )
    for part in ("mix", *SHARES):
        speeds = {name: 1 / median(by_part[part]) for name, by_part in seconds.items()}
        cells = [f"{speeds[name]:,.1f} (× {speeds['ours'] / speeds[name]:,.0f})" for name in OTHERS]
        print(f"{part:20}{speeds['ours']:12,.0f}{speeds['warm']:12,.0f}" + "".join(f"{cell:>28}" for cell in cells))
    for other in others:
        print(f"{OTHERS[other.name]}: {other.hangs} answers cut at {cap} s")
        other.close()
    first = {"plain": median(start["plain"] for start in starts)}
    print("ours in a new process, seconds: first answer {plain:.4f}".format(**first))
    return Result({"seconds_per_answer": seconds, "start": first})


def labelled(*, cap: float = 10.0, of: str = "labelled") -> Result:
    """How many labelled answers are decided rightly, and how many wrong ones are paid.

    The other graders get the gold as it is and boxed, and the better of the two counts; a hang is wrong, and a missing
    reward is right where the gold cannot be used.

    Args:
        cap: seconds after which another grader is killed.
        of: the labelled set that the rules were written with, or "view", "stop", "sealed", "outside" or "unseen", by
            origin (tests/grading/test_origins.py).
    """
    file = ROOT / "tests/grading" / (f"{of}.jsonl" if of == "labelled" else f"origins/{of}.jsonl")
    cases = [json.loads(line) for line in file.open(encoding="utf-8")]
    found = {"ours": decided_by_ours(cases)}
    for name, title in OTHERS.items():
        tries = [decided_by_other(Other(name, cap), cases, form) for form in ("{}", r"\boxed{{{}}}")]
        found[title] = max(tries, key=lambda verdicts: rightly(verdicts, cases).total())
    right = {title: rightly(verdicts, cases) for title, verdicts in found.items()}
    print(f"{'rightly decided':24}{'cases':>7}" + "".join(f"{title:>22}" for title in right))
    for category, size in Counter(case["category"] for case in cases).items():
        print(f"{category:24}{size:7}" + "".join(f"{one[category]:22}" for one in right.values()))
    print(f"{'all':24}{len(cases):7}" + "".join(f"{one.total() / len(cases):22.1%}" for one in right.values()))
    wrong = [number for number, case in enumerate(cases) if case["expected"] is not True]
    paid = {title: sum(verdicts[number] is True for number in wrong) for title, verdicts in found.items()}
    print(f"{'paid though wrong':24}{len(wrong):7}" + "".join(f"{number:22}" for number in paid.values()))
    return Result({"right": {title: dict(one) for title, one in right.items()}, "paid": paid})


Verdicts = list[bool | None]


def rightly(verdicts: Verdicts, cases: list[dict[str, Any]]) -> Counter[str]:
    """Rightly decided cases by category."""
    return Counter(
        case["category"] for verdict, case in zip(verdicts, cases, strict=True) if verdict is case["expected"]
    )


def decided_by_ours(cases: list[dict[str, Any]]) -> Verdicts:
    """Our verdict of each case."""
    logging.getLogger("trl_mmreason").setLevel(logging.ERROR)  # golds that cannot be used are meant to be there
    graders = {"strict": Grader(), "lenient": Grader(tolerance="lenient"), "prose": Grader(prose=True)}
    return [
        graders[case.get("tolerance", case.get("protocol", "strict"))]
        .grade(case["completion"], case["gold"], **{name: case.get(name) for name in ("choices", "question")})
        .correct
        for case in cases
    ]


def decided_by_other(other: Other, cases: list[dict[str, Any]], form: str) -> Verdicts:
    """Another grader's: right if any gold is met, none if no gold can be used."""
    verdicts: Verdicts = []
    for case in cases:
        golds = [case["gold"]] if isinstance(case["gold"], str) else case["gold"]
        rewards = [other.grade(case["completion"], form.format(gold))[0] for gold in golds]
        verdicts.append(None if all(each is None for each in rewards) else any(rewards))
    other.close()
    return verdicts
