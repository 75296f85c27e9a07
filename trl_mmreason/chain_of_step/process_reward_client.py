"""A process reward model behind `vllm serve`, with the interface of one in this process.

    vllm serve MODEL --runner pooling --convert classify --pooler-config.task token_classify --port 8001

vLLM scores every token as σ(h · (w₊ − w₋)), by the two tokens that the model's configuration names. The client asks how
the server splits the chain into tokens, and keeps the scores of those that close a step or the answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..data.images import DECODING_ERRORS, images_of
from ..generation.engine import Request
from ..generation.server_engine import chat_messages
from ..generation.servers import RequestFailed, error_message, import_openai, public_address, without_key
from .chains import ProcessReward
from .process_reward import ProcessRewardModel, Scores, UnscorableRow, count_parts, read_completion
from .template import ANSWER_END, SPECIAL_TOKENS, STEP_END

_FIRST_LOOK_RETRIES = 2
_SHOWN = 500  # characters of a server's own words in an error
_FIX = (
    "Fix the address, or start the server: "
    "vllm serve MODEL --runner pooling --convert classify --pooler-config.task token_classify"
)
_SPECIAL = re.compile(r"<\S+>|\[[A-Z_/]+\]")


class ProcessRewardServerError(RuntimeError):
    """The server returns no scores: nothing answers, it serves no process reward model, or it fails."""


class ProcessRewardClient:
    """Scores chains at a server, as `ProcessRewardModel` does in this process. Several threads may use one.

    A request that loses its connection, times out or is answered 429 or 5xx is sent again, after 0.5 to 8 seconds or
    what Retry-After says. Where nothing has answered that long, later requests are sent once each until one is
    answered: a run that tries the rows of a batch one by one should not wait so long for each.

    Names of the server's special tokens in a chain, which a policy may spell, get a space after their first character:
    a policy that writes "<|image_pad|>" has shown no image.

    Args:
        url: address of the server, as `http://127.0.0.1:8001`; its API key is read from `VLLM_API_KEY`.
        timeout_seconds: how long a request may go without an answer.
        retries: number of retries of a request; 15 outlast nearly two minutes without a server.
        concurrency: rows that are asked for at a time.

    Raises:
        ImportError: the `openai` package is missing.
        ValueError: an argument cannot be meant.
    """

    works_elsewhere = True

    def __init__(self, url: str, *, timeout_seconds: float = 600.0, retries: int = 15, concurrency: int = 64) -> None:
        shown = public_address("ProcessRewardClient: url", url, "http://127.0.0.1:8001").geturl()
        if timeout_seconds <= 0 or retries < 0 or concurrency < 1:
            raise ValueError(
                f"ProcessRewardClient: got timeout_seconds={timeout_seconds}, retries={retries}, "
                f"concurrency={concurrency}; expected timeout_seconds > 0, retries ≥ 0 and concurrency ≥ 1."
            )
        self._shown_url = shown.rstrip("/")
        self._retries, self._concurrency = retries, concurrency
        self._silent = False
        key = os.environ.get("VLLM_API_KEY") or "EMPTY"
        self._openai = import_openai()
        self._client = self._openai.OpenAI(base_url=url, api_key=key, timeout=timeout_seconds)

    def __repr__(self) -> str:
        return f"ProcessRewardClient({self._shown_url!r})"

    @property
    def settings(self) -> dict[str, Any]:
        """Path or Hub id of the served model, without the address: a job may resume with another server.

        Raises:
            ProcessRewardServerError: there is none.
        """
        return {"kind": "process_reward_server", "model": self._served.get("root") or self._served["id"]}

    @cached_property
    def _served(self) -> dict[str, Any]:
        reply = self._ask("/v1/models", retries=min(self._retries, _FIRST_LOOK_RETRIES))
        try:
            return {"id": reply["data"][0]["id"], "root": reply["data"][0].get("root")}
        except (AttributeError, IndexError, KeyError, TypeError):
            raise self._unexpected(reply, "the served model") from None

    def score(self, rows: Sequence[Mapping[str, Any]]) -> list[Scores]:
        """The scores of every row, in order; see `ProcessRewardModel.score`.

        Raises:
            UnscorableRow: a row cannot be scored.
            ProcessRewardServerError: the server has no scores, or reads other tokens.
        """
        _ = self._chat_template
        pool = ThreadPoolExecutor(self._concurrency)
        try:
            return list(pool.map(self._score, rows, [f"row {number}" for number in range(len(rows))]))
        finally:
            pool.shutdown(cancel_futures=True)

    @cached_property
    def _chat_template(self) -> str:
        """ "fits": a chain begins directly after the prompt of an answer, where policies sample it.

        The templates of Llama 2 and Mistral write a space before what the assistant says, but not after the prompt.
        """
        asked, probe = [{"role": "user", "content": "?"}], {"role": "assistant", "content": STEP_END}
        prompt, whole = (
            self._ask("/tokenize", {"messages": messages, "return_token_strs": True, **chat})
            for messages, chat in (
                (asked, {"add_generation_prompt": True}),
                ([*asked, probe], {"add_generation_prompt": False, "continue_final_message": True}),
            )
        )
        try:
            between = whole["token_strs"][len(prompt["token_strs"]) :]
            fits = whole["token_strs"] == [*prompt["token_strs"], STEP_END]
        except (KeyError, TypeError):
            raise self._unexpected(whole, "token_strs") from None
        if not fits:
            raise ProcessRewardServerError(
                f"ProcessRewardClient: the chat template of {self._shown_url} begins an answer with {between[:-1]}, "
                "which the prompt of a policy that samples one lacks, so that scores would be of other chains. Fix: "
                "serve with --chat-template and a template that adds nothing, or give the model's path."
            )
        return "fits"

    def _score(self, row: Mapping[str, Any], where: str) -> Scores:
        text = read_completion(row["completion"], where)
        steps, answers = count_parts(text)
        if not steps + answers:
            return Scores(torch.empty(0), None)
        plain, places = self._plain(text.rstrip(), where)
        try:
            messages = chat_messages(Request(row["prompt"], images_of(row), plain))
        except (RequestFailed, AttributeError, *DECODING_ERRORS) as error:
            raise UnscorableRow(f"{where}: {error}") from error
        chat = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
        reply = self._ask("/pooling", {**chat, "task": "token_classify"}, where)
        try:
            of_tokens = reply["data"][0]["data"]
            scores = [float(score) for (score,) in (of_tokens[place] for place in places)]
        except (IndexError, KeyError, TypeError, ValueError):
            raise self._unexpected(reply, "a score per token") from None
        if len(scores) != steps + answers:
            raise self._unexpected(places, f"tokens that close {steps} step(s) and {answers} answer(s) of {where}")
        return Scores(torch.tensor(scores[:steps]), scores[steps] if answers else None)

    def _plain(self, text: str, where: str) -> tuple[str, list[int]]:
        """The chain without names of special tokens, and where from its end the tokens are that close its parts."""
        while True:
            reply = self._ask(
                "/tokenize", {"prompt": text, "add_special_tokens": False, "return_token_strs": True}, where
            )
            try:
                tokens = list(reply["token_strs"])
                spelled = {token for token in tokens if _SPECIAL.fullmatch(token)}.difference(SPECIAL_TOKENS)
            except (KeyError, TypeError):
                raise self._unexpected(reply, "token_strs") from None
            changed = text
            for name in spelled:
                changed = changed.replace(name, f"{name[0]} {name[1:]}")
            if changed == text:
                ends = (STEP_END, ANSWER_END)
                return text, [place - len(tokens) for place, token in enumerate(tokens) if token in ends]
            text = changed

    def _ask(
        self, path: str, body: Mapping[str, Any] | None = None, where: str = "", *, retries: int | None = None
    ) -> Any:
        retries = 0 if self._silent else self._retries if retries is None else retries
        client, address = self._client.with_options(max_retries=retries), f"{self._shown_url}{path}"
        try:
            if body is None:
                reply = client.get(path, cast_to=object)
            else:
                reply = client.post(path, body={"model": self._served["id"], **body}, cast_to=object)
        except self._openai.APIConnectionError as error:
            self._silent |= retries == self._retries
            raise ProcessRewardServerError(
                f"ProcessRewardClient: no answer from {address}: {error} ({type(error.__cause__).__name__}). It was "
                f"asked {retries + 1} time(s). {_FIX}; HTTP_PROXY and NO_PROXY of the environment are used."
            ) from None
        except self._openai.APIStatusError as error:
            self._silent = False
            message = f"HTTP {error.status_code} from {address}: {without_key(error_message(error), client.api_key)}"
            if error.status_code in (400, 413) and where and "pooling_task" not in message:
                raise UnscorableRow(f"ProcessRewardClient: {where}: {message}.") from None
            fix = "See the server's log." if error.status_code >= 500 else f"{_FIX}."
            raise ProcessRewardServerError(f"ProcessRewardClient: {message}. {fix}") from None
        except ValueError as error:
            raise self._unexpected(error, "JSON") from None
        self._silent = False
        return reply

    def _unexpected(self, reply: Any, expected: str) -> ProcessRewardServerError:
        shown = str(reply)[:_SHOWN]
        return ProcessRewardServerError(
            f"ProcessRewardClient: {self._shown_url} answered {shown!r}; expected {expected}. {_FIX}."
        )


def process_reward_from(source: ProcessReward | str | Path) -> ProcessReward:
    """Load a process reward model, or connect to a served one.

    Args:
        source: a path or Hub id of a checkpoint, which is loaded here; the address of a server, http(s)://…; or what
            has `score` and `settings` already.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        return ProcessRewardClient(source)
    if isinstance(source, str | Path):
        return ProcessRewardModel.from_pretrained(source)
    if not hasattr(source, "score"):
        raise TypeError(
            f"process_reward_from: got a {type(source).__name__}, expected a ProcessRewardModel, the path of one, or "
            "the address of a server."
        )
    return source
