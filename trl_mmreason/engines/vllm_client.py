"""The client of a vLLM server, with what TRL's lacks for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from trl.generation.vllm_client import VLLMClient, to_openai_messages


class PromptMismatch(RuntimeError):
    """vLLM would answer, or has answered, another prompt than the one that is trained on."""


class PictureClient(VLLMClient):
    """`VLLMClient` that knows which tokens the server makes of each picture, and resets its encoder cache."""

    def image_features(self, images: list[list | None], max_concurrent_requests: int = 64) -> list[dict | None]:
        """Process pictures on the server, as TRL does; `picture_spans` holds the tokens that it makes of each.

        The lengths among `mm_placeholders` will not do: for some families they count the tokens around a picture too.
        """

        def send(pictures: list | None) -> dict | None:
            if not pictures:
                return None
            content = [{"type": "image", "image": picture} for picture in pictures]
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
            return {**features, "picture_spans": spans}

        with ThreadPoolExecutor(max_workers=min(max_concurrent_requests, len(images))) as executor:
            return list(executor.map(send, images))

    def reset_encoder_cache(self) -> None:
        """Drop the picture features that the server computed with earlier weights.

        Raises:
            RuntimeError: the server cannot.
        """
        # not `_post`: the answer has no body
        response = self.session.post(f"{self.base_url}/reset_encoder_cache")
        if response.status_code != 200:
            raise RuntimeError(
                f"The vLLM server at {self.base_url} answered /reset_encoder_cache with status {response.status_code}. "
                "It would encode pictures that it has seen before with earlier weights. Fix: start it with "
                "VLLM_SERVER_DEV_MODE=1 in its environment."
            )


def find_pictures(prompt_ids: Sequence[int], image_token_id: int, lengths: Sequence[int]) -> list[dict[str, int]]:
    """Find each picture's placeholders in a prompt.

    Args:
        prompt_ids: token ids of a prompt with expanded placeholders.
        image_token_id: the placeholder.
        lengths: placeholders that each picture has, in order. Pictures may stand side by side.

    Returns:
        Offset and length of each picture.

    Raises:
        PromptMismatch: the prompt has other placeholders than these.
    """
    found: list[dict[str, int]] = []
    position = 0
    for length in lengths:
        while position < len(prompt_ids) and prompt_ids[position] != image_token_id:
            position += 1
        found.append({"offset": position, "length": length})
        position += length
    own = sum(token == image_token_id for token in prompt_ids)
    covered = [token for place in found for token in prompt_ids[place["offset"] : place["offset"] + place["length"]]]
    if own != sum(lengths) or covered != [image_token_id] * own:
        raise PromptMismatch(
            f"The vLLM server makes other placeholders of a prompt's pictures than the trainer: {list(lengths)}, "
            f"{sum(lengths)} in all, where the trainer's prompt has {own}. The server expands pictures with the "
            "processor saved beside its model. Fix: train with that one, pixel limits included, or save yours there."
        )
    return found
