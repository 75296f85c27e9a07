"""Images inside the text of a prompt stand at their places in every engine: its ids are those of the chat template."""

import base64
import io

import PIL.Image
import pytest
import torch
from datasets import Dataset, Features, Image, List, Value
from support import FAMILY_NAMES, load
from transformers import ProcessorMixin

from trl_mmreason.data.images import images_of
from trl_mmreason.data.row_loading import load_rows
from trl_mmreason.generation import Request, Sample, SamplingParams
from trl_mmreason.generation.batch import conversation_of, encode
from trl_mmreason.generation.server_engine import RequestFailed, chat_messages
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.generation.turn_after_turn import sample_turns
from trl_mmreason.generation.vllm_engine import prompt_of

RED, BLUE = (PIL.Image.new("RGB", (56, 56 * (1 + k)), colour) for k, colour in enumerate(["red", "blue"]))


def text(words):
    return {"type": "text", "text": words}


def shown(image):
    return {"type": "image", "image": image}


def user(*parts):
    return {"role": "user", "content": list(parts)}


ANSWERED = {"role": "assistant", "content": [text("It is 7.")]}
# As a user has it → the conversation in parts, each image at its place.
PROMPTS = {
    "inside": ("Add <image> to <image>.", [user(text("Add "), shown(RED), text(" to "), shown(BLUE), text("."))]),
    "options": (
        "Which is 7?\nA. <image>\nB. <image>",
        [user(text("Which is 7?\nA. "), shown(RED), text("\nB. "), shown(BLUE))],
    ),
    "first and inside": (
        "<image>\nIs it as <image>?",
        [user(shown(RED), text("\nIs it as "), shown(BLUE), text("?"))],
    ),
    "first": ("<image><image>\nWhich is 7?", [user(shown(RED), shown(BLUE), text("Which is 7?"))]),
    "first, unmarked": ("Which is 7?", [user(shown(RED), shown(BLUE), text("Which is 7?"))]),
    "two messages": (
        [
            {"role": "user", "content": "What is it?\n<image>"},
            {"role": "assistant", "content": "It is 7."},
            {"role": "user", "content": "<image>And it?"},
        ],
        [user(text("What is it?\n"), shown(RED)), ANSWERED, user(shown(BLUE), text("And it?"))],
    ),
}


@pytest.fixture(scope="module")
def rows():
    """The rows of `PROMPTS` as `load_rows` reads them."""
    messages = [[{"role": "user", "content": one}] if isinstance(one, str) else one for one, _ in PROMPTS.values()]
    columns = {"prompt": messages, "images": [[RED, BLUE]] * len(messages), "answer": ["7"] * len(messages)}
    message = {"role": Value("string"), "content": Value("string")}
    features = Features({"prompt": List(message), "images": List(Image()), "answer": Value("string")})
    loaded = load_rows(Dataset.from_dict(columns, features=features), on_error="raise").dataset
    return dict(zip(PROMPTS, loaded, strict=True))


def templated(processor, conversation):
    return processor.apply_chat_template([conversation], tokenize=True, return_dict=True, add_generation_prompt=True)


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_ids_are_those_of_the_chat_template(checkpoints, family, rows, name):
    model, processor = load(checkpoints(family))
    row, conversation = rows[name], PROMPTS[name][1]
    expected = templated(processor, conversation)
    prompt = encode(processor, row["prompt"], images_of(row))
    assert prompt.ids == list(expected["input_ids"][0])
    torch.testing.assert_close(prompt.image_fields["pixel_values"], torch.as_tensor(expected["pixel_values"]))
    request = prompt_of(processor, Request(row["prompt"], images_of(row)), {})
    unexpanded = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert request["prompt_token_ids"] == processor.tokenizer(unexpanded, add_special_tokens=False)["input_ids"]
    assert [image.tobytes() for image in request["multi_modal_data"]["image"]] == [RED.tobytes(), BLUE.tobytes()]
    asked = []
    model.register_forward_pre_hook(lambda _, __, kwargs: asked.append(kwargs["input_ids"]), with_kwargs=True)
    engine = TransformersEngine(model, processor)
    (samples,) = engine.sample([Request(row["prompt"], images_of(row))], SamplingParams(max_new_tokens=1))
    assert isinstance(samples[0], Sample)
    assert asked[0][0].tolist() == prompt.ids


@pytest.mark.parametrize("name", PROMPTS)
def test_a_server_is_sent_the_parts_in_that_order(rows, name):
    row, conversation = rows[name], PROMPTS[name][1]
    sent = chat_messages(Request(row["prompt"], images_of(row), prefix="So"))
    assert sent.pop() == {"role": "assistant", "content": "So"}

    def opened(part):
        if part["type"] == "text":
            return part
        content = base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,"))
        return shown(PIL.Image.open(io.BytesIO(content)).convert("RGB"))

    for message, expected in zip(sent, conversation, strict=True):
        if message["role"] == "assistant":
            assert message["content"] == text_of_one(expected)
        else:
            assert list(map(opened, message["content"])) == expected["content"]


def text_of_one(message):
    (part,) = message["content"]
    return part["text"]


def test_a_server_is_sent_no_image_without_a_place():
    for content, count in (([text("What?")], 1), ([{"type": "image"}, text("What?")], 0)):
        with pytest.raises(RequestFailed, match=f"{count} images came, and the messages have {1 - count} places"):
            chat_messages(Request([{"role": "user", "content": content}], [RED] * count))
    sent = chat_messages(Request([user(text("Is "), {"type": "image"}, text("red?"))], [RED]))
    assert [part["type"] for part in sent[0]["content"]] == ["text", "image_url", "text"]


def test_marks_in_a_text_only_question_are_text(processor):
    asked = [{"role": "user", "content": "Is <image> a tag?"}]
    assert isinstance(processor, ProcessorMixin)
    assert conversation_of(processor, asked, []) == [user(text("Is <image> a tag?"))]
    assert conversation_of(processor.tokenizer, asked, []) == asked


class Scripted:
    """Answers without token ids, as a chat endpoint does, and keeps what each turn was sent."""

    settings = {"kind": "scripted"}

    def __init__(self):
        self.sent = []

    def sample(self, requests, sampling_params):
        self.sent += [chat_messages(request) for request in requests]
        return [[Sample("I see <image>.", "stop")] for _ in requests]


def test_a_mark_in_a_later_message_is_no_place(rows):
    """What a follow-up quotes of an answer shows no image, wherever those of the prompt stand."""
    said = {"role": "user", "content": "You said: I see <image> and <image>."}
    for name in ("inside", "first", "two messages"):
        engine = Scripted()
        sample_turns([rows[name]], engine, SamplingParams(), lambda *_: said, [0])
        first, second = engine.sent
        assert second[: len(first)] == first
        assert second[len(first)] == {"role": "assistant", "content": "I see <image>."}
        assert second[-1] == user(text(said["content"]))
