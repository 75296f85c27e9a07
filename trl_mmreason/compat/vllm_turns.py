"""Several turns in a colocated vLLM without a barrier: a conversation goes on when its own answer ends.

This module imports without vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .vllm_prompts import compare_prompts

Reply = Callable[[Mapping[int, list[int]]], Mapping[int, Any]]
"""`reply({row: ids of its answer})`: of each row that goes on, the user's next turn: a `NextTurn`."""


class Turns:
    """Generates answers to each prompt, with the user's messages between them; replaces `LLM.generate`.

    The next prompt is the last one, the sampled ids and the message, with the same images and the message's. vLLM
    therefore finds most of it in its prefix cache, and the images in its encoder cache.

    Args:
        llm: vLLM's `LLM`.
        reply: what the user says.
        tell_ended: is called with the rows whose answer has ended, and with its ids.

    Attributes:
        read_tokens, cached_tokens: how many tokens the prompts after the first have, and how many of them were in the
            prefix cache.
    """

    def __init__(self, llm: Any, reply: Reply, tell_ended: Callable[[list[int], list[list[int]]], None]) -> None:
        self.llm, self.reply, self.tell_ended = llm, reply, tell_ended
        self.read_tokens = self.cached_tokens = 0

    def generate(self, prompts: list[dict[str, Any]], sampling_params: Any, use_tqdm: bool = False) -> list[Any]:
        """Answer each prompt, and each message that follows.

        Args:
            prompts: `prompt_token_ids`, and `multi_modal_data` if there are images.
            sampling_params: those of all turns.
            use_tqdm: as `LLM.enqueue` takes it.

        Returns:
            vLLM's output of each prompt. Its answer holds all answers and the messages between them, whose tokens have
            no log-probabilities: `{}`.

        Raises:
            PromptMismatch: vLLM read a prompt that is not the one before continued.
        """
        outputs: list[list[Any]] = [[] for _ in prompts]  # of each row: those of its turns
        said: list[list[Any]] = [[] for _ in prompts]  # and the messages between them
        conversations = _Conversations(self.llm, prompts, sampling_params, use_tqdm)
        for ended in conversations:
            for row, output in ended.items():
                outputs[row].append(output)
            answers = {row: list(output.outputs[0].token_ids) for row, output in ended.items()}
            replies = self.reply(answers)
            for row, turn in replies.items():
                said[row].append(turn)
            conversations.go_on(answers, replies)
            self.tell_ended(list(answers), list(answers.values()))
        return [self._joined(*turns) for turns in zip(outputs, said, strict=True)]

    def _joined(self, turns: list[Any], said: list[Any]) -> Any:
        """Join the outputs of a row's turns."""
        first, *others = turns
        answer, prompt = first.outputs[0], list(first.prompt_token_ids)
        ids, logprobs = list(answer.token_ids), list(answer.logprobs)
        for output, message in zip(others, said, strict=True):
            ids += message.prompt.ids
            compare_prompts([[*prompt, *ids]], [output.prompt_token_ids])
            self.read_tokens += len(output.prompt_token_ids)
            self.cached_tokens += output.num_cached_tokens
            logprobs += [{} for _ in message.prompt.ids]
            ids += output.outputs[0].token_ids
            logprobs += output.outputs[0].logprobs
        answer.token_ids, answer.logprobs = ids, logprobs
        return first


class UntilEnough:
    """Lets conversations go on until enough of them have ended; replaces `LLM.generate`.

    Args:
        begun: for each prompt how many tokens of its end are those of an answer that goes on.
        reply: what is said to answers that have ended: `{row: (ids, log-probabilities)}`, without such a beginning.
        leave: is told of each other answer its row, ids and log-probabilities so far.
        enough: whether the others may be left.
    """

    def __init__(
        self,
        llm: Any,
        begun: list[int],
        reply: Callable[[Mapping[int, tuple[list[int], list[float | None]]]], Mapping[int, Any]],
        leave: Callable[[int, list[int], list[float | None]], None],
        enough: Callable[[], bool],
    ) -> None:
        self.llm, self.begun, self.reply, self.leave, self.enough = llm, begun, reply, leave, enough

    def generate(self, prompts: list[dict[str, Any]], sampling_params: Any, use_tqdm: bool = False) -> list[Any]:
        """Let each conversation go on.

        Args:
            prompts, sampling_params, use_tqdm: as for `Turns.generate`.

        Returns:
            vLLM's first output of each prompt.
        """
        first: dict[int, Any] = {}  # row → output
        conversations = _Conversations(self.llm, prompts, sampling_params, use_tqdm, self.begun)
        for ended in conversations:
            first = ended | first
            answers = {row: _said(output) for row, output in ended.items()}
            conversations.go_on({row: ids for row, (ids, _) in answers.items()}, self.reply(answers))
            if self.enough():
                left = conversations.end()
                first = left | first
                for row, output in left.items():
                    self.leave(row, *_said(output))
        return [first[row] for row in range(len(prompts))]


