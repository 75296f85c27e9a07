"""An engine whose every reply is known, and questions to ask it, whose images are told apart by their red."""

from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Images

from trl_mmreason.generation import Failure, Sample


class Scripted:
    """Replies as a function of the request and of how often its conversation came before; keeps what it was asked.

    Args:
        answer: gives a string, a `Sample`, a `Failure`, or a list of strings, one for each of the request's `n`.
        kind: told apart by it in a store.
        dies_at: the number of the request at which it is interrupted, from 0.
    """

    def __init__(self, answer, kind="script", dies_at=None):
        self.answer, self.settings, self.dies_at = answer, {"kind": kind}, dies_at
        self.asked = []

    def sample(self, requests, sampling_params):
        return [self._one(request) for request in requests]

    def _one(self, request):
        if self.dies_at == len(self.asked):
            raise KeyboardInterrupt
        times = sum(said(old) == said(request) for old in self.asked)
        reply = self.answer(request, times)
        self.asked.append(request)
        if isinstance(reply, Failure):
            return reply
        replies = reply if isinstance(reply, list) else [reply] * request.n
        assert len(replies) == request.n
        return [one if isinstance(one, Sample) else Sample(one, "stop", list(range(len(one)))) for one in replies]


def image(red):
    return Images.new("RGB", (8, 8), (red, 0, 0))


def reds(images):
    return [image.getpixel((0, 0))[0] for image in images]


def questions_of(rows):
    """A data set of questions, in whose types a row may be without images; other columns are texts."""
    answer = List(Value("string")) if isinstance(rows[0]["answer"], list) else Value("string")
    messages = List({"role": Value("string"), "content": Value("string")})
    known = {"prompt": messages, "answer": answer, "images": List(Image())}
    features = {name: known.get(name, Value("string")) for name in rows[0]}
    return Dataset.from_list(rows, features=Features(features))


def said(request):
    """All text of a request, in order."""
    return [*(message["content"] for message in request.messages), request.prefix]
