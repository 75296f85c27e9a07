"""Two turns of 128 tokens in a colocated vLLM: without a barrier, turn after turn, and one turn of 256.

A rollout of the standard workload from the prompts to the sampled ids, caches empty as after an update. Every answer
ends at the length drawn for it, 5 % of them at the bound of the turn: `min_tokens` keeps the policy from ending sooner,
and a logits processor in the engine ends it there. With and without the barrier a row has the same two lengths. Rounds
alternate, each with lengths of its own, and a ratio is the median of theirs.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from functools import partial
from itertools import count as counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import vllm._custom_ops
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from torch import Tensor
from trl import GRPOConfig
from trl.data_utils import prepare_multimodal_messages
from trl.generation import vllm_generation
from two_turns_ceiling import TURN, draw_turns
from vllm import LLM, SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor
from workload import GROUP, questions, save_policy

from trl_mmreason.commands.parsers import count
from trl_mmreason.engines.replaced import replaced
from trl_mmreason.grading.reward import accuracy_reward
from trl_mmreason.grpo import GroupGRPOTrainer
from trl_mmreason.rollouts.two_turn_rollout import turn_after_turn

FOLLOWUP = "Check your answer, and give it again."


class EndsAt(AdapterLogitsProcessor):
    """Ends an answer at its length."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        tokens, end = params.extra_args["tokens"], params.extra_args["end"]

        def end_there(output_ids: list[int], logits: Tensor) -> Tensor:
            if len(output_ids) < tokens - 1:
                return logits
            return torch.full_like(logits, -torch.inf).index_fill_(0, torch.tensor(end, device=logits.device), 0.0)

        return end_there


class DrawnLengths:
    """Gives every request of a rollout the length that its row has in this turn.

    The first requests are those of the rows, in order. A second turn's row is known by its prompt, which holds the
    first answer.

    Args:
        turns: of each turn, the tokens of every row.
    """

    def __init__(self, trainer: GroupGRPOTrainer, turns: list[list[int]]) -> None:
        self.trainer, self.turns, self.steps = trainer, turns, 0
        engine = trainer.vllm_generation.llm.llm_engine
        self.add, self.step = engine.add_request, engine.step
        self.watched = replaced(engine, add_request=self.add_request, step=self.make_step)
        self.first: dict[str, tuple[int, list[int]]] = {}  # request → row and prompt
        self.second: dict[tuple[int, ...], list[int]] = defaultdict(list)  # prompt → rows

    def add_request(self, request_id: str, prompt: Any, params: SamplingParams, **settings: Any) -> str:
        """vLLM's, with a length."""
        ids, row = prompt["prompt_token_ids"], len(self.first)
        if row < len(self.turns[0]):
            self.first[request_id], tokens = (row, ids), self.turns[0][row]
        else:
            tokens = self.turns[1][self.second[tuple(ids)].pop()]
        params = params.clone()
        params.min_tokens, params.max_tokens = tokens - 1, tokens
        params.extra_args = {"tokens": tokens, "end": self.trainer._tokenizer.eos_token_id}
        return self.add(request_id, prompt, params, **settings)

    def make_step(self) -> list[Any]:
        """vLLM's; remembers whose first answer has ended how."""
        outputs, self.steps = self.step(), self.steps + 1
        for output in outputs:
            if output.request_id in self.first:
                row, ids = self.first[output.request_id]
                self.second[(*ids, *output.outputs[0].token_ids, *self.trainer._followup_ids)].append(row)
        return outputs


def roll_out(trainer: GroupGRPOTrainer, prompts: list, way: str, rounds: counter) -> tuple[int, int]:
    """Sample a rollout; gives its sampled tokens and the engine's steps."""
    seed, llm = next(rounds), trainer.vllm_generation.llm
    llm.reset_prefix_cache()
    llm.llm_engine.reset_encoder_cache()
    llm.llm_engine.reset_mm_cache()
    *two, one = draw_turns(len(prompts), seed)
    turns = [one] if way == "one turn" else two
    drawn = DrawnLengths(trainer, turns)
    with drawn.watched:
        if way == "without a barrier":
            sampled = trainer.rollout_func(prompts, trainer)["env_mask"]
        elif way == "turn after turn":
            sampled = turn_after_turn(trainer, *trainer._tokenize_prompts(prompts))[1]
        else:
            ids, _ = trainer._generate_single_turn(*trainer._tokenize_prompts(prompts), GROUP)
            sampled = [[1] * len(row) for row in ids]
    # Rows of a question whose first answers are equal may change their second lengths.
    assert sorted(map(sum, sampled)) == sorted(sum(row) for row in zip(*turns, strict=True))
    return sum(map(sum, turns)), drawn.steps


