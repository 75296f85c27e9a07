"""TRL's client of a vLLM server, extended for images."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trl.generation.vllm_client import VLLMClient, to_openai_messages


class ImageClient(VLLMClient):
    """`VLLMClient` that reports the server's tokens for each image, resets its encoder cache, and sends its key.

    The key is that of the environment's `VLLM_API_KEY`, which `vllm serve` reads too.
    """

    def check_server(self, *args: Any, **kwargs: Any) -> None:
        """As TRL's, which then asks for the model's name; from here on the server's key is sent, if it has one."""
        if key := os.environ.get("VLLM_API_KEY"):
            self.session.headers["Authorization"] = f"Bearer {key}"
        super().check_server(*args, **kwargs)

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

        rows = {_same(row): row for row in images}
        with ThreadPoolExecutor(max_workers=min(max_concurrent_requests, len(rows))) as executor:
            sent = dict(zip(rows, executor.map(send, rows.values()), strict=True))
        return [sent[_same(row)] for row in images]

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


def name_tokens(entries: Iterable[dict[str, Any]]) -> None:
    """Give entries that have the number of their token alone the name that vLLM gave them up to 0.31."""
    for entry in entries:
        if "token" not in entry:
            entry["token"] = f"token_id:{entry['token_id']}"
        name_tokens(entry.get("top_logprobs", ()))


def _same(images: list | None) -> tuple[int, ...]:
    """Equal for rows with the same image objects."""
    return tuple(map(id, images or ()))