class _Conversations:
    """Requests of rows to vLLM, one after the other for a row; iterates over the outputs that end in a step, by row.

    Args:
        llm, prompts, sampling_params, use_tqdm: as for `Turns`.
        begun: as for `UntilEnough`.
    """

    def __init__(
        self, llm: Any, prompts: list[dict[str, Any]], sampling_params: Any, use_tqdm: bool, begun: Sequence[int] = ()
    ) -> None:
        self._llm, self._params, self._use_tqdm = llm, sampling_params, use_tqdm
        self._rows: dict[str, int] = {}  # request that has not ended → row
        self._last = dict(enumerate(prompts))  # row → its last prompt
        self._enqueue(self._last, dict(enumerate(begun)))

    def __iter__(self) -> Iterator[dict[int, Any]]:
        engine = self._llm.llm_engine
        while engine.has_unfinished_requests():
            if ended := {self._rows.pop(each.request_id): each for each in engine.step() if each.finished}:
                yield ended

    def go_on(self, answers: Mapping[int, list[int]], replies: Mapping[int, Any]) -> None:
        """Ask the rows with a reply again, after their answers' ids."""
        for row, turn in replies.items():
            self._last[row] = _continued(self._last[row], answers[row], turn)
        if replies:
            self._enqueue({row: self._last[row] for row in replies}, {})

    def end(self) -> dict[int, Any]:
        """End all requests; gives for each row what vLLM has of its answer."""
        from vllm.v1.engine import FinishReason

        engine = self._llm.llm_engine
        states = {state.external_req_id: state for state in engine.output_processor.request_states.values()}
        # vLLM itself makes a last output of an aborted request only for its server
        outputs = {
            row: states[name].make_request_output([], None, FinishReason.ABORT, None)
            for name, row in self._rows.items()
        }
        engine.abort_request([*self._rows])
        self._rows.clear()
        return outputs

    def _enqueue(self, new: Mapping[int, dict[str, Any]], begun: Mapping[int, int]) -> None:
        params = []
        for row in new:
            params.append(self._params.clone())
            params[-1].max_tokens -= begun.get(row, 0)
        ids = self._llm.enqueue([*new.values()], params, use_tqdm=self._use_tqdm)
        # "17-0d2f8b1c": vLLM adds the characters after the hyphen, and takes them from its outputs again
        self._rows.update(zip((name.partition("-")[0] for name in ids), new, strict=True))


def _said(output: Any) -> tuple[list[int], list[float | None]]:
    """Ids and log-probabilities of an output's answer; `None` where vLLM computes NaN, as TRL has it."""
    answer = output.outputs[0]
    values = [step[token].logprob for token, step in zip(answer.token_ids, answer.logprobs or [], strict=True)]
    return list(answer.token_ids), [None if math.isnan(value) else value for value in values]


def _continued(prompt: dict[str, Any], answer: list[int], turn: Any) -> dict[str, Any]:
    """The prompt after an answer and the user's next turn, in which vLLM expands each image itself."""
    found = {**prompt, "prompt_token_ids": [*prompt["prompt_token_ids"], *answer, *turn.unexpanded_ids]}
    if turn.images:
        before = prompt.get("multi_modal_data", {}).get("image", [])  # TRL leaves a single image without a list
        before = before if isinstance(before, list) else [before]
        found["multi_modal_data"] = {"image": [*before, *turn.images]}
    return found