def make_trainer(folder: Path, size: str, asked: Any) -> GroupGRPOTrainer:
    """A trainer with an engine that takes all rows at once and ends answers where they should."""
    save_policy(folder / "model", size)
    on_gpu = torch.cuda.is_available()
    settings: dict[str, Any] = {
        "per_device_train_batch_size": GROUP * len(asked),
        "num_generations": GROUP,
        "max_completion_length": TURN,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 2048,
        "report_to": [],
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "model_init_kwargs": {"dtype": "bfloat16" if on_gpu else "float32"},
    }
    engine: dict[str, Any] = {"logits_processors": [EndsAt]}
    if not on_gpu:  # 128 there otherwise, more than a whole prompt: nothing shorter than a block is cached
        engine["block_size"] = 32
        vllm._custom_ops._supports_onednn = False  # it repacks weights, and new ones could not be loaded
    with replaced(vllm_generation, LLM=partial(LLM, **engine)):
        return GroupGRPOTrainer(
            str(folder / "model"),
            accuracy_reward,
            GRPOConfig(str(folder), **settings),
            train_dataset=asked,
            followup=FOLLOWUP,
        )


def main() -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    parser = parser_of(__doc__, rounds=9)
    parser.add_argument("--size", default="study", help="of the miniature model")
    parser.add_argument("--questions", type=count, default=4, help=f"in a rollout, with {GROUP} answers each")
    parser.add_argument("--limit", type=float, default=1.1, help="highest ratio to one turn")
    parser.add_argument("--barrier-limit", type=float, default=1.3, help="lowest ratio of turn after turn")
    arguments = parser.parse_args()
    asked = questions(arguments.questions)
    rows = [row for row in asked for _ in range(GROUP)]
    prompts = [prepare_multimodal_messages(row["prompt"], images=row["images"]) for row in rows]
    with TemporaryDirectory() as folder:
        trainer = make_trainer(Path(folder), arguments.size, asked)
        ways = ("one turn", "turn after turn", "without a barrier")
        work = {way: partial(roll_out, trainer, prompts, way, counter()) for way in ways}
        times, did = take_turns(work, arguments.rounds)
    medians = medians_of(times)
    one, barrier, none = (times[way] for way in ways)
    to_one, to_barrier = median_ratio(none, one), median_ratio(barrier, none)
    hit_rates = trainer._metrics["train" if trainer.model.training else "eval"]["prefix_cache_hit_rate_t2"]
    steps = {}
    for way in ways:
        tokens, steps[way] = (sum(values) / arguments.rounds for values in zip(*did[way], strict=True))
        step_ms = 1000 * sum(times[way]) / arguments.rounds / steps[way]
        print(
            f"{way}: {medians[way]:.2f} s, on average {tokens:.0f} tokens in {steps[way]:.0f} steps of {step_ms:.1f} ms"
        )
    print(f"without a barrier / one turn: {to_one:.2f} (middle half {middle_half(none, one)})")
    print(f"turn after turn / without: {to_barrier:.2f} (middle half {middle_half(barrier, none)})")
    print(f"the same in engine steps: {steps[ways[1]] / steps[ways[2]]:.2f}")
    print(f"second prompts from the prefix cache: {sum(hit_rates) / len(hit_rates):.0%}")
    write_numbers(arguments, seconds=times, tokens_and_steps=did, hit_rates=hit_rates)
    if to_one > arguments.limit or to_barrier < arguments.barrier_limit:
        sys.exit(f"The limits are {arguments.limit} and {arguments.barrier_limit}.")


if __name__ == "__main__":
    main()
