"""Answers to grade, as models write them, drawn from a seed: what `grading.py` measures speed on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

# What a mixed batch is made of.
SHARES = {"plain": 0.45, "letters": 0.25, "latex": 0.25, "hard": 0.04, "hostile": 0.01}


@dataclass(frozen=True)
class Item:
    """A completion to grade, its gold, and whether it is right."""

    completion: str
    gold: str
    right: bool


def plain(rng: random.Random) -> tuple[str, str, str]:
    """A gold, a right answer to it and a wrong one."""
    number = rng.randint(2, 99_999)
    cents = rng.randint(1, 99)
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
            (str(b * (b + 1) // 2 + a), rf"{a} + \sum_{{k=1}}^{{{b}}} k", rf"\sum_{{k=1}}^{{{b}}} k"),
            (rf"\frac{{{a}}}{{{c}}}", rf"\int_0^1 {a}x^{{{c - 1}}} \, dx", rf"\int_0^1 {a + 1}x^{{{c - 1}}} \, dx"),
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
    "Looking at the picture, the side of row {} is given, and the angle at the left is a right one.",
    "Let us call the unknown quantity $q_{{{}}}$ and write down what the diagram says about it.",
    "The chart has {} bars. I compare their heights one by one before I compute anything.",
    "由图可知第 {} 个条件成立，于是可以列出方程并化简。",
    "Substituting the values of step {} gives a simpler expression, which we now solve.",
]
ENDINGS = ["Therefore, the answer is $\\boxed{%s}$.", "**Answer:** \\boxed{%s}", "因此答案是 $\\boxed{%s}$。"]


def draw(category: str, count: int, rng: random.Random) -> list[Item]:
    """Answers of one category; half of them are right, of the hostile ones none."""
    items = []
    for number in range(count):
        gold, right, wrong = DRAW[category](rng)
        is_right = number % 2 == 0 and category != "hostile"
        steps = [rng.choice(REASONING).format(rng.randint(1, 10**6)) for _ in range(rng.randint(3, 8))]
        frame = rng.choice(["%s\n\n", "<think>\n%s\n</think>\n\n"])
        ending = rng.choice(ENDINGS) % (right if is_right else wrong)
        items.append(Item(frame % "\n".join(steps) + ending, gold, is_right))
    return items
