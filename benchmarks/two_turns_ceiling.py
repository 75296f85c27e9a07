"""How many engine steps two turns of 128 tokens save without a barrier between the turns: no more time can be saved.

No model runs: lengths are drawn as in `two_turns_vllm.py`, and steps are counted. A step gives one token to every row
that has not ended. The ratio of steps is that of times if a step takes as long with any number of rows, and if reading
the second prompts takes no time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import mean

from workload import lengths

from trl_mmreason.commands.parsers import count

TURN = 128  # tokens that each of two answers may have
ROWS = (16, 32, 64, 128, 512)  # in a rollout


def draw_turns(rows: int, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Tokens of every row in the first and in the second of two turns, and in one turn of twice the bound."""
    first, second = (lengths(rows, bound=TURN, seed=3 * seed + turn) for turn in range(2))
    return first, second, lengths(rows, bound=2 * TURN, seed=3 * seed + 2)


def decode_steps(first: Sequence[int], second: Sequence[int]) -> tuple[int, int]:
    """Steps of two turns: turn after turn, and without a barrier.

    With a barrier each turn takes as many as its longest row, without one all takes as many as the longest row in both.

    Args:
        first, second: tokens of every row in that turn.
    """
    return max(first) + max(second), max(map(sum, zip(first, second, strict=True)))


def ceiling(rows: int, draws: int) -> tuple[float, float, float]:
    """Steps of one turn, turn after turn, and without a barrier, in the mean of the draws."""
    drawn = [draw_turns(rows, seed) for seed in range(draws)]
    after, without = zip(*(decode_steps(first, second) for first, second, _ in drawn), strict=True)
    return mean(max(one) for *_, one in drawn), mean(after), mean(without)


def table(rows: Sequence[int], draws: int) -> str:
    """In Markdown, of each number of rows: steps, and turn after turn over without a barrier."""
    lines = ["| rows | one turn | turn after turn | without a barrier | times fewer |", "|---|---|---|---|---|"]
    for number in rows:
        one, after, without = ceiling(number, draws)
        lines.append(f"| {number} | {one:.0f} | {after:.0f} | {without:.0f} | {after / without:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=count, nargs="+", default=ROWS, help="in a rollout")
    parser.add_argument("--draws", type=count, default=400, help="of lengths, of which the mean is taken")
    arguments = parser.parse_args()
    print(table(arguments.rows, arguments.draws))


if __name__ == "__main__":
    main()
