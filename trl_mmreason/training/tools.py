"""TRL's tools and environments in rollouts of any number of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from PIL.Image import Image
from trl.chat_template_utils import parse_response

from ..messages import checked_content


def called_tools(trainer: Any, trajectory: Any) -> tuple[list[Any], str]:
    """The tools that the last turn of a trajectory calls, and its text without the calls, thoughts included."""
    turn = trajectory.turns[-1]
    tools = trainer.tools
    if trainer.environment_factories is not None:
        tools = trainer._env_tools[trainer._batch_environments[trajectory.place]]
    read = trajectory.context.ids[: -len(turn.ids)]
    message = parse_response(trainer._tokenizer, turn.ids, prefix=read, tools=tools)
    if not (calls := message.get("tool_calls") or []):
        return [], turn.text
    thought = message.get("reasoning_content")
    return calls, (f"<think>\n{thought}\n</think>\n\n" if thought else "") + message["content"]


def results_of_tools(trainer: Any, place: int, calls: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Call tools, asynchronous ones at the same time; the policy is told of errors, as in TRL.

    A list of text and images becomes the parts of a message; anything else is written as `str` does.

    Args:
        place: number of the row among those of this process, which has tools and an environment of its own.

    Returns:
        A message for each call, and how many ended in an error. An image that models do not take is one, too: the
        policy may have asked for it.
    """
    begun = [_begin(trainer, place, call) for call in calls]
    messages, failures = [], 0
    for call, result in zip(calls, begun, strict=True):
        try:
            content = _content(result())
        except Exception as error:  # noqa: BLE001 - whatever a tool raises, the policy is told
            content, failures = str({"error": str(error)}), failures + 1
        name = call.get("function", call).get("name", "unknown")
        messages.append({"role": "tool", "name": name, "content": content})
    return messages, failures


def _begin(trainer: Any, place: int, call: Mapping[str, Any]) -> Callable[[], Any]:
    if call["type"] != "function":
        return partial(_refuse, f"Unsupported tool call type: {call['type']}")
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if (tool := trainer._sync_tool_dicts[place].get(name)) is not None:
        return lambda: tool(**arguments)
    if name not in trainer._async_tool_dicts[place]:
        return partial(_refuse, f"Tool {name} not found.")
    tool = trainer._async_tool_dicts[place][name]
    return asyncio.run_coroutine_threadsafe(_awaited(tool, arguments), trainer.async_loop).result


def _content(returned: Any) -> Any:
    """Parts of a message, if images or parts were returned; anything else as text."""
    parts = returned if isinstance(returned, list) else [returned]
    parts = [{"type": "image", "image": part} if isinstance(part, Image) else part for part in parts]
    if not any(isinstance(part, Mapping) and part.get("type") in ("text", "image") for part in parts):
        return str(returned)
    return checked_content(parts, "A tool")


async def _awaited(tool: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    return await tool(**arguments)


def _refuse(reason: str) -> Any:
    raise ValueError(reason)
