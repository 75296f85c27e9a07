"""What a chat template writes between two answers, and the prefix that it gives an answer.

The next prompt of a rollout is the last one, the answer exactly as it was sampled, and the tokens made here. Rendering
the whole conversation again would re-tokenise the answer, and the ids would drift from the sampled ones; only the
family's own template is asked, so nothing here knows any family.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from transformers import GenerationConfig, PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils import logging

from ..messages import count_marks, text_of

logger = logging.get_logger(__name__)

ProcessingClass: TypeAlias = ProcessorMixin | PreTrainedTokenizerBase
"""A vision-language model's processor, or a text-only model's tokenizer."""

_ANSWER = "the answer of the assistant"


def tokenizer_of(processing_class: ProcessingClass) -> Any:
    """A processor's tokenizer, or the tokenizer itself."""
    # Not by the attribute's name: the tokenizers of mistral-common keep something else under it.
    return processing_class.tokenizer if isinstance(processing_class, ProcessorMixin) else processing_class


def token_counter(processing_class: ProcessingClass) -> Callable[[str], int]:
    """Make a function that counts a string's tokens, without those that a tokenizer adds."""
    tokenizer = tokenizer_of(processing_class)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def ids_of_rendered(processing_class: ProcessingClass, texts: Sequence[str]) -> list[list[int]]:
    """Tokenise prompts that `apply_chat_template` has rendered as it does itself, but for one placeholder per image.

    A processor's adds the tokenizer's special tokens unless the template writes the first of them (LLaVA's does not); a
    tokenizer's adds none.
    """
    tokenizer = tokenizer_of(processing_class)
    written = tokenizer.bos_token is not None and texts[0].startswith(tokenizer.bos_token)
    adds = isinstance(processing_class, ProcessorMixin) and not written
    return tokenizer(list(texts), add_special_tokens=adds)["input_ids"]


def declared_end_ids(settings: GenerationConfig, processing_class: ProcessingClass) -> list[int]:
    """All tokens that end an answer of a model with these generation settings, as in TRL: its and the tokenizer's."""
    declared = settings.eos_token_id
    declared = [declared] if isinstance(declared, int) else list(declared or [])
    own = tokenizer_of(processing_class).eos_token_id
    return declared if own in declared else [own, *declared]


def text_after_answer(
    processing_class: ProcessingClass,
    messages: Sequence[Mapping[str, Any]],
    *,
    eos_token_ids: Collection[int],
    chat_template: str | None = None,
    **chat_template_kwargs: Any,
) -> str:
    """What a chat template writes after an answer: its end of turn, the next messages, and the generation prompt.

    Args:
        processing_class: processor or tokenizer with a chat template.
        messages: one of the user, or those of the tools that the answer called; each content is a string, or parts
            with images.
        eos_token_ids: the tokens that end an answer.

    Raises:
        ValueError: the template does not show the answer unchanged.
    """
    answer: dict[str, Any] = {"role": "assistant", "content": _ANSWER}
    if called := messages[0]["role"] == "tool":
        # some templates write the tool's name with what it returned
        answer["tool_calls"] = [{"type": "function", "function": {"name": messages[0]["name"], "arguments": {}}}]
    tokenizer = tokenizer_of(processing_class)
    spelt = [_without_special_tokens(message, tokenizer) for message in messages]

    def rendered(said: list[dict[str, Any]], **more: Any) -> str:
        conversation: Any = [{"role": "user", "content": "question"}, answer, *said]
        if isinstance(processing_class, ProcessorMixin):
            from trl.data_utils import prepare_multimodal_messages  # TRL takes seconds to load

            conversation = prepare_multimodal_messages(conversation)
        template = {} if chat_template is None else {"chat_template": chat_template}
        return processing_class.apply_chat_template(
            conversation, tokenize=False, **template, **more, **chat_template_kwargs
        )

    text = rendered(spelt, add_generation_prompt=True)
    by_others = sum(text_of(message["content"]).count(_ANSWER) for message in spelt)  # "Check the answer of …"
    if text.count(_ANSWER) != 1 + by_others:
        raise ValueError(
            "next_turn_ids: the chat template does not show an earlier answer of the assistant unchanged and once, so "
            f"a second turn cannot be built from it. It rendered: {text!r}. Use a template that keeps the "
            "conversation's history."
        )
    text = text.partition(_ANSWER)[2]
    if not called:
        return text
    before = rendered([], add_generation_prompt=False).split(_ANSWER)[-1]
    end = max(before.rfind(token) for token in tokenizer.convert_ids_to_tokens(list(eos_token_ids)))
    return text[end:] if end >= 0 and text.startswith(before[:end]) else text


def warn_of_dropped_thoughts(trainer: Any) -> None:
    """Warn of a template that leaves thoughts out of earlier answers: later turns of a rollout have them."""
    processing_class, thought = trainer.processing_class, "the thought of the assistant"
    said = [{"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\n{_ANSWER}"}]
    said = [{"role": "user", "content": "question"}, *said, {"role": "user", "content": "and?"}]
    if isinstance(processing_class, ProcessorMixin):
        from trl.data_utils import prepare_multimodal_messages

        said = prepare_multimodal_messages(said)
    template = {} if trainer.chat_template is None else {"chat_template": trainer.chat_template}
    text = processing_class.apply_chat_template(said, tokenize=False, **template, **trainer.chat_template_kwargs)
    if text.count(thought) != 1 or text.count("<think>") != 1:
        logger.warning(
            f"{type(trainer).__name__}: the chat template rewrites the thoughts of earlier answers: {text!r}. In "
            "training, later turns are sampled and scored after the thoughts as they were written. Evaluate in this "
            "process, or with --vllm: a chat server renders the conversation anew, without them."
        )


