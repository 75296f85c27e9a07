"""A rollout of the standard workload without vLLM: time of transformers' `generate`, as TRL calls it, over that here.

Both decode the same policy with the same seed, and a logits processor ends each row at the length drawn for it. Here a
group's prompt is read once, and rows that ended leave the model's batch. Rounds alternate, the ratio is the
median of theirs, and the exit code is 1 if a token differs in float32.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from torch import Tensor
from transformers import LogitsProcessor
from workload import BOUND, GROUP, lengths, questions, save_policy

from trl_mmreason.commands.parsers import count
from trl_mmreason.parts import placeholder_ids
from trl_mmreason.sampling.generation import Prompt, collate, encode, end_of_turn_ids, tokenizer_of
from trl_mmreason.sampling.live_rows import decode_live_rows
from trl_mmreason.sampling.loading import load_model, load_processor


class EndsAt(LogitsProcessor):
    """Ends each row at its length, and not before."""

    def __init__(self, tokens: list[int], end: int, device: torch.device) -> None:
        self.tokens, self.end, self.made = torch.tensor(tokens, device=device), end, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.made += 1
        ends = self.tokens == self.made
        return scores.index_fill(1, input_ids.new_tensor([self.end]), -torch.inf).where(
            ~ends[:, None], torch.full_like(scores, -torch.inf).index_fill(1, input_ids.new_tensor([self.end]), 0.0)
        )


def roll_out(model: Any, inputs: dict[str, Tensor], tokens: list[int], custom: Any, **settings: Any) -> Tensor:
    """The rows with their answers."""
    torch.manual_seed(0)
    ending = EndsAt(tokens, settings["eos_token_id"], model.device)
    return model.generate(**inputs, logits_processor=[ending], custom_generate=custom, **settings)


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--size", default="study", help="of the miniature model")
    parser.add_argument("--questions", type=count, default=4, help=f"in a rollout, with {GROUP} answers each")
    parser.add_argument("--limit", type=float, default=1.5, help="lowest ratio")
    arguments = parser.parse_args()
    asked = questions(arguments.questions)
    prompt_of = torch.arange(len(asked)).repeat_interleave(GROUP)
    drawn = lengths(len(prompt_of))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with TemporaryDirectory() as folder:
        save_policy(Path(folder), arguments.size)
        model, _ = load_model(folder, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
        processor = load_processor(folder)
    end = end_of_turn_ids(model, processor)[0]
    settings: dict[str, Any] = {"do_sample": True, "max_new_tokens": BOUND, "eos_token_id": end}
    settings |= {"pad_token_id": tokenizer_of(processor).pad_token_id, "suppress_tokens": placeholder_ids(model.config)}
    prompts = [encode(processor, row["prompt"], row["images"]) for row in asked]

    def on_device(prompts: list[Prompt]) -> dict[str, Tensor]:
        inputs = collate(prompts, settings["pad_token_id"])
        return {
            name: each.to(device, model.dtype if each.is_floating_point() else None) for name, each in inputs.items()
        }

    repeated = on_device([prompts[number] for number in prompt_of])
    here = partial(decode_live_rows, prompt_of=prompt_of.to(device))
    work = {
        "generate": partial(roll_out, model, repeated, drawn, None, **settings),
        "here": partial(roll_out, model, on_device(prompts), drawn, here, **settings),
    }
    times, answers = take_turns(work, arguments.rounds)
    medians = medians_of(times)
    ratio = median_ratio(times["generate"], times["here"])
    alike = (answers["generate"][0] == answers["here"][0]).float().mean().item()
    print(f"{len(drawn)} answers of {min(drawn)} to {max(drawn)} tokens, {sum(drawn)} in all")
    print(f"seconds a rollout: {medians}")
    print(f"generate / here: {ratio:.2f} (middle half {middle_half(times['generate'], times['here'])})")
    print(f"equal tokens: {alike:.2%}")
    write_numbers(arguments, seconds=times, equal=alike)
    if ratio < arguments.limit:
        sys.exit(f"The ratio is {ratio:.2f}; the limit is {arguments.limit}.")
    if alike < 1 and model.dtype == torch.float32:
        sys.exit("The tokens differ.")


if __name__ == "__main__":
    main()
