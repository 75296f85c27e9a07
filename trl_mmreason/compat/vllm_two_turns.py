"""Two turns in a colocated vLLM without a barrier: a request's second turn starts when its first answer ends.

This module imports without vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from .vllm_prompts import compare_prompts


class TwoTurns:
    """Generates two answers to each prompt, with a follow-up between them; replaces `LLM.generate`.

    The second prompt is the first one, the sampled ids and the follow-up, with the same pictures. vLLM therefore finds
    most of it in its prefix cache, and the pictures in its encoder cache.

    Args:
        llm: vLLM's `LLM`.
        followup_ids: the token ids between the two answers.
        end_ids: the tokens that end an answer. An answer that does not end with one of them was cut, and gets no
            second turn.
        tell_ended: is called with the rows whose answer has ended, a first or a second one, and with its ids.
        longest_prompt: tokens of the longest prompt that vLLM takes. A row whose second one is longer gets none.

    Attributes:
        read_tokens, cached_tokens: how many tokens the second prompts have, and how many of them were in the prefix
            cache.
    """

    def __init__(
        self,
        llm: Any,
        followup_ids: Sequence[int],
        end_ids: Collection[int],
        tell_ended: Callable[[list[int], list[list[int]]], None],
        longest_prompt: int,
    ) -> None:
        self.llm, self.followup_ids, self.end_ids, self.tell_ended = llm, list(followup_ids), end_ids, tell_ended
        self.longest_prompt = longest_prompt
        self.read_tokens = self.cached_tokens = 0

    def generate(self, prompts: list[dict[str, Any]], sampling_params: Any, use_tqdm: bool = False) -> list[Any]:
        """Answer each prompt twice.

        Args:
            prompts: `prompt_token_ids`, and `multi_modal_data` if there are pictures.
            sampling_params: those of both turns.
            use_tqdm: as `LLM.enqueue` takes it.

        Returns:
            vLLM's output of each prompt. Its answer holds both answers and the follow-up between them, whose tokens
            have no log-probabilities: `{}`.

        Raises:
            PromptMismatch: vLLM read a second prompt that is not the first one continued.
        """
        rows: dict[str, int] = {}  # request → row
        outputs: list[list[Any]] = [[] for _ in prompts]  # of each row: those of its turns

        def enqueue(new: dict[int, dict[str, Any]]) -> None:
            ids = self.llm.enqueue(list(new.values()), sampling_params, use_tqdm=use_tqdm)
            # "17-0d2f8b1c": vLLM adds the characters after the hyphen, and takes them from its outputs again
            rows.update(zip((name.partition("-")[0] for name in ids), new, strict=True))

        enqueue(dict(enumerate(prompts)))
        while self.llm.llm_engine.has_unfinished_requests():
            answers: dict[int, list[int]] = {}  # row → ids
            seconds: dict[int, dict[str, Any]] = {}  # row → prompt
            for output in self.llm.llm_engine.step():
                if not output.finished:
                    continue
                row = rows[output.request_id]
                outputs[row].append(output)
                answer = answers[row] = list(output.outputs[0].token_ids)
                length = len(output.prompt_token_ids) + len(answer) + len(self.followup_ids)
                if len(outputs[row]) == 1 and answer[-1] in self.end_ids and length <= self.longest_prompt:
                    ids = [*prompts[row]["prompt_token_ids"], *answer, *self.followup_ids]
                    seconds[row] = {**prompts[row], "prompt_token_ids": ids}
            if seconds:
                enqueue(seconds)
            if answers:
                self.tell_ended(list(answers), list(answers.values()))
        return [self._joined(*turns) for turns in outputs]

    def _joined(self, first: Any, second: Any = None) -> Any:
        """Join the outputs of a row's two turns."""
        if second is None:
            return first
        answer, again = first.outputs[0], second.outputs[0]
        compare_prompts([[*first.prompt_token_ids, *answer.token_ids, *self.followup_ids]], [second.prompt_token_ids])
        self.read_tokens += len(second.prompt_token_ids)
        self.cached_tokens += second.num_cached_tokens
        answer.token_ids = [*answer.token_ids, *self.followup_ids, *again.token_ids]
        answer.logprobs = [*answer.logprobs, *({} for _ in self.followup_ids), *again.logprobs]
        return first