def _without_special_tokens(message: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The message with a space in each name of a special token: what it quotes shows no image and ends no turn."""
    names = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]

    def spelt(text: str) -> str:
        for name in names:
            text = text.replace(name, f"{name[0]} {name[1:]}")
        return text

    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": spelt(content)}
    return {**message, "content": [{**p, "text": spelt(p["text"])} if p["type"] == "text" else p for p in content]}


def end_of_answer(tokenizer: Any, ids: Sequence[int], eos_token_ids: Collection[int]) -> int:
    """The number of tokens that end an answer, at the beginning of what a template writes after it.

    Raises:
        ValueError: the template does not end an answer with one of these.
    """
    # Some templates put white space between the answer and its end, some a token such as <|END_RESPONSE|>. A policy
    # writes all that follows the generation prompt up to the token that ends its turn, so that each answer has what was
    # sampled there itself, and nothing of it is appended. Where there is text, the next turn has begun.
    end = next((position for position, token in enumerate(ids) if token in eos_token_ids), None)
    added = tokenizer.added_tokens_decoder
    if end is None or tokenizer.decode([token for token in ids[:end] if token not in added]).strip():
        expected = sorted(tokenizer.convert_ids_to_tokens(list(eos_token_ids)))
        raise ValueError(
            f"next_turn_ids: after the assistant's answer the chat template writes {tokenizer.decode(ids)!r}, but an "
            f"answer ends with one of {expected}. Set the model's generation_config.eos_token_id to the token with "
            "which the template ends a turn."
        )
    return end + 1


def next_turn_ids(
    processing_class: ProcessingClass,
    message: str | Sequence[Mapping[str, Any]],
    *,
    eos_token_ids: Collection[int],
    **template: Any,
) -> list[int]:
    """Token ids of the user's next turn, from after the answer's end-of-turn token up to the generation prompt.

    Args:
        processing_class: processor or tokenizer with a chat template.
        message: text of the user's next message, or `messages` of `text_after_answer`; each image is one placeholder.
        eos_token_ids: the tokens that end an answer. The sampled answer ends with one of them, so the one that the
            template writes there is left out.
        **template: `chat_template`, used instead of the processor's own, and arguments of the template.

    Returns:
        The ids to append to an answer that ended.

    Raises:
        ValueError: the template does not show the answer unchanged, or does not end it with one of `eos_token_ids`.
    """
    tokenizer = tokenizer_of(processing_class)
    said = [{"role": "user", "content": message}] if isinstance(message, str) else message
    text = text_after_answer(processing_class, said, eos_token_ids=eos_token_ids, **template)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids[end_of_answer(tokenizer, ids, eos_token_ids) :]


def continued_ids(
    processing_class: ProcessingClass,
    answer_ids: Sequence[Sequence[int]],
    messages: Sequence[Mapping[str, Any]],
    *,
    eos_token_ids: Collection[int],
    **template: Any,
) -> list[int]:
    """Token ids after a prompt: each answer as sampled, followed by the user's turn.

    This is what a rollout of several turns trains on, so it is what a policy has to be asked outside training, too.

    Args:
        processing_class, eos_token_ids, **template: arguments of `next_turn_ids`.
        answer_ids: the answers, each with the token that ended it.

    Raises:
        ValueError: an answer did not end; or see `next_turn_ids`.
    """
    ids: list[int] = []
    for answer, message in zip(answer_ids, messages, strict=True):
        check_ended(answer, eos_token_ids)
        ids += [*answer, *next_turn_ids(processing_class, [message], eos_token_ids=eos_token_ids, **template)]
    return ids


def check_ended(answer: Sequence[int], eos_token_ids: Collection[int]) -> None:
    """Refuse an answer that was cut, which no turn can follow."""
    if not answer or answer[-1] not in eos_token_ids:
        raise ValueError(
            f"continued_ids: an answer ends with the token {list(answer[-1:])}, expected one of "
            f"{sorted(eos_token_ids)}: no turn can follow an answer that was cut."
        )


def warn_of_moved_images(processing_class: ProcessingClass, prompts: Iterable[Any]) -> None:
    """Warn once of prompts with images inside their text, if the chat template moves them before it.

    Args:
        processing_class: processor, or a tokenizer, which knows no images.
        prompts: messages, with `<image>` inside the strings of users.
    """
    if not isinstance(processing_class, ProcessorMixin) or not processing_class.chat_template:
        return
    parts = [{"type": "text", "text": "before"}, {"type": "image"}, {"type": "text", "text": "after"}]
    rendered = processing_class.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    if "beforeafter" in rendered and any(count_marks(one) for one in prompts if isinstance(one, list)):
        logger.warning_once(
            f"The chat template of this {type(processing_class).__name__} puts all images of a message before its "
            "text, so that the policy cannot see where they stand inside it. Fix: refer to them in words ('the second "
            "image'), or take a model of another family."
        )


def generation_prefix(processing_class: Any, **template_kwargs: Any) -> str:
    """The answer's prefix in the prompt: `<think>` if the chat template writes it, so that responses lack it."""
    tokenizer = tokenizer_of(processing_class)
    template = getattr(processing_class, "chat_template", None) or getattr(tokenizer, "chat_template", None)
    if template is None:
        return ""
    content: Any = [{"type": "text", "text": "?"}] if isinstance(processing_class, ProcessorMixin) else "?"
    prompt = processing_class.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True, **template_kwargs
    )
    return "<think>" if prompt.rstrip().endswith("<think>") else ""
