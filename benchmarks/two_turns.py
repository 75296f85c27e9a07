"""Two turns in a colocated vLLM without a barrier between them: time, and how many engine steps can be saved."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import count as counter
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from trl import GRPOConfig
from trl.data_utils import prepare_multimodal_messages
from trl.generation import vllm_generation

from trl_mmreason.compat.replaced import replaced
from trl_mmreason.grading.reward import accuracy_reward
from trl_mmreason.training.grpo import GroupGRPOTrainer
from trl_mmreason.training.rollout import begin, turn_after_turn

from .common import GROUP, Result, lengths, make_questions, report, save_policy, take_turns

TURN = 128  # tokens that each of two answers may have
ROWS = (16, 32, 64, 128, 512)  # in a rollout


def draw_turns(rows: int, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Tokens of every row in the first and in the second of two turns, and in one turn of twice the bound."""
    first, second = (lengths(rows, bound=TURN, seed=3 * seed + turn) for turn in range(2))
    return first, second, lengths(rows, bound=2 * TURN, seed=3 * seed + 2)


# ---------------------------------------------------------------------------------------------- steps, without a model


def decode_steps(first: Sequence[int], second: Sequence[int]) -> tuple[int, int]:
    """Steps of two turns: turn after turn, and without a barrier.

    With a barrier each turn takes as many as its longest row, without one all takes as many as the longest row in both.

    Args:
        first, second: tokens of every row in that turn.
    """
    return max(first) + max(second), max(map(sum, zip(first, second, strict=True)))


def mean_steps(rows: int, draws: int) -> tuple[float, float, float]:
    """Steps of one turn, turn after turn, and without a barrier, in the mean of the draws."""
    drawn = [draw_turns(rows, seed) for seed in range(draws)]
    after, without = zip(*(decode_steps(first, second) for first, second, _ in drawn), strict=True)
    return mean(max(one) for *_, one in drawn), mean(after), mean(without)


def table(rows: Sequence[int], draws: int) -> str:
    """In Markdown, of each number of rows: steps, and turn after turn over without a barrier."""
    lines = ["| rows | one turn | turn after turn | without a barrier | times fewer |", "|---|---|---|---|---|"]
    for number in rows:
        one, after, without = mean_steps(number, draws)
        lines.append(f"| {number} | {one:.0f} | {after:.0f} | {without:.0f} | {after / without:.2f} |")
    return "\n".join(lines)


def ceiling(*, rows: tuple[int, ...] = ROWS, draws: int = 400) -> Result:
    """How many engine steps two turns of 128 tokens save without a barrier: no more time can be saved.

    No model runs: lengths are drawn as in `two_turns`, and steps are counted. A step gives one token to every row
    that has not ended. The ratio of steps is that of times if a step takes as long with any number of rows, and if
    reading the second prompts takes no time.

    Args:
        rows: in a rollout.
        draws: draws of lengths, of which the mean is taken.
    """
    print(table(rows, draws))
    return Result()


# ----------------------------------------------------------------------------------------------------------- with vLLM


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

    def add_request(self, request_id: str, prompt: Any, params: Any, **settings: Any) -> str:
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
            turn_after_turn(trainer, *begin(trainer, prompts))
            sampled = [trajectory.env_mask for trajectory in trainer.trajectories]
        else:
            ids, _ = trainer._generate_single_turn(*trainer._tokenize_prompts(prompts), GROUP)
            sampled = [[1] * len(row) for row in ids]
    # Rows of a question whose first answers are equal may change their second lengths.
    assert sorted(map(sum, sampled)) == sorted(sum(row) for row in zip(*turns, strict=True))
    return sum(map(sum, turns)), drawn.steps


def make_trainer(folder: Path, size: str, asked: Any) -> GroupGRPOTrainer:
    """Make a trainer with an engine that takes all rows at once and ends answers where they should."""
    import vllm._custom_ops
    from vllm import LLM
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class EndsAt(AdapterLogitsProcessor):
        """Ends an answer at its length."""

        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: Any) -> Any:
            tokens, end = params.extra_args["tokens"], params.extra_args["end"]

            def end_there(output_ids: list[int], logits: Tensor) -> Tensor:
                if len(output_ids) < tokens - 1:
                    return logits
                return torch.full_like(logits, -torch.inf).index_fill_(0, torch.tensor(end, device=logits.device), 0.0)

            return end_there

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
        args = GRPOConfig(str(folder), **settings)
        followup = "Check your answer, and give it again."
        return GroupGRPOTrainer(str(folder / "model"), accuracy_reward, args, train_dataset=asked, followup=followup)


def two_turns(
    *,
    rounds: int = 9,
    size: str = "study",
    questions: int = 4,
    limit: float = 1.1,
    barrier_limit: float = 1.3,
) -> Result:
    """Two turns of 128 tokens in a colocated vLLM: without a barrier, turn after turn, and one turn of 256.

    A rollout of the standard workload from the prompts to the sampled ids, caches empty as after an update. Every
    answer ends at the length drawn for it: `min_tokens` keeps the policy from ending sooner, and a logits processor in
    the engine ends it there. With and without the barrier a row has the same two lengths; each round has its own.

    Args:
        size: of the miniature model.
        questions: questions in a rollout, with 8 answers each.
        limit: highest ratio to one turn.
        barrier_limit: lowest ratio of turn after turn.
    """
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    asked = make_questions(questions)
    rows = [row for row in asked for _ in range(GROUP)]
    prompts = [prepare_multimodal_messages(row["prompt"], images=row["images"]) for row in rows]
    ways = one, barrier, none = ("one turn", "turn after turn", "without a barrier")
    with TemporaryDirectory() as folder:
        trainer = make_trainer(Path(folder), size, asked)
        seconds, did = take_turns({way: partial(roll_out, trainer, prompts, way, counter()) for way in ways}, rounds)
    for way in ways:
        tokens, steps = (mean(values) for values in zip(*did[way], strict=True))
        print(f"{way}: {tokens:.0f} tokens in {steps:.0f} steps of {1000 * mean(seconds[way]) / steps:.1f} ms")
    to_one, to_barrier = report(seconds, none, one), report(seconds, barrier, none)
    hit_rates = trainer._metrics["train" if trainer.model.training else "eval"]["prefix_cache_hit_rate_t2"]
    print(f"second prompts from the prefix cache: {mean(hit_rates):.0%}")
    result = Result({"seconds": seconds, "tokens_and_steps": did, "hit_rates": hit_rates})
    result.check(to_one <= limit, f"The ratio to one turn is {to_one:.2f}; the limit is {limit}.")
    result.check(to_barrier >= barrier_limit, f"Turn after turn takes {to_barrier:.2f}; the limit is {barrier_limit}.")
    return result
