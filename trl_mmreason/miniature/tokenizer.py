"""Byte-level BPE tokenizers trained on the miniature's own text."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_VOCABULARY = 768  # tokens at most, special ones included


def train_tokenizer(
    corpus: Iterable[str], *, special_tokens: list[str], named_tokens: dict[str, str]
) -> PreTrainedTokenizerFast:
    """Train a tokenizer that can encode any text and splits numbers into single digits.

    Args:
        corpus: the strings that merges are learnt from.
        special_tokens: every special token of the family; they get the lowest ids, in this order.
        named_tokens: the roles that transformers knows by name, such as `eos_token`, `pad_token`, `image_token`.

    Returns:
        A left-padding tokenizer, as generation needs it.
    """
    tokenizer = Tokenizer(models.BPE())
    # Digits first: a model that reads numbers off an image must not meet "12" as one symbol and "1", "2" as others.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    known = {"eos_token", "pad_token", "bos_token", "unk_token"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        truncation_side="left",
        clean_up_tokenization_spaces=False,
        extra_special_tokens={name: token for name, token in named_tokens.items() if name not in known},
        **{name: token for name, token in named_tokens.items() if name in known},
    )
