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

from .chat_completions import import_openai, without_key

if TYPE_CHECKING:
    import openai

PROBE_SECONDS = 30.0


class _UnknownPlaceholders(Exception):
    """The tokens cannot be determined; the text says why."""


async def ask_placeholders(client: openai.AsyncOpenAI, model: str, url: str) -> tuple[tuple[int, ...] | None, str]:
    """Return the ids that a server must suppress, and a warning if they cannot be determined.

    Args:
        client: connected to the server.
        model: the model's name at the server.
        url: the server's address as it may be shown.

    Returns:
        The ids, `None` where nothing answers and () for a text-only model; the warning, or "".
    """
    try:
        return await _find(client, model), ""
    except import_openai().APIConnectionError:
        return None, ""  # the call itself tells what is wrong
    except _UnknownPlaceholders as why:
        return (), (
            f"Nothing keeps the model {model!r} at {url} from writing placeholders of pictures: "
            f"{without_key(str(why), client.api_key)}. Fix: start the server from a folder or Hub id that can be read "
            "here (or, in Python, give ServerEngine suppressed_ids)."
        )


async def _find(client: openai.AsyncOpenAI, model: str) -> tuple[int, ...]:
    import openai

    quick = client.with_options(timeout=PROBE_SECONDS, max_retries=1)
    try:
        listed = await quick.get("/models", cast_to=object)
        checkpoint = _served_checkpoint(listed, model)
        expected = await asyncio.to_thread(_read_placeholders, checkpoint)
        root = str(client.base_url).rstrip("/").removesuffix("/v1")  # vLLM's `/detokenize` lies beside `/v1`
        for token_id, text in expected.items():
            reply = await quick.post(f"{root}/detokenize", body={"model": model, "tokens": [token_id]}, cast_to=object)
            if not isinstance(reply, Mapping) or reply.get("prompt") != text:
                raise _UnknownPlaceholders(f"its token {token_id} is not {text!r} as in {checkpoint}")
    except (openai.APIStatusError, ValueError) as error:
        raise _UnknownPlaceholders(f"it does not say ({type(error).__name__}: {error})"[:200]) from error
    return tuple(expected)


def _served_checkpoint(listed: Any, model: str) -> str:
    """The path or Hub id of the model's checkpoint (for an adapter, of its base)."""
    data = listed.get("data") if isinstance(listed, Mapping) else None
    entries = {entry["id"]: entry for entry in data or () if isinstance(entry, Mapping) and "id" in entry}
    if model not in entries:
        raise _UnknownPlaceholders("it does not list the model")
    entry = entries[model]
    base = entries.get(entry.get("parent"), entry)
    checkpoint = base.get("root") or (model if os.path.isdir(model) else None)
    if not checkpoint:
        raise _UnknownPlaceholders("it does not say which checkpoint it serves")
    return str(checkpoint)


def _read_placeholders(checkpoint: str) -> dict[int, str]:
    """Placeholders of pictures and videos, token id → text; empty for a text-only model."""
    from transformers import AutoConfig, AutoTokenizer

    from ..compat.model_parts import placeholder_ids

    try:
        ids = placeholder_ids(AutoConfig.from_pretrained(checkpoint))
        if not ids:
            return {}
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        return {token_id: tokenizer.decode([token_id]) for token_id in ids}
    except (OSError, ValueError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise _UnknownPlaceholders(f"its checkpoint {checkpoint} cannot be read here ({first_line})") from error
