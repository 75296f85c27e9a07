"""TRL's tools and environments in rollouts of several turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from trl.chat_template_utils import parse_response


def called_tools(trainer: Any, trajectory: Any) -> tuple[list[Any], str]:
    """The tools that the last turn of a trajectory calls, and its text without the calls.

    Args:
        trainer: a `GroupGRPOTrainer` with tools.
        trajectory: a `Trajectory`.
    """
    turn = trajectory.turns[-1]
    tools = trainer.tools
    if trainer.environment_factories is not None:
        tools = trainer._env_tools[trainer._batch_environments[trajectory.place]]
    read = trajectory.context.ids[: -len(turn.ids)]
    message = parse_response(trainer._tokenizer, turn.ids, prefix=read, tools=tools)
    calls = message.get("tool_calls") or []
    return calls, message["content"] if calls else turn.text


def results_of_tools(trainer: Any, place: int, calls: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Call tools, asynchronous ones at the same time; the policy is told of errors, as in TRL.

    Args:
        trainer: as for `called_tools`.
        place: number of the row among those of this process, which has tools and an environment of its own.
        calls: the calls, in order.

    Returns:
        A message for each call, and how many ended in an error.
    """
    begun = [_begin(trainer, place, call) for call in calls]
    messages, failures = [], 0
    for call, result in zip(calls, begun, strict=True):
        try:
            content = result()
        except Exception as error:  # noqa: BLE001 - whatever a tool raises, the policy is told
            content, failures = {"error": str(error)}, failures + 1
        name = call.get("function", call).get("name", "unknown")
        content = content if isinstance(content, list) else str(content)
        messages.append({"role": "tool", "name": name, "content": content})
    return messages, failures


def _begin(trainer: Any, place: int, call: Mapping[str, Any]) -> Callable[[], Any]:
    if call["type"] != "function":
        return partial(_refuse, f"Unsupported tool call type: {call['type']}")
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if name in trainer._sync_tool_dicts[place]:
        return partial(trainer._sync_tool_dicts[place][name], **arguments)
    if name not in trainer._async_tool_dicts[place]:
        return partial(_refuse, f"Tool {name} not found.")
    tool = trainer._async_tool_dicts[place][name]
    return asyncio.run_coroutine_threadsafe(_awaited(tool, arguments), trainer.async_loop).result


async def _awaited(tool: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    return await tool(**arguments)


def _refuse(reason: str) -> Any:
    raise ValueError(reason)
