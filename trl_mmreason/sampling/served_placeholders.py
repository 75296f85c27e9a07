"""Find the picture placeholders of a served model, so that its server can suppress them.

An answer that holds such a token cannot be trained on: the model would look for a picture there. vLLM and SGLang do
not suppress them by themselves. Token ids mean something else to another tokenizer, so ids are used only if the server
itself decodes them to the same text as the checkpoint that they were read from.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openai

PROBE_SECONDS = 30.0
_SUPPRESS_THEMSELVES = frozenset({"trl-mmreason"})  # what `mmreason serve` says of who owns a model


class UnknownPlaceholders(Exception):
    """The tokens cannot be determined; the text says why."""


async def find_placeholder_ids(client: openai.AsyncOpenAI, base_url: str, model: str) -> tuple[int, ...]:
    """Return the ids that the server must suppress: none for a text-only model and for `mmreason serve`.

    Args:
        client: connected to the server.
        base_url: address of its API; vLLM's `/detokenize` lies beside `/v1`.
        model: the model's name at the server.

    Raises:
        UnknownPlaceholders: the server does not say which checkpoint it serves, or this process cannot read it.
        openai.APIConnectionError: nothing answers.
    """
    import openai

    quick = client.with_options(timeout=PROBE_SECONDS, max_retries=1)
    try:
        listed = await quick.get("/models", cast_to=object)
        entry, checkpoint = _served_checkpoint(listed, model)
        if entry.get("owned_by") in _SUPPRESS_THEMSELVES:
            return ()
        expected = await asyncio.to_thread(_read_placeholders, checkpoint)
        root = base_url.rstrip("/").removesuffix("/v1")
        for token_id, text in expected.items():
            reply = await quick.post(f"{root}/detokenize", body={"model": model, "tokens": [token_id]}, cast_to=object)
            if not isinstance(reply, Mapping) or reply.get("prompt") != text:
                raise UnknownPlaceholders(f"its token {token_id} is not {text!r} as in {checkpoint}")
    except (openai.APIStatusError, ValueError) as error:
        raise UnknownPlaceholders(f"it does not say ({type(error).__name__}: {error})"[:200]) from error
    return tuple(expected)


def _served_checkpoint(listed: Any, model: str) -> tuple[Mapping[str, Any], str]:
    """The server's entry of the model, and the path or Hub id of its checkpoint (for an adapter, of its base)."""
    data = listed.get("data") if isinstance(listed, Mapping) else None
    entries = {entry["id"]: entry for entry in data or () if isinstance(entry, Mapping) and "id" in entry}
    if model not in entries:
        raise UnknownPlaceholders("it does not list the model")
    entry = entries[model]
    base = entries.get(entry.get("parent"), entry)
    checkpoint = base.get("root") or (model if os.path.isdir(model) else None)
    if entry.get("owned_by") not in _SUPPRESS_THEMSELVES and not checkpoint:
        raise UnknownPlaceholders("it does not say which checkpoint it serves")
    return entry, checkpoint or model


def _read_placeholders(checkpoint: str) -> dict[int, str]:
    """Placeholders of pictures and videos, token id → text; empty for a text-only model."""
    from transformers import AutoConfig, AutoTokenizer

    from .generation import placeholder_ids

    try:
        ids = placeholder_ids(AutoConfig.from_pretrained(checkpoint))
        if not ids:
            return {}
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        return {token_id: tokenizer.decode([token_id]) for token_id in ids}
    except (OSError, ValueError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise UnknownPlaceholders(f"its checkpoint {checkpoint} cannot be read here ({first_line})") from error
