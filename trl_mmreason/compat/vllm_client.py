"""TRL's client of a vLLM server, extended for images, and for servers that go away."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as executors
from contextlib import contextmanager, nullcontext
from typing import Any

import requests
from torch import Tensor
from trl.generation.vllm_client import VLLMClient, to_openai_messages

from .vllm_buckets import BUCKET, Buckets

logger = logging.getLogger(__name__)

Metadata = list[tuple[str, str, list[int]]]
"""Name, dtype and shape of each weight, as TRL announces it."""

_ANSWER_SECONDS = 30.0  # for requests that are answered at once
_POLL_SECONDS = 2.0
_MESSAGE_SECONDS = 60.0


class ServerLost(RuntimeError):
    """The server does not answer, or has other weights than it was sent."""


LOST = (ServerLost, requests.RequestException)
"""Errors that another attempt, when the server is back, may not have."""


class ImageClient(VLLMClient):
    """`VLLMClient` for images, which sends weights in buckets.

    It reports the server's tokens for each image, resets its encoder cache, and sends its key: that of the
    environment's `VLLM_API_KEY`, which `vllm serve` reads too.

    Attributes:
        bucket: bytes of weights after which they are sent.
        freed: whether the memory of a weight is given away when the next one comes.
    """

    bucket = BUCKET
    freed = False
    _gloo: Any = None
    _buckets: Buckets | None = None

    def check_server(self, *args: Any, **kwargs: Any) -> None:
        """As TRL's, which then asks for the model's name; from here on the server's key is sent, if it has one."""
        if key := os.environ.get("VLLM_API_KEY"):
            self.session.headers["Authorization"] = f"Bearer {key}"
        super().check_server(*args, **kwargs)

    def init_communicator(self, device: Any = 0) -> None:
        """Meet the server's processes to send them weights, over gloo where the server was started for it."""
        transfer = self.get_server_info()["weight_transfer_config"]
        if not transfer or transfer["backend"] != "gloo":
            super().init_communicator(device)
            return
        from vllm.utils.network_utils import get_ip

        from .vllm_gloo import GlooGroup, GlooInfo

        info = GlooInfo(get_ip(), self.group_port, self.get_world_size() + 1)
        url, asked = f"{self.base_url}/init_weight_transfer_engine", {"init_info": vars(info)}
        with ThreadPoolExecutor(max_workers=1) as executor:  # the server answers when all have met
            answer = executor.submit(self._post, url, json=asked)
            self._gloo = GlooGroup(info, 0)
            answer.result()

    def update_named_params(self, metadata: Metadata, named_params: Iterable[tuple[str, Tensor]]) -> None:
        """Send weights in buckets: of each one request, and one call of the server's `load_weights`.

        TRL announces all weights in one request, so that it gathers each twice in the first update, and vLLM packs
        them into buffers of 1 GiB, with two under way.

        Args:
            metadata: is not read.
            named_params: names and weights.
        """
        self._buckets = Buckets(self._send, copies=self.freed, most=self.bucket)
        with nullcontext() if self._updating_weights else self.weight_update():
            for weight in named_params:
                self._buckets.add([weight])
            self._buckets.flush()

    def flush(self) -> None:
        """Send what waits for its bucket to be full."""
        if self._buckets is not None:
            self._buckets.flush()

    def _send(self, weights: list[tuple[str, Tensor]]) -> None:
        metadata = [(name, str(weight.dtype).removeprefix("torch."), [*weight.shape]) for name, weight in weights]
        if self._gloo is None:
            super().update_named_params(metadata, iter(weights))
            return
        names, dtypes, shapes = ([*field] for field in zip(*metadata, strict=True))
        asked = {"update_info": {"names": names, "dtype_names": dtypes, "shapes": shapes}}
        with ThreadPoolExecutor(max_workers=1) as executor:  # the server answers when it has received and loaded them
            answer = executor.submit(self._post, f"{self.base_url}/update_weights", json=asked)
            self._gloo.broadcast([weight.detach().cpu().contiguous() for _, weight in weights])
            answer.result()

    def image_features(self, images: list[list | None], max_concurrent_requests: int = 64) -> list[dict | None]:
        """Process images on the server, as TRL does, and keep each image's tokens in `image_spans`.

        The lengths among `mm_placeholders` will not do: for some families they count the tokens around an image too.
        Rows with the same image objects are sent once: in a second turn each row of a group is a prompt of its own.
        """

        def send(row: list | None) -> dict | None:
            if not row:
                return None
            content = [{"type": "image", "image": image} for image in row]
            rendered = self._post(
                f"{self.base_url}/v1/chat/completions/render",
                json={
                    "model": self.model,
                    "messages": to_openai_messages([{"role": "user", "content": content}]),
                    "max_tokens": 1,
                },
            )
            features, ids = rendered["features"], rendered["token_ids"]
            spans = [
                ids[place["offset"] : place["offset"] + place["length"]]
                for place in features["mm_placeholders"]["image"]
            ]
            return {**features, "image_spans": spans}

        rows = {images_key(row): row for row in images}
        with ThreadPoolExecutor(max_workers=min(max_concurrent_requests, len(rows))) as executor:
            sent = dict(zip(rows, executor.map(send, rows.values()), strict=True))
        return [sent[images_key(row)] for row in images]

    def _post(self, url: str, *args: Any, **kwargs: Any) -> Any:
        """As TRL's; tokens of vLLM 0.32's answers are named as those of 0.31, which TRL 1.16 reads."""
        answer = super()._post(url, *args, **kwargs)
        if url.endswith("/inference/v1/generate"):
            for choice in answer["choices"]:
                name_tokens((choice["logprobs"] or {}).get("content") or ())
        return answer

    def context(self) -> int:
        """The tokens that prompt and answer may have together."""
        return self._get(f"{self.base_url}/v1/models")["data"][0]["max_model_len"]

    def is_up(self) -> bool:
        """Whether the server answers now."""
        try:
            return requests.get(f"{self.base_url}/health", timeout=_ANSWER_SECONDS).status_code == 200
        except requests.RequestException:
            return False

    def wait_until_up(self, seconds: float) -> None:
        """Wait until the server answers, and say so.

        Raises:
            ServerLost: it did not within these seconds.
        """
        begun, said = time.monotonic(), -_MESSAGE_SECONDS
        while not self.is_up():
            waited = time.monotonic() - begun
            if waited >= seconds:
                raise ServerLost(f"the vLLM server at {self.base_url} has not answered for {waited:.0f} s")
            if waited - said >= _MESSAGE_SECONDS:
                said = waited
                logger.warning(
                    "The vLLM server at %s does not answer. Training waits for it, for %.0f s more "
                    "(vllm_server_timeout).",
                    self.base_url,
                    seconds - waited,
                )
            time.sleep(_POLL_SECONDS)

    def weights_name(self) -> str:
        """The name of the server's weights: "default" in a server that was just started.

        Raises:
            RuntimeError: the server's vLLM names none.
        """
        return self._ask("GET", "/weight_info")["weight_version"]

    @contextmanager
    def naming_weights(self, name: str) -> Iterator[None]:
        """Give weights that are sent within the block a name, which a server that is started anew does not have.

        Raises:
            ServerLost: the server was started anew amid the block.
        """
        unfinished = f"{name}, unfinished"
        self._ask("POST", "/update_weight_version", json={"new_version": unfinished})
        yield
        self.check_weights(unfinished)
        self._ask("POST", "/update_weight_version", json={"new_version": name})

    def check_weights(self, name: str) -> None:
        """Raise `ServerLost` if the server's weights have another name."""
        if (found := self.weights_name()) != name:
            raise ServerLost(
                f"the vLLM server at {self.base_url} has the weights {found!r}, not {name!r}: it was started anew, "
                "with those of its folder, or another run uses it"
            )

    def _ask(self, method: str, path: str, **content: Any) -> Any:
        """The answer to a request that is not repeated: a server that comes up again would not be told apart."""
        headers = dict(self.session.headers)
        response = requests.request(
            method, f"{self.base_url}{path}", headers=headers, timeout=_ANSWER_SECONDS, **content
        )
        if response.status_code == 404:
            raise RuntimeError(
                f"The vLLM server at {self.base_url} answered {path} with status 404, so that nothing would tell when "
                "it was started anew with old weights. Fix: a vLLM that has it, such as 0.31, with "
                "VLLM_SERVER_DEV_MODE=1 in its environment; or generate_ahead=False."
            )
        response.raise_for_status()
        return response.json()

    def reset_encoder_cache(self) -> None:
        """Drop the server's image features of earlier weights.

        Raises:
            RuntimeError: the server cannot.
        """
        # not `_post`: the answer has no body
        response = self.session.post(f"{self.base_url}/reset_encoder_cache")
        if response.status_code != 200:
            raise RuntimeError(
                f"The vLLM server at {self.base_url} answered /reset_encoder_cache with status {response.status_code}. "
                "It would use features of earlier weights for images that it has seen before. Fix: start it with "
                "VLLM_SERVER_DEV_MODE=1 in its environment."
            )


def leave_waiting_threads() -> None:
    """Let this process end although threads wait for a server: those of executors that a daemon thread began.

    Python waits at its end for all threads of executors, also for daemons, and TRL's requests have no time limit.
    """
    for thread in [*executors._threads_queues]:
        if thread.daemon:
            del executors._threads_queues[thread]  # type: ignore[attr-defined]


def name_tokens(entries: Iterable[dict[str, Any]]) -> None:
    """Give entries that have the number of their token alone the name that vLLM gave them up to 0.31."""
    for entry in entries:
        if "token" not in entry:
            entry["token"] = f"token_id:{entry['token_id']}"
        name_tokens(entry.get("top_logprobs", ()))


def images_key(images: list | None) -> tuple[int, ...]:
    """A key that rows with the same image objects share."""
    return tuple(map(id, images or ()))
