"""A pass of a policy with activation checkpointing late in a run: transformers' time over that with one set of hooks.

A rollout of two turns and the scoring of its answers turn checkpointing off and on three times, and transformers adds a
hook each time (`engines/input_hooks.py`). Both models have the same weights; a pass reads one token of eight rows.
Rounds alternate, and the ratio is the median of theirs.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers

from trl_mmreason.commands.parsers import count
from trl_mmreason.engines.input_hooks import keep_one_input_hook
from trl_mmreason.miniature.models import build_model


@torch.no_grad()
def passes(model: Any, ids: torch.Tensor, times: int) -> torch.Tensor:
    """The logits of the last of so many passes."""
    for _ in range(times):
        logits = model(input_ids=ids).logits
    return logits


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--size", default="study", help="of the miniature model")
    parser.add_argument("--rollouts", type=count, default=3000, help="that the run has behind it")
    parser.add_argument("--limit", type=float, default=1.0, help="lowest ratio")
    arguments = parser.parse_args()
    models = {"transformers": build_model("qwen2_5_vl", arguments.size)[0]}
    models["here"] = build_model("qwen2_5_vl", arguments.size)[0]
    keep_one_input_hook(models["here"])
    for model in models.values():
        model.eval()
        for _ in range(3 * arguments.rollouts):
            model.activation_checkpointing_enable()
            model.activation_checkpointing_disable()
    ids = torch.ones(8, 1, dtype=torch.long)
    times, logits = take_turns(
        {name: partial(passes, model, ids, 50) for name, model in models.items()}, arguments.rounds
    )
    ratio = median_ratio(times["transformers"], times["here"])
    hooks = {name: len(model.get_input_embeddings()._forward_hooks) for name, model in models.items()}
    print(f"hooks after {arguments.rollouts} rollouts: {hooks}")
    print(f"milliseconds a pass: { ({name: 20 * seconds for name, seconds in medians_of(times).items()}) }")
    print(f"transformers / here: {ratio:.2f} (middle half {middle_half(times['transformers'], times['here'])})")
    write_numbers(arguments, seconds=times)
    if not logits["transformers"][0].equal(logits["here"][0]):
        sys.exit("The logits differ.")
    if ratio < arguments.limit:
        sys.exit(f"The ratio is {ratio:.2f}; the limit is {arguments.limit}.")


if __name__ == "__main__":
    main()
