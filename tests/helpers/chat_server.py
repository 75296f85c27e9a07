"""A chat endpoint on loopback whose answers an engine samples; it reads what `ServerEngine` sends, as vLLM does."""

import base64
import io
import threading
from contextlib import contextmanager

import PIL.Image
from chat_stub import Handler, chat_stub

from trl_mmreason.generation import Failure, Request, SamplingParams


class EngineHandler(Handler):
    """Answers one call at a time; `engine` and `lock` belong to the subclass."""

    def answer(self, body):
        stop = tuple(body.get("stop", ()))
        sampling_params = SamplingParams(
            body["max_tokens"],
            body["temperature"],
            body["top_p"],
            top_k=max(body["top_k"], 0),
            stop=stop,
            logprobs=body.get("logprobs", False),
        )
        with self.lock:
            [outcome] = self.engine.sample([request_of(body)], sampling_params)
        if isinstance(outcome, Failure):
            return self.reply(400, {"error": {"message": outcome.reason}})
        choices = [choice_of(sample, body) | {"index": index} for index, sample in enumerate(outcome)]
        return self.reply(200, {"choices": choices})


def request_of(body):
    messages, images = [], []
    for message in body["messages"]:
        content = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        urls = [part["image_url"]["url"] for part in parts if "image_url" in part]
        images += [PIL.Image.open(io.BytesIO(base64.b64decode(url.partition("base64,")[2]))) for url in urls]
        text = "".join(part.get("text", "") for part in parts)
        messages.append({"role": message["role"], "content": text})
    prefix = messages.pop()["content"] if body.get("continue_final_message") else ""
    return Request(messages, images, prefix, n=body.get("n", 1), seed=body["seed"])


def choice_of(sample, body):
    choice = {"message": {"role": "assistant", "content": sample.text}, "finish_reason": sample.finish_reason}
    if sample.logprobs is not None:
        choice["logprobs"] = {"content": [{"logprob": logprob} for logprob in sample.logprobs]}
    if body.get("return_token_ids"):
        choice["token_ids"] = sample.token_ids
    return choice


@contextmanager
def chat_server(engine):
    """Serve an engine while the block runs, under any model's name; gives the address of the API."""
    with chat_stub(type("Served", (EngineHandler,), {"engine": engine, "lock": threading.Lock()})) as server:
        yield server.url
